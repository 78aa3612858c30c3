"""A value that could not be stored cannot be made, and the error says what to pass instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dex_agents_checkpoint_codec import (
    MAX_RUN_STATE_BYTES,
    CheckpointCodecError,
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
    RunStateFormatError,
    RunStateSerializerError,
    RunStateUsageError,
    TypedSerializer,
    encode_run_state,
)

ROOT = NamespaceState("", {}, {})


@pytest.mark.parametrize(
    ("first", "last", "problem"),
    [
        (-1, 3, "`first` of a message range is -1; pass a stored sequence"),
        (0, -1, "`last` of a message range is -1"),
        (4, 3, "the message range from 4 to 3 is reversed; pass `first` before `last`"),
        (0, 2**63, "`last` of a message range is 9223372036854775808"),
        (True, 3, "`first` of a message range is of type 'bool'"),
        (0, 3.0, "`last` of a message range is of type 'float'"),
        ("0", 3, "`first` of a message range is of type 'str'"),
    ],
)
def test_range_that_names_no_stored_messages_is_refused(
    first: Any, last: Any, problem: str
) -> None:
    with pytest.raises(RunStateUsageError) as caught:
        MessageRange(first, last)
    assert str(caught.value).startswith(problem)


def test_range_of_one_message_is_a_range() -> None:
    assert MessageRange(0, 0) == MessageRange(first=0, last=0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((None, "", "c", 1), "`task_id` of a pending write is of type 'NoneType'; pass a string"),
        (("t", 1, "c", 1), "`task_path` of a pending write is 1; pass a string"),
        (("t", "", b"c", 1), "`channel` of a pending write is of type 'bytes'; pass a string"),
        (("\ud800", "", "c", 1), "`task_id` of a pending write holds half of a surrogate pair"),
    ],
)
def test_write_with_a_name_that_is_no_string_is_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(RunStateUsageError) as caught:
        PendingWrite(*arguments)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"namespace": None}, "a namespace is of type 'NoneType'"),
        ({"writes": []}, "`writes` is of type 'list'; pass a tuple"),
        ({"writes": ("t",)}, "item 0 of `writes` is of type 'str'; pass a `PendingWrite`"),
        ({"message_channels": []}, "`message_channels` is of type 'list'; pass a mapping"),
        ({"message_channels": {1: ()}}, "the name of a message channel is 1; pass a string"),
        ({"message_channels": {"m": []}}, "message channel 'm' is of type 'list'; pass a tuple"),
    ],
)
def test_namespace_with_a_part_of_a_wrong_type_is_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RunStateUsageError) as caught:
        NamespaceState(**{"namespace": "", "checkpoint": 1, "metadata": 2, **arguments})
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"namespaces": [ROOT]}, "`namespaces` is of type 'list'; pass a tuple"),
        ({"namespaces": (1,)}, "item 0 of `namespaces` is 1; pass a `NamespaceState`"),
        ({"namespaces": (ROOT, ROOT)}, "the namespace '' occurs twice; pass each of them once"),
        ({"deferred_calls": ()}, "`deferred_calls` is of type 'tuple'; pass a mapping"),
        ({"deferred_calls": {"": ()}}, "an interrupt id is empty; pass a string that is not"),
        ({"deferred_calls": {"i": "c"}}, "the calls of interrupt 'i' is of type 'str'; pass a tu"),
        (
            {"deferred_calls": {"i": (1,)}},
            "item 0 of the calls of interrupt 'i' is 1; pass a `str`",
        ),
        ({"deferred_calls": {"i": ("",)}}, "a tool call id is empty"),
        ({"deferred_calls": {"i": ("c", "c")}}, "the tool call id 'c' occurs twice"),
        ({"deferred_calls": {"i": ("c",), "j": ("c",)}}, "the tool call id 'c' occurs twice"),
        ({"fingerprint": None}, "fingerprint is of type 'NoneType'; pass a mapping of JSON values"),
        ({"fingerprint": {1: 1}}, "a key of fingerprint is no string of valid Unicode"),
        ({"fingerprint": {"a": [{"b": 1j}]}}, "fingerprint['a'][0]['b'] is of type 'complex'"),
        ({"fingerprint": {"a": (1,)}}, "fingerprint['a'] is of type 'tuple' or out of range"),
        ({"fingerprint": {"a": float("nan")}}, "fingerprint['a'] is of type 'float' or out of"),
        ({"fingerprint": {"a": 2**63}}, "fingerprint['a'] is of type 'int' or out of range"),
        ({"serializer_name": ""}, "`serializer_name` is empty; pass a string that is not"),
        ({"serializer_name": 1}, "`serializer_name` is 1; pass a string"),
    ],
)
def test_run_state_that_could_not_be_read_again_is_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    good = {"namespaces": (), "deferred_calls": {}, "fingerprint": {}, "serializer_name": "toy"}
    with pytest.raises(RunStateUsageError) as caught:
        RunState(**{**good, **arguments})
    assert str(caught.value).startswith(problem)


def test_fingerprint_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RunStateUsageError, match="is nested more than 32 levels deep"):
        RunState((), {}, {"graph": endless}, "toy")


def test_mappings_are_copied_and_values_are_not_shown() -> None:
    fingerprint: Any = {"nodes": ["model"]}
    calls, channels = {"i": ("c",)}, {"messages": ("secret",)}
    state = RunState(
        (NamespaceState("", "secret", "secret", (), channels),), calls, fingerprint, "toy"
    )
    fingerprint["nodes"].append("tools")
    calls.clear()
    channels.clear()
    assert state.fingerprint == {"nodes": ["model"]}
    assert state.deferred_calls == {"i": ("c",)}
    assert state.namespaces[0].message_channels == {"messages": ("secret",)}
    assert "secret" not in repr(state) + repr(PendingWrite("t", "", "c", "secret"))


def test_values_cannot_be_changed() -> None:
    values: list[Any] = [ROOT, MessageRange(0, 1), PendingWrite("t", "", "c", 1)]
    for value in [*values, RunState((), {}, {}, "toy")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 1)


def test_run_state_too_large_to_be_read_is_not_written(serializer: TypedSerializer) -> None:
    state = RunState((NamespaceState("", bytes(MAX_RUN_STATE_BYTES), {}),), {}, {}, "toy")
    with pytest.raises(RunStateUsageError, match="and 67108864 is the most; store messages as"):
        encode_run_state(state, serializer)


def test_something_else_than_a_run_state_is_the_callers_mistake(
    serializer: TypedSerializer,
) -> None:
    nothing: Any = None
    with pytest.raises(RunStateUsageError, match="is of type 'NoneType'; pass a `RunState`"):
        encode_run_state(nothing, serializer)


def test_errors_have_one_root_and_are_no_builtin_errors() -> None:
    """`dex-python-sdk` reads a ValueError or TypeError as an invalid result of a Step."""
    for family in (RunStateFormatError, RunStateSerializerError, RunStateUsageError):
        assert issubclass(family, CheckpointCodecError)
    assert not issubclass(CheckpointCodecError, ValueError | TypeError)
