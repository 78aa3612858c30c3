"""Owns what an application says about one tool, and that it makes sense. Runs and times nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dex_agents_tool_policy.effects import ToolEffect
from dex_agents_tool_policy.errors import (
    InvalidApprovalError,
    InvalidDurationError,
    InvalidEffectError,
)

LONGEST_DURATION = timedelta(days=3650)
"""The longest timeout: the engine counts seconds in 32 bits, and sessions add some of their own."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How a durable session treats the calls of one tool.

    Attributes:
        effect: what a call does to the world; decides whether it may be repeated.
        requires_approval: whether each call waits until somebody has approved it.
        timeout: how long one attempt may run; None for the session's default. Whole seconds.
        approval_timeout: how long a call waits for its approval; None for ever. Whole seconds,
            and only together with `requires_approval`.

    Raises:
        ToolPolicyUsageError: an argument has a wrong type or value, or the two approval settings
            contradict each other.
    """

    effect: ToolEffect
    requires_approval: bool = False
    timeout: timedelta | None = None
    approval_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        check_effect("effect", self.effect)
        _check_duration("timeout", self.timeout)
        _check_duration("approval_timeout", self.approval_timeout)
        # `requires_approval="no"` would be true, and without approval there is nothing to time.
        allowed = (True, False) if self.approval_timeout is None else (True,)
        if not any(self.requires_approval is value for value in allowed):
            raise InvalidApprovalError(self.requires_approval, self.approval_timeout)


def check_effect(argument: str, value: object) -> None:
    """Refuse anything but a `ToolEffect`.

    Raises:
        InvalidEffectError: `value` is something else; a string with an effect's value, too.
    """
    if not isinstance(value, ToolEffect):
        raise InvalidEffectError(argument, value)


def _check_duration(argument: str, value: object) -> None:
    if value is None:
        return
    if (
        not isinstance(value, timedelta)
        or value.microseconds
        or not timedelta(0) < value <= LONGEST_DURATION
    ):
        raise InvalidDurationError(argument, value, LONGEST_DURATION)
