"""Starts that are refused: a clear error, nothing left behind, and the next start is good."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine_starts import FAST, is_served, open_files, refusal_of_start, starts

from dex_embedded_engine import (
    EmbeddedEngine,
    EngineError,
    EngineFailure,
    EngineSettings,
    EngineUsageError,
)
from dex_embedded_engine.errors import (
    AddressError,
    DataDirectoryError,
    DataDirectoryInUseError,
    SchemaTooNewError,
)
from dex_embedded_engine.testing import EngineProcess

# --- the data directory ------------------------------------------------------------------------


async def test_a_data_directory_in_use_names_the_process_that_holds_it(folder: Path) -> None:
    data = folder / "data"
    async with EmbeddedEngine(data, durability=FAST) as engine:
        with pytest.raises(DataDirectoryInUseError) as caught:
            await starts(data)
        assert str(caught.value) == (
            f"data directory {str(data)!r} is in use by the engine with pid {os.getpid()}; "
            f"stop that engine or choose another directory"
        )
        assert str(os.getpid()) in caught.value.holder
        await is_served(engine.address)
    await starts(data)


async def test_a_directory_held_by_another_process_is_free_again_once_that_was_killed(
    folder: Path,
) -> None:
    data = folder / "data"
    other = EngineProcess(data)
    async with other:
        assert f"in use by the engine with pid {other.pid};" in await refusal_of_start(data)
        await is_served(other.address)
        await other.kill()
        await starts(data)


async def test_a_process_is_refused_the_directory_of_this_one(folder: Path) -> None:
    data = folder / "data"
    async with EmbeddedEngine(data, durability=FAST):
        other = EngineProcess(data)
        with pytest.raises(EngineFailure) as caught:
            await other.start()
    assert f"in use by the engine with pid {os.getpid()}" in str(caught.value)
    assert "Traceback" not in other.errors


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
async def test_a_data_directory_that_others_can_reach_is_refused(mode: int, folder: Path) -> None:
    data = folder / "my data"
    data.mkdir()
    data.chmod(mode)
    assert await refusal_of_start(data) == (
        f"data directory {str(data)!r} has mode {mode:04o}, so other users can reach it; "
        f"run: chmod 700 '{data}'"
    )
    assert list(data.iterdir()) == []
    data.chmod(0o700)
    await starts(data)


async def test_directory_and_files_are_for_their_owner_only_whatever_the_umask(
    folder: Path,
) -> None:
    data = folder / "below" / "data"
    before = os.umask(0)
    try:
        async with EmbeddedEngine(data, address=f"unix:{folder}/socket") as engine:
            await is_served(engine.address)
            assert (folder / "socket").stat().st_mode & 0o777 == 0o600
            names = {"engine.lock", "engine.sqlite3", "engine.sqlite3-shm", "engine.sqlite3-wal"}
            modes = {file.name: file.stat().st_mode & 0o777 for file in data.iterdir()}
            assert modes == dict.fromkeys(names, 0o600)
            assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert data.stat().st_mode & 0o777 == 0o700


async def test_a_database_that_was_readable_by_others_is_made_private(folder: Path) -> None:
    data = folder / "data"
    await starts(data)
    (data / "engine.sqlite3").chmod(0o644)
    await starts(data)
    assert (data / "engine.sqlite3").stat().st_mode & 0o777 == 0o600


async def test_a_file_in_the_place_of_the_directory_is_refused(folder: Path) -> None:
    file = folder / "file"
    file.write_text("mine", encoding="utf-8")
    for path in (file, file / "data"):
        message = await refusal_of_start(path)
        assert message.startswith(f"data directory {str(path)!r} cannot be created (")
        assert message.endswith("; choose another path")
    assert file.read_text(encoding="utf-8") == "mine"


async def test_a_path_with_a_zero_byte_is_refused(folder: Path) -> None:
    message = await refusal_of_start(f"{folder}/a\0b")
    assert message.endswith("cannot be created (embedded null byte); choose another path")


async def test_a_directory_that_cannot_be_made_is_refused() -> None:
    message = await refusal_of_start("/proc/engine")
    assert message.startswith("data directory '/proc/engine' cannot be created (")


async def test_a_directory_in_which_nothing_can_be_written_is_refused() -> None:
    """Even root cannot create a file there, and nobody else can read it."""
    message = await refusal_of_start("/proc/self/fd")
    assert message.startswith("data directory '/proc/self/fd' cannot be written (")
    assert message.endswith("; fix its permissions")


@pytest.mark.parametrize("name", ["engine.lock", "engine.sqlite3"])
async def test_a_file_of_the_engine_that_cannot_be_written_is_refused(
    name: str, folder: Path
) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / name).mkdir()
    message = await refusal_of_start(data)
    assert "cannot be written (Is a directory); fix its permissions" in message
    (data / name).rmdir()
    await starts(data)


# --- the database ------------------------------------------------------------------------------


async def test_a_newer_schema_is_refused_and_left_alone(folder: Path) -> None:
    data = folder / "data"
    await starts(data)
    with closing(sqlite3.connect(data / "engine.sqlite3")) as database:
        known = database.execute("PRAGMA user_version").fetchone()[0]
        database.execute(f"PRAGMA user_version = {known + 7}")
    with pytest.raises(SchemaTooNewError) as caught:
        await starts(data)
    assert (caught.value.found, caught.value.known) == (known + 7, known)
    assert str(caught.value) == (
        f"{str(data / 'engine.sqlite3')!r} has schema version {known + 7}, this release knows up "
        f"to {known}; install the newer dex-embedded-engine that wrote it"
    )
    with closing(sqlite3.connect(data / "engine.sqlite3")) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == known + 7
        database.execute(f"PRAGMA user_version = {known}")
    await starts(data)


@pytest.mark.parametrize("application_id", [0, 0x47504B47])
async def test_the_database_of_another_application_is_refused_and_left_alone(
    application_id: int, folder: Path
) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    file = data / "engine.sqlite3"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE theirs (value)")
        database.execute(f"PRAGMA application_id = {application_id}")
    content = file.read_bytes()
    assert await refusal_of_start(data) == (
        f"{str(file)!r} is not an engine database; choose another data directory"
    )
    assert file.read_bytes() == content
    file.unlink()
    await starts(data)


@pytest.mark.parametrize("content", [b"my notes\n" * 200, b"\xff" * 5000, b"SQLite format 3\0"])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(
    content: bytes, folder: Path
) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    file = data / "engine.sqlite3"
    file.write_bytes(content)
    message = await refusal_of_start(data)
    assert message.startswith(f"{str(file)!r} cannot be opened as an engine database (")
    assert message.endswith("); move it away or choose another data directory")
    assert file.read_bytes() == content
    file.unlink()
    await starts(data)


async def test_a_damaged_database_is_a_clear_error_and_the_directory_is_free_again(
    folder: Path,
) -> None:
    data = folder / "data"
    await starts(data)
    file = data / "engine.sqlite3"
    good = file.read_bytes()
    file.write_bytes(good[:4096] + bytes(len(good) - 4096))
    with pytest.raises(EngineError, match=r"(malformed|damaged|failed with)"):
        await starts(data)
    file.write_bytes(good)
    await starts(data)


# --- everything else ---------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", " ", "hunter2\n", " hunter2", "two\nlines", "gehe\u00efm"])
async def test_a_token_that_no_client_can_send_is_refused_and_not_quoted(
    token: str, folder: Path
) -> None:
    message = await refusal_of_start(folder / "data", address="0.0.0.0:0", token=token)
    assert message.startswith("the token is empty or not one line of plain ASCII; give one such as")
    assert not token.strip() or token.strip() not in message
    assert not (folder / "data").exists()


@pytest.mark.parametrize("durability", ["", "STRICT", "none"])
def test_an_unknown_durability_is_refused(durability: str, folder: Path) -> None:
    with pytest.raises(EngineUsageError) as caught:
        EmbeddedEngine(folder / "data", durability=durability)
    assert str(caught.value) == (
        f"durability {durability!r} is not one of 'strict', 'process-crash-safe'"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rpc_timeout": 0}, "EngineSettings.rpc_timeout is 0; it must be positive"),
        ({"receive_limit": -1}, "EngineSettings.receive_limit is -1; it must be positive"),
        ({"dispatch_wait": -0.5}, "EngineSettings.dispatch_wait is -0.5; it must be positive"),
        ({"shutdown_grace": -1}, "EngineSettings.shutdown_grace is -1; it must be positive"),
        ({"stream_trim_trigger": 1.5}, "must be below stream_trim_trigger, and that at most 1"),
        ({"stream_trim_target": 0.95}, "EngineSettings.stream_trim_target must be below"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineUsageError) as caught:
        EngineSettings(**settings)
    assert message in str(caught.value)


async def test_an_engine_is_started_once(folder: Path) -> None:
    async with EmbeddedEngine(folder / "data", durability=FAST) as engine:
        with pytest.raises(EngineUsageError, match="has been started before; make a new one"):
            await engine.__aenter__()
        await is_served(engine.address)
    with pytest.raises(EngineUsageError, match="has been started before; make a new one"):
        await engine.__aenter__()
    await starts(folder / "data")


async def test_of_two_starts_of_one_engine_at_the_same_time_one_is_refused(folder: Path) -> None:
    engine = EmbeddedEngine(folder / "data", durability=FAST)
    outcomes = await asyncio.gather(
        engine.__aenter__(), engine.__aenter__(), return_exceptions=True
    )
    assert sum(isinstance(outcome, EngineUsageError) for outcome in outcomes) == 1
    await is_served(engine.address)
    await engine.__aexit__(None, None, None)


async def test_an_engine_whose_start_was_refused_can_be_started_later(folder: Path) -> None:
    later = EmbeddedEngine(folder / "data", durability=FAST)
    async with EmbeddedEngine(folder / "data", durability=FAST):
        with pytest.raises(DataDirectoryInUseError):
            await later.__aenter__()
    async with later:
        await is_served(later.address)


async def test_waiting_for_the_failure_of_an_engine_that_was_not_started_is_refused(
    folder: Path,
) -> None:
    with pytest.raises(EngineUsageError, match="has not been started; use `async with`"):
        await EmbeddedEngine(folder / "data").wait_failed()


async def test_a_cancelled_start_leaves_nothing_behind(folder: Path) -> None:
    starting = asyncio.create_task(EmbeddedEngine(folder / "data", durability=FAST).__aenter__())
    await asyncio.wait([starting], timeout=0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert open_files(folder) == set()
    await starts(folder / "data")


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", 0))
        plain.listen()
        yield f"127.0.0.1:{plain.getsockname()[1]}"


async def test_refused_starts_leave_no_file_open(folder: Path, taken: str) -> None:
    data = folder / "data"
    foreign = folder / "data2"
    foreign.mkdir(mode=0o700)
    (foreign / "engine.sqlite3").write_bytes(b"my notes\n" * 200)
    dangling = folder / "socket"
    dangling.symlink_to(folder / "nothing")
    before = open_files(folder)
    for _ in range(3):
        with pytest.raises(AddressError):
            await starts(data, address=taken)
        with pytest.raises(AddressError):
            await starts(data, address=f"unix:{dangling}")
        with pytest.raises(DataDirectoryError):
            await starts(foreign)
    assert open_files(folder) == before == set()
    await starts(data)
