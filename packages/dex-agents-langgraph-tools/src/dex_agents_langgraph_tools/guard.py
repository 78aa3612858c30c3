"""Owns the guard: no tool body is entered inside a model call, whoever calls it and how.

It sees tools through LangChain's callbacks, installed by a configure hook and not by callbacks in a
config, so ``callbacks=[]`` does not get around it. Blind spots: threads that a node starts itself
without its context, and a tool's function called directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from dex_agents_langgraph_tools.errors import ToolBlockedError


class ToolGuard(BaseCallbackHandler):
    """Blocks tools and remembers which.

    Attributes:
        blocked: names of the tools that were blocked, in order. A graph may swallow the exception;
            this it cannot.
    """

    raise_error = True
    run_inline = True

    def __init__(self) -> None:
        self.blocked: list[str] = []

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Raise in the place of the tool's body."""
        name = str((serialized or {}).get("name") or kwargs.get("name") or "unknown")
        self.blocked.append(name)
        raise ToolBlockedError(name)


_guard: ContextVar[ToolGuard | None] = ContextVar("dex_tool_guard", default=None)
register_configure_hook(_guard, inheritable=True)


@contextmanager
def guarding_tools() -> Iterator[ToolGuard]:
    """Block every tool that is started inside, in this task and what it starts."""
    guard = ToolGuard()
    token = _guard.set(guard)
    try:
        yield guard
    finally:
        _guard.reset(token)
