"""Owns what a session's Flow stores, and how each record is addressed.

A schema belongs to one Flow object: the SDK finds a Stream's Flow by the Stream object.
"""

from __future__ import annotations

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

from dex_agents.size_limits import IDENTIFIER_CHARACTERS, MIB
from dex_agents.stored_record import StoredRecord, require_format

EVENT_CAPACITY_BYTES = 64 * MIB


class SessionSchema:
    """The Attributes, Channels and Streams of one session Flow.

    Attributes:
        status: ``idle``, ``running`` or ``closed``; indexed.
        updated_at: when that was last written; indexed.
        lock: holds nothing; whoever decides holds its lock.
        header: counters and configuration; written under the lock only.
        messages: the conversation, one record per message, more for a long one.
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

    @property
    def readable(self) -> dict[str, AttributeMap[StoredRecord]]:
        """The maps that clients read, by the name they use."""
        return {
            "messages": self.messages,
            "queued": self.queued,
            "calls": self.calls,
            "turns": self.turns,
            "parts": self.parts,
            "sent": self.sent,
        }

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

    def read_parts(self, context: Context, name: str, count: int, format: str) -> str:
        """Put a text together again; its parts must have been loaded."""
        keys = [part_key(name, index) for index in range(count)]
        return "".join(
            require_format(format, self.find(context, self.parts, key), f"part {key!r}").body
            for key in keys
        )

    def delete_parts(self, context: Context, name: str, count: int) -> None:
        """Delete a text."""
        for index in range(count):
            self.parts.delete(context, part_key(name, index))


def part_key(name: str, index: int) -> str:
    """Name part `index` of the text `name`."""
    return f"{name}#{index}"


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


def is_usable_name(name: object) -> bool:
    """Tell whether `name` can name a record."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= IDENTIFIER_CHARACTERS
        and bool(name.strip())
        and "/" not in name
        and not any("\ud800" <= each <= "\udfff" for each in name)
    )
