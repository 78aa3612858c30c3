"""Owns the Step that announces a final tool call record and reports it to its turn."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, dead_end

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import CallSummary
from dex_agents.session_schema import call_key, round_key
from dex_agents.steps.context import emit, read_call
from dex_agents.stored_record import STEP_INPUT, StoredRecord, write_record

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_SUMMARY_CHARACTERS = 1000


class AnnounceToolResult(Step[StoredRecord]):
    """Runs after the record was committed, so the event never overtakes the state."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Announce, then report."""
        record = read_call(self._runtime, context, input)
        key = call_key(record.turn_id, record.tool_call_id)
        emit(
            self._runtime,
            context,
            AgentEventType.TOOL_CALL_FINISHED,
            record.turn_id,
            event_id=f"tool_call_finished/{key}",
            data={
                "tool_call_id": record.tool_call_id,
                "tool_name": record.tool_name,
                "status": record.status.value,
                "output": record.output,
            },
        )
        summary = CallSummary(
            record.tool_call_id,
            record.tool_name,
            record.status.value,
            (record.output or "")[:_SUMMARY_CHARACTERS],
            record.output_parts,
        )
        self._runtime.schema.results.publish(
            context,
            round_key(record.turn_id, record.round),
            write_record(STEP_INPUT, asdict(summary)),
        )
        return dead_end()
