"""Owns the JSON document of `dex-agents-langgraph.checkpoint.v1`, which is read for ever.

It goes between documents and run states whose values are still `TypedValue`s, so nothing here can
decode one. A release that stores anything else gets a version and a module of its own.
"""

from __future__ import annotations

import base64
import binascii

from dex_agents_checkpoint_codec._json_text import JsonValue, is_unicode
from dex_agents_checkpoint_codec.errors import RunStateFormatError, RunStateUsageError, quoted
from dex_agents_checkpoint_codec.run_state import (
    MessageItem,
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
)
from dex_agents_checkpoint_codec.serializer import TypedValue

FORMAT_V1 = "dex-agents-langgraph.checkpoint.v1"

_DOCUMENT_KEYS = {
    "deferred_calls",
    "fingerprint",
    "format",
    "namespaces",
    "serializer",
    "sha256",
}
_NAMESPACE_KEYS = {"checkpoint", "message_channels", "metadata", "namespace", "writes"}
_WRITE_KEYS = {"channel", "task_id", "task_path", "value"}


def to_document(state: RunState) -> dict[str, JsonValue]:
    """Return the document of a run state of `TypedValue`s, without its ``sha256``."""
    deferred: dict[str, JsonValue] = {}
    for interrupt_id, call_ids in state.deferred_calls.items():
        deferred[interrupt_id] = list(call_ids)
    return {
        "deferred_calls": deferred,
        "fingerprint": dict(state.fingerprint),
        "format": FORMAT_V1,
        "namespaces": [_namespace_document(each) for each in state.namespaces],
        "serializer": state.serializer_name,
    }


def from_document(document: dict[str, object]) -> RunState:
    """Return the run state of `TypedValue`s that a document holds; its ``sha256`` is not checked.

    Raises:
        RunStateFormatError: the document is not exactly of this format.
    """
    _check_keys("the document", document, _DOCUMENT_KEYS)
    problem = ""
    try:
        return RunState(
            tuple(
                _namespace_state(f"namespaces[{index}]", each)
                for index, each in enumerate(_array("namespaces", document["namespaces"]))
            ),
            {
                interrupt_id: tuple(
                    _text(f"deferred_calls[{quoted(interrupt_id)}]", call_id)
                    for call_id in _array(f"deferred_calls[{quoted(interrupt_id)}]", call_ids)
                )
                for interrupt_id, call_ids in _object(
                    "deferred_calls", document["deferred_calls"]
                ).items()
            },
            # Checked by the run state, which also bounds its depth.
            _object("fingerprint", document["fingerprint"]),  # type: ignore[arg-type]
            _text("serializer", document["serializer"]),
        )
    except RunStateUsageError as error:
        # The values' own rules hold for stored ones too, but here nobody made a mistake.
        problem = error.problem
    raise RunStateFormatError(problem)


def _namespace_document(state: NamespaceState) -> JsonValue:
    channels: dict[str, JsonValue] = {}
    for channel, items in state.message_channels.items():
        channels[channel] = [_message_document(item) for item in items]
    return {
        "checkpoint": _typed_document(state.checkpoint),
        "message_channels": channels,
        "metadata": _typed_document(state.metadata),
        "namespace": state.namespace,
        "writes": [
            {
                "channel": write.channel,
                "task_id": write.task_id,
                "task_path": write.task_path,
                "value": _typed_document(write.value),
            }
            for write in state.writes
        ],
    }


def _message_document(item: MessageItem) -> JsonValue:
    if isinstance(item, MessageRange):
        return {"range": [item.first, item.last]}
    return {"value": _typed_document(item)}


def _typed_document(value: object) -> JsonValue:
    assert isinstance(value, TypedValue)
    return [value.tag, base64.b64encode(value.data).decode("ascii")]


def _namespace_state(path: str, value: object) -> NamespaceState:
    members = _object(path, value)
    _check_keys(path, members, _NAMESPACE_KEYS)
    writes = _array(f"{path}.writes", members["writes"])
    channels = _object(f"{path}.message_channels", members["message_channels"])
    return NamespaceState(
        _text(f"{path}.namespace", members["namespace"]),
        _typed_value(f"{path}.checkpoint", members["checkpoint"]),
        _typed_value(f"{path}.metadata", members["metadata"]),
        tuple(_write(f"{path}.writes[{index}]", each) for index, each in enumerate(writes)),
        {
            channel: _messages(f"{path}.message_channels[{quoted(channel)}]", items)
            for channel, items in channels.items()
        },
    )


def _write(path: str, value: object) -> PendingWrite:
    members = _object(path, value)
    _check_keys(path, members, _WRITE_KEYS)
    return PendingWrite(
        _text(f"{path}.task_id", members["task_id"]),
        _text(f"{path}.task_path", members["task_path"]),
        _text(f"{path}.channel", members["channel"]),
        _typed_value(f"{path}.value", members["value"]),
    )


def _messages(path: str, value: object) -> tuple[MessageItem, ...]:
    items: list[MessageItem] = []
    for index, item in enumerate(_array(path, value)):
        members = _object(f"{path}[{index}]", item)
        if "range" in members:
            _check_keys(f"{path}[{index}]", members, {"range"})
            bounds = _pair(f"{path}[{index}].range", members["range"])
            # The range checks its bounds, which are of any type still.
            items.append(MessageRange(*bounds))  # type: ignore[arg-type]
        else:
            _check_keys(f"{path}[{index}]", members, {"value"})
            items.append(_typed_value(f"{path}[{index}].value", members["value"]))
    return tuple(items)


def _typed_value(path: str, value: object) -> TypedValue:
    tag, encoded = _pair(path, value)
    text = _text(f"{path}[1]", encoded)
    data: bytes | None = None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    # Even a strict decoder takes texts that no encoder writes: bits after the last byte.
    if data is None or base64.b64encode(data).decode("ascii") != text:
        raise RunStateFormatError(f"{path}[1] is no base64")
    return TypedValue(_text(f"{path}[0]", tag), data)


def _object(path: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RunStateFormatError(f"{path} is no object")
    return value


def _array(path: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise RunStateFormatError(f"{path} is no array")
    return value


def _pair(path: str, value: object) -> tuple[object, object]:
    items = _array(path, value)
    if len(items) != 2:
        raise RunStateFormatError(f"{path} has {len(items)} items instead of 2")
    return items[0], items[1]


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise RunStateFormatError(f"{path} is no string")
    if not is_unicode(value):
        raise RunStateFormatError(f"{path} holds half of a surrogate pair")
    return value


def _check_keys(path: str, members: dict[str, object], keys: set[str]) -> None:
    if missing := sorted(keys - set(members)):
        raise RunStateFormatError(f"{path} has no key {quoted(missing[0])}")
    if unknown := sorted(set(members) - keys):
        raise RunStateFormatError(f"{path} has the unknown key {quoted(unknown[0])}")
