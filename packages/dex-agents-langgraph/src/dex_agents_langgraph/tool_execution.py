"""Owns running one tool call outside the graph, once, and saying what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ValidationError

from dex_agents import InvalidArgumentsError, ToolCallContext, ToolCallFailedError
from dex_agents_langgraph.idempotency import CONFIG_KEY
from dex_agents_langgraph.messages import content_text


def validate_arguments(tool: BaseTool, arguments: Mapping[str, Any]) -> None:
    """Check arguments against the tool's schema.

    Raises:
        InvalidArgumentsError: they do not match; the text is what the model gets.
    """
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return
    try:
        schema.model_validate(dict(arguments))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in each['loc']) or 'arguments'}: {each['msg']}"
            for each in error.errors()
        )
        raise InvalidArgumentsError(
            f"the arguments of tool {tool.name!r} do not match its schema: {problems}"
        ) from None


async def execute_tool(tool: BaseTool, context: ToolCallContext) -> str:
    """Call the tool's own `ainvoke` once and return the text the model gets.

    Raises:
        InvalidArgumentsError: the body was not entered.
        ToolCallFailedError: the tool says that it failed.
        Exception: whatever else its body raised.
    """
    call = context.call
    validate_arguments(tool, call.arguments)
    tool_call = {
        "name": tool.name,
        "args": dict(call.arguments),
        "id": call.tool_call_id,
        "type": "tool_call",
    }
    try:
        result = await tool.ainvoke(tool_call, build_config(context.config, context))
    except ToolException as error:
        raise ToolCallFailedError(str(error)) from None
    if not isinstance(result, ToolMessage):
        raise ToolCallFailedError(
            f"tool {tool.name!r} returned {type(result).__name__}, which only works inside a graph"
        )
    text = content_text(result.content)
    if result.status == "error":
        raise ToolCallFailedError(text)
    return text


def build_config(
    config: Mapping[str, Any], context: ToolCallContext | None = None
) -> RunnableConfig:
    """Return the session's configuration as LangChain takes it.

    Args:
        config: the session's ``configurable``, ``tags`` and ``metadata``, JSON data.
        context: the call, whose idempotency key is added.
    """
    configurable = dict(config.get("configurable") or {})
    if context is not None:
        configurable[CONFIG_KEY] = context.idempotency_key
    return {
        "configurable": configurable,
        "tags": list(config.get("tags") or []),
        "metadata": dict(config.get("metadata") or {}),
    }
