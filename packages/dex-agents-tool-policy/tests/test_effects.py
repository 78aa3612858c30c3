"""What follows from an effect, and what of it is stored."""

from __future__ import annotations

import json

from dex_agents_tool_policy import ToolEffect


def test_effects_have_the_values_that_are_stored() -> None:
    assert {effect.name: effect.value for effect in ToolEffect} == {
        "READ": "read",
        "IDEMPOTENT_WRITE": "idempotent_write",
        "SINGLE_ATTEMPT_WRITE": "single_attempt_write",
        "UNCLASSIFIED": "unclassified",
    }


def test_stored_value_becomes_the_same_effect_again() -> None:
    for effect in ToolEffect:
        assert ToolEffect(json.loads(json.dumps(effect))) is effect


def test_only_reads_and_idempotent_writes_may_be_repeated() -> None:
    repeatable = {effect for effect in ToolEffect if not effect.is_single_attempt}
    assert repeatable == {ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE}


def test_everything_but_a_read_may_have_written() -> None:
    assert {effect for effect in ToolEffect if not effect.is_write} == {ToolEffect.READ}
