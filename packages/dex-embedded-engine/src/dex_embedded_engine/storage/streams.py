"""Owns Stream messages on the disk: positions, trimming, the capacity all Flows share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.storage.connection import Connection
from dex_embedded_engine.storage.payloads import Registry
from dex_embedded_engine.storage.statements import load_statements

_SQL = load_statements("streams")
_RESERVED = "stream_positions_reserved"
_RESERVE_STEP = 10_000
_ROW_OVERHEAD = 64


@dataclass(frozen=True)
class StoredMessage:
    """One Stream message. `position` grows within the engine and is never used again."""

    position: int
    at: float
    source: str
    value: pb.Value
    size: int = 0


class StreamStore:
    """Appends, reads and trims.

    Appends may be committed without a sync. Positions are reserved ahead in synced commits, so a
    position that a reader saw is not given out again after a power loss took the message away.
    """

    def __init__(self, connection: Connection, registry: Registry) -> None:
        self._connection = connection
        self._registry = registry
        self._reserved = int(registry.read(_RESERVED, "0"))
        self._last = self._reserved
        self._families: dict[tuple[str, str], int] = {}
        self._sizes: dict[int, int] = {}

    @property
    def last_position(self) -> int:
        """The newest position that may have been given out."""
        return self._last

    @property
    def needs_reservation(self) -> bool:
        """Whether the next append must be preceded by `reserve` in a synced commit."""
        return self._reserved - self._last < _RESERVE_STEP // 2

    def reserve(self) -> None:
        """Reserve more positions."""
        self._reserved = self._last + _RESERVE_STEP
        self._registry.write(_RESERVED, str(self._reserved))

    def append(
        self,
        key: tuple[str, str],
        flow_id: str,
        message: StoredMessage,
        limits: tuple[float, float],
    ) -> bool:
        """Append, trimming the oldest messages of all the Stream's Flows when it is nearly full.

        Args:
            key: (Flow type, Stream name).
            message: its position is ignored.
            limits: bytes above which old messages are dropped, and bytes that then remain.

        Returns:
            False when the message alone is larger than the capacity.
        """
        trigger, target = limits
        size = message.value.ByteSize() + len(flow_id) + len(message.source) + _ROW_OVERHEAD
        if size > trigger:
            return False
        family = self._family(key, create=True)
        assert family is not None
        if self._sizes[family] + size > trigger:
            self._trim(family, target - size)
        self._last += 1
        self._connection.run(
            _SQL["append"],
            (
                self._last,
                family,
                flow_id,
                message.at,
                message.source,
                size,
                message.value.SerializeToString(),
            ),
        )
        self._sizes[family] += size
        return True

    def next_after(self, key: tuple[str, str], flow_id: str, position: int) -> StoredMessage | None:
        """Return the oldest kept message after `position`, or None."""
        family = self._family(key, create=False)
        if family is None:
            return None
        row = self._connection.run(_SQL["next_after"], (family, flow_id, position)).fetchone()
        return None if row is None else _message_from(row)

    def page_before(
        self, key: tuple[str, str], flow_id: str, position: int, count: int
    ) -> list[StoredMessage]:
        """Return up to `count` messages older than `position`, newest first."""
        family = self._family(key, create=False)
        if family is None:
            return []
        rows = self._connection.run(_SQL["page_before"], (family, flow_id, position, count))
        return [_message_from(row) for row in rows.fetchall()]

    def is_kept(self, key: tuple[str, str], flow_id: str, position: int) -> bool:
        """Tell whether the message at `position` has not been trimmed."""
        family = self._family(key, create=False)
        if family is None:
            return False
        return bool(self._connection.run(_SQL["is_kept"], (family, flow_id, position)).fetchone())

    def forget_sizes(self) -> None:
        """Read sizes and families again; a transaction that had changed them was dropped."""
        self._families.clear()
        self._sizes.clear()

    def _family(self, key: tuple[str, str], *, create: bool) -> int | None:
        known = self._families.get(key)
        if known is not None:
            return known
        row = self._connection.run(_SQL["find_family"], key).fetchone()
        if row is None:
            if not create:
                return None
            family = self._connection.run(_SQL["add_family"], key).lastrowid
            assert family is not None
        else:
            family = int(row[0])
        self._families[key] = family
        self._sizes[family] = int(
            self._connection.run(_SQL["family_size"], (family,)).fetchone()[0]
        )
        return family

    def _trim(self, family: int, target: float) -> None:
        while self._sizes[family] > max(0.0, target):
            rows = self._connection.run(_SQL["oldest"], (family,)).fetchall()
            if not rows:
                return
            last = rows[0][0]
            for position, size in rows:
                if self._sizes[family] <= target:
                    break
                self._sizes[family] -= size
                last = position
            self._connection.run(_SQL["drop_up_to"], (family, last))


def _message_from(row: tuple[Any, ...]) -> StoredMessage:
    return StoredMessage(
        row[0], row[1], row[2], pb.Value.FromString(row[3]), row[4] if len(row) > 4 else 0
    )
