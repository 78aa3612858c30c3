"""Graphs that cannot run durably are refused before any work is taken; the others are not."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from dex_agents import ServerUnreachableError, open_agent_host
from dex_agents.testing import TestEngine
from dex_agents_langgraph import (
    AmbiguousToolError,
    DurableToolCallMiddleware,
    LangGraphUsageError,
    PlainToolNodeError,
    awrap_durable_tool_call,
    durable_middleware,
    durable_tool_node,
    langchain_agent_session_flow,
    langgraph_agent_session_flow,
)
from dex_agents_langgraph.testing import ScriptedChatModel


@tool
def lookup(item: str) -> str:
    """Look an item up."""
    raise AssertionError("no tool runs before a session asks for it")


MODEL = ScriptedChatModel(script=lambda messages: AIMessage("hello"))


def graph_of(*nodes: Any) -> Any:
    """Build a graph that runs its tool nodes one after the other."""
    builder = StateGraph(MessagesState)
    builder.add_sequence([(f"tools{index}", node) for index, node in enumerate(nodes)])
    builder.add_edge(START, "tools0")
    return builder.compile()


async def test_a_host_does_not_open_with_a_plain_tool_node(engine: TestEngine) -> None:
    flow = langgraph_agent_session_flow(graph_of(ToolNode([lookup])), flow_type="Graph")
    with pytest.raises(PlainToolNodeError, match=r"'tools0'.*durable_tool_node\(tools\)"):
        async with open_agent_host([flow], server_address=engine.address):
            pass


async def test_a_host_does_not_open_where_nothing_listens() -> None:
    flow = langchain_agent_session_flow(create_agent(MODEL), flow_type="Agent")
    with pytest.raises(ServerUnreachableError, match="no Dex server answered"):
        async with open_agent_host([flow], server_address="127.0.0.1:1", connect_timeout=0.2):
            pass


async def test_an_agent_with_tools_and_without_the_middleware_is_refused(converse: Any) -> None:
    with pytest.raises(PlainToolNodeError, match="DurableToolCallMiddleware first"):
        await converse(create_agent(MODEL, [lookup]))


@pytest.mark.parametrize("middleware", [[], [DurableToolCallMiddleware()]])
async def test_an_agent_without_tools_is_fine(converse: Any, middleware: Any) -> None:
    conversation = await converse(create_agent(MODEL, middleware=middleware))
    conversation.say("hi")
    await conversation.call_model()
    assert conversation.transcript == [("user", "hi"), ("assistant", "hello")]


async def test_a_tool_node_with_the_durable_wrapper_is_fine(converse: Any) -> None:
    await converse(graph_of(ToolNode([lookup], awrap_tool_call=awrap_durable_tool_call)))


class Outer(AgentMiddleware[Any, Any, Any]):
    """Stands before the durable middleware, so it sees the probe."""

    def __init__(self, behaviour: str) -> None:
        super().__init__()
        self._behaviour = behaviour

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        if self._behaviour == "answers":
            name, call_id = request.tool_call["name"], request.tool_call["id"]
            return ToolMessage("I know no such tool", name=name, tool_call_id=call_id)
        if self._behaviour == "refuses":
            raise PermissionError("not this tool")
        try:
            return await handler(request)
        except BaseException:
            if self._behaviour == "swallows":
                return ToolMessage("something went wrong", tool_call_id=request.tool_call["id"])
            raise


@pytest.mark.parametrize("behaviour", ["passes", "answers", "refuses", "swallows"])
async def test_middleware_before_the_durable_one_does_not_get_an_agent_refused(
    converse: Any, behaviour: str
) -> None:
    await converse(
        create_agent(MODEL, [lookup], middleware=[Outer(behaviour), *durable_middleware()])
    )


async def test_a_plain_tool_node_in_a_subgraph_is_found(converse: Any) -> None:
    with pytest.raises(PlainToolNodeError, match="tools0"):
        await converse(graph_of(graph_of(ToolNode([lookup]))))


async def test_two_different_tools_of_one_name_are_refused_unless_tools_names_one(
    converse: Any,
) -> None:
    @tool("lookup")
    def other(item: str) -> str:
        """Look it up elsewhere."""
        return item

    graph = graph_of(durable_tool_node([lookup]), durable_tool_node([other]))
    with pytest.raises(AmbiguousToolError, match=r"named 'lookup'.*tools=\["):
        await converse(graph)
    await converse(graph, tools=[other])
    await converse(graph_of(durable_tool_node([lookup]), durable_tool_node([lookup])))


async def test_a_graph_without_the_message_key_is_refused(converse: Any) -> None:
    with pytest.raises(LangGraphUsageError, match="no key 'dialogue'; pass messages_key="):
        await converse(create_agent(MODEL), messages_key="dialogue")


async def test_a_graph_with_static_interrupts_is_refused(converse: Any) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", durable_tool_node([lookup]))
    builder.add_edge(START, "tools")
    graph = builder.compile(interrupt_before=["tools"])
    with pytest.raises(LangGraphUsageError, match="interrupt_before"):
        await converse(graph)
    with pytest.raises(LangGraphUsageError, match="interrupt_before"):
        await converse(graph_of(graph))


async def test_what_is_no_graph_is_refused(converse: Any) -> None:
    with pytest.raises(LangGraphUsageError, match="the agent is a str"):
        await converse(lambda: os.sep)


async def test_factories_sync_and_async_are_called_once_for_a_worker(converse: Any) -> None:
    built: list[str] = []

    def build() -> Any:
        built.append("sync")
        return create_agent(MODEL)

    async def build_async() -> Any:
        built.append("async")
        return create_agent(MODEL)

    for factory in (build, build_async):
        conversation = await converse(factory)
        await conversation.runner.prepare()
        conversation.say("hi")
        await conversation.call_model()
    assert built == ["sync", "async"]
