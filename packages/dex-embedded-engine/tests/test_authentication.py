"""The bearer token: asked for by every method, used by Clients and Workers, seen by nobody."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import engine_async_flows as async_flows
import engine_flows as flows
import grpc
import pytest
from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCache,
    BlobCacheConfig,
    Client,
    ClientOptions,
    DexServiceError,
    PullWorkerOptions,
    Registry,
    Worker,
    WorkerOptions,
    WorkerTarget,
    open_blob_cache,
)
from dex.dexpb import dex_pb2 as pb
from engine_wire import GUARD, Wire, read_refusal, served_methods
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine import EmbeddedEngine
from dex_embedded_engine.testing import EngineProcess

TOKEN = "correct-horse-battery-staple"
REFUSAL = "the bearer token is missing or wrong; give the client the engine's token"
WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    "nothing": (),
    "another token": (("authorization", "Bearer wrong"),),
    "no token": (("authorization", "Bearer "),),
    "half the token": (("authorization", f"Bearer {TOKEN[:-1]}"),),
    "more than the token": (("authorization", f"Bearer {TOKEN}x"),),
    "another scheme": (("authorization", f"Basic {TOKEN}"),),
    "no scheme": (("authorization", TOKEN),),
    "another header": (("x-token", f"Bearer {TOKEN}"),),
    "the right one second": (("authorization", "Bearer x"), ("authorization", f"Bearer {TOKEN}")),
}
SEQUENCE = flows.Sequence()
RIGHT = (("authorization", f"Bearer {TOKEN}"),)


class Fixed:
    """A credential of the user's own."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[EmbeddedEngine]:
    async with EmbeddedEngine(
        folder / "data", durability="process-crash-safe", token=TOKEN
    ) as engine:
        yield engine


@pytest.fixture
def cache(folder: Path) -> Iterator[BlobCache]:
    cache = open_blob_cache(BlobCacheConfig(str(folder / "cache"), 16 * 1024 * 1024))
    yield cache
    cache.close()


async def open_call(wire: Wire, service: str, method: str, metadata: Any) -> None:
    """Call a method with an empty request and given metadata; raises what it is refused with."""
    path = f"/dex.{service}/{method}"
    if service == "FlowService":
        unary: Any = wire.channel.unary_unary(path)
        await asyncio.wait_for(unary(b"", metadata=metadata), GUARD)
        return
    stream: Any = wire.channel.stream_stream(path)
    call = stream(metadata=metadata)
    try:
        await call.write(b"")
        await asyncio.wait_for(call.read(), GUARD)
    finally:
        call.cancel()


