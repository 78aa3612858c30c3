"""Graphs that are run as a durable session runs them, without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt

from dex_agents_langgraph_tools import DeferringRun, ToolResult, deferring_run

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class DeferredGraph:
    """A compiled graph whose tool calls are deferred."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph.copy(update={"checkpointer": InMemorySaver()})
        self.run = DeferringRun()
        self.state: Any = None

    async def start(self, graph_input: Any) -> list[Interrupt]:
        """Run it up to its interrupts."""
        return await self._step(graph_input)

    async def resume(self, interrupts: list[Interrupt], outputs: dict[str, str]) -> list[Interrupt]:
        """Go on with the output of each call, by id."""
        results = {
            each.id: [result(call["id"], outputs[call["id"]]) for call in each.value["calls"]]
            for each in interrupts
        }
        return await self._step(Command(resume=results))

    async def _step(self, graph_input: Any) -> list[Interrupt]:
        self.run = DeferringRun()
        with deferring_run(self.run):
            await self._graph.ainvoke(graph_input, CONFIG)
            self.state = await self._graph.aget_state(CONFIG)
        return list(self.state.interrupts)


def result(call_id: str, content: str, status: str = "success") -> ToolResult:
    return {"id": call_id, "content": content, "status": status}


@pytest.fixture
def defer_calls() -> Callable[[Any], DeferredGraph]:
    """Run a compiled graph with its tool calls deferred: ``defer_calls(graph)``."""
    return DeferredGraph


Invoke = Callable[[Any, Any], Awaitable[Any]]


@pytest.fixture(params=["invoke", "ainvoke"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """Call a graph, by its sync and by its async method."""

    async def run(graph: Any, graph_input: Any) -> Any:
        if request.param == "invoke":
            return graph.invoke(graph_input)
        return await graph.ainvoke(graph_input)

    return run
