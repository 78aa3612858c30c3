"""Owns what Steps do with their Context in the same way: events, heartbeats, loading records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dex import AsyncContext

from dex_agents.events import AgentEventType, cut_event
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import TurnRecord
from dex_agents.session_schema import call_key
from dex_agents.stored_record import (
    EVENT,
    PROGRESS,
    STEP_INPUT,
    TOOL_CALL,
    TURN,
    StoredRecord,
    read_record,
    write_record,
)
from dex_agents.tool_calls import ToolCallRecord


def emit(
    runtime: SessionRuntime,
    context: AsyncContext,
    type: AgentEventType,
    turn_id: str,
    *,
    event_id: str,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write a live event.

    Args:
        event_id: what makes it the same event on a retry.
        data: the event's own fields.
    """
    payload = {
        **cut_event(data or {}),
        "event_id": event_id,
        "turn_id": turn_id,
        "step_execution_id": context.step_execution_id,
        "attempt": context.attempt,
    }
    record = write_record(EVENT, {"type": type.value, "payload": payload})
    runtime.schema.events.write(context, record)


def read_failures(context: AsyncContext) -> int:
    """Return how many attempts of this call failed, as the last heartbeat says."""
    progress = context.get_last_heartbeat_value(StoredRecord)
    if progress is None:
        return 0
    return int(read_record(PROGRESS, progress, "the heartbeat")["failures"])


async def beat(context: AsyncContext, failures: int) -> None:
    """Send a heartbeat. Each repeats the count: one without a value would clear it."""
    await context.heartbeat(write_record(PROGRESS, {"failures": failures}))


@asynccontextmanager
async def beating(
    runtime: SessionRuntime, context: AsyncContext, failures: int
) -> AsyncIterator[None]:
    """Send heartbeats while the body runs; a cancellation reaches a handler with one."""

    async def keep_beating() -> None:
        while True:
            await beat(context, failures)
            await asyncio.sleep(runtime.settings.heartbeat_interval)

    task = asyncio.create_task(keep_beating())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def read_call(
    runtime: SessionRuntime, context: AsyncContext, input: StoredRecord
) -> ToolCallRecord:
    """Return the record of the call that a Step is about."""
    data = read_record(STEP_INPUT, input, "the Step's input")
    key = call_key(data["turn_id"], data["tool_call_id"])
    record = runtime.schema.calls.get(context, key)
    return ToolCallRecord.from_json(read_record(TOOL_CALL, record, f"tool call {key!r}"))


def write_call(runtime: SessionRuntime, context: AsyncContext, record: ToolCallRecord) -> None:
    """Store the record of a call."""
    key = call_key(record.turn_id, record.tool_call_id)
    runtime.schema.calls.set(context, key, write_record(TOOL_CALL, record.to_json()))


def read_turn(runtime: SessionRuntime, context: AsyncContext, turn_id: str) -> TurnRecord:
    """Return the record of a turn."""
    record = runtime.schema.turns.get(context, turn_id)
    return TurnRecord.from_json(read_record(TURN, record, f"turn {turn_id!r}"))


def write_turn(runtime: SessionRuntime, context: AsyncContext, turn: TurnRecord) -> None:
    """Store the record of a turn."""
    runtime.schema.turns.set(context, turn.turn_id, turn.to_record())
