"""Owns what a Value may be, and how to find every Value inside a protocol message.

Knows the protocol's messages only through their descriptors, so a field added to the
protocol is found without a change here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from dex.dexpb import dex_pb2 as pb
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_VALUE = pb.Value.DESCRIPTOR
_CONCRETE = frozenset({"string_value", "obj_value", "int_value", "bool_value", "null_value"})
_ENCODINGS = frozenset({"json", "raw"})
# Values travel alone at most, in an answer that the SDK takes up to 4 MiB.
LARGEST_VALUE = 4 * 1024 * 1024 - 64 * 1024
NULL = pb.Value(null_value=0)  # type: ignore[arg-type]  # the stub wants the enum wrapper


class InvalidMessageError(ValueError):
    """A message carries something that nobody may send; the text says what and why."""


def check_value(value: pb.Value, where: str) -> None:
    """Raise `InvalidMessageError` unless `value` is concrete, finite, encoded and not too big.

    Args:
        value: what a client or a Worker sent.
        where: how to name it in the message.
    """
    kind = value.WhichOneof("kind")
    if kind in _CONCRETE:
        if kind == "obj_value" and value.obj_value.encoding not in _ENCODINGS:
            raise InvalidMessageError(
                f"{where} has encoding {value.obj_value.encoding!r}; use 'json' or 'raw'"
            )
        if value.ByteSize() > LARGEST_VALUE:
            raise InvalidMessageError(
                f"{where} has {value.ByteSize()} bytes; the limit is {LARGEST_VALUE}, so that "
                f"Workers can load it"
            )
        return
    if kind == "double_value":
        if not math.isfinite(value.double_value):
            raise InvalidMessageError(
                f"{where} is {value.double_value}, which is not a finite number; send text instead"
            )
        return
    if kind is None:
        raise InvalidMessageError(f"{where} has no value; send null_value for nothing")
    raise InvalidMessageError(f"{where} is a blob reference; only the engine may send those")


def check_values(message: Message, where: str) -> None:
    """Apply `check_value` to every Value inside `message`."""
    for value in values_in(message):
        check_value(value, f"a value in {where}")


def values_in(message: Message) -> Iterator[pb.Value]:
    """Yield every Value inside `message`, at any depth, in field order. They may be edited."""
    if message.DESCRIPTOR is _VALUE:
        yield message  # type: ignore[misc]
        return
    carriers = _carriers(message.DESCRIPTOR)
    if not carriers:
        return
    for field, content in message.ListFields():
        if field.name in carriers:
            for part in _parts(field, content):
                yield from values_in(part)


def is_null(value: pb.Value) -> bool:
    """Tell whether `value` is the null arm, which in a write means deletion."""
    return bool(value.WhichOneof("kind") == "null_value")


def is_reference(value: pb.Value) -> bool:
    """Tell whether `value` stands for a payload in the blob store."""
    return (value.WhichOneof("kind") or "").startswith("internal_blob_id_")


def reference_id(value: pb.Value) -> str:
    """Return the blob id of a reference."""
    return value.internal_blob_id_for_string_value or value.internal_blob_id_for_obj_value


def reference_to(value: pb.Value, blob_id: str) -> pb.Value:
    """Build the reference of the same kind as `value`, a string or an object."""
    if value.WhichOneof("kind") == "string_value":
        return pb.Value(internal_blob_id_for_string_value=blob_id)
    return pb.Value(internal_blob_id_for_obj_value=blob_id)


def is_map_key(key: str) -> bool:
    """Tell whether an Attribute or Channel key names a map's instance."""
    return "/" in key


def _parts(field: FieldDescriptor, content: Any) -> Iterable[Message]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return list(content.values())
    if hasattr(content, "DESCRIPTOR"):
        return (content,)
    return list(content)


@cache
def _carriers(descriptor: Descriptor) -> frozenset[str]:
    return frozenset(
        field.name
        for field in descriptor.fields
        if field.message_type is not None and _leads_to_value(field.message_type, frozenset())
    )


def _leads_to_value(descriptor: Descriptor, seen: frozenset[str]) -> bool:
    if descriptor is _VALUE:
        return True
    if descriptor.full_name in seen:
        return False
    below = seen | {descriptor.full_name}
    return any(
        field.message_type is not None and _leads_to_value(field.message_type, below)
        for field in descriptor.fields
    )
