"""Owns how a turn begins. Whoever calls this holds the session's lock and decides on attempt 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dex import Context, StepMovement

from dex_agents.messages import AgentMessage
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import SessionHeader, SessionStatus, TurnPosition, TurnRecord
from dex_agents.session_schema import message_key
from dex_agents.stored_record import (
    MESSAGE,
    SENT,
    SESSION,
    StoredRecord,
    read_record,
    record_size,
    write_record,
)
from dex_agents.wall_clock import read_wall_datetime

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


def read_header(runtime: SessionRuntime, context: Context) -> SessionHeader:
    """Return the session's header."""
    record = runtime.schema.header.get(context)
    return SessionHeader.from_json(read_record(SESSION, record, "the session"))


def write_header(
    runtime: SessionRuntime, context: Context, header: SessionHeader, status: SessionStatus
) -> None:
    """Store the session's header and what is indexed."""
    runtime.schema.header.set(context, header.to_record())
    runtime.schema.status.set(context, status.value)
    runtime.schema.updated_at.set(context, read_wall_datetime())


def begin_turn(
    runtime: SessionRuntime,
    movements: SessionMovements,
    context: Context,
    header: SessionHeader,
    sent: Mapping[str, Any],
) -> StepMovement[StoredRecord]:
    """Store the user's message as the next one and begin its turn.

    Args:
        sent: ``content`` and ``message_id`` of the message.
    """
    sequence = header.message_count + 1
    header = replace(header, turn_number=header.turn_number + 1, message_count=sequence)
    draft = runtime.require_runner().build_user_message(sent["content"], sent["message_id"])
    message = AgentMessage.of(draft, sequence, header.turn_id)
    record = write_record(MESSAGE, message.to_json())
    header = replace(header, message_bytes=header.message_bytes + record_size(record))
    schema = runtime.schema
    schema.messages.set(context, message_key(sequence), record)
    schema.sent.set(
        context,
        sent["message_id"],
        write_record(SENT, {"sequence": sequence, "turn_id": header.turn_id}),
    )
    schema.turns.set(context, header.turn_id, TurnRecord(header.turn_id).to_record())
    write_header(runtime, context, header, SessionStatus.RUNNING)
    return movements.run_model(
        TurnPosition(
            turn_number=header.turn_number,
            message_count=header.message_count,
            message_bytes=header.message_bytes,
            queue_head=header.queue_head,
            config=header.config,
        )
    )
