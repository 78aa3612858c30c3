"""Model calls of a graph outside a session's Steps: events, messages, results, broken rules."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send, interrupt
from pydantic import BaseModel

from dex_agents import ToolCallStatus, TurnFinished
from dex_agents_langgraph import (
    LangGraphRunError,
    awrap_durable_tool_call,
    durable_middleware,
    durable_tool_node,
)
from dex_agents_langgraph.testing import ScriptedChatModel
from dex_agents_langgraph_tools import InvalidToolCallError, ToolBlockedError
from dex_agents_tool_policy import ToolEffect, ToolPolicy

ENTERED: list[str] = []
USAGE: Any = {
    "input_tokens": 7,
    "output_tokens": 3,
    "total_tokens": 10,
    "input_token_details": {"cache_read": 2},
    "output_token_details": {"reasoning": 1},
}


@tool
def lookup(item: str) -> str:
    """Look an item up."""
    ENTERED.append(item)
    return f"found {item}"


def call(item: str, name: str = "lookup", call_id: str | None = None) -> Any:
    return {"name": name, "args": {"item": item}, "id": call_id or f"call-{item}"}


def script(messages: list[BaseMessage]) -> AIMessage:
    """Look up every word of the question, then say what was found."""
    question = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    if not isinstance(messages[-1], ToolMessage):
        calls = [call(word) for word in str(question.content).split()]
        return AIMessage("One moment", tool_calls=calls, usage_metadata=USAGE)
    after = messages[messages.index(question) :]
    results = [str(m.content) for m in after if isinstance(m, ToolMessage)]
    return AIMessage(" | ".join(results), usage_metadata=USAGE)


def build_graph(
    schema: Any = MessagesState,
    *,
    answer: Any = script,
    tool_node: Any = None,
    key: str = "messages",
    fan_out: bool = False,
    sync: bool = False,
    **model: Any,
) -> Any:
    """Build the usual loop of a model and its tools."""
    chat = ScriptedChatModel(script=answer, **model)

    async def call_model(state: Any) -> Any:
        messages = state[key] if isinstance(state, dict) else getattr(state, key)
        return {key: [await chat.ainvoke(messages)]}

    def call_model_in_a_thread(state: Any) -> Any:
        return {key: [chat.invoke(state[key])]}

    def send_each(state: Any) -> Any:
        calls = state[key][-1].tool_calls
        return [Send("tools", {key: [AIMessage("", tool_calls=[each])]}) for each in calls]

    builder = StateGraph(schema)
    builder.add_node("agent", call_model_in_a_thread if sync else call_model)
    builder.add_node("tools", tool_node or durable_tool_node([lookup], messages_key=key))
    builder.add_edge(START, "agent")
    if fan_out:
        builder.add_conditional_edges("agent", send_each, ["tools"])
    else:
        builder.add_conditional_edges(
            "agent", lambda state: tools_condition(state, messages_key=key)
        )
    builder.add_edge("tools", "agent")
    return builder.compile()


def build_agent(**model: Any) -> Any:
    return create_agent(
        ScriptedChatModel(script=script, **model), [lookup], middleware=durable_middleware()
    )


@dataclass
class DataclassState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []


class RenamedState(MessagesState):
    dialogue: Annotated[list[AnyMessage], add_messages]


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (build_agent, {}),
        (lambda: build_agent(disable_streaming=True), {}),
        (build_graph, {}),
        (lambda: build_graph(DataclassState), {}),
        (lambda: build_graph(PydanticState), {}),
        (lambda: build_graph(RenamedState, key="dialogue"), {"messages_key": "dialogue"}),
        (lambda: build_graph(fan_out=True), {}),
        (lambda: build_graph(sync=True), {}),
    ],
    ids=["agent", "not-streaming", "dict", "dataclass", "pydantic", "renamed", "send", "sync"],
)
async def test_calls_are_deferred_together_and_their_results_go_on(
    converse: Any, build: Callable[[], Any], options: Any
) -> None:
    ENTERED.clear()
    conversation = await converse(build, **options)
    asked = await conversation.ask("a b")
    assert [(c.tool_call_id, dict(c.arguments)) for c in asked.calls] == [
        ("call-a", {"item": "a"}),
        ("call-b", {"item": "b"}),
    ]
    assert ENTERED == []
    if build is build_graph:
        assert asked.usage.cache_read_tokens == 2
    conversation.runner = (await converse(build, **options)).runner  # another process, so to speak
    await conversation.finish(asked, {"call-a": "A", "call-b": "B"})
    assert conversation.transcript == [
        ("user", "a b"),
        ("assistant", "One moment"),
        ("tool", "A"),
        ("tool", "B"),
        ("assistant", "A | B"),
    ]
    text = [data for kind, data in conversation.emitter.events if kind == "text"]
    assert "".join(text) == "One momentA | B"
    kinds = " ".join(kind for kind, _ in conversation.emitter.events)
    assert re.fullmatch("started (text )+finished started (text )+finished", kinds)
    # What follows a turn gets the whole conversation and stores only what is new.
    asked = await conversation.ask("c")
    await conversation.finish(asked, {"call-c": "C"})
    assert len(conversation.transcript) == 9


async def test_a_wrapped_tool_node_defers_its_calls_one_at_a_time(converse: Any) -> None:
    node = ToolNode([lookup], awrap_tool_call=awrap_durable_tool_call)
    conversation = await converse(build_graph(tool_node=node))
    first = await conversation.ask("a b")
    assert [each.tool_call_id for each in first.calls] == ["call-a"]
    second = await conversation.finish(first, {"call-a": "A"})
    assert [each.tool_call_id for each in second.calls] == ["call-b"]
    await conversation.finish(second, {"call-b": "B"})
    assert conversation.transcript[-1] == ("assistant", "A | B")


async def test_reasoning_and_text_on_the_last_piece_are_streamed_in_order(converse: Any) -> None:
    pieces = [
        AIMessageChunk(content=[{"type": "reasoning", "reasoning": "hm", "index": 0}]),
        AIMessageChunk(content=[{"type": "text", "text": "yes", "index": 1}]),
        AIMessageChunk(
            content=[{"type": "text", "text": " sir", "index": 1}],
            usage_metadata=USAGE,
            chunk_position="last",
        ),
    ]
    conversation = await converse(build_graph(answer=lambda messages: pieces))
    conversation.say("hi")
    result = await conversation.call_model()
    kinds = [kind for kind, _ in conversation.emitter.events]
    assert kinds == ["started", "reasoning", "text", "text", "finished"]
    usage = conversation.emitter.events[-1][1]
    assert (usage.input_tokens, usage.output_tokens) == (7, 3)
    assert (usage.cache_read_tokens, usage.reasoning_tokens) == (2, 1)
    assert isinstance(result, TurnFinished) and result.usage == usage
    assert result.messages[0].text == "yes sir"


async def test_internal_model_calls_of_middleware_are_not_shown(converse: Any) -> None:
    model = ScriptedChatModel(script=lambda messages: AIMessage("said"))

    async def think(state: MessagesState) -> Any:
        quiet: Any = {"metadata": {"lc_source": "summarization"}}
        await model.ainvoke(state["messages"], quiet)
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    conversation = await converse(builder.compile())
    conversation.say("hi")
    await conversation.call_model()
    assert [data for kind, data in conversation.emitter.events if kind == "text"] == ["said"]


async def test_results_that_are_no_success_reach_the_model_as_errors(converse: Any) -> None:
    conversation = await converse(build_graph())
    asked = await conversation.ask("a")
    await conversation.finish(asked, {"call-a": "no"}, ToolCallStatus.REJECTED)
    stored = json.loads(conversation.messages[2].framework_item)["data"]
    assert (stored["status"], stored["content"]) == ("error", "no")


async def test_a_message_edited_in_place_does_not_change_what_is_stored(converse: Any) -> None:
    def answer(messages: list[BaseMessage]) -> AIMessage:
        first = messages[0]
        first.content = "edited"
        return script([HumanMessage("a"), *messages[1:]])

    conversation = await converse(build_graph(answer=answer))
    asked = await conversation.ask("secret")
    # The edited message no longer is the stored one, so it is part of the run state.
    body = json.loads(conversation.run_state.body)
    (items,) = (ns["message_channels"]["messages"] for ns in body["namespaces"])
    assert [sorted(item) for item in items] == [["value"], ["value"]]
    await conversation.finish(asked, {"call-a": "A"})
    assert conversation.transcript[0] == ("user", "secret")
    assert len(conversation.transcript) == 4


@pytest.mark.parametrize("build", [build_agent, build_graph])
async def test_a_run_state_names_stored_messages_instead_of_holding_them(
    converse: Any, build: Callable[[], Any]
) -> None:
    short = await converse(build)
    await short.ask("a")
    long = await converse(build)
    for _ in range(5):
        asked = await long.ask("a")
        await long.finish(asked, {"call-a": "A" * 5000})
    await long.ask("a")
    assert abs(len(long.run_state.body) - len(short.run_state.body)) < 200
    body = json.loads(long.run_state.body)
    assert [sorted(i) for i in body["namespaces"][0]["message_channels"]["messages"]] == [
        ["range"],
        ["value"],
    ]


async def test_nodes_and_their_models_get_the_sessions_configuration(converse: Any) -> None:
    seen: list[RunnableConfig] = []

    async def look(state: MessagesState, config: RunnableConfig) -> Any:
        seen.append(config)
        return {"messages": [AIMessage("ok")]}

    builder = StateGraph(MessagesState)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    conversation = await converse(builder.compile())
    conversation.config = {
        "configurable": {"user": "ann", "checkpoint_id": "x", "__pregel_resuming": True},
        "tags": ["vip"],
        "metadata": {"plan": "gold"},
    }
    conversation.say("hi")
    await conversation.call_model()
    assert seen[0]["configurable"]["user"] == "ann"
    assert seen[0]["configurable"]["thread_id"] == "session"
    assert "vip" in seen[0]["tags"]
    assert seen[0]["metadata"]["plan"] == "gold"


async def test_calls_that_the_graph_never_ran_get_a_result_in_the_stored_history(
    converse: Any,
) -> None:
    async def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[call("a")])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    conversation = await converse(builder.compile())
    conversation.say("hi")
    await conversation.call_model()
    assert conversation.transcript[-1] == (
        "tool",
        "The tool was not called: the turn ended before.",
    )


async def test_results_that_do_not_reach_the_graph_fail_the_call(converse: Any) -> None:
    conversation = await converse(build_graph())
    asked = await conversation.ask("a")

    async def call_model(state: MessagesState) -> Any:
        return {"messages": [AIMessage("hello")]}

    builder = StateGraph(MessagesState)
    builder.add_node("renamed", call_model)
    builder.add_node("tool_runner", durable_tool_node([lookup]))
    builder.add_edge(START, "renamed")
    conversation.runner = (await converse(builder.compile())).runner
    with pytest.raises(LangGraphRunError, match=r"\['call-a'\] did not reach the graph"):
        await conversation.finish(asked, {"call-a": "A"})


async def test_an_interrupt_of_the_graphs_own_fails_the_call(converse: Any) -> None:
    def ask_somebody(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("what now?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask_somebody)
    builder.add_edge(START, "ask")
    conversation = await converse(builder.compile())
    conversation.say("hi")
    with pytest.raises(LangGraphRunError, match="an interrupt of its own"):
        await conversation.call_model()


def bad_id(messages: list[BaseMessage]) -> AIMessage:
    return AIMessage("", tool_calls=[call("a", call_id="x/y")])


async def test_a_bad_tool_call_id_fails_the_call_even_if_the_node_swallows_it(
    converse: Any,
) -> None:
    node = ToolNode([lookup], awrap_tool_call=awrap_durable_tool_call, handle_tool_errors=True)
    answers = iter([bad_id([]), AIMessage("never mind")])
    graph = build_graph(answer=lambda messages: next(answers), tool_node=node)
    conversation = await converse(graph)
    conversation.say("hi")
    with pytest.raises(InvalidToolCallError, match="contain no '/'"):
        await conversation.call_model()


async def run_in_node(state: MessagesState) -> Any:
    await lookup.ainvoke({"item": "a"}, {"callbacks": []})


def run_in_thread(state: MessagesState) -> Any:
    lookup.invoke({"item": "a"})


async def swallow(state: MessagesState) -> Any:
    try:
        await asyncio.to_thread(lookup.invoke, {"item": "a"})
    except Exception:
        return {"messages": [AIMessage("nothing happened")]}


@pytest.mark.parametrize("node", [run_in_node, run_in_thread, swallow])
async def test_a_tool_started_inside_a_model_call_is_blocked(
    converse: Any, node: Callable[..., Any]
) -> None:
    ENTERED.clear()
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    conversation = await converse(builder.compile())
    conversation.say("hi")
    with pytest.raises(ToolBlockedError, match="'lookup' was started inside a model call"):
        await conversation.call_model()
    assert ENTERED == []


async def test_tools_in_a_subgraph_are_deferred_and_resumed(converse: Any) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("inner", build_graph())
    builder.add_edge(START, "inner")
    conversation = await converse(builder.compile())
    asked = await conversation.ask("a b")
    body = json.loads(conversation.run_state.body)
    assert [ns["namespace"].partition(":")[0] for ns in body["namespaces"]] == ["", "inner"]
    conversation.runner = (await converse(builder.compile())).runner
    await conversation.finish(asked, {"call-a": "A", "call-b": "B"})
    assert conversation.transcript[-1] == ("assistant", "A | B")


async def test_an_unknown_tool_gets_a_read_without_approval(converse: Any) -> None:
    def answer(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage("", tool_calls=[call("a", name="made_up"), call("b", name="named")])

    policies = {"named": ToolPolicy(ToolEffect.SINGLE_ATTEMPT_WRITE, requires_approval=True)}
    conversation = await converse(build_graph(answer=answer), policies=policies)
    made_up, named = (await conversation.ask("hi")).calls
    assert (made_up.effect, made_up.requires_approval) == (ToolEffect.READ, False)
    assert (named.effect, named.requires_approval) == (ToolEffect.SINGLE_ATTEMPT_WRITE, True)
