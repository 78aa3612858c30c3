"""Owns making a session Flow of a LangChain agent or a LangGraph graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from dex_agents import AgentSessionFlow, SessionSettings
from dex_agents_checkpoint_codec import TypedSerializer
from dex_agents_langgraph.runner import GraphSource, LangGraphRunner
from dex_agents_tool_policy import ToolEffect, ToolPolicy, ToolPolicyResolver


def langgraph_agent_session_flow(
    graph: GraphSource,
    *,
    flow_type: str,
    tool_policies: Mapping[str, ToolPolicy] | None = None,
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
    tools: Sequence[BaseTool] = (),
    messages_key: str = "messages",
    checkpoint_serializer: TypedSerializer | None = None,
    settings: SessionSettings | None = None,
) -> AgentSessionFlow:
    """Make a session Flow of a graph that keeps the conversation as LangChain messages.

    Args:
        graph: compiled, or a factory of it, sync or async, called once per Worker.
        flow_type: its name in the engine; the same in every process.
        tool_policies: by tool name; what they do not name comes from MCP annotations in a tool's
            metadata, or is `default_tool_effect`.
        default_tool_effect: the effect of a tool about which nobody says anything.
        tools: tools that no node has, or that are to run instead of a node's of the same name.
        messages_key: the state's key of the message list.
        checkpoint_serializer: any LangGraph serializer; the same on every Worker.
        settings: timeouts and sizes.

    Raises:
        ToolPolicyUsageError: a policy is malformed.
        AgentUsageError: `flow_type` is empty or contains ``/``.
    """
    runner = LangGraphRunner(
        graph,
        ToolPolicyResolver(tool_policies or {}, default_tool_effect),
        tools=tools,
        messages_key=messages_key,
        serializer=checkpoint_serializer or JsonPlusSerializer(),
    )
    return AgentSessionFlow(flow_type, runner, settings)


def langchain_agent_session_flow(
    agent: GraphSource,
    *,
    flow_type: str,
    tool_policies: Mapping[str, ToolPolicy] | None = None,
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
    tools: Sequence[BaseTool] = (),
    checkpoint_serializer: TypedSerializer | None = None,
    settings: SessionSettings | None = None,
) -> AgentSessionFlow:
    """Make a session Flow of an agent built with LangChain's `create_agent`.

    `DurableToolCallMiddleware` must stand first in its middleware, see `durable_middleware`.
    The arguments are those of `langgraph_agent_session_flow`.
    """
    return langgraph_agent_session_flow(
        agent,
        flow_type=flow_type,
        tool_policies=tool_policies,
        default_tool_effect=default_tool_effect,
        tools=tools,
        checkpoint_serializer=checkpoint_serializer,
        settings=settings,
    )
