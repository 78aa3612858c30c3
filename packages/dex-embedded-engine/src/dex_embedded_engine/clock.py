"""Owns time as the engine sees it: a reading, and callbacks at a reading.

Nothing in this package reads the wall clock in another way, so a test can move an engine,
with real Workers connected to it, an hour ahead in one call.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A callback that is waiting for its time."""

    def cancel(self) -> None:
        """Forget the callback; does nothing once it ran."""


class Clock(Protocol):
    """Time in unix seconds. `now` may be called from any thread, `call_at` on the event loop."""

    def now(self) -> float:
        """Return the current time in unix seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Run `callback` on the event loop once `now` has reached `when`."""

    def instant(self) -> float:
        """Return seconds that only grow, for pauses of milliseconds between processes.

        They grow while virtual time stands still, since other processes go on meanwhile.
        """


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Return the current time in unix seconds."""
        return time.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Run `callback` on the running event loop at `when`, unix seconds."""
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), callback)

    def instant(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()


class _VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """A clock that stands still until `advance` moves it.

    Args:
        start: first reading in unix seconds; None takes the wall clock's. Workers compare task
            deadlines with their own wall clock, so with real Workers start at None.
    """

    def __init__(self, start: float | None = None) -> None:
        self._now = time.time() if start is None else start
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def now(self) -> float:
        """Return the current virtual time in unix seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Run `callback` once `advance` reaches `when`; at once if it is already reached."""
        timer = _VirtualTimer(callback)
        if when <= self._now:
            asyncio.get_running_loop().call_soon(self._run, timer)
        else:
            heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def instant(self) -> float:
        """Return the machine's monotonic seconds: Workers are real."""
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Move time forward and run, in order, every callback whose time has come.

        Args:
            seconds: how far; must not be negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds is {seconds!r}; time does not move backwards")
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            self._run(timer)
        self._now = end

    @staticmethod
    def _run(timer: _VirtualTimer) -> None:
        callback, timer.callback = timer.callback, None
        if callback is not None:
            callback()
