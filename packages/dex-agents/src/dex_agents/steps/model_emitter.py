"""Owns the live text of a model call: the first piece leaves at once, what follows is collected."""

from __future__ import annotations

import asyncio

from dex import AsyncContext

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.size_limits import EVENT_TEXT, split_text
from dex_agents.steps.context import emit
from dex_agents.usage import TokenUsage


class ModelEmitter:
    """Writes what a model says to the session's Stream. Implements `ModelCallEmitter`.

    Event ids count within the Step execution's attempt, so a repeated model call streams anew.
    """

    def __init__(self, runtime: SessionRuntime, context: AsyncContext, turn_id: str) -> None:
        self._runtime = runtime
        self._context = context
        self._turn_id = turn_id
        self._count = 0
        self._pieces: list[str] = []
        self._collected = 0
        self._type = AgentEventType.TEXT_DELTA
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def text(self, delta: str) -> None:
        """Send a piece of the answer."""
        self._add(AgentEventType.TEXT_DELTA, delta)

    def reasoning(self, delta: str) -> None:
        """Send a piece of the provider's reasoning."""
        self._add(AgentEventType.REASONING_DELTA, delta)

    def model_call_started(self) -> None:
        """Say that a model call begins."""
        self._emit(AgentEventType.MODEL_CALL_STARTED, {})

    def model_call_finished(self, usage: TokenUsage) -> None:
        """Say that a model call has ended."""
        self._emit(AgentEventType.MODEL_CALL_FINISHED, {"usage": usage.to_json()})

    def close(self) -> None:
        """Send what was collected; pieces that come later are dropped."""
        if self._is_open:
            self._flush()
            self._is_open = False

    def _add(self, type: AgentEventType, delta: str) -> None:
        if not delta or not self._is_open:
            return
        if type is not self._type:
            self._flush()
            self._type = type
        if self._timer is None and not self._pieces:
            # Nothing left lately: this piece goes at once, and opens a pause for the next ones.
            self._emit_text(delta)
            self._start_timer()
            return
        self._pieces.append(delta)
        self._collected += len(delta)
        if self._collected >= self._runtime.settings.text_bytes:
            self._flush()
            self._start_timer()

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._runtime.settings.text_interval, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._pieces:
            self._flush()
            self._start_timer()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pieces, self._pieces = self._pieces, []
        self._collected = 0
        if pieces:
            self._emit_text("".join(pieces))

    def _emit_text(self, text: str) -> None:
        for piece in split_text(text, EVENT_TEXT):
            self._write(self._type, {"text": piece})

    def _emit(self, type: AgentEventType, data: dict[str, object]) -> None:
        if self._is_open:
            self._flush()
            self._write(type, data)

    def _write(self, type: AgentEventType, data: dict[str, object]) -> None:
        self._count += 1
        context = self._context
        event_id = f"{type}/{context.step_execution_id}/{context.attempt}/{self._count}"
        emit(self._runtime, context, type, self._turn_id, event_id=event_id, data=data)
