"""A policy that makes no sense is refused where it is written, with what to write instead."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from dex_agents_tool_policy import ToolEffect, ToolPolicy, ToolPolicyError, ToolPolicyUsageError
from dex_agents_tool_policy.errors import (
    InvalidApprovalError,
    InvalidDurationError,
    InvalidEffectError,
)


def test_policy_needs_no_more_than_an_effect() -> None:
    policy = ToolPolicy(ToolEffect.READ)
    assert (policy.requires_approval, policy.timeout, policy.approval_timeout) == (
        False,
        None,
        None,
    )


def test_policies_with_equal_settings_are_equal_and_hash_alike() -> None:
    def make() -> ToolPolicy:
        return ToolPolicy(ToolEffect.READ, True, timedelta(seconds=1), timedelta(days=3))

    assert make() == make()
    assert len({make(), make(), ToolPolicy(ToolEffect.READ)}) == 2


def test_policy_cannot_be_changed() -> None:
    policy: Any = ToolPolicy(ToolEffect.READ)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.requires_approval = True


@pytest.mark.parametrize(
    ("effect", "remedy"),
    [
        ("read", "`ToolEffect.READ`"),
        ("READ", "`ToolEffect.READ`"),
        ("single_attempt_write", "`ToolEffect.SINGLE_ATTEMPT_WRITE`"),
        ("write", "pass one of ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE"),
        (None, "pass one of ToolEffect.READ"),
        (ToolEffect, "pass one of ToolEffect.READ"),
    ],
)
def test_effect_that_is_no_member_is_refused_with_the_member_to_write(
    effect: Any, remedy: str
) -> None:
    with pytest.raises(InvalidEffectError) as caught:
        ToolPolicy(effect)
    assert str(caught.value).startswith(f"effect is {effect!r}")
    assert remedy in str(caught.value)
    assert caught.value.argument == "effect"


@pytest.mark.parametrize("argument", ["timeout", "approval_timeout"])
@pytest.mark.parametrize(
    "value",
    [
        30,
        30.0,
        "30s",
        timedelta(0),
        timedelta(seconds=-1),
        timedelta(milliseconds=1500),
        timedelta(microseconds=1),
        timedelta(days=3650, seconds=1),
        timedelta.max,
    ],
)
def test_time_that_is_no_positive_number_of_whole_seconds_is_refused(
    argument: str, value: Any
) -> None:
    arguments: dict[str, Any] = {argument: value, "requires_approval": True}
    with pytest.raises(InvalidDurationError) as caught:
        ToolPolicy(ToolEffect.READ, **arguments)
    assert str(caught.value).startswith(f"{argument} is {value!r}")
    assert f"`{argument}=timedelta(seconds=30)`" in str(caught.value)
    assert caught.value.argument == argument


@pytest.mark.parametrize("value", [timedelta(seconds=1), timedelta(days=3650)])
def test_times_from_a_second_to_ten_years_are_kept(value: timedelta) -> None:
    policy = ToolPolicy(ToolEffect.READ, True, value, value)
    assert (policy.timeout, policy.approval_timeout) == (value, value)


@pytest.mark.parametrize("value", ["no", "", 1, 0, None])
def test_approval_is_required_by_a_boolean_only(value: Any) -> None:
    with pytest.raises(InvalidApprovalError, match="pass True or False"):
        ToolPolicy(ToolEffect.READ, requires_approval=value)


def test_approval_timeout_of_a_call_that_waits_for_no_approval_is_refused() -> None:
    with pytest.raises(InvalidApprovalError, match="add `requires_approval=True`"):
        ToolPolicy(ToolEffect.READ, approval_timeout=timedelta(days=1))


def test_every_refusal_is_the_callers_mistake_and_no_builtin_error() -> None:
    """`dex-python-sdk` reads a ValueError or TypeError as an invalid result of a Step."""
    for kind in (InvalidApprovalError, InvalidDurationError, InvalidEffectError):
        assert issubclass(kind, ToolPolicyUsageError)
    assert issubclass(ToolPolicyUsageError, ToolPolicyError)
    assert not issubclass(ToolPolicyError, ValueError | TypeError)
