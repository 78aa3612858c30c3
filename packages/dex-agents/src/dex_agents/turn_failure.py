"""Owns what is said of a turn that failed: to the user, and to the model on its next turn."""

from __future__ import annotations

import logging
import math
from email.utils import parsedate_to_datetime

from dex_agents.messages import MessageDraft
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.session_header import TurnPosition
from dex_agents.wall_clock import read_wall_clock

_LOGGER = logging.getLogger(__name__)
_LONGEST_REASON = 500
_LONGEST_PAUSE = 3600
_DEEPEST_CAUSE = 5


def describe_error(error: BaseException, limit: int = _LONGEST_REASON) -> str:
    """Say what a user's code raised; its own text may fail too."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # the border to the user's exception
        return name
    return f"{name}: {text[:limit]}" if text else name


def build_failure_note(runner: AgentFrameworkRunner, position: TurnPosition) -> MessageDraft | None:
    """Build the message that tells the model what the failed turn had done already.

    Without it the model would ask for the same writes again.
    """
    if not position.done:
        return None
    lines = ["The previous turn failed before it was answered. These tool calls had ended:"]
    lines += [
        f"- {each.tool_name}: {each.status}: {each.text}".rstrip(": ") for each in position.done
    ]
    lines.append("Do not repeat calls that took effect.")
    try:
        return runner.build_user_message("\n".join(lines), f"{position.turn_id}-failed")
    except Exception:  # the border to the runner
        _LOGGER.exception("the runner cannot build the note of failed %r", position.turn_id)
        return None


def retry_pause(error: BaseException) -> int | None:
    """Return the whole seconds a provider asked to wait, or None.

    Provider clients carry the answer's headers at ``error.response.headers``; frameworks wrap them.
    """
    cause: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if cause is None:
            return None
        try:
            value = cause.response.headers.get("retry-after")  # type: ignore[attr-defined]
            seconds = _read_seconds(value)
        except Exception:  # the border to the provider's exception
            seconds = None
        if seconds is not None:
            return min(max(math.ceil(seconds), 1), _LONGEST_PAUSE)
        cause = cause.__cause__ or cause.__context__
    return None


def _read_seconds(value: str) -> float | None:
    """Read a ``Retry-After`` header: seconds, or a date."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = parsedate_to_datetime(value).timestamp() - read_wall_clock()
    return seconds if math.isfinite(seconds) else None
