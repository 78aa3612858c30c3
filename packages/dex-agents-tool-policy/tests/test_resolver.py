"""A call's policy is the named one, or what the annotations say, or the default."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex_agents_tool_policy import (
    ToolEffect,
    ToolPolicy,
    ToolPolicyResolver,
    ToolPolicyUsageError,
)
from dex_agents_tool_policy.errors import (
    InvalidEffectError,
    InvalidMetadataError,
    InvalidPolicyError,
    InvalidToolNameError,
)

REFUND = ToolPolicy(ToolEffect.SINGLE_ATTEMPT_WRITE, True, timedelta(minutes=1), timedelta(days=3))
READ_ONLY = {"readOnlyHint": True}


def test_named_policy_comes_before_annotations() -> None:
    resolver = ToolPolicyResolver({"refund": REFUND})
    assert resolver.resolve("refund", READ_ONLY) is REFUND


def test_annotations_come_before_the_default() -> None:
    resolver = ToolPolicyResolver({"refund": REFUND}, ToolEffect.SINGLE_ATTEMPT_WRITE)
    assert resolver.resolve("list", READ_ONLY) == ToolPolicy(ToolEffect.READ)
    assert resolver.resolve("set", {"idempotentHint": True}) == ToolPolicy(
        ToolEffect.IDEMPOTENT_WRITE
    )


def test_tool_about_which_nobody_says_anything_is_unclassified() -> None:
    resolver = ToolPolicyResolver({"refund": REFUND})
    assert resolver.default_tool_effect is ToolEffect.UNCLASSIFIED
    assert resolver.resolve("list") == ToolPolicy(ToolEffect.UNCLASSIFIED)
    assert resolver.resolve("list", {"readOnlyHint": False}) == ToolPolicy(ToolEffect.UNCLASSIFIED)


def test_default_effect_can_be_chosen() -> None:
    resolver = ToolPolicyResolver({}, default_tool_effect=ToolEffect.READ)
    assert resolver.resolve("list") == ToolPolicy(ToolEffect.READ)


@pytest.mark.parametrize("name", ["Refund", "refund ", "refunds", "", " "])
def test_names_match_exactly_and_a_name_that_a_model_made_up_gets_the_default(name: str) -> None:
    resolver = ToolPolicyResolver({"refund": REFUND})
    assert resolver.resolve(name) == ToolPolicy(ToolEffect.UNCLASSIFIED)


def test_policies_added_to_the_mapping_later_are_not_seen() -> None:
    policies = {"refund": REFUND}
    resolver = ToolPolicyResolver(policies)
    policies["list"] = ToolPolicy(ToolEffect.READ)
    del policies["refund"]
    assert resolver.policies == {"refund": REFUND}
    assert resolver.resolve("refund") is REFUND
    assert resolver.resolve("list") == ToolPolicy(ToolEffect.UNCLASSIFIED)


def test_the_resolvers_own_mapping_cannot_be_changed() -> None:
    policies: Any = ToolPolicyResolver({"refund": REFUND}).policies
    with pytest.raises(TypeError):
        policies["list"] = REFUND


@pytest.mark.parametrize("name", ["", "  ", "\n", None, 7, b"refund"])
def test_policy_without_the_name_of_a_tool_is_refused(name: Any) -> None:
    with pytest.raises(InvalidToolNameError) as caught:
        ToolPolicyResolver({name: REFUND})
    assert str(caught.value).startswith(repr(name))


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        (ToolEffect.READ, "`ToolPolicy(ToolEffect.READ)`"),
        ("read", "`ToolPolicy(ToolEffect...)`"),
        (ToolPolicy, "`ToolPolicy(ToolEffect...)`"),
        (None, "`ToolPolicy(ToolEffect...)`"),
    ],
)
def test_policy_that_is_none_is_refused_with_the_tools_name(policy: Any, remedy: str) -> None:
    with pytest.raises(InvalidPolicyError) as caught:
        ToolPolicyResolver({"refund": policy})
    assert str(caught.value).startswith("the policy of 'refund' is ")
    assert remedy in str(caught.value)
    assert caught.value.tool_name == "refund"


@pytest.mark.parametrize("policies", [None, [("refund", REFUND)], "refund"])
def test_policies_that_are_no_mapping_are_refused(policies: Any) -> None:
    with pytest.raises(InvalidPolicyError, match="pass a mapping of tool names"):
        ToolPolicyResolver(policies)


def test_default_that_is_a_string_is_refused_with_the_member_to_write() -> None:
    effect: Any = "read"
    with pytest.raises(InvalidEffectError, match=r"^default_tool_effect.*`ToolEffect\.READ`"):
        ToolPolicyResolver({}, effect)


def test_call_without_a_name_or_with_odd_metadata_is_refused() -> None:
    resolver: Any = ToolPolicyResolver({"refund": REFUND})
    with pytest.raises(InvalidToolNameError):
        resolver.resolve(None)
    with pytest.raises(InvalidMetadataError):
        resolver.resolve("list", "readOnlyHint")
    for kind in (InvalidEffectError, InvalidMetadataError, InvalidPolicyError):
        assert issubclass(kind, ToolPolicyUsageError)
