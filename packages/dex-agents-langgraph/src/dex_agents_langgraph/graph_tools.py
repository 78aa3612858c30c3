"""Owns finding a graph's tools, and refusing graphs whose tools would run inside a model call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from dex_agents_langgraph.errors import AmbiguousToolError, LangGraphUsageError, PlainToolNodeError
from dex_agents_langgraph_tools import (
    DeferringRun,
    DurableToolNode,
    ProbeAnswered,
    deferring_run,
    guarding_tools,
)
from dex_agents_tool_policy import ToolEffect, tool_effect_from_annotations


class _ProbeState(TypedDict, total=False):
    seen: bool


def tool_nodes(graph: Pregel[Any, Any, Any, Any]) -> Iterator[tuple[str, ToolNode]]:
    """Yield the tool nodes of a graph and its subgraphs, with their names."""
    graphs: list[tuple[str, Any]] = [("", graph), *graph.get_subgraphs(recurse=True)]
    for prefix, each in graphs:
        for name, node in each.nodes.items():
            if isinstance(node.bound, ToolNode):
                yield (f"{prefix}|{name}" if prefix else name), node.bound


def collect_tools(
    graph: Pregel[Any, Any, Any, Any], extra: Sequence[BaseTool]
) -> dict[str, BaseTool]:
    """Return the graph's tools by name; those in `extra` win.

    Raises:
        AmbiguousToolError: two nodes have different tools of one name, and `extra` names none.
    """
    chosen = {tool.name: tool for tool in extra}
    found: dict[str, BaseTool] = {}
    for _, node in tool_nodes(graph):
        for name, tool in node.tools_by_name.items():
            if found.setdefault(name, tool) is not tool and name not in chosen:
                raise AmbiguousToolError(name)
    return {**found, **chosen}


async def require_durable_tools(graph: Pregel[Any, Any, Any, Any]) -> None:
    """Refuse a graph with a tool node that runs its tools in place.

    A node is asked with a call of a tool that does not exist: a durable one defers it, a plain one
    answers as every ToolNode does. No tool runs. A node whose own wrapper answers the question in
    its place is taken; the guard watches it while it runs.

    Raises:
        PlainToolNodeError: there is such a node.
        LangGraphUsageError: the graph stops at static interrupts.
    """
    graphs: list[Any] = [graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))]
    for each in graphs:
        if each.interrupt_before_nodes or each.interrupt_after_nodes:
            raise LangGraphUsageError(
                "the graph has interrupt_before or interrupt_after nodes, which a session cannot "
                "answer; use ToolPolicy(..., requires_approval=True)"
            )
    for name, node in tool_nodes(graph):
        if not isinstance(node, DurableToolNode) and await _is_plain(node):
            raise PlainToolNodeError(name)


async def _is_plain(node: ToolNode) -> bool:
    """Tell whether a node neither defers a call nor answers it otherwise than a ToolNode does."""
    name = f"dex_probe_{uuid4().hex}"
    run = DeferringRun(is_probe=True)
    with deferring_run(run), guarding_tools():
        answer = await _ask(node, name)
    if run.has_deferred or answer is None:
        return False
    return answer == await _ask(ToolNode(list(node.tools_by_name.values())), name)


async def _ask(node: ToolNode, tool_name: str) -> str | None:
    """Return what a node answers to a call of a tool that it does not have."""
    call = {"name": tool_name, "args": {}, "id": "dex-probe", "type": "tool_call"}
    answers: list[Any] = []

    async def ask(state: _ProbeState, config: RunnableConfig) -> _ProbeState:
        message = AIMessage(content="", tool_calls=[call])
        answers.append(await node.ainvoke([message], config))
        return {"seen": True}

    builder = StateGraph(_ProbeState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    try:
        await builder.compile().ainvoke({})
    except (ProbeAnswered, Exception):  # the border to the user's tool wrappers
        return None
    (answer,) = answers
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], ToolMessage):
        return str(answer[0].content)
    return None


def describe_graph(
    graph: Pregel[Any, Any, Any, Any], tools: Mapping[str, BaseTool]
) -> dict[str, Any]:
    """Return what makes two graphs the same for a run state: nodes, channels, tools."""
    return {
        "nodes": sorted(graph.nodes),
        "channels": sorted(str(name) for name in graph.channels),
        "tools": sorted(tools),
    }


def tool_effect_from_metadata(tool: BaseTool) -> ToolEffect | None:
    """Return the effect that MCP annotations in a tool's metadata give, or None without any.

    A named policy wins over it, and it wins over ``default_tool_effect``.
    """
    return tool_effect_from_annotations(tool.metadata)
