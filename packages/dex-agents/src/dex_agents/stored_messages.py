"""Owns how messages are stored: one record each, and further records for the parts of a long one.

All of them stand in one map, so that a whole history can be loaded at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dex_agents.errors import StoredRecordError
from dex_agents.messages import AgentMessage
from dex_agents.size_limits import DISPLAY_CHARACTERS, PART, RECORD, cut_characters, split_text
from dex_agents.stored_record import (
    MESSAGE,
    MESSAGE_PART,
    StoredRecord,
    parse_record,
    read_record,
    record_size,
    require_format,
    write_record,
)


def message_key(sequence: int) -> str:
    """Name the record of a message; names sort by sequence."""
    return f"{sequence:09d}"


def message_part_keys(sequence: int, count: int) -> list[str]:
    """Name the parts of a long message."""
    return [f"{message_key(sequence)}#{index}" for index in range(count)]


def build_message_records(message: AgentMessage) -> dict[str, StoredRecord]:
    """Return the records of a message, by key."""
    key = message_key(message.sequence)
    record = write_record(MESSAGE, message.to_json())
    if record_size(record) <= RECORD:
        return {key: record}
    # What is shown is a projection; the framework's own form is what counts, and is kept whole.
    output = message.tool_output
    message = replace(
        message,
        text=cut_characters(message.text, DISPLAY_CHARACTERS),
        tool_output=None if output is None else cut_characters(output, DISPLAY_CHARACTERS),
    )
    parts = list(split_text(message.framework_item, PART))
    head = {**replace(message, framework_item="").to_json(), "parts": len(parts)}
    names = message_part_keys(message.sequence, len(parts))
    return {
        key: write_record(MESSAGE, head),
        **{name: StoredRecord(MESSAGE_PART, part) for name, part in zip(names, parts, strict=True)},
    }


def count_message_parts(sequence: int, head: StoredRecord | None) -> int:
    """Return how many parts a message has beside its record."""
    return int(read_record(MESSAGE, head, f"message {sequence}").get("parts", 0))


def read_message(sequence: int, find: Callable[[str], StoredRecord | None]) -> AgentMessage:
    """Put a message together.

    Args:
        find: returns a record of the message by key.

    Raises:
        StoredRecordError: something of it is missing or damaged.
    """
    where = f"message {sequence}"
    head = find(message_key(sequence))
    message = parse_record(MESSAGE, head, where, AgentMessage.from_json)
    if message.sequence != sequence:
        raise StoredRecordError(f"{where} is damaged: it holds message {message.sequence}")
    names = message_part_keys(sequence, count_message_parts(sequence, head))
    if not names:
        return message
    bodies = [require_format(MESSAGE_PART, find(name), where).body for name in names]
    return replace(message, framework_item="".join(bodies))
