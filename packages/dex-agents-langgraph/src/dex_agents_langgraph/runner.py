"""Owns the adapter: `AgentFrameworkRunner` on a LangGraph graph. It delegates everything."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

from dex_agents import (
    DeferredToolCall,
    InvalidArgumentsError,
    MessageDraft,
    ModelCallEmitter,
    RunModelRequest,
    RunModelResult,
    ToolCallContext,
    ToolCallsRequested,
    TurnFinished,
)
from dex_agents_checkpoint_codec import TypedSerializer
from dex_agents_langgraph.errors import LangGraphUsageError
from dex_agents_langgraph.graph_tools import collect_tools, describe_graph, require_durable_tools
from dex_agents_langgraph.graph_turn import GraphStop, GraphTurn, new_messages
from dex_agents_langgraph.messages import build_user_message, to_draft
from dex_agents_langgraph.run_states import RunStateStore
from dex_agents_langgraph.tool_execution import execute_tool, validate_arguments
from dex_agents_langgraph_tools import DeferredCall
from dex_agents_tool_policy import ToolEffect, ToolPolicy, ToolPolicyResolver

Graph = Pregel[Any, Any, Any, Any]
GraphSource = Graph | Callable[[], Graph] | Callable[[], Awaitable[Graph]]


@dataclass(frozen=True)
class _Built:
    graph: Graph
    turn: GraphTurn
    tools: Mapping[str, BaseTool]
    fingerprint: Mapping[str, Any]


class LangGraphRunner:
    """Runs a graph's model calls and tools for a session.

    Args:
        source: the compiled graph, or a factory, sync or async, called once per Worker.
        policies: finds the policy of a call.
        tools: tools that no node has, or that win over a node's tool of the same name.
        messages_key: the state's key of the message list.
        serializer: writes run states.
    """

    def __init__(
        self,
        source: GraphSource,
        policies: ToolPolicyResolver,
        *,
        tools: Sequence[BaseTool],
        messages_key: str,
        serializer: TypedSerializer,
    ) -> None:
        self._source = source
        self._policies = policies
        self._extra_tools = list(tools)
        self._messages_key = messages_key
        self._run_states = RunStateStore(serializer, messages_key)
        self._built: _Built | None = None
        self._building = asyncio.Lock()

    async def prepare(self) -> None:
        """Build the graph and refuse one that cannot run durably.

        Raises:
            LangGraphUsageError: the graph cannot run as a durable session.
        """
        async with self._building:
            if self._built is None:
                self._built = await self._build()

    async def _build(self) -> _Built:
        graph = await _find_graph(self._source)
        tools = collect_tools(graph, self._extra_tools)
        await require_durable_tools(graph)
        if self._messages_key not in graph.channels:
            raise LangGraphUsageError(
                f"the graph's state has no key {self._messages_key!r}; pass messages_key="
            )
        turn = GraphTurn(graph, self._run_states, self._messages_key)
        return _Built(graph, turn, tools, describe_graph(graph, tools))

    async def run_model(
        self, request: RunModelRequest, emitter: ModelCallEmitter
    ) -> RunModelResult:
        """Run the graph up to its next tool calls or its end."""
        built = await self._require_built()
        stop = await built.turn.run(request, emitter)
        if not stop.deferred:
            drafts = [to_draft(each) for each in new_messages(stop, request.messages)]
            return TurnFinished(drafts, stop.usage)
        return self._request(built, request, stop)

    async def execute_deferred_tool_call(self, context: ToolCallContext) -> str:
        """Run one tool call outside the graph."""
        built = await self._require_built()
        tool = built.tools.get(context.call.tool_name)
        if tool is None:
            raise InvalidArgumentsError(f"the agent has no tool named {context.call.tool_name!r}")
        return await execute_tool(tool, context)

    def resolve_tool_policy(self, tool_name: str) -> ToolPolicy:
        """Return the policy of a call: named, from the tool's annotations, or the default.

        A name that neither the graph nor the application knows gets a read: nothing can happen.
        """
        built = self._built
        tool = None if built is None else built.tools.get(tool_name)
        if built is not None and tool is None and tool_name not in self._policies.policies:
            return ToolPolicy(ToolEffect.READ)
        return self._policies.resolve(tool_name, None if tool is None else tool.metadata)

    def validate_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> None:
        """Check edited arguments against the tool's schema.

        A Worker that was put together without open_agent_host, and has not built its agent yet,
        leaves it to the call, which checks them in any case.
        """
        if self._built is None:
            return
        tool = self._built.tools.get(tool_name)
        if tool is None:
            raise InvalidArgumentsError(f"the agent has no tool named {tool_name!r}")
        validate_arguments(tool, arguments)

    def build_user_message(
        self, content: str | list[dict[str, Any]], message_id: str
    ) -> MessageDraft:
        """Return a HumanMessage."""
        return build_user_message(content, message_id)

    def _request(
        self, built: _Built, request: RunModelRequest, stop: GraphStop
    ) -> ToolCallsRequested:
        calls = [call for calls in stop.deferred.values() for call in calls]
        state = self._run_states.save(
            stop.checkpointer,
            {key: tuple(call["id"] for call in each) for key, each in stop.deferred.items()},
            request.messages,
            built.fingerprint,
        )
        return ToolCallsRequested([self._defer(call) for call in calls], state, stop.usage)

    def _defer(self, call: DeferredCall) -> DeferredToolCall:
        policy = self.resolve_tool_policy(call["name"])
        expires = policy.approval_timeout
        return DeferredToolCall(
            tool_call_id=call["id"],
            tool_name=call["name"],
            arguments=call["args"],
            effect=policy.effect,
            requires_approval=policy.requires_approval,
            timeout=None if policy.timeout is None else policy.timeout.total_seconds(),
            approval_timeout=None if expires is None else expires.total_seconds(),
        )

    async def _require_built(self) -> _Built:
        if self._built is None:
            # A Worker that was put together without open_agent_host.
            await self.prepare()
        assert self._built is not None
        return self._built


async def _find_graph(source: GraphSource) -> Graph:
    graph: Any = source
    if not isinstance(source, Pregel):
        graph = source()
        if inspect.isawaitable(graph):
            graph = await graph
    if not isinstance(graph, Pregel):
        raise LangGraphUsageError(
            f"the agent is a {type(graph).__name__}; pass a compiled graph, or a function that "
            f"returns one"
        )
    return graph
