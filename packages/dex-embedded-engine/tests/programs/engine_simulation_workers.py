"""Owns the Workers of the simulation: what a pull Worker does with its streams, good and bad days.

They follow the protocol as the SDK does, and check that the engine does too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from dex.dexpb import dex_pb2 as pb
from engine_messages import from_value, to_value
from engine_simulation_flows import SCRIPTS
from engine_simulation_scripts import HandlerCall

from dex_embedded_engine.kernel.messages import Event, StreamEnded, StreamFrame, StreamOpened
from dex_embedded_engine.runs import TIMEOUT_HANDLER
from dex_embedded_engine.values import is_reference, values_in

_UNKNOWN = {
    "rpc": pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC,
    "wait_for": pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP,
    "execute": pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP,
}
_CANCELLED = 1
_SILENCE = 0.1
STREAM = "log"


class Network(Protocol):
    """What a Worker needs of the world around it."""

    @property
    def rng(self) -> random.Random: ...

    @property
    def now(self) -> float: ...

    @property
    def is_healthy(self) -> bool: ...

    @property
    def flow_types(self) -> list[str]:
        """The types that clients start."""

    def post(self, event: Event) -> None:
        """Send an event to the engine."""

    def next_stream_id(self) -> int: ...

    def load(self, flow_id: str, value: pb.Value) -> pb.Value:
        """Return what a blob reference stands for."""

    def entered(self, task: pb.PollWorkerTask) -> None:
        """Note that a handler body begins."""

    def next_text(self) -> str:
        """Return a text that was never used before."""


class Phase(Enum):
    """What a Worker thinks of one of its streams."""

    OPENING = "opening"
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


@dataclass
class Handler:
    """A running handler: the frames it will send, the last one ending it. None: it hangs."""

    task: pb.PollWorkerTask
    frames: list[pb.PollWorkerTaskFrame | None]


@dataclass
class ModelStream:
    """One pull stream, seen from the Worker."""

    stream_id: int
    queue: str
    phase: Phase = Phase.OPENING
    handler: Handler | None = None
    was_heard: bool = False
    mailbox: list[pb.PollWorkerTaskResponse] = field(default_factory=list)


class ModelWorker:
    """A Worker process.

    Args:
        missing: names of Steps and RPCs that this deployment does not know.
        slots: tasks it runs at the same time; one of several is kept for RPCs.
    """

    def __init__(
        self,
        network: Network,
        worker_id: str,
        flow_types: list[str],
        missing: frozenset[str] = frozenset(),
        slots: int = 4,
    ) -> None:
        self._network = network
        self.worker_id = worker_id
        self.flow_types = flow_types
        self.missing = missing
        self.slots = slots
        self.is_stopping = False
        self.streams: dict[int, ModelStream] = {}

    def connect(self) -> None:
        """Keep one stream that is not busy open for each queue."""
        for queue in (self.worker_id, *self.flow_types):
            if not self._spares(queue):
                self._open(queue)

    def moves(self) -> list[Callable[[], None]]:
        """Return what the Worker could do next, one function for each possibility."""
        moves: list[Callable[[], None]] = []
        for stream in self.streams.values():
            if stream.mailbox:
                moves.append(lambda stream=stream: self._read(stream))  # type: ignore[misc]
            elif stream.handler is not None and self._can_advance(stream.handler):
                moves.append(lambda stream=stream: self._advance(stream))  # type: ignore[misc]
        return moves

    def stop(self) -> None:
        """Stop in order: no new tasks, idle streams close, handlers finish or are cancelled."""
        self.is_stopping = True
        for stream in list(self.streams.values()):
            if stream.handler is None:
                self._close(stream)
            elif self._network.rng.random() < 0.5 or stream.handler.frames[0] is None:
                stream.handler.frames = [_error(stream.handler.task, status=_CANCELLED)]

    def die(self) -> list[StreamEnded]:
        """Vanish; return what the engine will notice of it."""
        # An end that looks orderly proves nothing once the handler has been heard of.
        noticed = [
            StreamEnded(each.stream_id, orderly=each.was_heard and self._network.rng.random() < 0.5)
            for each in self.streams.values()
        ]
        self.streams.clear()
        return noticed

    def lose_stream(self) -> StreamEnded:
        """Lose one stream, its handler with it; return what the engine will notice of it."""
        stream_id = self._network.rng.choice([*self.streams])
        del self.streams[stream_id]
        if not self.is_stopping:
            self.connect()
        return StreamEnded(stream_id, orderly=False)

    def knows_all(self) -> bool:
        """Tell whether the Worker can serve every Flow, and will."""
        known = set(self._network.flow_types) <= set(self.flow_types)
        return known and not self.is_stopping and not self.missing

    def handlers(self) -> list[Handler]:
        """Return the handlers that run."""
        return [each.handler for each in self.streams.values() if each.handler is not None]

    def keep_alive(self) -> None:
        """Show on every busy stream that the process is there."""
        for stream in self.streams.values():
            if stream.phase is Phase.BUSY:
                self._pong(stream)

    def _spares(self, queue: str) -> list[ModelStream]:
        return [
            stream
            for stream in self.streams.values()
            if stream.queue == queue and stream.phase in (Phase.OPENING, Phase.IDLE)
        ]

    def _open(self, queue: str) -> None:
        stream = ModelStream(self._network.next_stream_id(), queue)
        self.streams[stream.stream_id] = stream
        register = pb.PollWorkerTaskRegister(
            queue=queue, app_worker_id=self.worker_id, flow_types=sorted(self.flow_types)
        )
        self._network.post(StreamOpened(stream.stream_id, register))

    def _close(self, stream: ModelStream) -> None:
        stream.phase = Phase.CLOSED
        del self.streams[stream.stream_id]
        self._network.post(StreamEnded(stream.stream_id, orderly=True))

    def receive(self, stream_id: int, frame: pb.PollWorkerTaskResponse) -> None:
        """Get a frame; what needs no decision is taken at once."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if frame.HasField("registered"):
            assert stream.phase is Phase.OPENING, "a stream was acknowledged twice"
            assert frame.registered.supports_unknown_name_rejection
            stream.phase = Phase.IDLE
        else:
            stream.mailbox.append(frame)

    def _read(self, stream: ModelStream) -> None:
        frame = stream.mailbox.pop(0)
        kind = frame.WhichOneof("frame")
        if kind == "task":
            assert stream.phase is Phase.IDLE, f"a task came to a stream that is {stream.phase}"
            self._take(stream, frame.task)
        elif kind == "ping":
            self._pong(stream)
        elif kind == "cancel_task":
            handler = stream.handler
            if handler is None or handler.task.task_id != frame.cancel_task.task_id:
                return
            if handler.frames[0] is None or self._network.rng.random() < 0.7:
                handler.frames = [_error(handler.task, status=_CANCELLED)]

    def _pong(self, stream: ModelStream) -> None:
        pong = pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong())
        self._network.post(StreamFrame(stream.stream_id, pong))

    def _take(self, stream: ModelStream, task: pb.PollWorkerTask) -> None:
        kind = task.WhichOneof("request") or ""
        name = task.rpc.rpc_name if kind == "rpc" else getattr(task, kind).step_type
        busy = sum(each.handler is not None for each in self.streams.values())
        reserve = 1 if self.slots > 1 and kind != "rpc" else 0
        if self.is_stopping or busy >= self.slots - reserve:
            self._reject(stream, task, pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY)
        elif name in self.missing:
            self._reject(stream, task, _UNKNOWN[kind])
        else:
            self._network.entered(task)
            stream.phase = Phase.BUSY
            stream.handler = Handler(task, self._plan(task, kind))
            stream.was_heard = False
            self.connect()

    def _reject(
        self,
        stream: ModelStream,
        task: pb.PollWorkerTask,
        reason: pb.PollWorkerTaskRejectReason,
    ) -> None:
        reject = pb.PollWorkerTaskReject(task_id=task.task_id, reason=reason)
        self._network.post(StreamFrame(stream.stream_id, pb.PollWorkerTaskRequest(reject=reject)))

    def _advance(self, stream: ModelStream) -> None:
        handler = stream.handler
        assert handler is not None
        frame = handler.frames.pop(0)
        if frame is None or self._is_late(handler.task):
            handler.frames, frame = [], _error(handler.task, status=_CANCELLED)
        self._network.post(
            StreamFrame(stream.stream_id, pb.PollWorkerTaskRequest(task_frame=frame))
        )
        if handler.frames:
            stream.was_heard = True
            return
        if self._network.rng.random() < 0.03:
            # Nobody should say a thing twice; whoever does is not heard the second time.
            again = pb.PollWorkerTaskRequest(task_frame=frame)
            self._network.post(StreamFrame(self._network.rng.choice([*self.streams]), again))
        stream.handler, stream.was_heard = None, False
        stream.phase = Phase.IDLE
        surplus = len(self._spares(stream.queue)) > 1 and self._network.rng.random() < 0.8
        if surplus or self.is_stopping:
            self._close(stream)

    def _can_advance(self, handler: Handler) -> bool:
        return handler.frames[0] is not None or self._is_late(handler.task)

    def _is_late(self, task: pb.PollWorkerTask) -> bool:
        return self._network.now >= task.deadline.seconds + 1

    def _plan(self, task: pb.PollWorkerTask, kind: str) -> list[pb.PollWorkerTaskFrame | None]:
        frame = pb.PollWorkerTaskFrame(task_id=task.task_id)
        rng = self._network.rng
        request = getattr(task, kind)
        script = SCRIPTS[request.flow_type]
        call = self._call(request, kind)
        if kind == "rpc":
            frame.rpc.CopyFrom(script.rpc(request.rpc_name, call))
        elif kind == "wait_for":
            frame.wait_for.result.CopyFrom(script.wait_for(call))
        else:
            frame.execute.result.CopyFrom(script.execute(call))
        if self._network.is_healthy:
            return [frame]
        plan: list[pb.PollWorkerTaskFrame | None] = []
        if kind != "rpc":
            plan.extend(self._progress(task.task_id, kind) for _ in range(rng.choice([0, 0, 1, 3])))
        if rng.random() < script.error_rate:
            retry_after = rng.choice([0, 0, 0, 7])
            frame = _error(task, detail=f"attempt {call.attempt} failed", retry_after=retry_after)
            if kind != "rpc" and rng.random() < 0.1 and script.error_rate == 0.5:
                frame = pb.PollWorkerTaskFrame(task_id=task.task_id)
                getattr(frame, kind).result.upsert_attributes.add(key="")
        if rng.random() < _SILENCE:
            plan.append(None)
        return [*plan, frame]

    def _progress(self, task_id: str, kind: str) -> pb.PollWorkerTaskFrame:
        frame = pb.PollWorkerTaskFrame(task_id=task_id)
        part = getattr(frame, kind)
        choice = self._network.rng.randrange(3)
        if choice == 2:
            part.stream_write.stream_name = STREAM
            part.stream_write.stream_capacity_bytes = 1 << 20
            part.stream_write.value.CopyFrom(to_value(self._network.next_text()))
        else:
            part.heartbeat.SetInParent()
            if choice:
                part.heartbeat.value.CopyFrom(to_value(self._network.next_text()))
        return frame

    def _call(self, request: Any, kind: str) -> HandlerCall:
        flow_id = request.context.flow_id
        for value in values_in(request):
            if is_reference(value):
                value.CopyFrom(self._network.load(flow_id, value))
        is_step = kind != "rpc"
        is_late = is_step and request.step_type == TIMEOUT_HANDLER
        assert not (is_late and request.HasField("step_input")), "sys:timeout_handler has no input"
        call = HandlerCall(
            step=request.step_type if is_step else "",
            execution_id=request.context.step_execution_id,
            attempt=request.context.attempt,
            input=None if is_late else from_value(request.step_input if is_step else request.input),
            attributes={each.key: from_value(each.value) for each in request.attributes},
            messages={
                name: [(each.message_id, from_value(each.value)) for each in content.messages]
                for name, content in request.loaded_channel_messages.items()
            },
            recovery=request.context.recovery_error.detail,
        )
        if kind == "execute":
            call.step_locals = {
                each.key: from_value(each.value) for each in request.step_exe_locals
            }
            call.results = request.condition_results
        return call


def _error(
    task: pb.PollWorkerTask, *, detail: str = "cancelled", status: int = 2, retry_after: int = 0
) -> pb.PollWorkerTaskFrame:
    error = pb.WorkerErrorResponse(
        detail=detail,
        error_type="SimulatedError",
        grpc_status=status,
        retry_after_seconds=retry_after,
    )
    return pb.PollWorkerTaskFrame(task_id=task.task_id, worker_error=error)
