"""Owns what a session's Flow stores, and how each record is addressed.

A schema belongs to one Flow object: the SDK finds a Stream's Flow by the Stream object.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import cast

from dex import (
    Attribute,
    AttributeIndex,
    AttributeMap,
    AttributeMapLoad,
    ChannelMap,
    Context,
    IndexType,
    PersistenceSchema,
    Stream,
)

from dex_agents.stored_record import StoredRecord

EVENT_CAPACITY_BYTES = 64 * 1024 * 1024
PART_BYTES = 192 * 1024


class SessionSchema:
    """The Attributes, Channels and Streams of one session Flow.

    Attributes:
        status: ``idle``, ``running`` or ``closed``; indexed.
        updated_at: when that was last written; indexed.
        lock: holds nothing; whoever decides holds its lock.
        header: counters and configuration; written under the lock only.
        messages: the conversation, one record per message.
        queued: user messages that wait for their turn, one record each.
        calls: tool call records of the current and the last turn.
        turns: outcome of each turn.
        parts: long texts, in parts: run states and tool outputs.
        sent: what became of each message id.
        results: per turn and round, one message for each finished call.
        answers: per interrupt, one message when it has been answered.
        events: live events.
    """

    status = Attribute("agent_status", str, index=AttributeIndex(IndexType.KEYWORD, "agent_status"))
    updated_at = Attribute(
        "agent_updated_at", datetime, index=AttributeIndex(IndexType.DATETIME, "agent_updated_at")
    )
    lock = Attribute("agent_lock", str)
    header = Attribute("agent_session", StoredRecord)
    messages = AttributeMap("agent_messages", StoredRecord)
    queued = AttributeMap("agent_queued", StoredRecord)
    calls = AttributeMap("agent_calls", StoredRecord)
    turns = AttributeMap("agent_turns", StoredRecord)
    parts = AttributeMap("agent_parts", StoredRecord)
    sent = AttributeMap("agent_sent", StoredRecord)
    results = ChannelMap("agent_results", StoredRecord)
    answers = ChannelMap("agent_answers", StoredRecord)

    def __init__(self) -> None:
        self.events = Stream("agent_events", StoredRecord, EVENT_CAPACITY_BYTES)

    def persistence(self) -> PersistenceSchema:
        """Return the schema the SDK registers."""
        return PersistenceSchema.of(
            self.status,
            self.updated_at,
            self.lock,
            self.header,
            self.messages,
            self.queued,
            self.calls,
            self.turns,
            self.parts,
            self.sent,
            self.results,
            self.answers,
            self.events,
        )

    def find(
        self, context: Context, map: AttributeMap[StoredRecord], key: str
    ) -> StoredRecord | None:
        """Return the loaded record of a map, or None if there is none."""
        return cast("StoredRecord | None", map.get(context, key))

    def load_parts(self, name: str, count: int) -> tuple[AttributeMapLoad, ...]:
        """Select the parts of the text `name`."""
        return tuple(self.parts.load(part_key(name, index)) for index in range(count))

    def write_parts(self, context: Context, name: str, format: str, text: str) -> int:
        """Store a text of any length; return how many parts it took."""
        count = 0
        for count, part in enumerate(_split(text), start=1):
            self.parts.set(context, part_key(name, count - 1), StoredRecord(format, part))
        return count

    def read_parts(self, context: Context, name: str, count: int) -> str:
        """Put a text together again; its parts must have been loaded."""
        return "".join(
            self.parts.get(context, part_key(name, index)).body for index in range(count)
        )

    def delete_parts(self, context: Context, name: str, count: int) -> None:
        """Delete a text."""
        for index in range(count):
            self.parts.delete(context, part_key(name, index))


def part_key(name: str, index: int) -> str:
    """Name part `index` of the text `name`."""
    return f"{name}#{index}"


def message_key(sequence: int) -> str:
    """Name the record of a message; names sort by sequence."""
    return f"{sequence:09d}"


def call_key(turn_id: str, tool_call_id: str) -> str:
    """Name the record of a tool call, which is also the id of its interrupt."""
    return f"{turn_id}:{tool_call_id}"


def round_key(turn_id: str, round: int) -> str:
    """Name the Channel that collects the results of one model message."""
    return f"{turn_id}:{round}"


def run_state_name(turn_id: str) -> str:
    """Name the text that holds a turn's run state."""
    return f"run-state:{turn_id}"


def output_name(key: str) -> str:
    """Name the text that holds the long output of a call."""
    return f"output:{key}"


def _split(text: str) -> Iterator[str]:
    """Yield pieces of at most `PART_BYTES` bytes, never within a character."""
    data = text.encode()
    start = 0
    while start < len(data):
        end = min(start + PART_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end
