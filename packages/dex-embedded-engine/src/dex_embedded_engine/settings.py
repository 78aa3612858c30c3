"""Owns the numbers an engine runs with, and their meaning. Knows nothing of how they are used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dex_embedded_engine.errors import EngineUsageError


class Durability(Enum):
    """What survives which failure once a call is acknowledged.

    Attributes:
        STRICT: every acknowledged commit is synced to the disk; survives a power loss.
        PROCESS_CRASH_SAFE: commits reach the operating system; survives ``kill -9`` of every
            process, not a power loss or a kernel crash.
    """

    STRICT = "strict"
    PROCESS_CRASH_SAFE = "process-crash-safe"


@dataclass(frozen=True)
class EngineSettings:
    """Numbers of one engine. All durations are seconds, all sizes bytes.

    Attributes:
        method_timeout: of one Step attempt when its options name none.
        heartbeat_timeout: longest silence of one Step attempt when its options name none.
        minimum_heartbeat_timeout: smaller explicit heartbeat timeouts are refused.
        retry_initial_interval: first pause between attempts when the policy names none.
        retry_coefficient: growth of the pause when the policy names none.
        retry_maximum_factor: cap of the pause, in initial intervals, when the policy names none.
        retry_total_duration: no attempt starts later than this after the first one.
        rpc_timeout: default and cap of one RPC handler call.
        dispatch_wait: how long an RPC waits for a Worker that takes it.
        silent_worker_timeout: a busy Worker stream without any frame this long is lost.
        long_poll_wait: server side cap of a long poll whose caller names no time.
        stream_message_limit: largest Stream message.
        stream_trim_trigger: share of a Stream's capacity at which old messages are dropped.
        stream_trim_target: share of the capacity that trimming leaves.
        frame_budget: inline payload per task frame; what is over it goes as blob references.
        inline_limit: values above this size are stored once, as blobs.
        receive_limit: largest message the engine accepts.
        loaded_runs: idle Flows kept in memory.
        shutdown_grace: how long a clean stop waits for calls that are being answered.
    """

    method_timeout: float = 2 * 3600.0
    heartbeat_timeout: float = 60.0
    minimum_heartbeat_timeout: float = 10.0
    retry_initial_interval: float = 1.0
    retry_coefficient: float = 2.0
    retry_maximum_factor: float = 100.0
    retry_total_duration: float = 4 * 3600.0
    rpc_timeout: float = 60.0
    dispatch_wait: float = 10.0
    silent_worker_timeout: float = 60.0
    long_poll_wait: float = 60.0
    stream_message_limit: int = 100 * 1024
    stream_trim_trigger: float = 0.9
    stream_trim_target: float = 0.7
    frame_budget: int = 2 * 1024 * 1024
    inline_limit: int = 1024
    receive_limit: int = 64 * 1024 * 1024
    loaded_runs: int = 1000
    shutdown_grace: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise EngineUsageError(f"EngineSettings.{name} is {value!r}; use a finite number")
            if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                raise EngineUsageError(f"EngineSettings.{name} is {value!r}; it must be positive")
        if self.receive_limit > _LARGEST_MESSAGE:
            raise EngineUsageError(
                f"EngineSettings.receive_limit is {self.receive_limit!r}; gRPC takes at most "
                f"{_LARGEST_MESSAGE}"
            )
        if not self.stream_trim_target < self.stream_trim_trigger <= 1:
            raise EngineUsageError(
                "EngineSettings.stream_trim_target must be below stream_trim_trigger, "
                "and that at most 1"
            )


_LARGEST_MESSAGE = 2**31 - 1
_MAY_BE_ZERO = frozenset({"minimum_heartbeat_timeout", "loaded_runs", "shutdown_grace"})
