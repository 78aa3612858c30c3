"""Owns the state of one run in memory: its Step executions, Channels and counters.

Attribute values are not here (they stay in the store until a handler needs them), nor are
Workers, locks or timers. Big values are blob references; whoever fills these objects has
replaced them before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from dex.dexpb import dex_pb2 as pb

TIMEOUT_HANDLER = "sys:timeout_handler"


class Phase(IntEnum):
    """Which method call an execution is at. Stored: values never change meaning."""

    WAIT_FOR = 1
    WAITING = 2
    EXECUTE = 3


class Standing(IntEnum):
    """Whether an execution can be handed out now. Stored: values never change meaning."""

    QUEUED = 1
    RUNNING = 2
    PAUSED = 3  # until `wake_at`: a start delay, or the pause before a retry
    PARKED = 4  # waits for its conditions


@dataclass
class Timer:
    """One timer condition of a wait: when it fires, and whether it did or was skipped."""

    fires_at: float
    done: bool = False


@dataclass(eq=False)
class Execution:
    """One numbered execution of a Step type.

    Attributes:
        ordinal: creation order within the run.
        movement: type, input, options; `from_step_execution_id_internal_only` is the lineage
            and `recovery_error_internal_only` the error a recovery Step recovers from.
        origin: (event id, index of the movement in it): where the journal holds the movement.
        attempt: attempts handed out for the current method call.
        first_attempt_at: start of the first of them, unix seconds; 0 before it.
        ready_at: when it last became ready or, later, was handed out; unix seconds.
        queued_for: seconds it has waited for a Worker between attempts; they use up no budget.
        snapshot: run sequence the method call's attempts read at; None before the first.
        heartbeat: value of the last heartbeat of the current method call.
        condition: what it waits for, once wait_for was accepted.
        results: what execute is told about the condition.
        step_locals: what wait_for left for execute.
        task_id: the attempt that is out now; not stored, an engine restart loses attempts.
    """

    ordinal: int
    step_type: str
    number: int
    movement: pb.StepMovement
    origin: tuple[int, int]
    phase: Phase
    standing: Standing = Standing.QUEUED
    wake_at: float | None = None
    attempt: int = 0
    first_attempt_at: float = 0.0
    ready_at: float = 0.0
    queued_for: float = 0.0
    snapshot: int | None = None
    heartbeat: pb.Value | None = None
    last_failure: pb.StepMethodFailure | None = None
    condition: pb.WaitingCondition | None = None
    timers: list[Timer] = field(default_factory=list)
    results: pb.ConditionResults | None = None
    step_locals: list[pb.KV] = field(default_factory=list)
    stored: bool = False
    task_id: str | None = None

    @property
    def id(self) -> str:
        """The id the SDK knows: ``<StepType>-<number>``."""
        return f"{self.step_type}-{self.number}"

    @property
    def options(self) -> pb.StepOptions:
        """The options that came with the movement; never merged with anything."""
        return self.movement.step_options

    @property
    def lineage(self) -> str:
        """Id of the execution that created this one, ``__rpc/<name>``, or empty."""
        return self.movement.from_step_execution_id_internal_only

    def loads(self) -> tuple[list[str], list[str], list[str]]:
        """Return the AttributeMap, Channel and ChannelMap selections of the current method."""
        options = self.options
        if self.phase is Phase.WAIT_FOR:
            return (
                list(options.wait_for_load_attribute_map_instances),
                list(options.wait_for_load_channel_names),
                list(options.wait_for_load_channel_map_instances),
            )
        return (
            list(options.execute_load_attribute_map_instances),
            list(options.execute_load_channel_names),
            list(options.execute_load_channel_map_instances),
        )

    def lock_keys(self) -> tuple[str, ...]:
        """Return the Attribute locks of the current method, sorted, each once."""
        keys = (
            self.options.wait_for_lock_attribute_keys
            if self.phase is Phase.WAIT_FOR
            else self.options.execute_lock_attribute_keys
        )
        return tuple(sorted(set(keys)))

    def consumed_channels(self) -> set[str]:
        """Return the Channels whose messages this execution took and has not finished with."""
        if self.results is None:
            return set()
        return {result.channel_name for result in self.results.channel_results if result.values}

    def begin_method(self, phase: Phase, now: float) -> None:
        """Make the next method call ready: attempts, snapshot and heartbeat start anew."""
        self.phase = phase
        self.standing = Standing.QUEUED
        self.wake_at = None
        self.attempt = 0
        self.first_attempt_at = 0.0
        self.ready_at = now
        self.queued_for = 0.0
        self.snapshot = None
        self.heartbeat = None
        self.last_failure = None
        self.task_id = None


@dataclass(eq=False)
class Message:
    """One Channel message.

    Attributes:
        position: publication order within the run.
        created: run sequence at which it was published.
        removed: run sequence at which it was consumed or deleted; kept only while a snapshot
            still shows it.
    """

    position: int
    channel: str
    message_id: str
    value: pb.Value
    created: int
    removed: int | None = None


@dataclass(eq=False)
class Run:
    """One run of a Flow.

    Attributes:
        key: the store's number for it.
        sequence: counts the commits that changed this run; Attribute versions carry it.
        counters: executions created so far, by Step type.
        outputs: graceful outputs so far; after the close, the results.
        closing: a branch decided GRACEFUL_COMPLETE.
        deadline_at: when the Flow's timeout fires, unix seconds.
    """

    key: int
    run_id: str
    flow_id: str
    flow_type: str
    request_id: str
    first_run_id: str
    run_attempt: int
    started_at: float
    start: pb.StartFlowRequest
    config: pb.FlowConfig
    status: pb.FlowStatus = pb.FLOW_STATUS_RUNNING
    closed_at: float | None = None
    deadline_at: float | None = None
    sequence: int = 0
    event_count: int = 0
    message_count: int = 0
    execution_count: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    outputs: list[pb.StepCompletionOutput] = field(default_factory=list)
    error_type: pb.FlowErrorType = pb.FLOW_ERROR_TYPE_UNSPECIFIED
    error_message: str = ""
    closing: bool = False
    sticky_worker: str = ""
    executions: dict[int, Execution] = field(default_factory=dict)
    channels: dict[str, list[Message]] = field(default_factory=dict)
    ghosts: list[Message] = field(default_factory=list)
    stale_attributes: set[str] = field(default_factory=set)

    @property
    def is_running(self) -> bool:
        """Whether the run is still open."""
        return self.status == pb.FLOW_STATUS_RUNNING

    def pins(self) -> list[int]:
        """Return, ascending, the sequences that unfinished method calls still read at."""
        return sorted(
            {
                execution.snapshot
                for execution in self.executions.values()
                if execution.snapshot is not None
            }
        )

    def next_wake(self) -> float | None:
        """Return the earliest moment at which something of this run is due, unix seconds."""
        moments = [moment for execution in self.executions.values() for moment in _wakes(execution)]
        if self.deadline_at is not None:
            moments.append(self.deadline_at)
        return min(moments, default=None)


def _wakes(execution: Execution) -> Iterator[float]:
    if execution.wake_at is not None:
        yield execution.wake_at
    for timer in execution.timers:
        if not timer.done and execution.phase is Phase.WAITING:
            yield timer.fires_at
