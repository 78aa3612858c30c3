"""Tool nodes and middleware that let a durable session run a LangGraph agent's tool calls.

Outside a session they do nothing: an agent built with them can be invoked as ever.
"""

from dex_agents_langgraph_tools.deferral import (
    DEFERRED_CALLS,
    DeferredCall,
    DeferredCalls,
    DeferringRun,
    ProbeAnswered,
    ToolResult,
    deferred_calls,
    deferring_run,
)
from dex_agents_langgraph_tools.errors import (
    DurableToolError,
    DurableToolRunError,
    DurableToolUsageError,
    InvalidToolCallError,
    ResultsOutOfOrderError,
    ToolBlockedError,
    UnsupportedMiddlewareError,
)
from dex_agents_langgraph_tools.guard import ToolGuard, guarding_tools
from dex_agents_langgraph_tools.middleware import (
    DurableToolCallMiddleware,
    awrap_durable_tool_call,
    durable_middleware,
)
from dex_agents_langgraph_tools.tool_node import DurableToolNode, durable_tool_node

__all__ = [
    "DEFERRED_CALLS",
    "DeferredCall",
    "DeferredCalls",
    "DeferringRun",
    "DurableToolCallMiddleware",
    "DurableToolError",
    "DurableToolNode",
    "DurableToolRunError",
    "DurableToolUsageError",
    "InvalidToolCallError",
    "ProbeAnswered",
    "ResultsOutOfOrderError",
    "ToolBlockedError",
    "ToolGuard",
    "ToolResult",
    "UnsupportedMiddlewareError",
    "awrap_durable_tool_call",
    "deferred_calls",
    "deferring_run",
    "durable_middleware",
    "durable_tool_node",
    "guarding_tools",
]
