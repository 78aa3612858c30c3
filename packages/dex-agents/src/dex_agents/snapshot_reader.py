"""Owns how a snapshot is put together from a session's records, so that its parts fit."""

from __future__ import annotations

from dataclasses import replace

from dex_agents.session_calls import SessionCalls
from dex_agents.session_header import (
    SessionHeader,
    SessionStatus,
    TurnRecord,
    TurnState,
    turn_id_of,
)
from dex_agents.session_schema import call_key, output_name, part_key
from dex_agents.snapshot import AgentSnapshot, PendingInterrupt, QueuedMessage
from dex_agents.stored_record import (
    QUEUED_MESSAGE,
    TOOL_CALL,
    TOOL_OUTPUT_PART,
    TURN,
    StoredRecord,
    parse_record,
    read_record,
    require_format,
)
from dex_agents.tool_calls import ToolCallRecord, ToolCallStatus
from dex_agents.usage import TokenUsage

_MOST_QUEUED = 20


class SnapshotReader:
    """Reads snapshots of one session."""

    def __init__(self, calls: SessionCalls, session_id: str) -> None:
        self._calls = calls
        self._session_id = session_id

    async def read(self, after_sequence: int, limit: int) -> AgentSnapshot:
        """Read header, turns and waiting messages as of one moment, then what they name."""
        while True:
            first = await self._calls.read(self._session_id)
            header = first.header
            if header is None:
                return _empty_snapshot()
            names = [turn_id_of(header.turn_number), turn_id_of(header.turn_number - 1)]
            names = [name for name in names if name]
            state = await self._calls.read(self._session_id, turns=names)
            if state.header != header or state.status is None:
                continue
            turns = [parse_turn(name, state.find("turns", name)) for name in names]
            queued = await self._read_queued(header)
            if queued is None:
                continue
            calls = await self._read_tool_calls(turns)
            break
        count, usage = header.message_count, header.usage
        error, status = header.last_turn_error, state.status
        if status is SessionStatus.RUNNING and turns and turns[0].state is not TurnState.RUNNING:
            # The outcome is committed; FinishTurn is about to take it into the header.
            count, error, usage = turns[0].message_count, turns[0].error, usage + turns[0].usage
            status = SessionStatus.RUNNING if queued else SessionStatus.IDLE
        last = min(count, after_sequence + limit)
        messages = await self._calls.read_messages(
            self._session_id, after_sequence + 1, last, header.message_bytes
        )
        return AgentSnapshot(
            status=status,
            turn_id=header.turn_id,
            messages=tuple(messages),
            message_count=count,
            pending_interrupts=tuple(
                _interrupt(call)
                for call in calls
                if call.status is ToolCallStatus.AWAITING_APPROVAL and call.resolution is None
            ),
            tool_calls=calls,
            queued_messages=queued,
            last_turn_error=error,
            usage=usage,
        )

    async def _read_queued(self, header: SessionHeader) -> tuple[QueuedMessage, ...] | None:
        """Read the waiting messages; None if one got its turn meanwhile."""
        last = min(header.queue_tail, header.queue_head + _MOST_QUEUED)
        keys = [str(number) for number in range(header.queue_head, last)]
        records = await self._calls.read_many(self._session_id, "queued", keys)
        if len(records) < len(keys):
            return None
        data = [read_record(QUEUED_MESSAGE, records[key], "a waiting message") for key in keys]
        return tuple(QueuedMessage(each["message_id"], each["content"]) for each in data)

    async def _read_tool_calls(self, turns: list[TurnRecord]) -> tuple[ToolCallRecord, ...]:
        """Read the calls of the current and the last turn, oldest first, with whole outputs."""
        keys = [
            call_key(turn.turn_id, tool_call_id)
            for turn in reversed(turns)
            for tool_call_id, _ in turn.calls
        ]
        records = await self._calls.read_many(self._session_id, "calls", keys)
        calls = [
            parse_record(TOOL_CALL, records[key], f"call {key!r}", ToolCallRecord.from_json)
            for key in keys
            if key in records
        ]
        return tuple([await self._with_output(call) for call in calls])

    async def _with_output(self, call: ToolCallRecord) -> ToolCallRecord:
        if not call.output_parts:
            return call
        name = output_name(call_key(call.turn_id, call.tool_call_id))
        keys = [part_key(name, index) for index in range(call.output_parts)]
        parts = await self._calls.read_many(self._session_id, "parts", keys)
        if len(parts) < len(keys):
            # The turn after the next has ended meanwhile.
            return call
        bodies = [require_format(TOOL_OUTPUT_PART, parts[key], key).body for key in keys]
        return replace(call, output="".join(bodies))


def parse_turn(turn_id: str, record: StoredRecord | None) -> TurnRecord:
    """Read the record of a turn."""
    return parse_record(TURN, record, f"turn {turn_id!r}", TurnRecord.from_json)


def _interrupt(call: ToolCallRecord) -> PendingInterrupt:
    assert call.interrupt_id is not None
    timeout = call.approval_timeout
    return PendingInterrupt(
        call.interrupt_id,
        call.tool_call_id,
        call.tool_name,
        call.arguments,
        call.raised_at,
        None if timeout is None else call.raised_at + timeout,
    )


def _empty_snapshot() -> AgentSnapshot:
    """The session was accepted and its first Step has not run yet."""
    return AgentSnapshot(SessionStatus.RUNNING, "", (), 0, (), (), (), None, TokenUsage())
