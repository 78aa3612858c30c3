"""Owns the thread the kernel runs on, and group commit.

Events that come during a commit wait for it and share the next one. The
event loop never waits for the disk: it posts events and gets outputs back.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

from dex_embedded_engine.clock import Clock
from dex_embedded_engine.errors import EngineFailure
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import Event, Output, StreamFrame, Tick

_LOGGER = logging.getLogger(__name__)
_LARGEST_BATCH = 256


class KernelThread:
    """Runs a kernel on a thread of its own.

    Args:
        deliver: called on the event loop with a batch's outputs, the next moment something is
            due, unix seconds, and the next instant at which a Worker may be asked again.
        fail: called on the event loop once, when the kernel can go on no longer.
    """

    def __init__(
        self,
        kernel: Kernel,
        clock: Clock,
        deliver: Callable[[list[Output], float | None, float | None], None],
        fail: Callable[[EngineFailure], None],
    ) -> None:
        self._kernel = kernel
        self._clock = clock
        self._deliver = deliver
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dex-embedded-engine", daemon=True)

    def start(self) -> None:
        """Start deciding; the first batch takes up what an earlier engine left."""
        self._thread.start()
        self.post(Tick())

    def post(self, event: Event) -> None:
        """Hand an event to the kernel. Safe from any thread."""
        self._inbox.put(event)

    async def stop(self) -> None:
        """Let the kernel finish what was posted, then end the thread."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        running = True
        while running:
            batch, running = self._next_batch()
            if not batch:
                continue
            try:
                outputs = self._kernel.process(
                    batch,
                    self._clock.now(),
                    instant=self._clock.instant(),
                    synced=any(map(_needs_sync, batch)),
                )
            except EngineFailure as failure:
                self._report(failure)
                return
            except BaseException as bug:
                # Whatever ends this thread ends the engine: nothing may be acknowledged without it.
                _LOGGER.exception("the engine's kernel failed")
                self._report(EngineFailure(f"the engine failed: {type(bug).__name__}: {bug}"))
                return
            self._send(self._deliver, outputs, self._kernel.next_due(), self._kernel.next_retry())

    def _next_batch(self) -> tuple[list[Event], bool]:
        batch: list[Event] = []
        event = self._inbox.get()
        while event is not None:
            batch.append(event)
            if len(batch) >= _LARGEST_BATCH:
                return batch, True
            try:
                event = self._inbox.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _report(self, failure: EngineFailure) -> None:
        self._send(self._fail, failure)

    def _send(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed without stopping the engine: nobody is left to be told.
            _LOGGER.warning("the event loop is closed; an engine output was dropped")


def _needs_sync(event: Event) -> bool:
    """Tell whether something that is acknowledged or handed out may come of `event`.

    Heartbeats and Stream messages of Steps are neither: a later synced commit carries them too.
    """
    if not isinstance(event, StreamFrame):
        return True
    kind: str | None = event.frame.WhichOneof("frame")
    if kind != "task_frame":
        return kind != "pong"
    frame = event.frame.task_frame
    output = frame.WhichOneof("output")
    if output not in ("wait_for", "execute"):
        return True
    part: str | None = getattr(frame, output).WhichOneof("output")
    return part == "result"
