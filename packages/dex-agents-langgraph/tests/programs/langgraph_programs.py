"""The agents that test Workers serve. Every body appends a line to a file before anything else."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import tools_condition

from dex_agents import AgentSessionFlow
from dex_agents_langgraph import (
    ToolEffect,
    ToolPolicy,
    durable_middleware,
    durable_tool_node,
    get_tool_call_idempotency_key,
    langchain_agent_session_flow,
    langgraph_agent_session_flow,
)
from dex_agents_langgraph.testing import ScriptedChatModel

LEDGER = Path(os.environ.get("TEST_LEDGER", os.devnull))
USAGE: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


def note(line: str) -> None:
    """Append a line to the ledger in one write, and print it for a test that waits for it."""
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
    if "TEST_LEDGER" in os.environ:
        os.write(1, f"{line}\n".encode())  # also one write: bodies run in threads


def gate(name: str) -> None:
    """Block until the test opens the gate of that name; see the fixture `close_gate`."""
    if "TEST_LEDGER" in os.environ:
        with LEDGER.with_name(name).open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)


@tool
def lookup(item: str) -> str:
    """Look an item up."""
    note(f"lookup {item}")
    gate(f"lookup-{item}")
    return f"found {item}"


@tool
def pay(item: str) -> str:
    """Pay for an item."""
    note(f"pay {item}")
    gate(f"pay-{item}")
    return f"paid {item}"


@tool
def refund(item: str, config: RunnableConfig) -> str:
    """Refund an item."""
    note(f"refund {item}")
    return f"refunded {item} with {get_tool_call_idempotency_key(config)}"


TOOLS = [lookup, pay, refund]
POLICIES = {
    "lookup": ToolPolicy(ToolEffect.READ),
    "pay": ToolPolicy(ToolEffect.SINGLE_ATTEMPT_WRITE),
    "refund": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
}


async def script(messages: list[BaseMessage]) -> AIMessage:
    """Do what the user says: ``<tool> <item> <item> ...``, then fail if it ends with ``fail``.

    ``each <item> <item> ...`` looks one item up after the other.
    """
    question = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    words = str(question.content).split()
    note(f"model {question.content}")
    await asyncio.to_thread(gate, f"model-{words[0]}")
    if words[0] == "each":
        return look_up_next(words[1:], messages[messages.index(question) + 1 :])
    if isinstance(messages[-1], ToolMessage):
        if words[-1] == "fail":
            raise RuntimeError("the model is out of order")
        after = messages[messages.index(question) + 1 :]
        results = [str(m.content) for m in after if isinstance(m, ToolMessage)]
        return AIMessage("Done: " + " | ".join(results), usage_metadata=USAGE)
    if words[0] not in POLICIES:
        return AIMessage("Hello there friend", usage_metadata=USAGE)
    calls: Any = [
        {"name": words[0], "args": {"item": item}, "id": f"{words[0]}-{item}"}
        for item in words[1:]
        if item != "fail"
    ]
    return AIMessage("", tool_calls=calls, usage_metadata=USAGE)


def look_up_next(items: list[str], done: list[BaseMessage]) -> AIMessage:
    """Look up the first item that has no result yet."""
    results = [str(message.content) for message in done if isinstance(message, ToolMessage)]
    if len(results) == len(items):
        return AIMessage("Done: " + " | ".join(results))
    item = items[len(results)]
    call: Any = {"name": "lookup", "args": {"item": item}, "id": f"lookup-{item}"}
    return AIMessage("", tool_calls=[call])


def build_agent() -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build an agent with create_agent."""
    return create_agent(
        ScriptedChatModel(script=script),
        tools=TOOLS,
        system_prompt="Do as you are told.",
        middleware=durable_middleware(),
    )


def build_graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build the same agent as a graph."""
    model = ScriptedChatModel(script=script).bind_tools(TOOLS)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", call_model)
    builder.add_node("tools", durable_tool_node(TOOLS))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


def make_flows() -> dict[str, AgentSessionFlow]:
    """Return the same agent twice, by flow type."""
    return {
        "Agent": langchain_agent_session_flow(
            build_agent, flow_type="Agent", tool_policies=POLICIES
        ),
        "Graph": langgraph_agent_session_flow(
            build_graph(), flow_type="Graph", tool_policies=POLICIES
        ),
    }
