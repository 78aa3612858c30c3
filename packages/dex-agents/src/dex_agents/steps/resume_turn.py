"""Owns the Step that waits for all calls of a model message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, Wait, go_to_many

from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import CallSummary, TurnPosition
from dex_agents.session_schema import round_key
from dex_agents.stored_record import STEP_INPUT, StoredRecord, read_record

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
        position = _read(input)
        results = self._runtime.schema.results
        return Wait.until(results.for_n(_channel(position), len(position.calls)))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Go on with the next model call, its results in the model's order."""
        position = _read(input)
        found = {
            summary.tool_call_id: summary
            for summary in (
                CallSummary(**read_record(STEP_INPUT, record, "a tool result"))
                for record in self._runtime.schema.results.results(context, _channel(position))
            )
        }
        done = position.done + tuple(found[each] for each in position.calls)
        return go_to_many(self._movements.run_model(replace(position, done=done)))


def _read(input: StoredRecord) -> TurnPosition:
    return TurnPosition.from_json(read_record(STEP_INPUT, input, "the Step's input"))


def _channel(position: TurnPosition) -> str:
    # The position is already the next round's; the calls were made in the one before.
    return round_key(position.turn_id, position.round - 1)
