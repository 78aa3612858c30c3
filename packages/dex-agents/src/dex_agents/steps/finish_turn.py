"""Owns the end of a turn: announcing its outcome, and deciding what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, dead_end, go_to_many

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import begin_turn, read_header, write_header
from dex_agents.session_header import (
    SessionHeader,
    SessionStatus,
    TurnPosition,
    TurnRecord,
    TurnState,
    turn_id_of,
)
from dex_agents.session_schema import SessionSchema, call_key, output_name, run_state_name
from dex_agents.steps.context import emit, read_turn
from dex_agents.stored_record import QUEUED_MESSAGE, StoredRecord, read_record

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_EVENTS = {
    TurnState.COMPLETED: AgentEventType.TURN_COMPLETED,
    TurnState.FAILED: AgentEventType.TURN_FAILED,
    TurnState.CANCELED: AgentEventType.TURN_CANCELED,
}


class FinishTurn(Step[StoredRecord]):
    """Short, and under the lock: a message sent at any moment starts exactly one next turn."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Announce the outcome, then begin the turn of the oldest waiting message, if any."""
        position = TurnPosition.from_record(input)
        if context.attempt > 1:
            # The lock may have been free since the first attempt's snapshot was taken.
            return go_to_many(self._movements.finish_turn(position))
        turn = read_turn(self._runtime, context, position.turn_id)
        self._announce(context, turn)
        header = self._close_turn(context, read_header(self._runtime, context), turn)
        key = str(header.queue_head)
        waiting = self._runtime.schema.find(context, SessionSchema.queued, key)
        if waiting is None:
            write_header(self._runtime, context, header, SessionStatus.IDLE)
            return dead_end()
        self._runtime.schema.queued.delete(context, key)
        header = replace(header, queue_head=header.queue_head + 1)
        sent = read_record(QUEUED_MESSAGE, waiting, f"waiting message {key}")
        return go_to_many(begin_turn(self._runtime, self._movements, context, header, sent))

    def _announce(self, context: AsyncContext, turn: TurnRecord) -> None:
        type = _EVENTS[turn.state]
        data = {} if turn.error is None else {"error": turn.error}
        emit(
            self._runtime,
            context,
            type,
            turn.turn_id,
            event_id=f"{type}/{turn.turn_id}",
            data={**data, "usage": turn.usage.to_json()},
        )

    def _close_turn(
        self, context: AsyncContext, header: SessionHeader, turn: TurnRecord
    ) -> SessionHeader:
        """Take the turn's outcome into the header; drop what only the turns before it needed."""
        schema = self._runtime.schema
        schema.delete_parts(context, run_state_name(turn.turn_id), turn.run_state_parts)
        before = turn_id_of(header.turn_number - 1)
        if before:
            for tool_call_id, parts in read_turn(self._runtime, context, before).calls:
                key = call_key(before, tool_call_id)
                schema.calls.delete(context, key)
                schema.delete_parts(context, output_name(key), parts)
        return replace(
            header,
            message_count=turn.message_count,
            message_bytes=turn.message_bytes,
            usage=header.usage + turn.usage,
            last_turn_error=turn.error,
        )
