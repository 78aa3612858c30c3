"""Owns the Step that waits for all calls of a model message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, Wait, go_to_many

from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import CallSummary, TurnPosition
from dex_agents.session_schema import round_key
from dex_agents.stored_record import CALL_RESULT, StoredRecord, parse_record

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


class ResumeTurn(Step[StoredRecord]):
    """Collects the results of one round and goes on with the next model call."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> Wait:
        """Wait for one message for each call."""
        position = TurnPosition.from_record(input)
        results = self._runtime.schema.results
        return Wait.until(results.for_n(_channel(position), len(position.calls)))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Go on with the next model call, its results in the model's order."""
        position = TurnPosition.from_record(input)
        if context.wait_for_method_failed():
            return go_to_many(self._movements.resume_turn(position))
        found = {
            summary.tool_call_id: summary
            for summary in (
                parse_record(CALL_RESULT, record, "a tool result", CallSummary.from_json)
                for record in self._runtime.schema.results.results(context, _channel(position))
            )
        }
        results = tuple(found[each] for each in position.calls)
        return go_to_many(self._movements.run_model(position.with_results(results)))


def _channel(position: TurnPosition) -> str:
    # The position is already the next round's; the calls were made in the one before.
    return round_key(position.turn_id, position.round - 1)
