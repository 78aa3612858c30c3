"""Owns Step attempts: handing them out, taking them back, accepting what they return."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.dispatch import WorkerStream
from dex_embedded_engine.kernel.messages import stream_topic
from dex_embedded_engine.kernel.requests import LARGEST_FRAME
from dex_embedded_engine.kernel.tasks import StepTask, heartbeat_timeout, method_timeout
from dex_embedded_engine.runs import Execution, Phase, Run, Standing
from dex_embedded_engine.storage.streams import StoredMessage
from dex_embedded_engine.transitions.checks import check_execute_result, check_wait_for_result
from dex_embedded_engine.transitions.events import timestamp
from dex_embedded_engine.transitions.failures import Failure, fail_attempt, worker_lost
from dex_embedded_engine.transitions.results import accept_execute, accept_wait_for
from dex_embedded_engine.values import InvalidMessageError, check_value

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_LOGGER = logging.getLogger(__name__)
_Output = pb.InvokeWaitForMethodOutput | pb.InvokeExecuteMethodOutput


class StepOperations:
    """What happens to Step attempts."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def hand_out(self, task: StepTask, stream: WorkerStream) -> None:
        """Start an attempt on `stream`, unless the execution no longer waits for one."""
        kernel = self._kernel
        run = kernel.run(task.run_key)
        execution = run.executions.get(task.ordinal)
        if execution is None or execution.standing is not Standing.QUEUED:
            return
        change = kernel.change(run)
        if execution.attempt == 0 or task.locks:
            # Between attempts the locks were free: an old snapshot would lose others' updates.
            execution.snapshot = run.sequence
        if execution.attempt == 0:
            execution.first_attempt_at = kernel.now
        else:
            execution.queued_for += max(0.0, kernel.now - execution.ready_at)
        execution.attempt += 1
        execution.ready_at = kernel.now
        execution.standing = Standing.RUNNING
        execution.task_id = kernel.new_id()
        run.sticky_worker = stream.worker.worker_id
        change.touch(execution)
        task.counts, task.tell_on_frame, task.has_beaten = True, False, False
        task.last_frame_at = kernel.now
        task.deadline = kernel.now + method_timeout(execution, kernel.settings)
        task.heartbeat_timeout = heartbeat_timeout(execution, kernel.settings)
        frame = self._frame(run, execution, task)
        if frame.ByteSize() > LARGEST_FRAME:
            kernel.points.add("attempt_failed")
            fail_attempt(change, execution, _too_much(execution, frame), kernel.settings)
            return
        kernel.dispatcher.hand_out(task, stream, execution.task_id, kernel.instant)
        kernel.points.add("hand_out")
        kernel.send(stream, frame)
        kernel.watch(task, task.expires_at())

    def hand_back(self, task: StepTask, *, excluded_worker: str = "") -> None:
        """Undo a hand-out that the Worker did not take; it consumes no attempt."""
        kernel = self._kernel
        execution = self._current(task)
        if execution is None:
            return
        change = kernel.change(kernel.run(task.run_key))
        execution.attempt -= 1
        if execution.attempt == 0:
            execution.first_attempt_at = 0.0
            execution.snapshot = None
        else:
            execution.queued_for += max(0.0, kernel.now - execution.ready_at)
        execution.ready_at = kernel.now
        execution.standing = Standing.QUEUED
        execution.task_id = None
        change.touch(execution)
        kernel.points.add("hand_back")
        if excluded_worker:
            task.excluded.add(excluded_worker)
            _LOGGER.warning(
                "Worker %r does not know Step %r of Flow type %r; it waits for one that does",
                excluded_worker,
                execution.step_type,
                task.flow_type,
            )
        kernel.dispatcher.requeue(task)

    def take_progress(self, task: StepTask, stream: WorkerStream, output: _Output) -> None:
        """Take a heartbeat or a Stream write of an attempt that is out."""
        kernel = self._kernel
        task.last_frame_at = kernel.now
        task.has_beaten = True
        if task.tell_on_frame:
            task.tell_on_frame = False
            cancel = pb.PollWorkerTaskCancelTask(task_id=task.task_id)
            kernel.send(stream, pb.PollWorkerTaskResponse(cancel_task=cancel))
        execution = self._current(task)
        if execution is None:
            return
        kernel.points.add("step_progress")
        run = kernel.run(task.run_key)
        if output.WhichOneof("output") == "heartbeat":
            self._beat(run, execution, output.heartbeat)
        else:
            self._append(run, execution, output.stream_write)

    def take_result(self, task: StepTask, output: _Output) -> None:
        """Take the result of an attempt, unless it no longer counts."""
        kernel = self._kernel
        execution = self._current(task)
        if execution is None:
            return
        run = kernel.run(task.run_key)
        # Before anything else: a mistake of ours further down then ends this run, see `core`.
        change = kernel.change(run)
        try:
            if isinstance(output, pb.InvokeWaitForMethodOutput):
                self._require_phase(execution, Phase.WAIT_FOR)
                check_wait_for_result(output.result)
            else:
                self._require_phase(execution, Phase.EXECUTE)
                check_execute_result(output.result, kernel.settings.minimum_heartbeat_timeout)
        except InvalidMessageError as problem:
            self._refuse_result(task, execution, output, problem)
            return
        task.counts = False
        kernel.write_hard(run.flow_id, hard_writes(output.result.upsert_attributes))
        clear_hard_writes(output.result.upsert_attributes)
        kernel.stores.payloads.take_in(run.flow_id, output.result)
        if isinstance(output, pb.InvokeExecuteMethodOutput):
            self._restore_reason(run, output.result.step_decision.close_decision)
        execution.task_id = None
        if isinstance(output, pb.InvokeWaitForMethodOutput):
            kernel.points.add("wait_for_result")
            accept_wait_for(change, execution, output.result)
        else:
            kernel.points.add("execute_result")
            accept_execute(change, execution, output.result)

    def take_error(self, task: StepTask, error: pb.WorkerErrorResponse) -> None:
        """Take the error that a Worker reports for an attempt."""
        failure = Failure.reported(error)
        if failure.reason and self._kernel.now >= task.deadline:
            failure = self._timeout(task)
        self.fail(task, failure)

    def lose(self, task: StepTask, detail: str) -> None:
        """Count an attempt whose Worker is gone, or seems to be."""
        task_id = task.task_id if task.counts else None
        self.fail(task, worker_lost(detail))
        if task_id is not None:
            self.tell_handler(task_id, now=True)

    def fail(self, task: StepTask, failure: Failure) -> None:
        """Count a failed attempt, unless it no longer counts."""
        kernel = self._kernel
        execution = self._current(task)
        if execution is None:
            return
        task.counts = False
        kernel.points.add("attempt_failed")
        change = kernel.change(kernel.run(task.run_key))
        fail_attempt(change, execution, failure, kernel.settings)

    def check(self, task: StepTask) -> list[float]:
        """Fail the attempt if a deadline of it has passed; return when the next one does."""
        if task.task_id is None or not task.counts:
            return []
        if task.expires_at() > self._kernel.now:
            return [task.expires_at()]
        task_id = task.task_id
        self.fail(task, self._timeout(task))
        self.tell_handler(task_id, now=True)
        return []

    def tell_handler(self, task_id: str, *, now: bool) -> None:
        """Stop counting an attempt; its handler hears of it now, or with its next frame."""
        kernel = self._kernel
        task = kernel.dispatcher.task_out(task_id)
        if not isinstance(task, StepTask) or task.stream is None:
            return
        task.counts = False
        kernel.dispatcher.release_locks(task)
        if not now:
            task.tell_on_frame = True
            return
        cancel = pb.PollWorkerTaskCancelTask(task_id=task_id)
        kernel.send(task.stream, pb.PollWorkerTaskResponse(cancel_task=cancel))

    def _current(self, task: StepTask) -> Execution | None:
        if not task.counts:
            return None
        return self._kernel.run(task.run_key).executions.get(task.ordinal)

    def _frame(self, run: Run, execution: Execution, task: StepTask) -> pb.PollWorkerTaskResponse:
        request = self._kernel.requests.step(run, execution)
        frame = pb.PollWorkerTask(task_id=execution.task_id, deadline=timestamp(task.deadline))
        if isinstance(request, pb.InvokeWaitForMethodRequest):
            frame.wait_for.CopyFrom(request)
        else:
            frame.execute.CopyFrom(request)
        return pb.PollWorkerTaskResponse(task=frame)

    def _beat(self, run: Run, execution: Execution, beat: pb.StepMethodHeartbeat) -> None:
        """Keep the heartbeat's value for the next attempt; one that nobody may send is none."""
        value = beat.value if beat.HasField("value") else None
        if value is not None:
            try:
                check_value(value, "a heartbeat value")
            except InvalidMessageError:
                return
        execution.heartbeat = value
        self._kernel.stores.runs.save_heartbeat(run, execution)

    def _append(self, run: Run, execution: Execution, write: pb.StepStreamWrite) -> None:
        kernel = self._kernel
        try:
            check_value(write.value, f"a message for Stream {write.stream_name!r}")
        except InvalidMessageError:
            return
        if write.value.ByteSize() > kernel.settings.stream_message_limit:
            return
        capacity = write.stream_capacity_bytes
        settings = kernel.settings
        appended = kernel.stores.streams.append(
            (run.flow_type, write.stream_name),
            run.flow_id,
            StoredMessage(0, kernel.now, f"#{execution.id}", write.value),
            (capacity * settings.stream_trim_trigger, capacity * settings.stream_trim_target),
        )
        if appended:
            kernel.wake(stream_topic(run.flow_type, write.stream_name, run.flow_id))

    def take_other(self, task: StepTask) -> None:
        """Take a final frame that answers another kind of task."""
        execution = self._current(task)
        if execution is not None:
            detail = f"Step {execution.id!r} returned an invalid result: it answers an RPC"
            self.fail(task, Failure(detail, "InvalidWorkerResult", final=True))

    def _refuse_result(
        self,
        task: StepTask,
        execution: Execution,
        output: _Output,
        problem: InvalidMessageError,
    ) -> None:
        """Fail the attempt for good; what it deleted for good is deleted all the same."""
        run = self._kernel.run(task.run_key)
        written = hard_writes(output.result.upsert_attributes)
        self._kernel.write_hard(
            run.flow_id, [write for write in written if write.key and _is_storable(write)]
        )
        self.fail(
            task,
            Failure(
                detail=f"Step {execution.id!r} returned an invalid result: {problem}",
                error_type="InvalidWorkerResult",
                final=True,
            ),
        )

    def _timeout(self, task: StepTask) -> Failure:
        execution = self._current(task)
        name = "a Step" if execution is None else f"Step {execution.id!r}"
        if self._kernel.now >= task.deadline:
            return Failure(f"{name} exceeded its method timeout", "MethodTimeout")
        if not task.has_beaten:
            _LOGGER.warning(
                "%s sent no heartbeat within its heartbeat timeout of %g seconds; call "
                "context.heartbeat() or yield heartbeat() while it works, or set a larger "
                "StepOptions.heartbeat_timeout",
                name,
                task.heartbeat_timeout,
            )
        return Failure(
            f"{name} exceeded its heartbeat timeout of {task.heartbeat_timeout:g} seconds",
            "HeartbeatTimeout",
        )

    def _restore_reason(self, run: Run, close: pb.CloseDecision) -> None:
        """Put the reason of a failure back into the decision: it becomes the error message."""
        if close.close_decision_type == pb.CLOSE_DECISION_TYPE_FORCE_FAIL:
            self._kernel.stores.payloads.put_back(run.flow_id, close, sys.maxsize)

    @staticmethod
    def _require_phase(execution: Execution, phase: Phase) -> None:
        if execution.phase is not phase:
            raise InvalidMessageError("it answers another method than the one that was called")


def _too_much(execution: Execution, frame: pb.PollWorkerTaskResponse) -> Failure:
    return Failure(
        f"Step {execution.id!r} needs {frame.ByteSize()} bytes in one message to its Worker, which "
        f"takes {LARGEST_FRAME}; keep less in hard-delete Attributes, and load fewer values",
        "TooMuchState",
        final=True,
    )


def hard_writes(writes: Sequence[pb.AttributeWrite]) -> list[pb.AttributeWrite]:
    """Return copies of the writes whose values are deleted for good."""
    found = []
    for write in writes:
        if write.is_hard_delete_on_null:
            copy = pb.AttributeWrite()
            copy.CopyFrom(write)
            found.append(copy)
    return found


def clear_hard_writes(writes: Sequence[pb.AttributeWrite]) -> None:
    """Take such values out, so that neither journal nor snapshots ever hold them."""
    for write in writes:
        if write.is_hard_delete_on_null:
            write.value.null_value = 0  # type: ignore[assignment]  # the stub wants the enum


def _is_storable(write: pb.AttributeWrite) -> bool:
    return write.value.WhichOneof("kind") in ("string_value", "obj_value", "null_value")
