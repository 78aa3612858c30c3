"""Owns the check that a serializer's own tests run: do values come back as they were?

Made for tests, so its report shows values, unlike the errors of this package. Knows no types of
any framework: what the values are is the caller's choice.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dex_agents_checkpoint_codec.codec import decode_run_state, encode_run_state
from dex_agents_checkpoint_codec.errors import RunStateSerializerError, RunStateUsageError
from dex_agents_checkpoint_codec.run_state import NamespaceState, PendingWrite, RunState
from dex_agents_checkpoint_codec.serializer import TypedSerializer, check_is_serializer

_NAME = "conformance"


class SerializerDifferenceError(AssertionError):
    """Raised by `SerializerReport.raise_for_differences`; an AssertionError, so that tests fail."""


@dataclass(frozen=True, slots=True)
class SerializerDifference:
    """One value that did not come back as it was.

    Attributes:
        index: which of the values, counted from 0.
        problem: where in the run state or the value, and what is different.
    """

    index: int
    problem: str

    def __str__(self) -> str:
        return f"value {self.index}: {self.problem}"


@dataclass(frozen=True, slots=True)
class SerializerReport:
    """What `check_serializer` found.

    Attributes:
        checked: how many values it tried.
        differences: at most one per value; empty if the serializer is fit for run states.
    """

    checked: int
    differences: tuple[SerializerDifference, ...]

    def raise_for_differences(self) -> None:
        """Do nothing if every value came back as it was.

        Raises:
            SerializerDifferenceError: one did not; the message lists them all.
        """
        if self.differences:
            lines = "\n".join(f"  {each}" for each in self.differences)
            raise SerializerDifferenceError(
                f"{len(self.differences)} of {self.checked} values do not survive a run state:\n"
                f"{lines}\nchange the serializer, or keep such values out of the graph's state"
            )


def check_serializer(
    serializer: TypedSerializer,
    values: Iterable[object],
    *,
    reader: TypedSerializer | None = None,
) -> SerializerReport:
    """Take every value through a run state in each place a value can have, and compare.

    Values are the same if their types are the same and they compare equal; inside lists, tuples,
    dicts and floats the same holds for every part, and NaN is NaN.

    Args:
        serializer: writes the values.
        values: what the application's graphs hold: messages, its own classes, awkward scalars.
        reader: reads them; a second instance, as another Worker has it, finds what an instance
            remembers. None for `serializer` itself.

    Raises:
        RunStateUsageError: there are no values, or something is no serializer.
    """
    reader = serializer if reader is None else reader
    check_is_serializer(serializer)
    check_is_serializer(reader)
    checked = 0
    differences = []
    for index, value in enumerate(values):
        checked += 1
        problem = _failure(serializer, reader, value) or _difference(serializer, reader, value)
        if problem:
            differences.append(SerializerDifference(index, problem))
    if not checked:
        raise RunStateUsageError("there is no value to check", "pass one at least")
    return SerializerReport(checked, tuple(differences))


def _failure(serializer: TypedSerializer, reader: TypedSerializer, value: object) -> str:
    """Return what the serializer raises by itself, which the codec would hide."""
    method = "dumps_typed"
    try:
        typed = serializer.dumps_typed(value)
        method = "loads_typed"
        reader.loads_typed(typed)
    except Exception as error:  # border to the serializer, whose failure is the finding
        return f"`{method}` raised {type(error).__name__}: {error}"
    return ""


def _difference(serializer: TypedSerializer, reader: TypedSerializer, value: object) -> str:
    namespace = NamespaceState(
        "", value, value, (PendingWrite("task", "", _NAME, value),), {_NAME: (value,)}
    )
    try:
        text = encode_run_state(RunState((namespace,), {}, {}, _NAME), serializer)
        (decoded,) = decode_run_state(text, reader, serializer_name=_NAME).namespaces
    except RunStateSerializerError as error:
        return str(error)
    places = {
        "checkpoint": decoded.checkpoint,
        "metadata": decoded.metadata,
        "pending write": decoded.writes[0].value,
        "message": decoded.message_channels[_NAME][0],
    }
    for place, actual in places.items():
        for problem in _differences(place, value, actual):
            return problem
    return ""


def _differences(path: str, expected: object, actual: object) -> Iterator[str]:
    if type(expected) is not type(actual):
        yield (
            f"{path}: {reprlib.repr(expected)} of type {_type_name(expected)} came back as "
            f"{reprlib.repr(actual)} of type {_type_name(actual)}"
        )
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} items came back as {len(actual)}"
        for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif isinstance(expected, dict) and isinstance(actual, dict):
        yield from _dict_differences(path, expected, actual)
    elif not _is_same(expected, actual):
        yield f"{path}: {reprlib.repr(expected)} came back as {reprlib.repr(actual)}"


def _dict_differences(
    path: str, expected: dict[object, object], actual: dict[object, object]
) -> Iterator[str]:
    if len(expected) != len(actual):
        yield f"{path}: {len(expected)} members came back as {len(actual)}"
    actual_keys = {key: key for key in actual}
    for key, left in expected.items():
        shown = reprlib.repr(key)
        if key not in actual:
            yield f"{path}: the key {shown} did not come back"
            continue
        # 1, True and 1.0 are one key to a dict.
        yield from _differences(f"{path}, key {shown}", key, actual_keys[key])
        yield from _differences(f"{path}[{shown}]", left, actual[key])


def _is_same(expected: object, actual: object) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        # 0.0 and -0.0 compare equal.
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        return expected == actual and math.copysign(1, expected) == math.copysign(1, actual)
    return bool(expected == actual)


def _type_name(value: object) -> str:
    return f"`{type(value).__module__}.{type(value).__qualname__}`"
