"""A client that goes on whatever happens to the engine, and knows what it was told."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import engine_flows
import grpc
from dex import (
    DexServiceError,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    StartFlowOptions,
    StopFlowOptions,
    StopType,
    WorkerInvocationError,
)

from dex_embedded_engine import EngineFailure
from dex_embedded_engine.testing import EngineProcess

_RETRIES = 200
_WATCH = 5.0


class Supervisor:
    """Keeps an engine process running: whenever it ends, it is started again, unarmed."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.restarts = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervisor:
        if not await self._starts():
            await self._restart()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.engine.kill()

    async def wait_reachable(self) -> None:
        """Wait until the engine can be reached, through restarts and gRPC's pauses.

        Channels of one process share their connection to an address, and its pauses after a
        refusal; so this is ready when the next call of any client will go through.
        """
        assert self._task is not None
        while True:
            async with grpc.aio.insecure_channel(self.engine.address) as channel:
                ready = asyncio.ensure_future(channel.channel_ready())
                watched = {ready, self._task}
                await asyncio.wait(watched, timeout=_WATCH, return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    return
                ready.cancel()
                await asyncio.gather(ready, return_exceptions=True)
                if self._task.done():
                    await self._task
            # Once in a while gRPC misses that the connection came up; a new channel sees it.

    async def _starts(self) -> bool:
        """Start the engine; tell whether it was ready before it was killed again."""
        try:
            await self.engine.start()
        except EngineFailure:
            if await self.engine.wait_ended() != -signal.SIGKILL:
                raise
            return False
        return True

    async def _restart(self) -> None:
        self.engine.arm("")
        self.restarts += 1
        while not await self._starts():
            self.restarts += 1

    async def _watch(self) -> None:
        while True:
            await self.engine.wait_ended()
            await self._restart()


class Errands:
    """Runs requests of every kind and repeats each until it is acknowledged.

    Args:
        connect: opens a client of an address.
        supervisor: whose engine it uses.
    """

    def __init__(self, connect: Callable[[str], Any], supervisor: Supervisor) -> None:
        self._connect = connect
        self._supervisor = supervisor
        self._client: Any = None
        self.marks: Counter[str] = Counter()
        self.sent: list[str] = []

    async def insist(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        """Repeat `request` until the engine acknowledges it."""
        for _ in range(_RETRIES):
            await self._supervisor.wait_reachable()
            if self._client is None:
                self._client = self._connect(self._supervisor.engine.address)
            try:
                return await request(self._client)
            except WorkerInvocationError:
                continue
            except (FlowAlreadyStartedError, FlowNotActiveOrNotFoundError):
                raise
            except DexServiceError as error:
                if error.code.name not in _TRANSIENT:
                    raise
        raise AssertionError("the engine never acknowledged the request")

    async def start(self, flow_type: str, flow_id: str, value: object) -> None:
        """Start a Flow exactly once."""
        options = StartFlowOptions(request_id=flow_id, ignore_already_started=True)
        await self.insist(lambda each: each.start(flow_type, flow_id, value, options=options))

    async def mark(self, flow_id: str, name: str) -> None:
        """Have an RPC mark `name`; count how often it was asked to."""

        async def ask(client: Any) -> None:
            self.marks[name] += 1
            await client.call("mark", flow_id, name)

        await self.insist(ask)

    async def write(self, flow_id: str, text: str) -> None:
        """Append to the Stream of the Flow."""
        self.sent.append(text)
        stream = engine_flows.lines
        await self.insist(lambda each: each.client.write_stream(flow_id, stream, "test", text))

    async def stop(self, flow_id: str) -> None:
        """Cancel the Flow; that it is closed already means an earlier try was heard."""
        options = StopFlowOptions(StopType.CANCEL)
        try:
            await self.insist(lambda each: each.client.stop_flow(flow_id, options))
        except FlowNotActiveOrNotFoundError:
            return

    async def result(self, flow_id: str, kind: Any) -> Any:
        """Wait for the Flow's result."""
        return await self.insist(lambda each: each.result(flow_id, kind))

    async def messages(self, flow_id: str) -> list[str]:
        """Return the Stream's messages, oldest first."""
        stream = engine_flows.lines
        page = await self.insist(
            lambda each: each.client.list_stream_messages(flow_id, stream, 1000)
        )
        return [message.value for message in reversed(page.messages)]


_TRANSIENT = frozenset({"UNAVAILABLE", "CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED"})
