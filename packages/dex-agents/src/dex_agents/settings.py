"""Owns the numbers a session runs with."""

from __future__ import annotations

from dataclasses import dataclass

from dex_agents.errors import AgentUsageError
from dex_agents.size_limits import MIB

LARGEST_BUDGET = 5 * MIB // 2
LONGEST_HEARTBEAT_INTERVAL = 20.0


@dataclass(frozen=True)
class SessionSettings:
    """Numbers of one session Flow. Durations are seconds, sizes bytes.

    Attributes:
        model_timeout: longest model call.
        tool_timeout: longest run of a tool's body whose policy names none.
        maximum_failures: model or tool failures before a call is given up.
        maximum_lost_workers: Workers that may be lost during one call.
        heartbeat_interval: pause between heartbeats of a running call.
        history_budget: a longer history does not travel with the model call's Step.
        tool_output_budget: what all calls of one model message may return together; less if the
            turn's run state is large.
        text_interval: pause in which pieces of an answer are collected.
        text_bytes: size at which collected pieces leave early.
    """

    model_timeout: float = 600.0
    tool_timeout: float = 600.0
    maximum_failures: int = 3
    maximum_lost_workers: int = 10
    heartbeat_interval: float = 2.0
    history_budget: int = 2 * 1024 * 1024
    tool_output_budget: int = 2 * 1024 * 1024
    text_interval: float = 0.05
    text_bytes: int = 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise AgentUsageError(f"SessionSettings.{name} is {value!r}; it must be positive")
        for name in ("history_budget", "tool_output_budget"):
            if getattr(self, name) > LARGEST_BUDGET:
                raise AgentUsageError(
                    f"SessionSettings.{name} is {getattr(self, name)!r}; at most {LARGEST_BUDGET} "
                    f"bytes travel at once"
                )
        if self.heartbeat_interval > LONGEST_HEARTBEAT_INTERVAL:
            raise AgentUsageError(
                f"SessionSettings.heartbeat_interval is {self.heartbeat_interval!r}; at most "
                f"{LONGEST_HEARTBEAT_INTERVAL} seconds, a call without one for 60 counts as lost"
            )
