"""Owns the Step that announces a final tool call record and reports it to its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, dead_end

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import CallSummary
from dex_agents.session_schema import round_key
from dex_agents.size_limits import SUMMARY_CHARACTERS
from dex_agents.steps.context import emit, read_call
from dex_agents.stored_record import TOOL_CALL, StoredRecord, record_size, write_record
from dex_agents.tool_calls import ToolCallRecord

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


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
        emit(
            self._runtime,
            context,
            AgentEventType.TOOL_CALL_FINISHED,
            record.turn_id,
            event_id=f"tool_call_finished/{record.turn_id}/{record.tool_call_id}",
            data=_event_data(record),
        )
        self._runtime.schema.results.publish(
            context, round_key(record.turn_id, record.round), _summarize(record).to_record()
        )
        return dead_end()


def _event_data(record: ToolCallRecord) -> dict[str, object]:
    data: dict[str, object] = {
        "tool_call_id": record.tool_call_id,
        "tool_name": record.tool_name,
        "status": record.status.value,
        "output": record.output,
    }
    if record.output_parts:
        # The record holds the begin only.
        data["cut"] = ["output"]
    return data


def _summarize(record: ToolCallRecord) -> CallSummary:
    size = record_size(write_record(TOOL_CALL, record.to_json()))
    text = (record.output or "")[:SUMMARY_CHARACTERS]
    return CallSummary(
        record.tool_call_id,
        record.tool_name,
        record.status.value,
        text,
        record.output_parts,
        size + record.output_bytes,
    )