@pytest.mark.parametrize("sent", WRONG)
async def test_every_method_refuses_a_caller_without_the_token(
    sent: str, engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with Wire(engine.address) as wire:
        for service, method in served_methods():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await open_call(wire, service, method, WRONG[sent])
            refusal = read_refusal(caught.value)
            assert refusal.code is grpc.StatusCode.UNAUTHENTICATED, method
            assert refusal.sub_status == pb.ERROR_SUB_STATUS_UNCATEGORIZED
            assert refusal.detail == REFUSAL
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_every_method_lets_a_caller_with_the_token_pass(engine: EmbeddedEngine) -> None:
    async with Wire(engine.address) as wire:
        for service, method in served_methods():
            try:
                await open_call(wire, service, method, RIGHT)
            except grpc.aio.AioRpcError as error:
                assert error.code() is not grpc.StatusCode.UNAUTHENTICATED, method


async def test_a_refused_caller_starts_nothing(engine: EmbeddedEngine) -> None:
    async with Wire(engine.address) as wire:
        with pytest.raises(grpc.aio.AioRpcError):
            await wire.start("intruder")
        summary = pb.GetFlowSummaryRequest(flow_id="intruder")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wire.flows.GetFlowSummary(summary, metadata=RIGHT)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_engine_without_a_token_takes_callers_with_one(folder: Path) -> None:
    async with EmbeddedEngine(folder / "open") as engine, Wire(engine.address) as wire:
        await wire.flows.HealthCheck(Empty(), metadata=RIGHT)


def client_options(address: str, token: str | None) -> ClientOptions:
    return ClientOptions(
        server_address=address,
        worker_target=WorkerTarget(pull=True),
        credential=None if token is None else Fixed(token),
    )


def worker_options(address: str, token: str | None) -> WorkerOptions:
    return WorkerOptions(
        server_address=address,
        pull=PullWorkerOptions(max_concurrent_tasks=4),
        credential=None if token is None else Fixed(token),
    )


@asynccontextmanager
async def sync_worker(cache: BlobCache, options: WorkerOptions) -> AsyncIterator[None]:
    registry: Any = Registry([SEQUENCE])
    worker = Worker(registry, cache, options)
    serving = threading.Thread(target=worker.start)
    serving.start()
    try:
        await asyncio.to_thread(worker.wait_pull_registered, GUARD)
        yield
    finally:
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(serving.join)


@asynccontextmanager
async def async_worker(cache: BlobCache, options: WorkerOptions) -> AsyncIterator[None]:
    registry: Any = Registry([async_flows.Sequence()], allow_async_handlers=True)
    worker = AsyncWorker(registry, cache, options)
    serving = asyncio.create_task(worker.start())
    try:
        await worker.wait_pull_registered(GUARD)
        yield
    finally:
        await worker.stop()
        await serving


@pytest.fixture
async def guarded(folder: Path) -> AsyncIterator[EngineProcess]:
    """An engine process that has the token from a file, with white space around it."""
    file = folder / "token"
    file.touch(mode=0o600)
    file.write_text(f"\n{TOKEN}\n", encoding="utf-8")
    process = EngineProcess(folder / "data", arguments=("--token-file", str(file)))
    async with process:
        yield process
        await process.stop()
    assert TOKEN not in process.errors


@pytest.mark.parametrize("make_worker", [sync_worker, async_worker])
async def test_clients_and_workers_with_the_token_of_the_file_do_their_work(
    make_worker: Any, guarded: EngineProcess, cache: BlobCache
) -> None:
    registry: Any = Registry([SEQUENCE])
    options = client_options(guarded.address, TOKEN)
    client, async_client = Client(registry, cache, options), AsyncClient(registry, cache, options)
    try:
        async with make_worker(cache, worker_options(guarded.address, TOKEN)):
            await asyncio.to_thread(client.start_flow, SEQUENCE, "sync", 3)
            await async_client.start_flow(SEQUENCE, "async", 4)
            first = await asyncio.to_thread(client.wait_for_flow, "sync")
            second = await async_client.wait_for_flow("async")
        assert (first.single_output(int), second.single_output(int)) == (6, 10)
    finally:
        await async_client.close()
        client.close()
    assert guarded.errors == ""


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_client_without_the_token_is_told_so_by_the_sdk(
    token: str | None, engine: EmbeddedEngine, cache: BlobCache
) -> None:
    registry: Any = Registry([SEQUENCE])
    client = AsyncClient(registry, cache, client_options(engine.address, token))
    try:
        with pytest.raises(DexServiceError) as caught:
            await client.start_flow(SEQUENCE, "flow", 1)
    finally:
        await client.close()
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert REFUSAL in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_worker_without_the_token_does_not_start(
    token: str | None, engine: EmbeddedEngine, cache: BlobCache
) -> None:
    registry: Any = Registry([async_flows.Sequence()], allow_async_handlers=True)
    worker = AsyncWorker(registry, cache, worker_options(engine.address, token))
    with pytest.raises(Exception, match="bearer token is missing or wrong") as caught:
        await asyncio.wait_for(worker.start(), GUARD)
    assert TOKEN not in repr(caught.value)
    await worker.stop()


async def test_the_token_stands_in_no_argument_no_environment_and_no_log(
    guarded: EngineProcess,
) -> None:
    async with Wire(guarded.address) as wire:
        for metadata in (WRONG["half the token"], WRONG["no scheme"], RIGHT):
            for service, method in served_methods():
                try:
                    await open_call(wire, service, method, metadata)
                except grpc.aio.AioRpcError as error:
                    assert TOKEN not in str(error)
        worker = wire.tasks.PollWorkerTask(metadata=RIGHT)
        register = pb.PollWorkerTaskRegister(
            queue="Hand", app_worker_id="hand", flow_types=["Hand"]
        )
        await worker.write(pb.PollWorkerTaskRequest(register=register))
        await asyncio.wait_for(worker.read(), GUARD)
        worker.cancel()
    process = Path("/proc", str(guarded.pid))
    for name in ("cmdline", "environ"):
        assert TOKEN.encode() not in (process / name).read_bytes()
    data = Path(guarded.address.removeprefix("unix:").removesuffix(".socket"))
    for file in data.iterdir():
        assert TOKEN.encode() not in file.read_bytes()


async def test_an_engine_shows_its_token_nowhere(engine: EmbeddedEngine) -> None:
    assert TOKEN not in repr(engine)
