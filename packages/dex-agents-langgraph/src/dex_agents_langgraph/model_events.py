"""Owns what is heard of a graph's model calls: text, reasoning, begin, end, usage.

Text comes from LangGraph's messages stream. Begin, end and usage come from LangChain's callbacks,
installed by a configure hook, so that they are heard whatever callbacks a node passes; they travel
through LangGraph's custom stream, which keeps them in order with the text.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook
from langgraph.config import get_stream_writer

from dex_agents import ModelCallEmitter, TokenUsage

# Metadata with which LangChain's middleware marks model calls that are not the agent's answer.
_INTERNAL_CALLS = ("lc_source", "lc_internal_call")


@dataclass(frozen=True)
class ModelCallMark:
    """A place in a graph's stream: a model call begins, or ends with `usage`."""

    usage: TokenUsage | None = None


class ModelCallListener(BaseCallbackHandler):
    """Hears the model calls of one run, in whatever thread they are made.

    Attributes:
        usage: tokens so far.
    """

    run_inline = True

    def __init__(self, emitter: ModelCallEmitter) -> None:
        self._emitter = emitter
        self._loop = asyncio.get_running_loop()
        self._adding = threading.Lock()
        self.usage = TokenUsage()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Say that a model call begins."""
        self._mark(ModelCallMark())

    def on_llm_end(
        self,
        response: LLMResult,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add up the call's usage and say that it has ended."""
        usage = TokenUsage()
        for generations in response.generations:
            for generation in generations:
                if isinstance(generation, ChatGeneration):
                    usage += read_usage(generation.message)
        with self._adding:
            self.usage += usage
        self._mark(ModelCallMark(usage))

    def _mark(self, mark: ModelCallMark) -> None:
        try:
            write = get_stream_writer()
        except (KeyError, RuntimeError):
            # A node left its context; the order with the text is then only roughly right.
            self._loop.call_soon_threadsafe(emit_mark, self._emitter, mark)
        else:
            write(mark)


_listener: ContextVar[ModelCallListener | None] = ContextVar("dex_model_listener", default=None)
# Not inheritable: so it is added for each call anew, behind LangGraph's own handlers, and a call's
# text is in the stream before its end.
register_configure_hook(_listener, inheritable=False)


@contextmanager
def listening(emitter: ModelCallEmitter) -> Iterator[ModelCallListener]:
    """Hear the model calls made inside, in this task and what it starts."""
    listener = ModelCallListener(emitter)
    token = _listener.set(listener)
    try:
        yield listener
    finally:
        _listener.reset(token)


def read_usage(message: BaseMessage) -> TokenUsage:
    """Return the usage a provider reported with a message."""
    if not isinstance(message, AIMessage) or message.usage_metadata is None:
        return TokenUsage()
    usage = message.usage_metadata
    return TokenUsage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cache_read_tokens=usage.get("input_token_details", {}).get("cache_read", 0) or 0,
        reasoning_tokens=usage.get("output_token_details", {}).get("reasoning", 0) or 0,
    )


def emit_part(emitter: ModelCallEmitter, mode: str, part: Any) -> None:
    """Send a part of a graph's stream, of the modes ``messages`` and ``custom``, as events."""
    if mode == "messages":
        message, metadata = part
        emit_message(emitter, message, metadata)
    elif isinstance(part, ModelCallMark):
        emit_mark(emitter, part)


def emit_mark(emitter: ModelCallEmitter, mark: ModelCallMark) -> None:
    """Say that a model call begins or has ended."""
    if mark.usage is None:
        emitter.model_call_started()
    else:
        emitter.model_call_finished(mark.usage)


def emit_message(emitter: ModelCallEmitter, message: object, metadata: Mapping[str, Any]) -> None:
    """Send the text and the reasoning of a piece of a model's answer."""
    if not isinstance(message, AIMessage | AIMessageChunk):
        return
    if any(metadata.get(key) for key in _INTERNAL_CALLS):
        return
    for block in message.content_blocks:
        if block["type"] == "text":
            emitter.text(str(block.get("text") or ""))
        elif block["type"] == "reasoning":
            emitter.reasoning(str(block.get("reasoning") or ""))
