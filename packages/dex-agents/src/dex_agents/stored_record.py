"""Owns the one form in which everything of a session is stored and travels.

A record names its format, so that later releases read it for ever. The place it stands in (flow
type, session, slot) is known to whoever reads and writes it and is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dex_agents.errors import StoredRecordError
from dex_agents.size_limits import travelling_size

# What is stored.
SESSION = "dex-agents.session.v1"
TURN = "dex-agents.turn.v1"
MESSAGE = "dex-agents.message.v1"
MESSAGE_PART = "dex-agents.message-part.v1"
QUEUED_MESSAGE = "dex-agents.queued-message.v1"
SENT = "dex-agents.sent-message.v1"
TOOL_CALL = "dex-agents.tool-call.v1"
TOOL_OUTPUT_PART = "dex-agents.tool-output-part.v1"
RUN_STATE_PART = "dex-agents.run-state-part.v1"
# What Steps are given, and what they tell each other.
START = "dex-agents.start.v1"
POSITION = "dex-agents.turn-position.v1"
CALL_INPUT = "dex-agents.call-input.v1"
CALL_RESULT = "dex-agents.call-result.v1"
QUEUED_INPUT = "dex-agents.queued-input.v1"
ANSWERED = "dex-agents.answered.v1"
PROGRESS = "dex-agents.progress.v1"
# What travels between clients and the session.
EVENT = "dex-agents.event.v1"
REQUEST = "dex-agents.request.v1"
ANSWER = "dex-agents.answer.v1"

ParsedT = TypeVar("ParsedT")


@dataclass(frozen=True)
class StoredRecord:
    """A value as it is stored.

    Attributes:
        format: name and version of what `body` holds.
        body: canonical JSON text, or a part of a longer text.
    """

    format: str
    body: str


def write_record(format: str, data: Mapping[str, Any]) -> StoredRecord:
    """Make a record of JSON data.

    Raises:
        StoredRecordError: the data is not JSON.
    """
    try:
        body = json.dumps(
            data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise StoredRecordError(f"a record of format {format!r} is not JSON: {error}") from None
    return StoredRecord(format, body)


def require_format(format: str, record: StoredRecord | None, where: str) -> StoredRecord:
    """Return the record if it has this format.

    Args:
        where: names the place in the error.

    Raises:
        StoredRecordError: missing, or of another format.
    """
    if record is None:
        raise StoredRecordError(f"{where} has no record; its session is damaged")
    if record.format != format:
        raise StoredRecordError(
            f"{where} holds format {record.format!r} where {format!r} is expected; a newer release "
            f"may have written it"
        )
    return record


def read_record(format: str, record: StoredRecord | None, where: str) -> dict[str, Any]:
    """Return the data of a record.

    Raises:
        StoredRecordError: missing, of another format, or damaged.
    """
    body = require_format(format, record, where).body
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise StoredRecordError(f"{where} is damaged: its body is not JSON") from None
    if not isinstance(data, dict):
        raise StoredRecordError(f"{where} is damaged: its body is no JSON object")
    return data


def parse_record(
    format: str,
    record: StoredRecord | None,
    where: str,
    parse: Callable[[Mapping[str, Any]], ParsedT],
) -> ParsedT:
    """Return what `parse` makes of a record's data.

    Raises:
        StoredRecordError: missing, of another format, or damaged.
    """
    data = read_record(format, record, where)
    try:
        return parse(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = type(error).__name__
        raise StoredRecordError(f"{where} is damaged: its fields are wrong ({reason})") from None


def record_size(record: StoredRecord) -> int:
    """Return the bytes the record takes when it travels."""
    return travelling_size(record.body) + len(record.format) + 24
