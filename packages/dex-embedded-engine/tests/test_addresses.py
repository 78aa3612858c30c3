"""Addresses that cannot be served: malformed, taken, open to the network without a token."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from engine_starts import FAST, is_served, refusal_of_start, starts

from dex_embedded_engine import EmbeddedEngine
from dex_embedded_engine.testing import EngineProcess


@pytest.mark.parametrize(
    "address",
    [
        "",
        "8801",
        "localhost",
        ":8801",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "localhost:" + "9" * 5000,
        "localhost:\u0661",
        "local host:1",
        "::1",
        "::1:8801",
        "[::1]",
        "[::1:8801",
        "[localhost]:8801",
        "[127.0.0.1]:8801",
        "http://localhost:8801",
        "unix-abstract:name",
        "127.0.0.1:1\n",
    ],
)
async def test_a_malformed_address_is_refused(address: str, folder: Path) -> None:
    assert await refusal_of_start(folder / "data", address=address) == (
        f"address {address!r} is not HOST:PORT, [IPv6]:PORT or unix:PATH; write it like "
        f"'127.0.0.1:8801'"
    )
    assert not (folder / "data").exists()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0", "10.1.2.3:0"])
async def test_an_address_that_others_can_reach_needs_a_token(address: str, folder: Path) -> None:
    assert await refusal_of_start(folder / "data", address=address) == (
        f"address {address!r} can be reached from other machines; give a token or bind to 127.0.0.1"
    )
    assert not (folder / "data").exists()


async def test_an_address_that_others_can_reach_is_served_with_a_token(folder: Path) -> None:
    async with EmbeddedEngine(folder / "data", address="0.0.0.0:0", token="secret") as engine:
        assert re.fullmatch(r"0\.0\.0\.0:[1-9][0-9]*", engine.address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.9.9.9:0"])
async def test_an_address_of_this_machine_alone_needs_no_token(address: str, folder: Path) -> None:
    await starts(folder / "data", address=address)


async def test_an_address_of_another_machine_is_refused(folder: Path) -> None:
    """192.0.2.0/24 is reserved for documentation."""
    data = folder / "data"
    for address in ("192.0.2.1:0", "192.0.2.1:8801"):
        message = await refusal_of_start(data, address=address, token="secret")
        assert message.startswith(f"address {address!r} cannot be bound (")
        assert message.endswith("; stop what listens there or choose another")
        await starts(data)


@pytest.mark.parametrize("host", ["nobody.invalid", "a" * 70 + ".invalid", "a..b"])
async def test_a_host_name_that_nobody_knows_is_refused(host: str, folder: Path) -> None:
    message = await refusal_of_start(folder / "data", address=f"{host}:0", token="secret")
    assert message.startswith(f"the host of address '{host}:0' is not known (")
    assert message.endswith("; use 127.0.0.1 or an address of this machine")
    await starts(folder / "data")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
async def test_a_port_that_a_plain_socket_listens_at_is_refused(host: str, folder: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"{host}:{taken.getsockname()[1]}"
        assert await refusal_of_start(folder / "data", address=address, token="secret") == (
            f"address {address!r} cannot be bound (Address already in use); stop what listens "
            f"there or choose another"
        )
    await starts(folder / "data")


async def test_a_port_of_another_engine_is_refused_and_that_engine_goes_on(folder: Path) -> None:
    async with EmbeddedEngine(folder / "first", durability=FAST) as first:
        message = await refusal_of_start(folder / "data", address=first.address)
        assert f"address {first.address!r} cannot be bound (Address already in use)" in message
        await is_served(first.address)
    await starts(folder / "data", address=first.address)


async def test_a_socket_of_a_live_engine_is_refused_and_that_engine_goes_on(folder: Path) -> None:
    address = f"unix:{folder}/socket"
    async with EmbeddedEngine(folder / "first", durability=FAST, address=address):
        assert await refusal_of_start(folder / "data", address=address) == (
            f"address {address!r} is taken; stop what listens there or choose another"
        )
        await is_served(address)
    assert not (folder / "socket").exists()
    await starts(folder / "data", address=address)


async def test_a_socket_that_a_killed_engine_left_is_used_again(folder: Path) -> None:
    address = f"unix:{folder}/socket"
    async with EngineProcess(folder / "first", address=address) as other:
        await other.kill()
        assert (folder / "socket").is_socket()
        await starts(folder / "data", address=address)
    assert not (folder / "socket").exists()


async def test_a_socket_whose_owner_does_not_accept_is_taken(folder: Path) -> None:
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX) as first:
        deaf.bind(str(path))
        deaf.listen(0)
        first.connect(str(path))
        message = await refusal_of_start(folder / "data", address=f"unix:{path}")
    assert message.endswith("is taken; stop what listens there or choose another")


async def test_a_regular_file_in_the_place_of_the_socket_is_refused(folder: Path) -> None:
    path = folder / "socket"
    path.write_text("mine", encoding="utf-8")
    assert await refusal_of_start(folder / "data", address=f"unix:{path}") == (
        f"{str(path)!r} is not a socket; choose another path"
    )
    assert path.read_text(encoding="utf-8") == "mine"
    await starts(folder / "data")


async def test_a_dangling_link_in_the_place_of_the_socket_is_refused(folder: Path) -> None:
    path = folder / "socket"
    path.symlink_to(folder / "nothing")
    message = await refusal_of_start(folder / "data", address=f"unix:{path}")
    assert message == f"address 'unix:{path}' cannot be bound; choose another"
    await starts(folder / "data")


@pytest.mark.parametrize("path", ["", "x" * 101, "a\0b"])
async def test_a_socket_path_that_cannot_be_one_is_refused(path: str, folder: Path) -> None:
    assert await refusal_of_start(folder / "data", address=f"unix:{path}") == (
        f"address {f'unix:{path}'!r} names no usable socket path; use unix:PATH with a path of "
        f"at most 100 bytes"
    )


async def test_a_socket_in_a_folder_that_does_not_exist_is_refused(folder: Path) -> None:
    path = folder / "nowhere" / "socket"
    assert await refusal_of_start(folder / "data", address=f"unix:{path}") == (
        f"the folder of socket {str(path)!r} does not exist; create it first"
    )
    await starts(folder / "data")
