"""Owns what Steps do with their Context in the same way: events, heartbeats, loading records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dex import AsyncContext, Context

from dex_agents.events import AgentEventType, cut_event
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import TurnRecord
from dex_agents.session_schema import call_key
from dex_agents.stored_record import (
    CALL_INPUT,
    EVENT,
    PROGRESS,
    TOOL_CALL,
    TURN,
    StoredRecord,
    parse_record,
    read_record,
    write_record,
)
from dex_agents.tool_calls import ToolCallRecord

_LOGGER = logging.getLogger(__name__)
_LATE = 5.0

# What a user's code may raise and the session treats as its failure. `SystemExit` would end the
# Worker; a group may hold nothing that is an `Exception`.
USER_FAILURES = (Exception, SystemExit, BaseExceptionGroup)


def reraise_if_canceled(error: BaseException) -> None:
    """Let a cancellation of this Step through that a user's code wrapped into something else."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from None


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
async def running(
    runtime: SessionRuntime, context: AsyncContext, failures: int, seconds: float, name: str
) -> AsyncIterator[None]:
    """Run a user's code: with heartbeats, which also bring cancellations, and with a time limit.

    Args:
        seconds: its time limit; over it raises TimeoutError.
        name: names the code in the log when it blocks the event loop.
    """
    loop = asyncio.get_running_loop()
    interval = runtime.settings.heartbeat_interval
    awake = loop.time()

    def look_at_clock() -> None:
        nonlocal awake
        late = loop.time() - awake - interval
        awake = loop.time()
        if late > _LATE:
            _LOGGER.warning(
                "the event loop was blocked for %.0f seconds while %s ran; blocking code belongs "
                "into a thread, a call without a heartbeat for 60 seconds counts as lost",
                late,
                name,
            )

    async def keep_beating() -> None:
        while True:
            await beat(context, failures)
            await asyncio.sleep(interval)
            look_at_clock()

    task = asyncio.create_task(keep_beating())
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"it ran longer than {seconds:g} seconds") from None
        raise
    finally:
        look_at_clock()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def read_call(runtime: SessionRuntime, context: Context, input: StoredRecord) -> ToolCallRecord:
    """Return the record of the call that a Step is about."""
    data = read_record(CALL_INPUT, input, "the Step's input")
    key = call_key(data["turn_id"], data["tool_call_id"])
    record = runtime.schema.find(context, runtime.schema.calls, key)
    return parse_record(TOOL_CALL, record, f"tool call {key!r}", ToolCallRecord.from_json)


def write_call(runtime: SessionRuntime, context: Context, record: ToolCallRecord) -> None:
    """Store the record of a call."""
    key = call_key(record.turn_id, record.tool_call_id)
    runtime.schema.calls.set(context, key, write_record(TOOL_CALL, record.to_json()))


def read_turn(runtime: SessionRuntime, context: Context, turn_id: str) -> TurnRecord:
    """Return the record of a turn."""
    record = runtime.schema.find(context, runtime.schema.turns, turn_id)
    return parse_record(TURN, record, f"turn {turn_id!r}", TurnRecord.from_json)
