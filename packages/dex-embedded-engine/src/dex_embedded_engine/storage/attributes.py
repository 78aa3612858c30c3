"""Owns Attribute values on the disk: versions by run sequence, and values deleted for good."""

from __future__ import annotations

from collections.abc import Iterable

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.storage.connection import Connection
from dex_embedded_engine.storage.statements import load_statements
from dex_embedded_engine.values import is_map_key, is_null

_SQL = load_statements("attributes")


class AttributeStore:
    """Versioned Attributes. A read at a run sequence sees what stood there at that commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(
        self, run_key: int, sequence: int, writes: Iterable[pb.AttributeWrite], pins: list[int]
    ) -> set[str]:
        """Apply writes, the last one of a key winning; null deletes.

        Args:
            sequence: the commit they belong to.
            pins: ascending sequences at which someone still reads.

        Returns:
            Keys that keep an older version because of a pin.
        """
        last = {write.key: write.value for write in writes}
        stale: set[str] = set()
        for key, value in last.items():
            in_map = int(is_map_key(key))
            body = None if is_null(value) else value.SerializeToString()
            if not pins:
                self._connection.run(_SQL["drop_versions_before"], (run_key, in_map, key, sequence))
                if body is None:
                    self._connection.run(_SQL["drop_version"], (run_key, in_map, key, sequence))
                    continue
            self._connection.run(_SQL["put"], (run_key, in_map, key, sequence, body))
            if pins and not self.drop_unread(run_key, key, pins):
                stale.add(key)
        return stale

    def drop_unread(self, run_key: int, key: str, pins: list[int]) -> bool:
        """Drop the versions of `key` that no pin reads; tell whether at most one is left."""
        in_map = int(is_map_key(key))
        rows = self._connection.run(_SQL["versions"], (run_key, in_map, key)).fetchall()
        if not rows:
            return True
        sequences = [int(row[0]) for row in rows]
        needed = {sequences[-1]}
        for pin in pins:
            seen = [sequence for sequence in sequences if sequence <= pin]
            if seen:
                needed.add(seen[-1])
        if needed == {sequences[-1]} and rows[-1][1]:
            needed.clear()
        for sequence in sequences:
            if sequence not in needed:
                self._connection.run(_SQL["drop_version"], (run_key, in_map, key, sequence))
        return len(needed) <= 1

    def stale_keys(self, run_key: int) -> set[str]:
        """Return the keys that have more than one version."""
        return {row[0] for row in self._connection.run(_SQL["stale_keys"], (run_key,))}

    def read(self, run_key: int, sequence: int, selection: Iterable[str]) -> list[pb.KV]:
        """Return all plain Attributes and the selected map entries, by key.

        Values that are deleted for good are not among them; see `read_hard`.

        Args:
            sequence: the commit to read at.
            selection: ``Map/`` for a whole map, ``Map/<instance>`` for one entry.
        """
        found: dict[str, bytes | None] = {}
        for row in self._connection.run(_SQL["read_plain"], (run_key, sequence)):
            found[row[0]] = row[1]
        for name in selection:
            found.update(self._read_selected(run_key, sequence, name))
        return [
            pb.KV(key=key, value=pb.Value.FromString(body))
            for key, body in sorted(found.items())
            if body is not None
        ]

    def read_hard(self, flow_id: str, selection: Iterable[str]) -> list[pb.KV]:
        """Return the values deleted for good, as they are now, with the same selection."""
        entries = self._read_hard(flow_id, list(selection))
        return [pb.KV(key=key, value=entries[key]) for key in sorted(entries)]

    def read_everything(
        self, run_key: int, flow_id: str, *, with_secrets: bool = True
    ) -> list[pb.KV]:
        """Return the latest value of every Attribute and map entry, by key.

        Args:
            with_secrets: values that are deleted for good, too.
        """
        found: dict[str, bytes | None] = {
            row[0]: row[1] for row in self._connection.run(_SQL["read_everything"], (run_key,))
        }
        entries = {
            key: pb.Value.FromString(body) for key, body in found.items() if body is not None
        }
        if with_secrets:
            entries.update(self._read_hard(flow_id, None))
        return [pb.KV(key=key, value=entries[key]) for key in sorted(entries)]

    def write_hard(self, flow_id: str, writes: Iterable[pb.AttributeWrite]) -> bool:
        """Apply writes to values deleted for good; tell whether old content was overwritten."""
        overwrote = False
        for write in writes:
            cursor = self._connection.run(_SQL["drop_hard"], (flow_id, write.key))
            overwrote = overwrote or cursor.rowcount > 0
            if not is_null(write.value):
                self._connection.run(
                    _SQL["put_hard"], (flow_id, write.key, write.value.SerializeToString())
                )
        return overwrote

    def _read_selected(
        self, run_key: int, sequence: int, name: str
    ) -> Iterable[tuple[str, bytes | None]]:
        if name.endswith("/"):
            # "0" is the character after "/", so the range holds exactly this map's entries.
            parameters = (run_key, name, name[:-1] + "0", sequence)
            return self._connection.run(_SQL["read_map"], parameters).fetchall()
        return self._connection.run(_SQL["read_instance"], (run_key, name, sequence)).fetchall()

    def _read_hard(self, flow_id: str, selection: list[str] | None) -> dict[str, pb.Value]:
        entries: dict[str, pb.Value] = {}
        for (key,) in self._connection.run(_SQL["hard_keys"], (flow_id,)).fetchall():
            if selection is None or not is_map_key(key) or _is_selected(key, selection):
                row = self._connection.run(_SQL["read_hard"], (flow_id, key)).fetchone()
                entries[key] = pb.Value.FromString(row[0])
        return entries


def _is_selected(key: str, selection: list[str]) -> bool:
    return key in selection or key[: key.index("/") + 1] in selection
