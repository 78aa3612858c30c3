"""Owns what the kernel remembers of a task while it is queued or out, and its deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.dispatch import Task
from dex_embedded_engine.runs import Execution, Phase
from dex_embedded_engine.settings import EngineSettings


@dataclass(eq=False)
class StepTask(Task):
    """One Step method call on its way to a Worker.

    Attributes:
        ordinal: the execution within its run.
        deadline: end of the attempt by the method timeout, unix seconds.
        heartbeat_timeout: longest silence, seconds.
        last_frame_at: the last heartbeat or Stream frame, unix seconds.
        has_beaten: whether any such frame came.
        counts: its result will be applied.
        tell_on_frame: its handler is to be told to stop when it next sends a frame.
    """

    ordinal: int = 0
    deadline: float = 0.0
    heartbeat_timeout: float = 0.0
    last_frame_at: float = 0.0
    has_beaten: bool = False
    counts: bool = True
    tell_on_frame: bool = False

    def expires_at(self) -> float:
        """Return the earlier of the method and the heartbeat deadline, unix seconds."""
        return min(self.deadline, self.last_frame_at + self.heartbeat_timeout)


@dataclass(eq=False)
class RpcTask(Task):
    """One RPC on its way to a Worker.

    Attributes:
        call_id: whom to answer; None once answered.
        dispatch_deadline: a Worker must have taken it by then, unix seconds.
        deadline: its handler must have answered by then; 0 before the hand-out.
        unknown_to: Workers that do not know the RPC's name.
    """

    call_id: int | None = None
    request: pb.InvokeRPCRequest = field(default_factory=pb.InvokeRPCRequest)
    dispatch_deadline: float = 0.0
    deadline: float = 0.0
    unknown_to: str = ""

    @property
    def needs_active_run(self) -> bool:
        """Whether the RPC asked for locks or a transaction."""
        return bool(self.locks) or self.request.is_transactional


def method_timeout(execution: Execution, settings: EngineSettings) -> float:
    """Return the current method's timeout, seconds."""
    options = execution.options
    seconds = (
        options.wait_for_timeout_seconds
        if execution.phase is Phase.WAIT_FOR
        else options.execute_timeout_seconds
    )
    return float(seconds) or settings.method_timeout


def heartbeat_timeout(execution: Execution, settings: EngineSettings) -> float:
    """Return the execution's heartbeat timeout, seconds."""
    return float(execution.options.heartbeat_timeout_seconds) or settings.heartbeat_timeout
