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

from dex_agents.size_limits import EVENT, EVENT_TEXT, cut_text, travelling_size


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
    """Return `data` so that its event fits; ``cut`` then lists the fields that were cut.

    A cut field is text, the begin of what it was. The snapshot has it whole.
    """
    result = dict(data)
    if travelling_size(_as_text(result)) <= EVENT - EVENT_TEXT:
        return result
    for name, value in data.items():
        text = value if isinstance(value, str) else _as_text(value)
        cut = cut_text(text, EVENT_TEXT)
        if cut != text:
            result[name] = cut
            result["cut"] = [*result.get("cut", ()), name]
    return result


def _as_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
