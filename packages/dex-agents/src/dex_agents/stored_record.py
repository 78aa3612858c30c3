"""Owns the one form in which everything of a session is stored and travels.

A record names its format, so that later releases read it for ever. The place it stands in (flow
type, session, slot) is known to whoever reads and writes it and is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dex_agents.errors import StoredRecordError

MAXIMUM_RECORD_BYTES = 256 * 1024

MESSAGE = "dex-agents.message.v1"
TURN = "dex-agents.turn.v1"
TOOL_CALL = "dex-agents.tool-call.v1"
QUEUED_MESSAGE = "dex-agents.queued-message.v1"
RUN_STATE = "dex-agents.run-state-part.v1"
SESSION = "dex-agents.session.v1"
SENT = "dex-agents.sent-message.v1"
EVENT = "dex-agents.event.v1"
STEP_INPUT = "dex-agents.step-input.v1"
REQUEST = "dex-agents.request.v1"
ANSWER = "dex-agents.answer.v1"
PROGRESS = "dex-agents.progress.v1"


@dataclass(frozen=True)
class StoredRecord:
    """A value as it is stored.

    Attributes:
        format: name and version of what `body` holds.
        body: canonical JSON text.
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
    except (TypeError, ValueError) as error:
        raise StoredRecordError(f"a record of format {format!r} is not JSON: {error}") from None
    return StoredRecord(format, body)


def read_record(format: str, record: StoredRecord | None, where: str) -> dict[str, Any]:
    """Return the data of a record.

    Args:
        format: what it must be.
        where: names the place in the error.

    Raises:
        StoredRecordError: missing, of another format, or damaged.
    """
    if record is None:
        raise StoredRecordError(f"{where} has no record; its session is damaged")
    if record.format != format:
        raise StoredRecordError(
            f"{where} holds format {record.format!r} where {format!r} is expected; a newer release "
            f"may have written it"
        )
    try:
        data = json.loads(record.body)
    except ValueError:
        raise StoredRecordError(f"{where} is damaged: its body is not JSON") from None
    if not isinstance(data, dict):
        raise StoredRecordError(f"{where} is damaged: its body is no JSON object")
    return data


def record_size(record: StoredRecord) -> int:
    """Return the bytes the record takes, about."""
    return len(record.body.encode()) + len(record.format)
