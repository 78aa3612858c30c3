"""Owns the middleware that makes a `create_agent` agent's tool calls durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.middleware.types import AgentState
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from dex_agents_langgraph_tools.deferral import defer, is_deferring
from dex_agents_langgraph_tools.errors import UnsupportedMiddlewareError

ToolHandler = Callable[[ToolCallRequest], "ToolMessage | Command[Any]"]
AsyncToolHandler = Callable[[ToolCallRequest], Awaitable["ToolMessage | Command[Any]"]]


async def awrap_durable_tool_call(
    request: ToolCallRequest, handler: AsyncToolHandler
) -> ToolMessage | Command[Any]:
    """Defer the call inside a durable session; run it in place elsewhere.

    Give it to a ToolNode of your own as ``awrap_tool_call``. The calls of one task are then
    deferred one at a time; `durable_tool_node` defers them together.
    """
    if not is_deferring():
        return await handler(request)
    return defer([request.tool_call])[0]


class DurableToolCallMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Makes every tool call of an agent run as a Step of its durable session.

    Put it first in `create_agent`'s middleware: what stands after it does not see tool calls inside
    a session. Outside a session it does nothing.
    """

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: ToolHandler
    ) -> ToolMessage | Command[Any]:
        """Defer the call inside a durable session; run it in place elsewhere."""
        if not is_deferring():
            return handler(request)
        return defer([request.tool_call])[0]

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: AsyncToolHandler
    ) -> ToolMessage | Command[Any]:
        """Defer the call inside a durable session; run it in place elsewhere."""
        return await awrap_durable_tool_call(request, handler)


def durable_middleware(*others: AgentMiddleware[Any, Any, Any]) -> list[Any]:
    """Return `DurableToolCallMiddleware` and `others`, in an order that works.

    Raises:
        UnsupportedMiddlewareError: one of `others` wraps tool calls, which it would never see, or
            raises interrupts of its own.
    """
    for other in others:
        if isinstance(other, HumanInTheLoopMiddleware):
            raise UnsupportedMiddlewareError(
                other.name,
                "it raises interrupts that a session cannot answer; use "
                "ToolPolicy(..., requires_approval=True) and resolve_interrupt",
            )
        if isinstance(other, DurableToolCallMiddleware):
            raise UnsupportedMiddlewareError(
                other.name, "durable_middleware adds it; leave it out of the others"
            )
        if _wraps_tool_calls(other):
            raise UnsupportedMiddlewareError(
                other.name,
                "its tool wrapper would not run, because tools run outside the graph; put what "
                "it does into the tool, or list it before DurableToolCallMiddleware yourself",
            )
    return [DurableToolCallMiddleware(), *others]


def _wraps_tool_calls(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    kind = type(middleware)
    return (
        kind.wrap_tool_call is not AgentMiddleware.wrap_tool_call
        or kind.awrap_tool_call is not AgentMiddleware.awrap_tool_call
    )
