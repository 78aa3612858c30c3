"""Owns the exceptions of this package: one root, the caller's mistakes, failures of a run."""

from __future__ import annotations


class LangGraphAgentError(Exception):
    """Root of every exception raised by `dex_agents_langgraph`."""


class LangGraphUsageError(LangGraphAgentError):
    """The agent or graph cannot run as a durable session."""


class PlainToolNodeError(LangGraphUsageError):
    """A tool node would run its tools inside the model call."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node!r} runs its tools inside the graph, where they would not be durable; "
            f"build it with durable_tool_node(tools), or put DurableToolCallMiddleware first in "
            f"create_agent's middleware"
        )


class AmbiguousToolError(LangGraphUsageError):
    """Two tool nodes have different tools of one name."""

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"two tool nodes have different tools named {tool_name!r}; rename one, or pass the one "
            f"to run in tools=[...]"
        )


class LangGraphRunError(LangGraphAgentError):
    """A graph broke a rule of durable sessions while it ran."""
