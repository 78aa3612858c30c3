"""Owns the tool node of custom graphs: one interrupt for all calls of a model message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode

from dex_agents_langgraph_tools.deferral import defer, is_deferring


class DurableToolNode(ToolNode):
    """A ToolNode whose calls a durable session runs. Outside a session it is a ToolNode."""

    def __init__(
        self, tools: Sequence[BaseTool | Callable[..., Any]], *, messages_key: str, **options: Any
    ) -> None:
        super().__init__(tools, messages_key=messages_key, **options)
        self._own_messages_key = messages_key

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Defer the calls inside a session; run them in place elsewhere."""
        if not is_deferring():
            return super().invoke(input, config, **kwargs)
        return self._defer(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Defer the calls inside a session; run them in place elsewhere."""
        if not is_deferring():
            return await super().ainvoke(input, config, **kwargs)
        return self._defer(input)

    def _defer(self, input: Any) -> Any:
        calls, messages_only = self._calls_in(input)
        if not calls:
            return [] if messages_only else {self._own_messages_key: []}
        results = defer(calls)
        return results if messages_only else {self._own_messages_key: results}

    def _calls_in(self, input: Any) -> tuple[list[ToolCall], bool]:
        """Return the calls of the last model message, and whether `input` is messages only."""
        if isinstance(input, dict) and input.get("__type") == "tool_call_with_context":
            return [input["tool_call"]], False
        if isinstance(input, list) and input and _is_tool_call(input[-1]):
            return list(input), False
        if isinstance(input, list):
            messages, messages_only = input, True
        elif isinstance(input, dict):
            messages, messages_only = input.get(self._own_messages_key) or [], False
        else:
            messages, messages_only = getattr(input, self._own_messages_key, None) or [], False
        last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
        if last is None:
            raise ValueError("No AIMessage found in input")  # as ToolNode says it
        return list(last.tool_calls), messages_only


def _is_tool_call(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "tool_call"


def durable_tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]],
    *,
    messages_key: str = "messages",
    **options: Any,
) -> DurableToolNode:
    """Make the tool node of a graph that runs as a durable session.

    Args:
        tools: as for ToolNode.
        messages_key: the state's key of the message list.
        options: further arguments of ToolNode; they apply outside a session.
    """
    return DurableToolNode(tools, messages_key=messages_key, **options)
