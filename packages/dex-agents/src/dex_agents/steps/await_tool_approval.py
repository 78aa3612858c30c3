"""Owns the Step that waits for somebody to approve a tool call."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, Timer, Wait, go_to_many

from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_schema import call_key
from dex_agents.steps.context import emit, read_call, write_call
from dex_agents.stored_record import StoredRecord
from dex_agents.tool_calls import Resolution, ToolCallRecord, ToolCallStatus
from dex_agents.wall_clock import read_wall_clock

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

EXPIRED_REASON = "nobody answered in time"


class AwaitToolApproval(Step[StoredRecord]):
    """Waits for the answer, for days if need be, and acts on the record, not on what woke it."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> Wait:
        """Raise the interrupt and wait for its answer."""
        record = read_call(self._runtime, context, input)
        if record.status is not ToolCallStatus.AWAITING_APPROVAL:
            return Wait.skip_immediately()
        key = call_key(record.turn_id, record.tool_call_id)
        emit(
            self._runtime,
            context,
            AgentEventType.INTERRUPT_RAISED,
            record.turn_id,
            event_id=f"interrupt_raised/{record.turn_id}/{record.tool_call_id}",
            data={
                "interrupt_id": key,
                "tool_call_id": record.tool_call_id,
                "tool_name": record.tool_name,
                "arguments": dict(record.arguments),
            },
        )
        left = _seconds_left(record)
        if record.resolution is not None or (left is not None and left <= 0):
            return Wait.skip_immediately()
        answered = self._runtime.schema.answers.for_one(key)
        if left is None:
            return Wait.until(answered)
        return Wait.any_of(answered, Timer.by_duration(timedelta(seconds=math.ceil(left))))

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Run the call, or record that it was rejected."""
        record = read_call(self._runtime, context, input)
        if context.attempt > 1:
            # The lock may have been free since the first attempt's snapshot was taken.
            return go_to_many(self._movements.await_approval(record))
        resolution = record.resolution
        if resolution is None:
            left = _seconds_left(record)
            if left is not None and left <= 0:
                # Committed before it is announced; the next execution does that.
                resolution = Resolution(False, EXPIRED_REASON, resolved_at=read_wall_clock())
                record = replace(record, resolution=resolution)
                write_call(self._runtime, context, record)
            return go_to_many(self._movements.await_approval(record))
        key = call_key(record.turn_id, record.tool_call_id)
        emit(
            self._runtime,
            context,
            AgentEventType.INTERRUPT_RESOLVED,
            record.turn_id,
            event_id=f"interrupt_resolved/{record.turn_id}/{record.tool_call_id}",
            data={
                "interrupt_id": key,
                "tool_call_id": record.tool_call_id,
                "approved": resolution.approved,
                "reason": resolution.reason,
            },
        )
        if resolution.approved:
            record = replace(record, status=ToolCallStatus.PENDING)
            write_call(self._runtime, context, record)
            return go_to_many(self._movements.call_tool(record))
        record = record.end(ToolCallStatus.REJECTED, rejection_text(record))
        write_call(self._runtime, context, record)
        return go_to_many(self._movements.announce(record))


def rejection_text(record: ToolCallRecord) -> str:
    """Return what the model is told about a rejected call."""
    reason = "" if record.resolution is None else record.resolution.reason
    text = f"The call of tool {record.tool_name!r} was rejected and did not run."
    return f"{text} Reason: {reason}" if reason else text


def _seconds_left(record: ToolCallRecord) -> float | None:
    if record.approval_timeout is None:
        return None
    return record.raised_at + record.approval_timeout - read_wall_clock()
