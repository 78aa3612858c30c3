"""Owns the conversation with Workers: streams that open and end, frames, rejections, silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.dispatch import Task, WorkerStream
from dex_embedded_engine.kernel.messages import (
    Event,
    StreamEnded,
    StreamFrame,
    StreamOpened,
)
from dex_embedded_engine.kernel.rpcs import RpcOperations
from dex_embedded_engine.kernel.steps import StepOperations
from dex_embedded_engine.kernel.tasks import RpcTask, StepTask

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_UNKNOWN_NAMES = frozenset(
    {
        pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP,
        pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC,
    }
)


class WorkerOperations:
    """What happens between the kernel and its Workers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._streams: dict[int, WorkerStream] = {}
        self.steps = StepOperations(kernel)
        self.rpcs = RpcOperations(kernel)

    def handle(self, event: Event) -> None:
        """Apply a stream event."""
        if isinstance(event, StreamFrame):
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.last_frame_at = self._kernel.now
                self._kernel.dispatcher.trust(stream)
                self._take_frame(stream, event.frame)
        elif isinstance(event, StreamOpened):
            register = event.register
            self._streams[event.stream_id] = self._kernel.dispatcher.open_stream(
                event.stream_id,
                register.queue,
                register.app_worker_id,
                register.flow_types,
                self._kernel.now,
            )
        elif isinstance(event, StreamEnded):
            self._end_stream(event)

    def hand_out(self, task: Task, stream: WorkerStream) -> None:
        """Give `task` to a Worker, or drop it if it is no longer wanted."""
        if isinstance(task, StepTask):
            self.steps.hand_out(task, stream)
        elif isinstance(task, RpcTask):
            self.rpcs.hand_out(task, stream)
        if task.task_id is not None:
            stream.last_frame_at = self._kernel.now
            silence = self._kernel.settings.silent_worker_timeout
            self._kernel.watch(task, self._kernel.now + silence)

    def tell_handler(self, task_id: str, *, now: bool) -> None:
        """Tell the handler of an attempt that no longer counts."""
        self.steps.tell_handler(task_id, now=now)

    def check_task(self, task: Task) -> float | None:
        """Act on the deadlines of `task` and on the silence of its Worker.

        Returns:
            When to look again, unix seconds; None for never.
        """
        stream = task.stream
        moments: list[float] = []
        if stream is not None:
            silent_at = stream.last_frame_at + self._kernel.settings.silent_worker_timeout
            if silent_at <= self._kernel.now:
                self._lose(task, "the Worker sent nothing, not even a keepalive, for too long")
            else:
                moments.append(silent_at)
        if isinstance(task, StepTask):
            moments.extend(self.steps.check(task))
        elif isinstance(task, RpcTask):
            moments.extend(self.rpcs.check(task))
        return min(moments, default=None)

    def _end_stream(self, event: StreamEnded) -> None:
        stream = self._streams.pop(event.stream_id, None)
        if stream is None:
            return
        answered = stream.task is not None and self._has_answered(stream.task)
        task = self._kernel.dispatcher.close_stream(stream)
        if not event.orderly:
            for other in self._kernel.dispatcher.doubt(stream.worker):
                ping = pb.PollWorkerTaskResponse(ping=pb.PollWorkerTaskPing())
                self._kernel.send(other, ping)
        if task is None:
            return
        if event.orderly and not answered:
            self._hand_back(task)
        else:
            self._lose(task, f"Worker {stream.worker.worker_id!r} disconnected during the call")

    def _take_frame(self, stream: WorkerStream, request: pb.PollWorkerTaskRequest) -> None:
        kind = request.WhichOneof("frame")
        task = stream.task
        if kind == "reject":
            if task is not None and request.reject.task_id == task.task_id:
                self._take_rejection(stream, task, request.reject.reason)
            return
        if kind != "task_frame" or task is None or request.task_frame.task_id != task.task_id:
            return
        frame = request.task_frame
        output = frame.WhichOneof("output")
        if isinstance(task, StepTask):
            self._take_step_frame(stream, task, frame, output)
        elif isinstance(task, RpcTask):
            if output is None:
                return
            self._kernel.dispatcher.finish(stream, self._kernel.instant)
            if output == "worker_error":
                self.rpcs.take_error(task, frame.worker_error)
            else:
                # The answer to a Step stands for a result without output, which is refused.
                self.rpcs.take_result(task, frame.rpc, stream.worker.worker_id)

    def _take_step_frame(
        self,
        stream: WorkerStream,
        task: StepTask,
        frame: pb.PollWorkerTaskFrame,
        output: str | None,
    ) -> None:
        if output == "worker_error":
            self._kernel.dispatcher.finish(stream, self._kernel.instant)
            self.steps.take_error(task, frame.worker_error)
            return
        if output == "rpc":
            self._kernel.dispatcher.finish(stream, self._kernel.instant)
            self.steps.take_other(task)
            return
        if output is None:
            return
        part = frame.wait_for if output == "wait_for" else frame.execute
        kind = part.WhichOneof("output")
        if kind == "result":
            # The stream is free whatever becomes of the result: the Worker has ended the task.
            self._kernel.dispatcher.finish(stream, self._kernel.instant)
            self.steps.take_result(task, part)
        elif kind is not None:
            self.steps.take_progress(task, stream, part)

    def _take_rejection(
        self, stream: WorkerStream, task: Task, reason: pb.PollWorkerTaskRejectReason
    ) -> None:
        dispatcher = self._kernel.dispatcher
        if reason in _UNKNOWN_NAMES:
            dispatcher.finish(stream, self._kernel.instant)
            self._hand_back(task, excluded_worker=stream.worker.worker_id)
        else:
            dispatcher.decline(stream, self._kernel.instant)
            self._hand_back(task)

    def _hand_back(self, task: Task, *, excluded_worker: str = "") -> None:
        if isinstance(task, StepTask):
            self.steps.hand_back(task, excluded_worker=excluded_worker)
        elif isinstance(task, RpcTask):
            self.rpcs.hand_back(task, excluded_worker=excluded_worker)

    def _lose(self, task: Task, detail: str) -> None:
        if isinstance(task, StepTask):
            self.steps.lose(task, detail)
        elif isinstance(task, RpcTask):
            self.rpcs.lose(task, detail)

    @staticmethod
    def _has_answered(task: Task) -> bool:
        return isinstance(task, StepTask) and task.has_beaten
