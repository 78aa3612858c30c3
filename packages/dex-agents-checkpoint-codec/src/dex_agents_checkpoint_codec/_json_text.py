"""Owns JSON text: one way to write a value, and strict reading. Knows nothing of run states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeAlias

from dex_agents_checkpoint_codec.errors import RunStateFormatError, RunStateUsageError, quoted
from dex_agents_checkpoint_codec.limits import MAX_INTEGER, MAX_JSON_DEPTH

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

# "-9223372036854775808" is the longest integer; Python would read thousands of digits.
_LONGEST_INTEGER_TEXT = len(str(-MAX_INTEGER))


def canonical_text(value: JsonValue) -> str:
    """Return the one text of a value.

    Keys are sorted by code point, there are no spaces, and only what must be escaped is.
    """
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def parse_json(text: str) -> object:
    """Return the value of a JSON text.

    Raises:
        RunStateFormatError: the text is no JSON, repeats a key, or holds NaN, an infinity, or an
            integer that is too long.
    """
    # Built outside the handler: a decoding error keeps the whole text it was raised about.
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_short_integer,
        )
    except json.JSONDecodeError as error:
        problem = f"the text is no JSON at character {error.pos}"
    except RecursionError:
        problem = "the text is nested too deeply"
    raise RunStateFormatError(problem)


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can hold the text: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def copy_json_object(what: str, value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy that shares no list or object with `value`.

    Raises:
        RunStateUsageError: something in it is no JSON value, or out of the limits.
    """
    if not isinstance(value, Mapping):
        raise RunStateUsageError(
            f"{what} is of type {type(value).__name__!r}", "pass a mapping of JSON values"
        )
    return _copy_members(what, value, 1)


def _copy_members(path: str, members: Mapping[str, JsonValue], depth: int) -> dict[str, JsonValue]:
    copied: dict[str, JsonValue] = {}
    for key, member in members.items():
        if not _is_key(key):
            raise RunStateUsageError(
                f"a key of {path} is no string of valid Unicode", "pass strings as keys"
            )
        copied[key] = _copy(f"{path}[{quoted(key)}]", member, depth + 1)
    return copied


def _copy(path: str, value: JsonValue, depth: int) -> JsonValue:
    if depth > MAX_JSON_DEPTH:
        raise RunStateUsageError(
            f"{path} is nested more than {MAX_JSON_DEPTH} levels deep", "pass a flatter value"
        )
    if isinstance(value, dict):
        return _copy_members(path, value, depth)
    if isinstance(value, list):
        return [_copy(f"{path}[{index}]", each, depth + 1) for index, each in enumerate(value)]
    if not _is_scalar(value):
        raise RunStateUsageError(
            f"{path} is of type {type(value).__name__!r} or out of range",
            "pass None, a bool, an integer of at most 64 bits, a finite float, valid Unicode, "
            "a list or a dict",
        )
    return value


def _is_key(key: object) -> bool:
    return isinstance(key, str) and is_unicode(key)


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -MAX_INTEGER - 1 <= value <= MAX_INTEGER
    return value is None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise RunStateFormatError(f"the key {quoted(key)} occurs twice in one object")
        members[key] = value
    return members


def _refuse_constant(name: str) -> object:
    raise RunStateFormatError(f"{name} is no number of JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise RunStateFormatError("a number is too large")
    return value


def _short_integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER_TEXT:
        raise RunStateFormatError("an integer is too long")
    return int(digits)
