"""Owns big values: stored once per Flow under the hash of their content, sent inline or by id.

A hash is immutable and unique across Flows and across engines, as the SDK's disk cache, which
never expires, requires.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import Message

from dex_embedded_engine.storage.connection import Connection
from dex_embedded_engine.storage.statements import load_statements
from dex_embedded_engine.values import is_reference, reference_id, reference_to, values_in

_SQL = load_statements("payloads")
_HASH_BYTES = 20
_REFERENCE_BYTES = 2 * _HASH_BYTES + 2
_BIG_KINDS = frozenset({"string_value", "obj_value"})


class PayloadStore:
    """Replaces big values by references on the way in, and back on the way out."""

    def __init__(self, connection: Connection, inline_limit: int) -> None:
        self._connection = connection
        self._inline_limit = inline_limit

    def take_in(self, flow_id: str, message: Message) -> None:
        """Store every big value inside `message` and put a reference in its place."""
        if message.ByteSize() <= self._inline_limit:
            return
        for value in values_in(message):
            if value.ByteSize() > self._inline_limit and value.WhichOneof("kind") in _BIG_KINDS:
                self._store(flow_id, value)

    def put_back(self, flow_id: str, message: Message, budget: int) -> None:
        """Replace references inside `message` by their values, smallest first, within `budget`.

        Args:
            budget: bytes of values that may be put back; the rest stays by reference.
        """
        wanted: list[tuple[int, pb.Value]] = []
        for value in values_in(message):
            if is_reference(value):
                row = self._connection.run(
                    _SQL["blob_size"], (flow_id, reference_id(value))
                ).fetchone()
                wanted.append((int(row[0]), value))
        for size, value in sorted(wanted, key=lambda pair: pair[0]):
            budget -= size
            if budget < 0:
                return
            concrete = self.read(flow_id, reference_id(value))
            assert concrete is not None
            value.CopyFrom(concrete)

    def fit(self, flow_id: str, message: Message, limit: int) -> None:
        """Replace values inside `message` by references, biggest first, until it is small enough.

        Args:
            limit: bytes of the whole message. One of many tiny values may stay above it.
        """
        excess = message.ByteSize() - limit
        if excess <= 0:
            return
        inline = [
            (value.ByteSize(), value)
            for value in values_in(message)
            if value.WhichOneof("kind") in _BIG_KINDS
        ]
        for size, value in sorted(inline, key=lambda pair: pair[0], reverse=True):
            if excess <= 0 or size <= _REFERENCE_BYTES:
                return
            self._store(flow_id, value)
            excess -= size - _REFERENCE_BYTES

    def read(self, flow_id: str, blob_id: str) -> pb.Value | None:
        """Return the value stored under `blob_id` for this Flow, or None."""
        row = self._connection.run(_SQL["read_blob"], (flow_id, blob_id)).fetchone()
        return None if row is None else pb.Value.FromString(row[0])

    def size(self, flow_id: str, blob_id: str) -> int | None:
        """Return the stored size in bytes, or None."""
        row = self._connection.run(_SQL["blob_size"], (flow_id, blob_id)).fetchone()
        return None if row is None else int(row[0])

    def concrete(self, flow_id: str, value: pb.Value) -> pb.Value:
        """Return `value` itself, or what it refers to."""
        if not is_reference(value):
            return value
        found = self.read(flow_id, reference_id(value))
        assert found is not None
        return found

    def _store(self, flow_id: str, value: pb.Value) -> None:
        body = value.SerializeToString(deterministic=True)
        blob_id = hashlib.blake2b(body, digest_size=_HASH_BYTES).hexdigest()
        self._connection.run(_SQL["put_blob"], (flow_id, blob_id, len(body), body))
        value.CopyFrom(reference_to(value, blob_id))


class Registry:
    """Facts about the whole engine: Attribute indexes, and counters that must not go back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def indexes(self) -> dict[str, int]:
        """Return the registered Attribute indexes: key to type."""
        return dict(self._connection.run(_SQL["read_indexes"]).fetchall())

    def add_indexes(self, indexes: Iterable[tuple[str, int]]) -> None:
        """Register Attribute indexes that are not known yet."""
        for key, kind in indexes:
            self._connection.run(_SQL["put_index"], (key, int(kind)))

    def read(self, name: str, default: str) -> str:
        """Return a stored fact."""
        row = self._connection.run(_SQL["read_meta"], (name,)).fetchone()
        return default if row is None else str(row[0])

    def write(self, name: str, value: str) -> None:
        """Store a fact."""
        self._connection.run(_SQL["write_meta"], (name, value))
