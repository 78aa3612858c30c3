"""Owns the session's first Step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, StepOptions, dead_end, go_to_many

from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import begin_turn
from dex_agents.session_header import SessionHeader
from dex_agents.stored_record import START, StoredRecord, read_record

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


class StartAgentSession(Step[StoredRecord]):
    """Takes the first message from the start request and begins its turn."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    def get_step_options(self) -> StepOptions:
        """Hold the session's lock; repeat until it commits."""
        return self._movements.locked_options()

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Begin the first turn; a retry decides in a new execution."""
        if context.attempt > 1:
            return go_to_many(self._movements.start_session(input))
        if self._runtime.schema.header.get(context) is not None:
            # Only this Step begins the first turn, and it has.
            return dead_end()
        request = read_record(START, input, "the start request")
        header = SessionHeader(config=request["config"])
        return go_to_many(begin_turn(self._runtime, self._movements, context, header, request))
