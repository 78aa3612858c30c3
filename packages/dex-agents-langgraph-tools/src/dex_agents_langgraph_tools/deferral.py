"""Owns the hand-over of tool calls from a graph to a durable session, and of results back.

Inside a session a tool call becomes a LangGraph interrupt with a `DeferredCalls` value; the
session runs the calls and resumes the graph with a `ToolResult` for each. Outside a session nothing
of this happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypedDict

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.types import interrupt

from dex_agents_langgraph_tools.errors import (
    DurableToolRunError,
    InvalidToolCallError,
    ResultsOutOfOrderError,
)

DEFERRED_CALLS = "dex_deferred_tool_calls"


class DeferredCall(TypedDict):
    """One call as it stands in an interrupt's value."""

    id: str
    name: str
    args: dict[str, Any]


class DeferredCalls(TypedDict):
    """The value of an interrupt raised for tool calls."""

    type: str
    calls: list[DeferredCall]


class ToolResult(TypedDict):
    """What became of one call, as the graph is resumed with it.

    ``status`` is ``success`` or ``error``, as in a ToolMessage.
    """

    id: str
    content: str
    status: str


@dataclass
class DeferringRun:
    """One model call of a durable session, while its graph runs.

    Attributes:
        delivered: ids of the calls whose results the graph has taken.
        is_probe: the graph is only asked whether it would defer.
        has_deferred: a call was deferred, or would have been.
        error: a rule of durable sessions was broken. A graph may swallow the exception; this it
            cannot.
    """

    delivered: set[str] = field(default_factory=set)
    is_probe: bool = False
    has_deferred: bool = False
    error: DurableToolRunError | None = None

    def fail(self, error: DurableToolRunError) -> DurableToolRunError:
        """Remember `error`, the first one only, and return it to be raised."""
        self.error = self.error or error
        return error


class ProbeAnswered(BaseException):
    """Ends a probe: the tool node defers its calls. Not an Exception, so that few catch it."""


_run: ContextVar[DeferringRun | None] = ContextVar("dex_deferring_run", default=None)


@contextmanager
def deferring_run(run: DeferringRun) -> Iterator[DeferringRun]:
    """Defer the tool calls of everything that runs inside, in this task and its children."""
    token = _run.set(run)
    try:
        yield run
    finally:
        _run.reset(token)


def is_deferring() -> bool:
    """Tell whether tool calls are deferred here."""
    return _run.get() is not None


def defer(calls: Sequence[ToolCall]) -> list[ToolMessage]:
    """Raise one interrupt for `calls`; once resumed, return their results as messages.

    Raises:
        InvalidToolCallError: a call has no id, or one with ``/``.
        ResultsOutOfOrderError: the results do not belong to these calls.
    """
    run = _run.get()
    assert run is not None
    run.has_deferred = True
    if run.is_probe:
        raise ProbeAnswered
    deferred: list[DeferredCall] = []
    for call in calls:
        call_id = call["id"]
        if not call_id or "/" in call_id:
            raise run.fail(InvalidToolCallError(call["name"], call_id))
        deferred.append({"id": call_id, "name": call["name"], "args": dict(call["args"])})
    results = interrupt(DeferredCalls(type=DEFERRED_CALLS, calls=deferred))
    return _take_results(run, deferred, results)


def deferred_calls(value: object) -> list[DeferredCall] | None:
    """Return the calls of an interrupt's value, or None if it is not one of ours."""
    if isinstance(value, Mapping) and value.get("type") == DEFERRED_CALLS:
        return list(value["calls"])
    return None


def _take_results(
    run: DeferringRun, deferred: list[DeferredCall], results: object
) -> list[ToolMessage]:
    by_id = {}
    if isinstance(results, list):
        by_id = {result["id"]: result for result in results if isinstance(result, Mapping)}
    missing = [call["id"] for call in deferred if call["id"] not in by_id]
    if missing:
        raise run.fail(ResultsOutOfOrderError(missing))
    messages = []
    for call in deferred:
        result = by_id[call["id"]]
        run.delivered.add(call["id"])
        messages.append(
            ToolMessage(
                content=result["content"],
                name=call["name"],
                tool_call_id=call["id"],
                status=result["status"],
            )
        )
    return messages
