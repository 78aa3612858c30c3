"""The command ``dex-embedded-engine serve``: what it prints, how it ends, how it complains."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from engine_messages import force_complete
from engine_starts import is_served
from engine_wire import HandWorker, Wire

from dex_embedded_engine import EmbeddedEngine, EngineFailure
from dex_embedded_engine.cli import FAILPOINT_VARIABLE, main
from dex_embedded_engine.testing import EngineProcess

FAST = ("--durability", "process-crash-safe")
TOKEN = "correct-horse-battery-staple"


def complaint(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command with arguments that are refused, and return the one line it prints."""
    assert main(["serve", *arguments]) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("dex-embedded-engine: ")
    return printed.err.removeprefix("dex-embedded-engine: ").rstrip("\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_prints_one_line_and_stops_in_order_on_a_signal(
    number: signal.Signals, folder: Path
) -> None:
    engine = EngineProcess(folder / "data", arguments=FAST)
    async with engine:
        assert engine.ready == {"address": f"unix:{folder}/data.socket"}
        await is_served(engine.address)
        engine.send(number)
        assert await engine.wait() == 0
        assert await engine.read_line() == ""
        assert engine.errors == ""
    assert not (folder / "data.socket").exists()
    async with EmbeddedEngine(folder / "data", address=f"unix:{folder}/data.socket"):
        pass
    names = sorted(file.name for file in (folder / "data").iterdir())
    assert names == ["engine.lock", "engine.sqlite3"]


async def test_serve_on_port_0_prints_the_port_it_took(folder: Path) -> None:
    engine = EngineProcess(folder / "data", address="127.0.0.1:0", arguments=FAST)
    async with engine:
        host, _, port = engine.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        await is_served(engine.address)


@pytest.mark.parametrize("durability", ["strict", "process-crash-safe"])
async def test_a_flow_that_was_acknowledged_survives_a_kill(durability: str, folder: Path) -> None:
    engine = EngineProcess(folder / "data", arguments=("--durability", durability))
    async with engine:
        async with Wire(engine.address) as wire:
            await wire.start("kept")
        await engine.kill()
    async with engine:
        async with Wire(engine.address) as wire, HandWorker(wire) as worker:
            await worker.task()
            await worker.execute(step_decision=force_complete())
            await wire.result("kept")
        assert await engine.stop() == 0


async def test_a_stop_while_streams_are_open_ends_them_and_exits_with_0(folder: Path) -> None:
    engine = EngineProcess(folder / "data", arguments=FAST)
    async with engine:
        async with Wire(engine.address) as wire, HandWorker(wire) as worker:
            await wire.start("open")
            await worker.task()
            assert await engine.stop() == 0
        assert "Traceback" not in engine.errors


async def test_a_refused_start_is_one_line_without_a_traceback_and_exit_code_1(
    folder: Path,
) -> None:
    data = folder / "data"
    async with EmbeddedEngine(data):
        other = EngineProcess(data)
        with pytest.raises(EngineFailure, match="ended with code 1 before it was ready"):
            await other.start()
    assert other.errors == (
        f"dex-embedded-engine: data directory {str(data)!r} is in use by the engine with pid "
        f"{os.getpid()}; stop that engine or choose another directory\n"
    )


def test_a_data_directory_that_cannot_be_made_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = folder / "file"
    file.touch()
    message = complaint(capfd, "--data-dir", str(file / "data"))
    assert message.startswith(f"data directory {str(file / 'data')!r} cannot be created (")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "address 'nonsense' is not HOST:PORT, [IPv6]:PORT or unix:PATH; write it"),
        ("0.0.0.0:0", "address '0.0.0.0:0' can be reached from other machines; give a token or"),
        ("unix:", "address 'unix:' names no usable socket path; use unix:PATH with a path of"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(
    address: str, message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = str(folder / "data")
    assert complaint(capfd, "--data-dir", data, "--address", address).startswith(message)


def test_a_port_that_is_taken_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = complaint(capfd, "--data-dir", str(folder / "data"), "--address", address)
    assert message.startswith(f"address {address!r} cannot be bound (Address already in use); stop")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_file_that_others_can_read_is_refused(
    mode: int, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = folder / "the token"
    file.write_text(TOKEN, encoding="utf-8")
    file.chmod(mode)
    message = complaint(capfd, "--data-dir", str(folder / "data"), "--token-file", str(file))
    assert message == (
        f"token file {str(file)!r} has mode {mode:04o}, so other users can read it; "
        f"run: chmod 600 '{file}'"
    )
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty; write a token into it"),
        (b" \n\t\n", "is empty; write a token into it"),
        (b"first-line\nsecond-line\n", "holds more than one line of plain ASCII; write a token"),
        ("gehe\u00efm".encode(), "holds more than one line of plain ASCII; write a token"),
        (b"\xff\xfe\x00half", "holds more than one line of plain ASCII; write a token"),
    ],
)
def test_a_token_file_without_a_usable_token_is_refused_and_not_quoted(
    content: bytes, problem: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = folder / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    message = complaint(capfd, "--data-dir", str(folder / "data"), "--token-file", str(file))
    assert message.startswith(f"token file {str(file)!r} {problem}")
    for secret in ("first-line", "second-line", "gehe", "half", "0xff"):
        assert secret not in message


def test_a_token_file_that_is_missing_or_no_file_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = folder / "directory"
    directory.mkdir(mode=0o700)
    for file, reason in (
        (folder / "nothing", "No such file or directory"),
        (directory, "Is a directory"),
    ):
        message = complaint(capfd, "--data-dir", str(folder / "data"), "--token-file", str(file))
        assert message == (
            f"token file {str(file)!r} cannot be read ({reason}); name a file that holds the token"
        )


@pytest.mark.parametrize("name", ["nowhere", "before/nothing", "during/start_flow", "start_flow:1"])
def test_an_unknown_failpoint_is_refused_and_the_known_ones_are_named(
    name: str,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, name)
    message = complaint(capfd, "--data-dir", str(folder / "data"))
    assert message.startswith(f"{name.partition(':')[0]!r} is no failpoint; the failpoints are ")
    assert "before/start_flow" in message
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["stop"],
        ["serve", "--data-dir", "d", "--durability", "none"],
        ["serve", "--data-dir", "d", "--token", "secret"],
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_the_usage(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "usage: dex-embedded-engine" in printed.err
    assert "error:" in printed.err
