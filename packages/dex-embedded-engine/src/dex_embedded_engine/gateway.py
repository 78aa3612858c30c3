"""Owns the event loop's side of the kernel: calls that wait for answers, streams, long polls.

Everything here runs on the event loop; nothing here decides.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import Message

from dex_embedded_engine.clock import Clock, TimerHandle
from dex_embedded_engine.errors import EngineFailure, ServiceError
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import (
    Call,
    Output,
    Refusal,
    Reply,
    StreamEnded,
    StreamFrame,
    StreamOpened,
    Tick,
    ToStream,
    Wake,
)
from dex_embedded_engine.thread import KernelThread

_LOGGER = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT", bound=Message)


class WorkerConnection:
    """One pull stream as the event loop sees it."""

    def __init__(self, gateway: Gateway, stream_id: int) -> None:
        self._gateway = gateway
        self.stream_id = stream_id
        self.outgoing: asyncio.Queue[pb.PollWorkerTaskResponse | None] = asyncio.Queue()

    def take(self, frame: pb.PollWorkerTaskRequest) -> None:
        """Hand a frame of the Worker to the kernel."""
        self._gateway.post_frame(StreamFrame(self.stream_id, frame))

    def end(self, *, orderly: bool) -> None:
        """Say that the stream is gone; see `StreamEnded`."""
        self._gateway.end_stream(self, orderly=orderly)


class Gateway:
    """Connects gRPC handlers with the kernel's thread.

    Args:
        on_failure: called once when the kernel can go on no longer.
    """

    def __init__(
        self, kernel: Kernel, clock: Clock, on_failure: Callable[[EngineFailure], None]
    ) -> None:
        self._clock = clock
        self._on_failure = on_failure
        self._thread = KernelThread(kernel, clock, self._deliver, self._fail)
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._streams: dict[int, WorkerConnection] = {}
        self._waiters: dict[tuple[str, ...], set[asyncio.Event]] = {}
        self._timer: TimerHandle | None = None
        self._timer_at: float | None = None
        self._retry_is_planned = False
        self._failure: EngineFailure | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the kernel's thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End all streams and long polls, let the kernel finish, and end its thread."""
        self._stopping = True
        for connection in self._streams.values():
            connection.outgoing.put_nowait(None)
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set()
        await self._thread.stop()
        if self._timer is not None:
            self._timer.cancel()

    async def call(self, kind: str, operation: Callable[[Kernel, int], AnswerT | None]) -> AnswerT:
        """Have the kernel do `operation`; return its answer once it is durable.

        Raises:
            ServiceError: refused, or the engine has stopped.
        """
        self._require_running()
        call_id = next(self._ids)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._thread.post(Call(call_id, kind, operation))
        try:
            return cast(AnswerT, await future)
        finally:
            self._calls.pop(call_id, None)

    async def poll(
        self,
        topic: tuple[str, ...],
        look: Callable[[], Awaitable[AnswerT | None]],
        seconds: float,
    ) -> AnswerT:
        """Repeat `look` whenever `topic` is woken, until it finds something.

        Args:
            look: a coroutine function returning the answer, or None for not yet.
            seconds: how long to wait.

        Raises:
            ServiceError: LONG_POLL_TIME_OUT.
        """
        woken = asyncio.Event()
        self._waiters.setdefault(topic, set()).add(woken)
        deadline = self._clock.now() + seconds
        timer = self._clock.call_at(deadline, woken.set)
        try:
            while True:
                woken.clear()
                found = await look()
                if found is not None:
                    return found
                if self._clock.now() >= deadline:
                    raise _poll_timeout(seconds)
                self._require_running()
                await woken.wait()
                # A wall clock that was set back fires a timer before its time.
                timer.cancel()
                timer = self._clock.call_at(deadline, woken.set)
        finally:
            timer.cancel()
            waiters = self._waiters[topic]
            waiters.discard(woken)
            if not waiters:
                del self._waiters[topic]

    def open_stream(self, register: pb.PollWorkerTaskRegister) -> WorkerConnection:
        """Take in a Worker's pull stream."""
        self._require_running()
        connection = WorkerConnection(self, next(self._ids))
        self._streams[connection.stream_id] = connection
        self._thread.post(StreamOpened(connection.stream_id, register))
        return connection

    def post_frame(self, event: StreamFrame) -> None:
        """Hand a Worker's frame to the kernel."""
        self._thread.post(event)

    def end_stream(self, connection: WorkerConnection, *, orderly: bool) -> None:
        """Forget a stream. While the engine stops, attempts that are out stay recorded as such."""
        self._streams.pop(connection.stream_id, None)
        if not self._stopping:
            self._thread.post(StreamEnded(connection.stream_id, orderly))

    def _require_running(self) -> None:
        if self._failure is not None:
            raise _unavailable(str(self._failure))
        if self._stopping:
            raise _unavailable("the engine is stopping; try again when it runs again")

    def _deliver(
        self, outputs: list[Output], next_due: float | None, next_retry: float | None
    ) -> None:
        for output in outputs:
            if isinstance(output, ToStream):
                connection = self._streams.get(output.stream_id)
                if connection is not None:
                    connection.outgoing.put_nowait(output.frame)
            elif isinstance(output, Reply):
                self._finish(output.call_id, output.answer)
            elif isinstance(output, Refusal):
                self._finish(output.call_id, output.error)
            elif isinstance(output, Wake):
                for waiter in self._waiters.get(output.topic, ()):
                    waiter.set()
        self._plan_tick(next_due)
        if next_retry is not None and not self._retry_is_planned and not self._stopping:
            self._retry_is_planned = True
            pause = max(0.0, next_retry - self._clock.instant())
            asyncio.get_running_loop().call_later(pause, self._retry)

    def _finish(self, call_id: int, outcome: Message | ServiceError) -> None:
        future = self._calls.get(call_id)
        if future is None or future.done():
            return
        if isinstance(outcome, ServiceError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _plan_tick(self, next_due: float | None) -> None:
        if next_due == self._timer_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = next_due
        if next_due is not None and not self._stopping:
            self._timer = self._clock.call_at(next_due, self._tick)

    def _retry(self) -> None:
        self._retry_is_planned = False
        if not self._stopping and self._failure is None:
            self._thread.post(Tick())

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = None
        self._thread.post(Tick())

    def _fail(self, failure: EngineFailure) -> None:
        _LOGGER.error("the engine stops: %s", failure)
        self._failure = failure
        for future in self._calls.values():
            if not future.done():
                future.set_exception(_unavailable(str(failure)))
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set()
        for connection in self._streams.values():
            connection.outgoing.put_nowait(None)
        self._on_failure(failure)


def _unavailable(detail: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAVAILABLE, detail)


def _poll_timeout(seconds: float) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"nothing happened within {seconds:g} seconds; call again to go on waiting",
        pb.ERROR_SUB_STATUS_LONG_POLL_TIME_OUT,
    )
