"""Owns the data directory: who may read it, and that only one engine uses it."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import stat
from pathlib import Path
from types import TracebackType

from dex_embedded_engine.errors import DataDirectoryError, DataDirectoryInUseError, TokenFileError

_LOCK_FILE = "engine.lock"
_DATABASE_FILE = "engine.sqlite3"


class DataDirectory:
    """A directory held by this engine, from `open` to `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Create the directory if needed, check it, and lock it. Blocks on the disk.

        Raises:
            DataDirectoryError: not a directory, not writable, or open to other users.
            DataDirectoryInUseError: another engine holds it.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(path.stat().st_mode)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataDirectoryError(
                f"data directory {str(path)!r} cannot be created ({reason}); choose another path"
            ) from error
        if mode & 0o077:
            raise DataDirectoryError(
                f"data directory {str(path)!r} has mode {mode:04o}, so other users can reach it; "
                f"run: chmod 700 {shlex.quote(str(path))}"
            )
        return cls(path, _take_lock(path))

    @property
    def database(self) -> Path:
        """The database file."""
        return self.path / _DATABASE_FILE

    def close(self) -> None:
        """Let another engine use the directory."""
        os.close(self._lock)

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_token_file(path: Path) -> str:
    """Return the token in `path`, without white space around it.

    Raises:
        TokenFileError: missing, empty, readable by other users, or not a token.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise TokenFileError(
                f"token file {str(path)!r} has mode {mode:04o}, so other users can read it; "
                f"run: chmod 600 {shlex.quote(str(path))}"
            )
        # Bytes that are no text are refused below, without a message that quotes any of them.
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TokenFileError(
            f"token file {str(path)!r} cannot be read ({reason}); name a file that holds the token"
        ) from error
    if not token:
        raise TokenFileError(f"token file {str(path)!r} is empty; write a token into it")
    if not is_sendable(token):
        raise TokenFileError(
            f"token file {str(path)!r} holds more than one line of plain ASCII; write a token "
            f"such as the output of `openssl rand -hex 32` into it"
        )
    return token


def is_sendable(token: str) -> bool:
    """Tell whether a client can send `token`: one line of plain ASCII, no white space around."""
    return bool(token) and token.isascii() and token.isprintable() and token.strip() == token


def _take_lock(path: Path) -> int:
    file = path / _LOCK_FILE
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {str(path)!r} cannot be written ({error.strerror}); fix its "
            f"permissions"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _describe_holder(descriptor)
        os.close(descriptor)
        raise DataDirectoryInUseError(str(path), holder) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)
    except OSError as error:
        os.close(descriptor)
        raise DataDirectoryError(
            f"data directory {str(path)!r} cannot be written ({error.strerror}); free space on "
            f"its disk"
        ) from error
    return descriptor


def _describe_holder(descriptor: int) -> str:
    try:
        return f"the engine with pid {json.loads(os.pread(descriptor, 4096, 0))['pid']}"
    except (ValueError, KeyError, TypeError):
        return "another engine"
