"""Owns what a process needs to serve sessions: Worker, Client, cache and executor."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCache,
    BlobCacheConfig,
    ClientOptions,
    Credential,
    PullWorkerOptions,
    Registry,
    WorkerOptions,
    WorkerTarget,
    open_blob_cache,
)

from dex_agents.errors import AgentUsageError, ServerUnreachableError
from dex_agents.session_client import AgentSessionClient
from dex_agents.session_flow import AgentSessionFlow

_REGISTRATION_TIMEOUT = 60.0
_SPARE_THREADS = 8
_CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class AgentHost:
    """A process that serves sessions and can talk to them.

    Attributes:
        client: the SDK's client, for everything else.
        serving: ends when the Worker stops; an exception in it is the Worker's.
    """

    client: AsyncClient
    serving: asyncio.Task[None]

    def sessions(self, flow: AgentSessionFlow) -> AgentSessionClient:
        """Return a client of the sessions of one of the hosted flows."""
        return AgentSessionClient(self.client, flow)


@asynccontextmanager
async def open_agent_host(
    flows: Sequence[AgentSessionFlow],
    *,
    server_address: str = "localhost:8801",
    mode: str = "pull",
    max_concurrent_tasks: int = 32,
    reserved_rpc_tasks: int = 4,
    cache_dir: str | Path | None = None,
    credential: Credential | None = None,
    connect_timeout: float = 5.0,
    drain_timeout: float = 5.0,
) -> AsyncIterator[AgentHost]:
    """Serve sessions until the block is left.

    Args:
        flows: what to serve.
        server_address: an engine or server.
        mode: ``"pull"``: the Worker dials out.
        max_concurrent_tasks: handlers at once; sync tools run on as many threads.
        reserved_rpc_tasks: of them, kept free for RPCs.
        cache_dir: where big values are cached; None takes a temporary folder.
        credential: supplies the bearer token.
        connect_timeout: seconds to wait for the server.
        drain_timeout: seconds that calls get to end when the block is left; later ones are lost.

    Raises:
        AgentUsageError: no flow, a flow without an agent, or too few slots.
        ServerUnreachableError: nothing answers at `server_address`.
    """
    _check_options(flows, mode, max_concurrent_tasks, reserved_rpc_tasks)
    await _require_reachable(server_address, connect_timeout)
    for flow in flows:
        await flow.prepare()
    async with AsyncExitStack() as stack:
        cache = _open_cache(stack, cache_dir)
        _use_executor(stack, max_concurrent_tasks)
        registry: Any = Registry(list(flows), allow_async_handlers=True)
        client = await _open_client(stack, registry, cache, server_address, credential)
        for flow in flows:
            flow.bind_client(client)
            stack.callback(flow.bind_client, None)
        pull = PullWorkerOptions(
            max_concurrent_tasks=max_concurrent_tasks,
            reserved_rpc_tasks=reserved_rpc_tasks,
            idle_streams_per_queue=4,
            stop_drain_timeout=timedelta(seconds=drain_timeout),
        )
        worker = AsyncWorker(
            registry,
            cache,
            WorkerOptions(server_address=server_address, pull=pull, credential=credential),
        )
        serving = asyncio.create_task(worker.start())
        stack.push_async_callback(_stop, worker, serving)
        await worker.wait_pull_registered(_REGISTRATION_TIMEOUT)
        yield AgentHost(client, serving)


@asynccontextmanager
async def open_session_client(
    flow: AgentSessionFlow,
    *,
    server_address: str = "localhost:8801",
    cache_dir: str | Path | None = None,
    credential: Credential | None = None,
    connect_timeout: float = 5.0,
    patience: float = 30.0,
) -> AsyncIterator[AgentSessionClient]:
    """Talk to sessions that other processes serve.

    Args:
        flow: from `session_client_flow`, or as hosted.
        patience: how long calls wait for each other and for a Worker, seconds.

    Raises:
        ServerUnreachableError: nothing answers at `server_address`.
    """
    await _require_reachable(server_address, connect_timeout)
    async with AsyncExitStack() as stack:
        cache = _open_cache(stack, cache_dir)
        registry: Any = Registry([flow], allow_async_handlers=True)
        client = await _open_client(stack, registry, cache, server_address, credential)
        yield AgentSessionClient(client, flow, lock_timeout=patience)


def _check_options(flows: Sequence[AgentSessionFlow], mode: str, slots: int, reserved: int) -> None:
    if not flows:
        raise AgentUsageError("open_agent_host needs at least one flow")
    if mode != "pull":
        raise AgentUsageError(f"mode {mode!r} is not served; use 'pull'")
    if slots < 2 or not 0 < reserved < slots:
        raise AgentUsageError(
            f"max_concurrent_tasks={slots!r} with reserved_rpc_tasks={reserved!r} would let Steps "
            f"keep RPCs out; use at least 2 slots and reserve at least one, but not all"
        )


def _use_executor(stack: AsyncExitStack, threads: int) -> None:
    """Let sync tool bodies run on threads of our own while the host is open.

    A body that hangs does not keep the host from closing; its thread ends with the process.
    """
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(threads, "dex-agents-tool")
    loop.set_default_executor(executor)
    stack.callback(executor.shutdown, wait=False)
    stack.callback(lambda: loop.set_default_executor(ThreadPoolExecutor()))


async def _require_reachable(address: str, seconds: float) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), seconds)
        except TimeoutError:
            raise ServerUnreachableError(address, seconds) from None


def _open_cache(stack: AsyncExitStack, folder: str | Path | None) -> BlobCache:
    place = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="dex-agents-"))
    cache = open_blob_cache(BlobCacheConfig(str(place), _CACHE_BYTES))
    stack.callback(cache.close)
    return cache


async def _open_client(
    stack: AsyncExitStack,
    registry: Registry,
    cache: BlobCache,
    address: str,
    credential: Credential | None,
) -> AsyncClient:
    target = WorkerTarget(pull=True)
    options = ClientOptions(server_address=address, worker_target=target, credential=credential)
    return await stack.enter_async_context(AsyncClient(registry, cache, options))


def _lend_executor(stack: AsyncExitStack, threads: int) -> None:
    """Give the event loop an executor for sync tools, and an ordinary one when the host closes."""
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(threads, "dex-agents-tool")
    loop.set_default_executor(executor)

    def take_back() -> None:
        loop.set_default_executor(ThreadPoolExecutor())
        # A body that hangs must not keep the host from closing.
        executor.shutdown(wait=False, cancel_futures=True)

    stack.callback(take_back)


async def _stop(worker: AsyncWorker, serving: asyncio.Task[None]) -> None:
    await worker.stop()
    await asyncio.gather(serving, return_exceptions=True)
