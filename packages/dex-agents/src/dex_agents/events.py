"""Owns live events: their types and their form on the Stream.

An event that announces a state is written by a Step that runs after that state was committed, and
has the same `event_id` on every retry. Readers drop repeats and skip types they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAXIMUM_EVENT_BYTES = 64 * 1024
CUT_MARK = "… [cut; the snapshot has it whole]"


class AgentEventType(StrEnum):
    """What an event says. Values are what travels."""

    TEXT_DELTA = "text_delta"
    REASONING_DELTA = "reasoning_delta"
    TURN_STARTED = "turn_started"
    TURN_COMPLETED = "turn_completed"
    TURN_FAILED = "turn_failed"
    TURN_CANCELED = "turn_canceled"
    MODEL_CALL_STARTED = "model_call_started"
    MODEL_CALL_FINISHED = "model_call_finished"
    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_PROGRESS = "tool_call_progress"
    TOOL_CALL_FINISHED = "tool_call_finished"
    INTERRUPT_RAISED = "interrupt_raised"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    MESSAGE_QUEUED = "message_queued"


@dataclass(frozen=True)
class AgentEvent:
    """One live event.

    Attributes:
        type: an `AgentEventType` value; a newer server may send others.
        payload: JSON text; always with ``event_id``, ``turn_id``, ``step_execution_id`` and
            ``attempt``.
    """

    type: str
    payload: str


def cut_event(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with its long texts cut, so that the event fits its limit."""
    result = dict(data)
    size = len(json.dumps(result, ensure_ascii=False).encode())
    if size <= MAXIMUM_EVENT_BYTES:
        return result
    room = MAXIMUM_EVENT_BYTES // 4
    for name, value in result.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text.encode()) > room:
            result[name] = text.encode()[:room].decode(errors="ignore") + CUT_MARK
    return result
