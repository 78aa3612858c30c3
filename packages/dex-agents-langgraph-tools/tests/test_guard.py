"""The guard: no tool body is entered, whoever calls the tool and how."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from dex_agents_langgraph_tools import ToolBlockedError, guarding_tools

ENTERED: list[str] = []


class State(TypedDict, total=False):
    x: str


@tool
def sync_tool(x: str) -> str:
    """Run in a thread."""
    ENTERED.append(x)
    return x


async def enter(x: str) -> str:
    """Run on the loop."""
    ENTERED.append(x)
    return x


async_tool = StructuredTool.from_function(coroutine=enter, name="async_tool")
ARGUMENTS: Any = {"x": "1"}


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def in_executor(function: Callable[..., Any], *arguments: Any) -> Any:
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: context.run(function, *arguments))


async def in_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a sync node of a graph."""

    def node(state: State) -> State:
        function(*arguments)
        return {}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    await builder.compile().ainvoke({"x": ""})


WAYS: dict[str, Callable[[], Awaitable[Any]]] = {
    "ainvoke": lambda: async_tool.ainvoke(ARGUMENTS),
    "ainvoke-of-sync": lambda: sync_tool.ainvoke(ARGUMENTS),
    "no-callbacks": lambda: async_tool.ainvoke(ARGUMENTS, {"callbacks": []}),
    "arun": lambda: async_tool.arun(ARGUMENTS),
    "thread": lambda: in_thread(sync_tool.invoke, ARGUMENTS),
    "run": lambda: in_thread(sync_tool.run, ARGUMENTS),
    "executor": lambda: in_executor(sync_tool.invoke, ARGUMENTS, {"callbacks": []}),
    "node": lambda: in_node(sync_tool.invoke, ARGUMENTS),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_guarded_tool_is_blocked_and_remembered(way: str) -> None:
    ENTERED.clear()
    with guarding_tools() as guard, pytest.raises(ToolBlockedError) as caught:
        await WAYS[way]()
    assert ENTERED == []
    assert guard.blocked == [caught.value.tool_name]
    assert caught.value.tool_name in {"sync_tool", "async_tool"}


async def test_the_guard_remembers_what_a_graph_swallows() -> None:
    with guarding_tools() as guard:
        try:
            await async_tool.ainvoke(ARGUMENTS)
        except Exception:
            pass
    assert guard.blocked == ["async_tool"]


async def test_tools_outside_and_beside_a_guard_run() -> None:
    ENTERED.clear()
    beside = asyncio.Event()

    async def run_beside() -> str:
        await beside.wait()
        return str(await async_tool.ainvoke(ARGUMENTS))

    task = asyncio.create_task(run_beside())
    with guarding_tools() as guard:
        beside.set()
        assert await task == "1"
    assert await sync_tool.ainvoke(ARGUMENTS) == "1"
    assert guard.blocked == []
    assert ENTERED == ["1", "1"]
