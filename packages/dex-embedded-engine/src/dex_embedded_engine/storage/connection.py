"""Owns the SQLite file: the opening ritual, migrations, commits that sync or do not.

Knows no table. One connection, used by one thread at a time.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from dex_embedded_engine.errors import DataDirectoryError, EngineFailure, SchemaTooNewError
from dex_embedded_engine.settings import Durability
from dex_embedded_engine.storage.statements import load_migrations

APPLICATION_ID = 0x44455845
_WAL_PAGES = 200
_WAL_LIMIT = 1_000_000


class Connection:
    """The engine's only way to its database file.

    Args:
        path: the file; created with mode 0600.
        durability: whether a syncing commit really syncs.
    """

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._syncs = durability is Durability.STRICT
        self._synchronous = ""
        _create_private(path)
        try:
            self._sqlite = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            try:
                self._open()
            except BaseException:
                self._sqlite.close()
                raise
        except sqlite3.DatabaseError as error:
            raise DataDirectoryError(
                f"{str(path)!r} cannot be opened as an engine database ({error}); "
                f"move it away or choose another data directory"
            ) from error

    def _open(self) -> None:
        self._check_owner()
        # secure_delete is what makes a hard delete leave no byte in the file; temp_store keeps the
        # savepoints' copies of changed pages, deleted values among them, out of temporary files.
        for pragma in (
            "journal_mode = WAL",
            "foreign_keys = ON",
            "secure_delete = ON",
            "temp_store = MEMORY",
            "busy_timeout = 5000",
            "cache_size = -32768",
            f"wal_autocheckpoint = {_WAL_PAGES}",
        ):
            self._sqlite.execute(f"PRAGMA {pragma}")
        self._migrate()
        # An engine that was killed between a hard delete and `scrub_log` left the value in the log.
        self._sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _check_owner(self) -> None:
        tables = self._sqlite.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        owner = self._sqlite.execute("PRAGMA application_id").fetchone()[0]
        if tables and owner != APPLICATION_ID:
            raise DataDirectoryError(
                f"{str(self._path)!r} is not an engine database; choose another data directory"
            )

    def _migrate(self) -> None:
        version = self._sqlite.execute("PRAGMA user_version").fetchone()[0]
        scripts = load_migrations()
        if version > len(scripts):
            raise SchemaTooNewError(str(self._path), version, len(scripts))
        self._sqlite.execute("PRAGMA synchronous = FULL")
        for number, script in enumerate(scripts[version:], start=version + 1):
            self._sqlite.executescript(
                f"BEGIN IMMEDIATE; {script}\n"
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}; COMMIT;"
            )

    def run(self, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self._sqlite.execute(statement, parameters)

    def run_many(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        """Execute one statement for each row."""
        if rows:
            self._sqlite.executemany(statement, rows)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._sqlite.in_transaction

    def begin(self, *, synced: bool) -> None:
        """Open a transaction; `synced` decides whether its commit waits for the disk."""
        wanted = "FULL" if synced and self._syncs else "NORMAL"
        if wanted != self._synchronous:
            self._sqlite.execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted
        self._sqlite.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit.

        Raises:
            EngineFailure: the disk is full or failing; nothing of the transaction is kept.
        """
        try:
            self._sqlite.execute("COMMIT")
        except sqlite3.Error as error:
            self.roll_back()
            raise storage_failure(error) from error
        if self._log.exists() and self._log.stat().st_size > _WAL_LIMIT:
            self._sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def roll_back(self) -> None:
        """Drop the open transaction, if any."""
        if self._sqlite.in_transaction:
            self._sqlite.execute("ROLLBACK")

    def scrub_log(self) -> None:
        """Empty the write-ahead log, so that what was overwritten in the file is gone from it."""
        busy = self._sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise EngineFailure(
                f"the log of {str(self._path)!r} could not be emptied because another process "
                f"reads the database; a hard-deleted value may still be in it"
            )

    def close(self) -> None:
        """Fold the log into the file and close it.

        Raises:
            EngineFailure: the disk is full or failing; what was committed is in the log.
        """
        try:
            self.roll_back()
            self._sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise storage_failure(error) from error
        finally:
            self._sqlite.close()

    def abandon(self) -> None:
        """Close without any further write, as after a failure."""
        self._sqlite.close()


def storage_failure(error: sqlite3.Error) -> EngineFailure:
    """Say what a storage error means for the user."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return EngineFailure(
            "the disk of the data directory is full; what was acknowledged is stored. "
            "Free space and start the engine again"
        )
    return EngineFailure(
        f"the database failed with {name or type(error).__name__}: {error}. What was acknowledged "
        f"is stored; repair the disk and start the engine again"
    )


def _create_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        os.chmod(path, 0o600)
    except OSError as error:
        raise DataDirectoryError(
            f"{str(path)!r} cannot be written ({error.strerror}); fix its permissions"
        ) from error
