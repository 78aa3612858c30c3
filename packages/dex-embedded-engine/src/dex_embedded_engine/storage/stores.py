"""Owns the set of stores over one connection, and the transaction they share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dex_embedded_engine.settings import Durability, EngineSettings
from dex_embedded_engine.storage.attributes import AttributeStore
from dex_embedded_engine.storage.connection import Connection, storage_failure
from dex_embedded_engine.storage.payloads import PayloadStore, Registry
from dex_embedded_engine.storage.runs import RunStore
from dex_embedded_engine.storage.streams import StreamStore


class Savepoint:
    """A point inside the transaction to which its changes can be undone."""

    def __init__(self, connection: Connection, streams: StreamStore) -> None:
        self._connection = connection
        self._streams = streams

    def undo(self) -> None:
        """Drop what was written since the savepoint."""
        self._connection.run("ROLLBACK TO event")
        self._streams.forget_sizes()


class Stores:
    """Everything durable, opened from one file.

    Args:
        connection: open; owned and closed by this object.
    """

    def __init__(self, connection: Connection, settings: EngineSettings) -> None:
        self._connection = connection
        self.attributes = AttributeStore(connection)
        self.payloads = PayloadStore(connection, settings.inline_limit)
        self.registry = Registry(connection)
        self.runs = RunStore(connection, self.attributes)
        self.streams = StreamStore(connection, self.registry)

    @classmethod
    def open(cls, path: Path, durability: Durability, settings: EngineSettings) -> Stores:
        """Open, and create or migrate, the database at `path`.

        Raises:
            DataDirectoryError: not writable, or not an engine's database.
            SchemaTooNewError: written by a newer release.
        """
        return cls(Connection(path, durability), settings)

    def begin(self, *, synced: bool) -> None:
        """Open the transaction of a batch."""
        with _failures():
            needs_reservation = self.streams.needs_reservation
            self._connection.begin(synced=synced or needs_reservation)
            if needs_reservation:
                self.streams.reserve()

    @contextmanager
    def savepoint(self) -> Iterator[Savepoint]:
        """Bracket the writes of one event."""
        with _failures():
            self._connection.run("SAVEPOINT event")
            yield Savepoint(self._connection, self.streams)
            self._connection.run("RELEASE event")

    def commit(self, *, scrub: bool) -> None:
        """Commit the batch.

        Args:
            scrub: a value was deleted for good; empty the log before anybody hears of it.
        """
        with _failures():
            self._connection.commit()
            if scrub:
                self._connection.scrub_log()

    def roll_back(self) -> None:
        """Drop the batch."""
        self._connection.roll_back()
        self.streams.forget_sizes()

    def close(self) -> None:
        """Close the file in order."""
        self._connection.close()

    def abandon(self) -> None:
        """Close the file without writing, after a failure."""
        self._connection.abandon()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise storage_failure(error) from error
