"""Owns running one tool call outside the graph, once, and saying what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ValidationError

from dex_agents import InvalidArgumentsError, ToolCallContext, ToolCallFailedError
from dex_agents_langgraph.errors import LangGraphRunError
from dex_agents_langgraph.idempotency import CONFIG_KEY
from dex_agents_langgraph.messages import content_text

# What LangGraph itself keeps in ``configurable``.
_RESERVED = ("__pregel_", "checkpoint_")


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
    config = build_config(context.config, context.session_id, context.idempotency_key)
    try:
        result = await tool.ainvoke(tool_call, config)
    except ToolException as error:
        raise ToolCallFailedError(str(error)) from None
    if not isinstance(result, ToolMessage):
        # The body has run, so this is no failure of which nothing happened.
        raise LangGraphRunError(
            f"tool {tool.name!r} returned {type(result).__name__!r}, which only works inside a "
            f"graph; return text"
        )
    text = content_text(result.content)
    if result.status == "error":
        raise ToolCallFailedError(text)
    return text


def build_config(
    config: Mapping[str, Any], session_id: str, idempotency_key: str | None = None
) -> RunnableConfig:
    """Return the session's configuration as LangChain takes it.

    Args:
        config: the session's ``configurable``, ``tags`` and ``metadata``, JSON data. Whoever starts
            a session chooses it, so keys that steer LangGraph are left out.
        session_id: the thread id, unless the configuration has one.
        idempotency_key: of the call a tool runs for.
    """
    configurable = {
        key: value
        for key, value in dict(config.get("configurable") or {}).items()
        if key != CONFIG_KEY and not key.startswith(_RESERVED)
    }
    configurable.setdefault("thread_id", session_id)
    if idempotency_key is not None:
        configurable[CONFIG_KEY] = idempotency_key
    return {
        "configurable": configurable,
        "tags": list(config.get("tags") or []),
        "metadata": dict(config.get("metadata") or {}),
    }
