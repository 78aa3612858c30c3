"""Owns the engine's commit points by name, and what happens when a test arms one.

Off unless armed; then the process is killed by SIGKILL, as a power cut would end it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from dex_embedded_engine.errors import EngineUsageError

COMMIT_POINTS = (
    "start_flow",
    "stop_flow",
    "sync_indexes",
    "write_stream",
    "hand_out",
    "hand_back",
    "wait_for_result",
    "execute_result",
    "attempt_failed",
    "rpc_result",
    "step_progress",
    "time_passed",
    "recovery",
    "hard_delete",
)
FAILPOINTS = tuple(f"{moment}/{point}" for point in COMMIT_POINTS for moment in ("before", "after"))


class Failpoints:
    """Counts how often each commit point is passed, and strikes at the armed one.

    Args:
        armed: ``name`` or ``name:n`` for the n-th passing; empty for none.
        strike: what to do then; by default the process kills itself.

    Raises:
        EngineUsageError: no failpoint has that name.
    """

    def __init__(self, armed: str = "", strike: Callable[[], None] | None = None) -> None:
        name, _, count = armed.partition(":")
        if name and name not in FAILPOINTS:
            raise EngineUsageError(
                f"{name!r} is no failpoint; the failpoints are {', '.join(FAILPOINTS)}"
            )
        self._name = name
        if count and not (count.isdecimal() and int(count) > 0):
            raise EngineUsageError(
                f"failpoint {armed!r} has the count {count!r}; use a whole number from 1"
            )
        self._left = int(count or "1")
        self._strike = strike or _kill_this_process

    def reach(self, moment: str, points: set[str]) -> None:
        """Strike if the armed failpoint is among ``<moment>/<point>``."""
        if not self._name:
            return
        for point in points:
            if self._name == f"{moment}/{point}":
                self._left -= 1
                if self._left == 0:
                    self._strike()


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
