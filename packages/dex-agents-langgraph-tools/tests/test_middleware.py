"""`DurableToolCallMiddleware`: nothing outside a session, deferred calls inside one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from dex_agents_langgraph.testing import ScriptedChatModel
from dex_agents_langgraph_tools import (
    DurableToolCallMiddleware,
    UnsupportedMiddlewareError,
    awrap_durable_tool_call,
    durable_middleware,
)


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def call(number: int) -> Any:
    return {"name": "double", "args": {"number": number}, "id": f"call-{number}"}


def script(messages: list[BaseMessage]) -> AIMessage:
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("done")
    return AIMessage("", tool_calls=[call(1), call(2)])


def build_agent(middleware: Any) -> Any:
    return create_agent(ScriptedChatModel(script=script), [double], middleware=middleware)


QUESTION = {"messages": [{"role": "user", "content": "double 1 and 2"}]}


def contents(state: Any) -> list[str]:
    return [str(message.content) for message in state["messages"]]


async def test_outside_a_session_an_agent_runs_its_tools_in_place(invoke: Any) -> None:
    for middleware in ([], durable_middleware()):
        state = await invoke(build_agent(middleware), QUESTION)
        assert contents(state) == ["double 1 and 2", "", "2", "4", "done"]


async def test_inside_a_session_every_call_is_an_interrupt_of_its_own(defer_calls: Any) -> None:
    graph = defer_calls(build_agent(durable_middleware()))
    interrupts = await graph.start(QUESTION)
    calls = [each["id"] for raised in interrupts for each in raised.value["calls"]]
    assert calls == ["call-1", "call-2"]
    assert await graph.resume(interrupts, {"call-1": "two", "call-2": "four"}) == []
    assert contents(graph.state.values) == ["double 1 and 2", "", "two", "four", "done"]


class Watcher(AgentMiddleware[Any, Any, Any]):
    """Notes the tool calls that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        self.seen.append(str(request.tool_call["id"]))
        return await handler(request)


async def test_middleware_before_it_sees_every_call_and_later_middleware_none(
    defer_calls: Any,
) -> None:
    class LaterWatcher(Watcher):
        pass

    before, after = Watcher(), LaterWatcher()
    graph = defer_calls(build_agent([before, DurableToolCallMiddleware(), after]))
    interrupts = await graph.start(QUESTION)
    await graph.resume(interrupts, {"call-1": "two", "call-2": "four"})
    assert (set(before.seen), after.seen) == ({"call-1", "call-2"}, [])


async def test_a_plain_tool_node_with_the_wrapper_defers_one_call_at_a_time(
    defer_calls: Any,
) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([double], awrap_tool_call=awrap_durable_tool_call))
    builder.add_edge(START, "tools")
    graph = defer_calls(builder.compile())
    interrupts = await graph.start({"messages": [AIMessage("", tool_calls=[call(1), call(2)])]})
    assert [each.value["calls"][0]["id"] for each in interrupts] == ["call-1"]
    interrupts = await graph.resume(interrupts, {"call-1": "two"})
    assert [each.value["calls"][0]["id"] for each in interrupts] == ["call-2"]
    assert await graph.resume(interrupts, {"call-2": "four"}) == []
    assert contents(graph.state.values) == ["", "two", "four"]


class Quiet(AgentMiddleware[Any, Any, Any]):
    """Wraps nothing."""


def test_durable_middleware_puts_the_durable_one_first() -> None:
    quiet = Quiet()
    first, second = durable_middleware(quiet)
    assert isinstance(first, DurableToolCallMiddleware)
    assert second is quiet


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Watcher(), "its tool wrapper would not run"),
        (HumanInTheLoopMiddleware({"double": True}), "requires_approval=True"),
        (DurableToolCallMiddleware(), "durable_middleware adds it"),
    ],
)
def test_durable_middleware_refuses_what_cannot_work(other: Any, reason: str) -> None:
    with pytest.raises(UnsupportedMiddlewareError, match=reason) as caught:
        durable_middleware(Quiet(), other)
    assert caught.value.middleware == other.name
