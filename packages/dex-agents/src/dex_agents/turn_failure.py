"""Owns what is said of a turn that failed: to the user, and to the model on its next turn."""

from __future__ import annotations

import math

from dex_agents.messages import MessageDraft
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.session_header import TurnPosition

_LONGEST_REASON = 500
_LONGEST_PAUSE = 3600


def describe_failure(error: BaseException, failures: int) -> str:
    """Say why a turn failed, for `last_turn_error`."""
    reason = f"{type(error).__name__}: {error}"
    return f"the model call failed {failures} times, last with {reason[:_LONGEST_REASON]}"


def build_failure_note(runner: AgentFrameworkRunner, position: TurnPosition) -> MessageDraft | None:
    """Build the message that tells the model what the failed turn had done already.

    Without it the model would ask for the same writes again.
    """
    if not position.done:
        return None
    lines = ["The previous turn failed before it was answered. These tool calls had ended:"]
    lines += [f"- {each.tool_name}: {each.status}: {each.text}" for each in position.done]
    lines.append("Do not repeat calls that took effect.")
    return runner.build_user_message("\n".join(lines), f"{position.turn_id}-failed")


def retry_pause(error: BaseException) -> int | None:
    """Return the whole seconds a provider asked to wait, or None.

    Provider clients carry the answer's headers at ``error.response.headers``.
    """
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return None
    try:
        seconds = float(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return min(math.ceil(seconds), _LONGEST_PAUSE)
