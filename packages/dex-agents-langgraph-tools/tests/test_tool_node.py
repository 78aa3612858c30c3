"""`durable_tool_node`: a ToolNode outside a session, one interrupt for all calls inside one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send
from pydantic import BaseModel

from dex_agents_langgraph_tools import (
    DEFERRED_CALLS,
    InvalidToolCallError,
    ResultsOutOfOrderError,
    deferred_calls,
    durable_tool_node,
)


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool
def refuse(number: int) -> int:
    """Fail on purpose."""
    raise ToolException(f"not {number}")


TOOLS = [double, refuse]


def call(number: Any, name: str = "double", call_id: str | None = None) -> Any:
    return {
        "name": name,
        "args": {"number": number},
        "id": call_id or f"call-{number}",
        "type": "tool_call",
    }


def asking(*calls: Any) -> AIMessage:
    return AIMessage("", tool_calls=list(calls))


@dataclass
class DataclassState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []


def graph_of(node: Any, schema: Any = MessagesState) -> Any:
    builder = StateGraph(schema)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile()


def sending(node: Any, *calls: Any) -> Any:
    """Build a graph that sends each call to the node by itself."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_conditional_edges(
        START, lambda state: [Send("tools", [each]) for each in calls], ["tools"]
    )
    return builder.compile()


def answers(state: Any) -> list[tuple[Any, ...]]:
    messages = state["messages"] if isinstance(state, dict) else state.messages
    return [
        (m.content, m.name, m.tool_call_id, m.status)
        for m in messages
        if isinstance(m, ToolMessage)
    ]


@pytest.mark.parametrize("schema", [MessagesState, DataclassState, PydanticState])
@pytest.mark.parametrize(
    ("calls", "options"),
    [
        ([call(1)], {}),
        ([call(1), call(2)], {}),
        ([call(1, "made_up")], {}),
        ([call("one")], {}),
        ([call(1, "refuse")], {"handle_tool_errors": True}),
        ([call(1, "refuse"), call(2)], {"handle_tool_errors": "it failed"}),
    ],
    ids=["single", "parallel", "unknown-tool", "invalid", "tool-exception", "handled"],
)
async def test_outside_a_session_it_answers_as_a_tool_node_does(
    invoke: Any, schema: Any, calls: Any, options: Any
) -> None:
    plain = await invoke(
        graph_of(ToolNode(TOOLS, **options), schema), {"messages": [asking(*calls)]}
    )
    durable = await invoke(
        graph_of(durable_tool_node(TOOLS, **options), schema), {"messages": [asking(*calls)]}
    )
    assert answers(durable) == answers(plain) != []


async def test_outside_a_session_it_raises_what_a_tool_node_raises(invoke: Any) -> None:
    for node in (ToolNode(TOOLS), durable_tool_node(TOOLS)):
        with pytest.raises(ToolException, match="not 1"):
            await invoke(graph_of(node), {"messages": [asking(call(1, "refuse"))]})


async def test_outside_a_session_it_takes_calls_sent_one_by_one(invoke: Any) -> None:
    graph = sending(durable_tool_node(TOOLS), call(1), call(2))
    state = await invoke(graph, {"messages": []})
    assert [answer[0] for answer in answers(state)] == ["2", "4"]


@pytest.mark.parametrize("schema", [MessagesState, DataclassState, PydanticState])
async def test_inside_a_session_all_calls_of_a_message_are_one_interrupt(
    defer_calls: Any, schema: Any
) -> None:
    graph = defer_calls(graph_of(durable_tool_node(TOOLS), schema))
    interrupts = await graph.start({"messages": [asking(call(1), call(2, "made_up"))]})
    assert [each.value for each in interrupts] == [
        {
            "type": DEFERRED_CALLS,
            "calls": [
                {"id": "call-1", "name": "double", "args": {"number": 1}},
                {"id": "call-2", "name": "made_up", "args": {"number": 2}},
            ],
        }
    ]
    assert deferred_calls(interrupts[0].value) == interrupts[0].value["calls"]
    assert await graph.resume(interrupts, {"call-1": "two", "call-2": "four"}) == []
    assert graph.run.delivered == {"call-1", "call-2"}
    assert answers(graph.state.values) == [
        ("two", "double", "call-1", "success"),
        ("four", "made_up", "call-2", "success"),
    ]


async def test_inside_a_session_calls_sent_one_by_one_are_an_interrupt_each(
    defer_calls: Any,
) -> None:
    graph = defer_calls(sending(durable_tool_node(TOOLS), call(1), call(2)))
    interrupts = await graph.start({"messages": []})
    assert len({each.id for each in interrupts}) == 2
    assert await graph.resume(interrupts, {"call-1": "a", "call-2": "b"}) == []
    assert [answer[0] for answer in answers(graph.state.values)] == ["a", "b"]


async def test_another_messages_key_is_read_and_written(defer_calls: Any, invoke: Any) -> None:
    class State(MessagesState):
        dialogue: Annotated[list[AnyMessage], add_messages]

    compiled = graph_of(durable_tool_node(TOOLS, messages_key="dialogue"), State)
    state = await invoke(compiled, {"dialogue": [asking(call(1))]})
    assert state["dialogue"][-1].content == "2"
    graph = defer_calls(compiled)
    interrupts = await graph.start({"dialogue": [asking(call(1))]})
    await graph.resume(interrupts, {"call-1": "two"})
    assert graph.state.values["dialogue"][-1].content == "two"


async def test_a_message_without_calls_defers_nothing(defer_calls: Any) -> None:
    graph = defer_calls(graph_of(durable_tool_node(TOOLS)))
    assert await graph.start({"messages": [AIMessage("hello")]}) == []
    assert len(graph.state.values["messages"]) == 1


@pytest.mark.parametrize("call_id", ["x/y", ""])
async def test_calls_with_unusable_ids_are_refused(defer_calls: Any, call_id: str) -> None:
    graph = defer_calls(graph_of(durable_tool_node(TOOLS)))
    bad = {**call(1), "id": call_id}
    with pytest.raises(InvalidToolCallError, match="must be non-empty and contain no '/'"):
        await graph.start({"messages": [asking(bad)]})
    assert isinstance(graph.run.error, InvalidToolCallError)


async def test_results_of_other_calls_are_refused(defer_calls: Any) -> None:
    graph = defer_calls(graph_of(durable_tool_node(TOOLS)))
    (raised,) = await graph.start({"messages": [asking(call(1))]})
    raised.value["calls"][0]["id"] = "other"
    with pytest.raises(ResultsOutOfOrderError, match=r"without results of calls \['call-1'\]"):
        await graph.resume([raised], {"other": "two"})


def test_a_value_of_anothers_interrupt_is_none_of_ours() -> None:
    assert deferred_calls("what now?") is None
    assert deferred_calls({"type": "question", "calls": []}) is None
