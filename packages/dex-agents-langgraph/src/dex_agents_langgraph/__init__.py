"""Agents made with LangChain or LangGraph as durable Dex sessions."""

from dex_agents_langgraph.errors import (
    AmbiguousToolError,
    LangGraphAgentError,
    LangGraphRunError,
    LangGraphUsageError,
    PlainToolNodeError,
)
from dex_agents_langgraph.graph_tools import tool_effect_from_metadata
from dex_agents_langgraph.idempotency import get_tool_call_idempotency_key
from dex_agents_langgraph.messages import (
    build_user_message,
    framework_message_to_langchain_message,
)
from dex_agents_langgraph.session_flows import (
    langchain_agent_session_flow,
    langgraph_agent_session_flow,
)
from dex_agents_langgraph_tools import (
    DurableToolCallMiddleware,
    awrap_durable_tool_call,
    durable_middleware,
    durable_tool_node,
)
from dex_agents_tool_policy import ToolEffect, ToolPolicy

__all__ = [
    "AmbiguousToolError",
    "DurableToolCallMiddleware",
    "LangGraphAgentError",
    "LangGraphRunError",
    "LangGraphUsageError",
    "PlainToolNodeError",
    "ToolEffect",
    "ToolPolicy",
    "awrap_durable_tool_call",
    "build_user_message",
    "durable_middleware",
    "durable_tool_node",
    "framework_message_to_langchain_message",
    "get_tool_call_idempotency_key",
    "langchain_agent_session_flow",
    "langgraph_agent_session_flow",
    "tool_effect_from_metadata",
]
