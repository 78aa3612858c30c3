"""The kit passes a serializer that keeps values, and says what another one makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from dex_agents_checkpoint_codec import RunStateUsageError, TypedSerializer
from dex_agents_checkpoint_codec.conformance import SerializerDifferenceError, check_serializer

KEPT: list[object] = [
    None,
    True,
    0,
    -1.5,
    float("nan"),
    -0.0,
    "é\0",
    b"\xff",
    [],
    {"a": [1, {"b": None}]},
]


@dataclass
class Note:
    text: str


class Changing:
    """Writes anything, and reads what it was told to."""

    def __init__(self, result: object) -> None:
        self.result = result

    def dumps_typed(self, obj: object, /) -> tuple[str, bytes]:
        return "any", b""

    def loads_typed(self, data: tuple[str, bytes], /) -> object:
        return self.result


class Remembering:
    """Keeps the objects themselves, so that only this instance can read what it wrote."""

    def __init__(self) -> None:
        self.objects: list[object] = []

    def dumps_typed(self, obj: object, /) -> tuple[str, bytes]:
        self.objects.append(obj)
        return "index", str(len(self.objects) - 1).encode()

    def loads_typed(self, data: tuple[str, bytes], /) -> object:
        return self.objects[int(data[1])]


def test_serializer_that_keeps_values_passes(serializer: TypedSerializer) -> None:
    report = check_serializer(serializer, KEPT)
    report.raise_for_differences()
    assert (report.checked, report.differences) == (len(KEPT), ())


@pytest.mark.parametrize(
    ("value", "result", "problem"),
    [
        ((1,), [1], "checkpoint: (1,) of type `builtins.tuple` came back as [1] of type"),
        (1, True, "checkpoint: 1 of type `builtins.int` came back as True of type"),
        (1.0, 1, "checkpoint: 1.0 of type `builtins.float` came back as 1 of type `builtins.int`"),
        (0.0, -0.0, "checkpoint: 0.0 came back as -0.0"),
        (float("nan"), 1.0, "checkpoint: nan came back as 1.0"),
        ("a", "b", "checkpoint: 'a' came back as 'b'"),
        ([1, 2], [1], "checkpoint: 2 items came back as 1"),
        ([[1], [2]], [[1], [3]], "checkpoint[1][0]: 2 came back as 3"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "checkpoint['a']['b']: 1 came back as 2"),
        ({"a": 1}, {}, "checkpoint: 1 members came back as 0"),
        ({1: "x"}, {"1": "x"}, "checkpoint: the key 1 did not come back"),
        ({1: "x"}, {True: "x"}, "checkpoint, key 1: 1 of type `builtins.int` came back as True"),
        ({1, 2}, {1, 3}, "checkpoint: {1, 2} came back as {1, 3}"),
        (Note("a"), Note("b"), "checkpoint: Note(text='a') came back as Note(text='b')"),
        (Note("a"), {"text": "a"}, "of type `"),
    ],
)
def test_value_that_comes_back_changed_is_described(
    value: object, result: object, problem: str
) -> None:
    report = check_serializer(Changing(result), [value])
    (difference,) = report.differences
    assert problem in difference.problem
    assert str(difference) == f"value 0: {difference.problem}"


def test_values_are_compared_whatever_the_order_of_keys() -> None:
    check_serializer(Changing({"b": 2, "a": 1}), [{"a": 1, "b": 2}]).raise_for_differences()


def test_what_the_serializer_raises_is_shown_and_the_other_values_are_still_checked(
    serializer: TypedSerializer,
) -> None:
    report = check_serializer(serializer, [1, {1, 2}, 2, Note("a")])
    assert [difference.index for difference in report.differences] == [1, 3]
    assert report.checked == 4
    assert report.differences[0].problem == (
        "`dumps_typed` raised TypeError: Object of type set is not JSON serializable"
    )


def test_failing_report_lists_every_difference_in_one_error(serializer: TypedSerializer) -> None:
    report = check_serializer(serializer, [{1, 2}, 1, (1,)])
    with pytest.raises(SerializerDifferenceError) as caught:
        report.raise_for_differences()
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 3 values do not survive a run state:"
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["value 0", "value 2"]


def test_second_instance_finds_what_the_first_one_remembers() -> None:
    check_serializer(Remembering(), [Note("a")]).raise_for_differences()
    report = check_serializer(Remembering(), [Note("a")], reader=Remembering())
    assert (
        report.differences[0].problem == "`loads_typed` raised IndexError: list index out of range"
    )


def test_result_that_the_codec_refuses_is_a_difference() -> None:
    class Text(Changing):
        def dumps_typed(self, obj: object, /) -> Any:
            return "json", json.dumps(obj)

    report = check_serializer(Text(1), [1])
    assert "did not return a pair of `str` and `bytes`" in report.differences[0].problem


def test_checking_nothing_is_refused(serializer: TypedSerializer) -> None:
    with pytest.raises(RunStateUsageError, match="there is no value to check; pass one at least"):
        check_serializer(serializer, iter(()))


def test_something_else_than_a_serializer_is_refused(serializer: TypedSerializer) -> None:
    anything: Any = json
    with pytest.raises(RunStateUsageError, match="has no method `dumps_typed`"):
        check_serializer(anything, [1])
    with pytest.raises(RunStateUsageError, match="has no method `dumps_typed`"):
        check_serializer(serializer, [1], reader=anything)
