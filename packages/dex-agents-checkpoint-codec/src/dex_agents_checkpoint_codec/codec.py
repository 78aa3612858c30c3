"""Owns the two directions and the order of checks: nothing is decoded before all of them passed.

How a version's document looks is the schema's business, what a value is the serializer's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from importlib import metadata

from dex_agents_checkpoint_codec._json_text import (
    JsonValue,
    canonical_text,
    is_unicode,
    parse_json,
)
from dex_agents_checkpoint_codec._schema_v1 import FORMAT_V1, from_document, to_document
from dex_agents_checkpoint_codec._traversal import with_values
from dex_agents_checkpoint_codec.errors import (
    DamagedRunStateError,
    RunStateFormatError,
    RunStateUsageError,
    SerializerNameError,
    UnknownFormatError,
    ValuePlace,
)
from dex_agents_checkpoint_codec.limits import MAX_RUN_STATE_BYTES
from dex_agents_checkpoint_codec.run_state import RunState
from dex_agents_checkpoint_codec.serializer import (
    TypedSerializer,
    TypedValue,
    check_is_serializer,
    dump_value,
    load_value,
)

RUN_STATE_FORMAT = FORMAT_V1
"""The format that `encode_run_state` writes."""

_FAMILY = "dex-agents-langgraph.checkpoint."
# Every format that this release reads, with the first release that did.
_READABLE = {FORMAT_V1: "0.1.0"}

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def encode_run_state(state: RunState, serializer: TypedSerializer) -> str:
    """Return the text of a run state, always the same one if the serializer's bytes are.

    Args:
        state: the run state; its `serializer_name` is stored.
        serializer: writes every value.

    Raises:
        RunStateUsageError: an argument has a wrong type, or the text would be longer than
            `MAX_RUN_STATE_BYTES`.
        RunStateSerializerError: the serializer raised, or did not return a tag and bytes.
    """
    if not isinstance(state, RunState):
        raise RunStateUsageError(
            f"the run state is of type {type(state).__name__!r}", "pass a `RunState`"
        )
    check_is_serializer(serializer)
    typed = with_values(state, lambda place, value: dump_value(serializer, place, value))
    document = to_document(typed)
    text = canonical_text({**document, "sha256": _digest(document)})
    size = len(text.encode())
    if size > MAX_RUN_STATE_BYTES:
        raise RunStateUsageError(
            f"the run state takes {size} bytes, and {MAX_RUN_STATE_BYTES} is the most",
            "store messages as `MessageRange`s and keep large results out of the graph's state",
        )
    return text


def decode_run_state(text: str, serializer: TypedSerializer, *, serializer_name: str) -> RunState:
    """Return the run state that `encode_run_state` wrote to `text`.

    The text is checked completely before the serializer sees any of it, in this order: size and
    JSON, format, shape, SHA-256, the serializer's name.

    Args:
        text: exactly what `encode_run_state` returned, of this or an earlier release.
        serializer: reads every value; the same on every Worker.
        serializer_name: its name, which must be the one in the text.

    Raises:
        RunStateUsageError: an argument has a wrong type.
        RunStateFormatError: the text is no run state, of an unknown format, or not unchanged.
        RunStateSerializerError: the run state was written with a serializer of another name, or
            the serializer raised.
    """
    check_is_serializer(serializer)
    for name, argument in (("text", text), ("serializer_name", serializer_name)):
        if not isinstance(argument, str):
            raise RunStateUsageError(
                f"`{name}` is of type {type(argument).__name__!r}", "pass a string"
            )
    state = _checked_state(text)
    if state.serializer_name != serializer_name:
        raise SerializerNameError(state.serializer_name, serializer_name)

    def load(place: ValuePlace, typed: object) -> object:
        assert isinstance(typed, TypedValue)
        return load_value(serializer, place, typed)

    return with_values(state, load)


def _checked_state(text: str) -> RunState:
    """Return the run state of `TypedValue`s, once everything about the text has been checked."""
    if not is_unicode(text):
        raise RunStateFormatError("the text holds half of a surrogate pair")
    if len(text.encode()) > MAX_RUN_STATE_BYTES:
        raise RunStateFormatError(f"the text is longer than {MAX_RUN_STATE_BYTES} bytes")
    document = _document_of_known_format(parse_json(text))
    state = from_document(document)
    digest = document["sha256"]
    if not isinstance(digest, str) or not _HEX_DIGEST.fullmatch(digest):
        raise RunStateFormatError("sha256 is no hexadecimal SHA-256")
    content = to_document(state)
    if not hmac.compare_digest(digest, _digest(content)):
        raise DamagedRunStateError
    # Every other way to write the same document is a change, too.
    if canonical_text({**content, "sha256": digest}) != text:
        raise RunStateFormatError("the text is not written as `encode_run_state` writes it")
    return state


def _document_of_known_format(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        raise RunStateFormatError("the text is no JSON object")
    if "format" not in document:
        raise RunStateFormatError("the document has no key 'format'")
    found = document["format"]
    if not isinstance(found, str):
        raise RunStateFormatError("format is no string")
    if found not in _READABLE:
        release = metadata.version("dex-agents-checkpoint-codec")
        raise UnknownFormatError(found, _FAMILY, _READABLE, release)
    return document


def _digest(document: dict[str, JsonValue]) -> str:
    return hashlib.sha256(canonical_text(document).encode()).hexdigest()
