"""Owns how a turn begins. Whoever calls this holds the session's lock and decides on attempt 1."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dex import Context, StepMovement

from dex_agents.messages import AgentMessage, MessageDraft
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import (
    SessionHeader,
    SessionStatus,
    TurnPosition,
    TurnRecord,
    TurnState,
)
from dex_agents.stored_messages import build_message_records
from dex_agents.stored_record import (
    SENT,
    SESSION,
    StoredRecord,
    parse_record,
    record_size,
    write_record,
)
from dex_agents.turn_failure import describe_error
from dex_agents.wall_clock import read_wall_datetime

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_LOGGER = logging.getLogger(__name__)


def read_header(runtime: SessionRuntime, context: Context) -> SessionHeader:
    """Return the session's header."""
    record = runtime.schema.header.get(context)
    return parse_record(SESSION, record, "the session", SessionHeader.from_json)


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

    A message that the runner cannot take fails its turn: a Step that would raise here would be
    repeated for ever.

    Args:
        sent: ``content`` and ``message_id`` of the message.
    """
    header = replace(header, turn_number=header.turn_number + 1)
    turn = TurnRecord(header.turn_id)
    receipt: dict[str, Any] = {"sequence": None, "turn_id": header.turn_id}
    runner = runtime.require_runner()
    try:
        draft = runner.build_user_message(sent["content"], sent["message_id"])
        header = _store_message(runtime, context, header, draft)
        receipt["sequence"] = header.message_count
    except Exception as error:  # the border to the runner
        _LOGGER.exception("session %r has a message the agent cannot take", context.flow_id)
        reason = f"the agent cannot take the message: {describe_error(error)}"
        turn = replace(turn, state=TurnState.FAILED, error=reason)
    schema = runtime.schema
    schema.sent.set(context, sent["message_id"], write_record(SENT, receipt))
    turn = replace(turn, message_count=header.message_count, message_bytes=header.message_bytes)
    schema.turns.set(context, header.turn_id, turn.to_record())
    write_header(runtime, context, header, SessionStatus.RUNNING)
    position = TurnPosition(
        turn_number=header.turn_number,
        message_count=header.message_count,
        message_bytes=header.message_bytes,
        queue_head=header.queue_head,
    )
    if turn.state is TurnState.FAILED:
        return movements.finish_turn(position)
    return movements.run_model(position)


def _store_message(
    runtime: SessionRuntime, context: Context, header: SessionHeader, draft: MessageDraft
) -> SessionHeader:
    sequence = header.message_count + 1
    records = build_message_records(AgentMessage.of(draft, sequence, header.turn_id))
    for key, record in records.items():
        runtime.schema.messages.set(context, key, record)
    size = sum(record_size(record) for record in records.values())
    return replace(header, message_count=sequence, message_bytes=header.message_bytes + size)
