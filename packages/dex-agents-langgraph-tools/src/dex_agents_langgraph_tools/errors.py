"""Owns the exceptions of this package: one root, the caller's mistakes, failures of a run."""

from __future__ import annotations

from collections.abc import Sequence


class DurableToolError(Exception):
    """Root of every exception raised by `dex_agents_langgraph_tools`."""


class DurableToolUsageError(DurableToolError):
    """The agent or graph was put together in a way that cannot run durably."""


class UnsupportedMiddlewareError(DurableToolUsageError):
    """A middleware cannot work beside a durable session's tool calls.

    Attributes:
        middleware: its name.
    """

    def __init__(self, middleware: str, reason: str) -> None:
        super().__init__(f"middleware {middleware!r} cannot be used: {reason}")
        self.middleware = middleware


class DurableToolRunError(DurableToolError):
    """A graph broke a rule of durable sessions while it ran."""


class ToolBlockedError(DurableToolRunError):
    """A tool was about to run inside a model call.

    Raised in the place of the tool's body, which is not entered.

    Attributes:
        tool_name: the tool.
    """

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"tool {tool_name!r} was started inside a model call, where it would not be durable; "
            f"use DurableToolCallMiddleware first in create_agent's middleware, or "
            f"durable_tool_node in a graph, and do not call tools from other nodes"
        )
        self.tool_name = tool_name


class InvalidToolCallError(DurableToolRunError):
    """The model's tool call has no usable id.

    Attributes:
        tool_name: the tool it calls.
    """

    def __init__(self, tool_name: str, call_id: str | None) -> None:
        super().__init__(
            f"the model called tool {tool_name!r} with id {call_id!r}; ids must be non-empty and "
            f"contain no '/'"
        )
        self.tool_name = tool_name


class ResultsOutOfOrderError(DurableToolRunError):
    """An interrupt was resumed with the results of other calls than it was raised for.

    Attributes:
        call_ids: the calls without a result.
    """

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(
            f"the graph was resumed without results of calls {list(call_ids)!r}; a tool wrapper "
            f"that awaits before awrap_durable_tool_call reorders a task's interrupts: put "
            f"awrap_durable_tool_call outermost"
        )
        self.call_ids = tuple(call_ids)
