"""Owns the disk of the simulation: what a commit puts there, and what a power loss takes."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from dex_embedded_engine.settings import Durability, EngineSettings
from dex_embedded_engine.storage.stores import Stores

_FILES = ("", "-wal")


class WatchedStores(Stores):
    """Stores that tell whether the open transaction waits for the disk when it commits."""

    is_synced = False

    def begin(self, *, synced: bool) -> None:
        self.is_synced = synced or self.streams.needs_reservation
        super().begin(synced=synced)


class SimulatedDisk:
    """A database file whose power may fail.

    Args:
        loses_power: whether `lose_power` will be called; what it needs costs time.
    """

    def __init__(self, path: Path, settings: EngineSettings, *, loses_power: bool) -> None:
        self._path = path
        self._settings = settings
        self.loses_power = loses_power
        self.stores = self._open()
        self.inspector = sqlite3.connect(path)
        self._version = self._data_version()
        self._keep()

    def note_commit(self) -> bool:
        """Take note of a commit; tell whether all that was written up to it is safe."""
        version = self._data_version()
        if version == self._version or not self.stores.is_synced:
            return False
        self._version = version
        self._keep()
        return True

    def reopen(self) -> None:
        """Open the file again after the engine has died."""
        self.stores.abandon()
        self.stores = self._open()

    def lose_power(self) -> None:
        """Bring the file back as it was when the last synced commit was made; open it."""
        self.stores.abandon()
        self.inspector.close()
        self._file("-shm").unlink(missing_ok=True)
        for suffix in _FILES:
            shutil.copyfile(self._copy(suffix), self._file(suffix))
        self.stores = self._open()
        self.inspector = sqlite3.connect(self._path)
        self._version = self._data_version()

    def close(self) -> None:
        """Close the file."""
        self.inspector.close()
        self.stores.abandon()

    def _open(self) -> WatchedStores:
        stores = WatchedStores.open(self._path, Durability.PROCESS_CRASH_SAFE, self._settings)
        assert isinstance(stores, WatchedStores)
        return stores

    def _data_version(self) -> int:
        return int(self.inspector.execute("PRAGMA data_version").fetchone()[0])

    def _keep(self) -> None:
        if self.loses_power:
            for suffix in _FILES:
                shutil.copyfile(self._file(suffix), self._copy(suffix))

    def _file(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _copy(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix + ".safe")
