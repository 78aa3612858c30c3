"""Owns the Step that announces a message which waits for its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, dead_end

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.steps.context import emit
from dex_agents.stored_record import QUEUED_INPUT, StoredRecord, read_record

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


class AnnounceQueuedMessage(Step[StoredRecord]):
    """An RPC cannot write events, so it schedules this."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Announce the message."""
        message_id = read_record(QUEUED_INPUT, input, "the Step's input")["message_id"]
        emit(
            self._runtime,
            context,
            AgentEventType.MESSAGE_QUEUED,
            "",
            event_id=f"message_queued/{message_id}",
            data={"message_id": message_id},
        )
        return dead_end()
