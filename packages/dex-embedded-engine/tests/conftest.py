"""Engines, Worker processes and Clients for the tests of this package."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from dex import (
    AsyncClient,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)

from dex_embedded_engine import EmbeddedEngine
from dex_embedded_engine.testing import ProgramProcess

PROGRAMS = Path(__file__).with_name("programs")
sys.path.insert(0, str(PROGRAMS))

import engine_flows  # noqa: E402  # found by the line above

StartWorker = Callable[..., Awaitable[ProgramProcess]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the test's own; short enough for Unix sockets."""
    return tmp_path


@pytest.fixture
def ledger(folder: Path) -> Path:
    """The file to which every handler body appends a line before anything else."""
    path = folder / "ledger"
    path.touch()
    return path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[EmbeddedEngine]:
    """An engine in this process, on a free TCP port."""
    async with EmbeddedEngine(folder / "data") as running:
        yield running


class Gate:
    """A closed gate at which handler bodies in other processes wait until it is opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._file.close()


@pytest.fixture
def close_gate(ledger: Path) -> Iterator[Callable[[str], Gate]]:
    """Close a gate before the Flow starts: ``close_gate(name)``."""
    gates: list[Gate] = []

    def close(name: str) -> Gate:
        gates.append(Gate(ledger.with_name(name)))
        return gates[-1]

    yield close
    for gate in gates:
        gate.open()


@pytest.fixture
async def start_worker(folder: Path, ledger: Path) -> AsyncIterator[StartWorker]:
    """Start Worker processes: ``await start_worker(address, mode, echo=True)``.

    With `echo`, each line a body notes can be read with ``worker.read_line()``.
    """
    async with AsyncExitStack() as stack:
        count = 0

        async def start(
            address: str, mode: str = "sync", *, echo: bool = False, slots: int = 16
        ) -> ProgramProcess:
            nonlocal count
            count += 1
            worker = ProgramProcess(
                [
                    str(PROGRAMS / "engine_worker.py"),
                    mode,
                    address,
                    str(folder / f"cache{count}"),
                    str(slots),
                ],
                {"TEST_LEDGER": str(ledger), "TEST_ECHO": "1" if echo else ""},
            )
            await stack.enter_async_context(worker)
            return worker

        yield start


class FlowClient:
    """An AsyncClient together with the Flow instances it was registered with, by type."""

    def __init__(self, client: AsyncClient, flows: dict[str, Any]) -> None:
        self.client = client
        self.flows = flows

    async def start(self, flow_type: str, flow_id: str, value: object, **options: Any) -> str:
        """Start a Flow; return the run id."""
        return await self.client.start_flow(self.flows[flow_type], flow_id, value, **options)

    async def result(self, flow_id: str, kind: Any = None) -> Any:
        """Wait until the Flow has completed and return its single output."""
        result = await self.client.wait_for_flow(flow_id)
        assert result.status.name == "COMPLETED", (result.status, result.error_message)
        return result.single_output(kind) if kind is not None else None

    async def call(self, method: str, flow_id: str, *value: object, **options: Any) -> Any:
        """Invoke an RPC of the Flow type Desk."""
        return await self.client.invoke_rpc(
            getattr(self.flows["Desk"], method), flow_id, *value, **options
        )


@pytest.fixture
async def connect(folder: Path) -> AsyncIterator[Callable[[str], FlowClient]]:
    """Connect Clients: ``connect(address)``."""
    clients: list[AsyncClient] = []
    cache = open_blob_cache(BlobCacheConfig(str(folder / "client-cache"), 16 * 1024 * 1024))

    def open_client(address: str) -> FlowClient:
        flows = {flow.get_flow_type(): flow for flow in engine_flows.make_flows()}
        registry: Any = Registry(list(flows.values()))
        options = ClientOptions(server_address=address, worker_target=WorkerTarget(pull=True))
        client = AsyncClient(registry, cache, options)
        clients.append(client)
        return FlowClient(client, flows)

    yield open_client
    for client in clients:
        await client.close()
    cache.close()


@pytest.fixture
def flow_client(connect: Callable[[str], FlowClient], engine: EmbeddedEngine) -> FlowClient:
    """A Client of `engine`."""
    return connect(engine.address)
