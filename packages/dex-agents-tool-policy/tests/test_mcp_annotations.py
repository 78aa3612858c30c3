"""MCP annotations loosen a tool's effect only where they say so without any doubt."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any

import pytest

from dex_agents_tool_policy import ToolEffect, tool_effect_from_annotations
from dex_agents_tool_policy.errors import InvalidMetadataError

# What `langchain-mcp-adapters` 0.3.2 makes of annotations: every field, unset ones as None.
CONVERTED: dict[str, object] = {
    "title": None,
    "readOnlyHint": None,
    "destructiveHint": None,
    "idempotentHint": None,
    "openWorldHint": None,
}
NOT_TRUE = [None, False, 1, "true", "True", [True], object()]


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        ({}, None),
        ({"readOnlyHint": True}, ToolEffect.READ),
        ({"readOnlyHint": True, "idempotentHint": True}, ToolEffect.READ),
        ({"readOnlyHint": True, "destructiveHint": False}, ToolEffect.READ),
        ({"idempotentHint": True}, ToolEffect.IDEMPOTENT_WRITE),
        ({"idempotentHint": True, "destructiveHint": True}, ToolEffect.IDEMPOTENT_WRITE),
        ({"readOnlyHint": False, "idempotentHint": True}, ToolEffect.IDEMPOTENT_WRITE),
        ({"readOnlyHint": False, "idempotentHint": False}, None),
        ({"destructiveHint": False, "openWorldHint": True}, None),
    ],
)
@pytest.mark.parametrize("around", [{}, CONVERTED])
def test_hints_give_the_effect(
    hints: dict[str, object], around: dict[str, object], effect: ToolEffect | None
) -> None:
    assert tool_effect_from_annotations({**around, **hints}) is effect
    assert tool_effect_from_annotations(MappingProxyType({**around, **hints})) is effect
    assert tool_effect_from_annotations({"annotations": {**around, **hints}}) is effect


@pytest.mark.parametrize("metadata", [None, {}, CONVERTED, {"owner": "billing"}])
def test_tool_without_hints_has_no_effect_of_its_own(metadata: dict[str, object] | None) -> None:
    assert tool_effect_from_annotations(metadata) is None


@pytest.mark.parametrize("idempotent", [True, False, None])
def test_read_only_tool_that_is_destructive_contradicts_itself(idempotent: bool | None) -> None:
    hints = {"readOnlyHint": True, "destructiveHint": True, "idempotentHint": idempotent}
    assert tool_effect_from_annotations(hints) is None


def test_only_the_boolean_true_counts_as_yes() -> None:
    for read_only, idempotent in itertools.product(NOT_TRUE, repeat=2):
        hints = {"readOnlyHint": read_only, "idempotentHint": idempotent}
        assert tool_effect_from_annotations(hints) is None
        assert tool_effect_from_annotations({"annotations": hints}) is None


def test_hints_at_the_top_are_not_completed_from_below() -> None:
    yes = {"readOnlyHint": True, "idempotentHint": True}
    for hint in ("readOnlyHint", "destructiveHint", "idempotentHint"):
        assert tool_effect_from_annotations({hint: False, "annotations": yes}) is None


def test_hints_below_are_found_beside_fields_that_the_converter_left_empty() -> None:
    metadata = {**CONVERTED, "annotations": {"readOnlyHint": True}}
    assert tool_effect_from_annotations(metadata) is ToolEffect.READ


@pytest.mark.parametrize("nested", [None, True, "readOnlyHint", ["readOnlyHint"]])
def test_annotations_that_are_no_mapping_say_nothing(nested: object) -> None:
    assert tool_effect_from_annotations({"annotations": nested}) is None


def test_what_a_server_stores_in_meta_is_not_taken_for_annotations() -> None:
    hints = {"readOnlyHint": True}
    assert tool_effect_from_annotations({"_meta": {**hints, "annotations": hints}}) is None


@pytest.mark.parametrize("metadata", ["readOnlyHint", ["readOnlyHint"], 1])
def test_metadata_that_is_no_mapping_is_refused(metadata: Any) -> None:
    with pytest.raises(InvalidMetadataError, match="pass the tool's `metadata` mapping"):
        tool_effect_from_annotations(metadata)
