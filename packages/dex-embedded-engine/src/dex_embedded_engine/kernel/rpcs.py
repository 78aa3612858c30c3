"""Owns RPCs from the call to the answer: routing, locks, deadlines, effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.dispatch import WorkerStream
from dex_embedded_engine.errors import (
    ServiceError,
    flow_not_exists,
    invalid_argument,
    lock_conflict,
    worker_failure,
)
from dex_embedded_engine.kernel.requests import LARGEST_FRAME
from dex_embedded_engine.kernel.steps import clear_hard_writes, hard_writes
from dex_embedded_engine.kernel.tasks import RpcTask
from dex_embedded_engine.runs import Run
from dex_embedded_engine.transitions.change import find_message
from dex_embedded_engine.transitions.checks import check_lock_keys, check_rpc_result
from dex_embedded_engine.transitions.events import timestamp
from dex_embedded_engine.transitions.results import apply_rpc, has_durable_effects
from dex_embedded_engine.values import NULL, InvalidMessageError, check_value, is_null

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_CANCELLED = grpc.StatusCode.CANCELLED.value[0]


class RpcOperations:
    """What happens to RPCs."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def invoke(self, request: pb.InvokeRPCRequest, call_id: int) -> None:
        """Queue an RPC for a Worker. It is answered later.

        Raises:
            ServiceError: malformed, no such run, run closed where it must be open, lock held.
        """
        kernel = self._kernel
        _check_request(request)
        run = kernel.find_run(request.flow_id, request.run_id)
        task = RpcTask(
            flow_type=run.flow_type,
            run_key=run.key,
            locks=tuple(sorted(set(request.lock_attribute_keys))),
            is_rpc=True,
            preferred_worker=run.sticky_worker,
            call_id=call_id,
            request=request,
            dispatch_deadline=kernel.now + kernel.settings.dispatch_wait,
        )
        self._require_ready(task, run)
        kernel.dispatcher.enqueue(task)
        kernel.watch(task, task.dispatch_deadline)

    def hand_out(self, task: RpcTask, stream: WorkerStream) -> None:
        """Call the handler on `stream`, or refuse the RPC if its run or locks are gone."""
        kernel = self._kernel
        if task.call_id is None:
            return
        run = kernel.run(task.run_key)
        try:
            self._require_ready(task, run)
        except ServiceError as refusal:
            self.refuse(task, refusal)
            return
        asked = task.request.timeout_seconds
        limit = kernel.settings.rpc_timeout
        task.deadline = kernel.now + (min(asked, limit) if asked > 0 else limit)
        frame = pb.PollWorkerTask(task_id=kernel.new_id(), deadline=timestamp(task.deadline))
        frame.rpc.CopyFrom(kernel.requests.rpc(run, task.request))
        response = pb.PollWorkerTaskResponse(task=frame)
        if response.ByteSize() > LARGEST_FRAME:
            self.refuse(task, _too_much(task, response.ByteSize()))
            return
        kernel.dispatcher.hand_out(task, stream, frame.task_id, kernel.instant)
        kernel.send(stream, response)
        kernel.watch(task, task.deadline)

    def hand_back(self, task: RpcTask, *, excluded_worker: str = "") -> None:
        """Offer an RPC that its Worker did not take to another one."""
        task.deadline = 0.0
        if excluded_worker:
            task.excluded.add(excluded_worker)
            task.unknown_to = excluded_worker
        if task.call_id is not None:
            self._kernel.dispatcher.requeue(task)
            self._kernel.watch(task, task.dispatch_deadline)

    def take_result(self, task: RpcTask, result: pb.InvokeWorkerRPCResponse, worker: str) -> None:
        """Commit what the handler did and answer the caller."""
        if task.call_id is None:
            return
        kernel = self._kernel
        run = kernel.run(task.run_key)
        try:
            check_rpc_result(result, kernel.settings.minimum_heartbeat_timeout)
        except InvalidMessageError as problem:
            self.refuse(
                task,
                worker_failure(
                    f"RPC {task.request.rpc_name!r} returned an invalid result: {problem}"
                ),
            )
            return
        if has_durable_effects(result):
            refusal = self._commit(task, run, result, worker)
            if refusal is not None:
                self.refuse(task, refusal)
                return
        answer = pb.InvokeRPCResponse(output=result.output)
        kernel.stores.payloads.put_back(run.flow_id, answer, kernel.settings.frame_budget)
        kernel.reply(task.call_id, answer)
        task.call_id = None

    def take_error(self, task: RpcTask, error: pb.WorkerErrorResponse) -> None:
        """Refuse the call with what the Worker reports."""
        name = task.request.rpc_name
        if error.grpc_status == _CANCELLED:
            if task.deadline and self._kernel.now >= task.deadline:
                self.refuse(task, worker_failure(f"RPC {name!r} exceeded its timeout"))
            else:
                self.lose(task, f"the Worker stopped while it ran RPC {name!r}")
            return
        self.refuse(
            task, worker_failure(f"RPC {name!r} failed: {error.detail}", worker_error=error)
        )

    def lose(self, task: RpcTask, detail: str) -> None:
        """Refuse the call because its Worker is gone; nothing of it was committed."""
        reason = pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
        self._abandon(task, worker_failure(detail, reason=reason))

    def check(self, task: RpcTask) -> list[float]:
        """Refuse the call if a deadline of it has passed; return when the next one does."""
        kernel = self._kernel
        if task.call_id is None:
            return []
        if task.task_id is None:
            if task.dispatch_deadline > kernel.now:
                return [task.dispatch_deadline]
            kernel.dispatcher.withdraw(task)
            self.refuse(task, self._not_taken(task))
            return []
        if task.deadline > kernel.now:
            return [task.deadline]
        name = task.request.rpc_name
        self._abandon(task, worker_failure(f"RPC {name!r} exceeded its timeout"))
        return []

    def _abandon(self, task: RpcTask, refusal: ServiceError) -> None:
        """Refuse the call; if its handler still runs, it is told, and its locks are free."""
        kernel = self._kernel
        if task.call_id is not None and task.stream is not None:
            cancel = pb.PollWorkerTaskCancelTask(task_id=task.task_id)
            kernel.send(task.stream, pb.PollWorkerTaskResponse(cancel_task=cancel))
        kernel.dispatcher.release_locks(task)
        self.refuse(task, refusal)

    def _not_taken(self, task: RpcTask) -> ServiceError:
        name = task.request.rpc_name
        if task.unknown_to:
            return worker_failure(
                f"no connected Worker of Flow type {task.flow_type!r} knows RPC {name!r}",
                reason=pb.DISPATCH_TASK_ERROR_REASON_UNKNOWN_NAME,
            )
        state = (
            "is busy" if self._kernel.dispatcher.has_worker(task.flow_type) else "is not connected"
        )
        return worker_failure(
            f"no Worker took RPC {name!r} within {self._kernel.settings.dispatch_wait:g} "
            f"seconds: every Worker of Flow type {task.flow_type!r} {state}",
            reason=pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE,
        )

    def _commit(
        self, task: RpcTask, run: Run, result: pb.InvokeWorkerRPCResponse, worker: str
    ) -> ServiceError | None:
        kernel = self._kernel
        if not run.is_running:
            return flow_not_exists(run.flow_id, "closed before the RPC could commit")
        if task.needs_active_run:
            for deletion in result.delete_from_channel:
                if find_message(run, deletion) is None:
                    return ServiceError(
                        grpc.StatusCode.NOT_FOUND,
                        f"Channel {deletion.channel_name!r} has no message {deletion.message_id!r}",
                        pb.ERROR_SUB_STATUS_CHANNEL_MESSAGE_NOT_FOUND,
                    )
        kernel.points.add("rpc_result")
        secrets = hard_writes(result.upsert_attributes)
        kernel.write_hard(run.flow_id, secrets)
        clear_hard_writes(result.upsert_attributes)
        if not all(is_null(secret.value) for secret in secrets):
            # The caller sent the secret, as like as not, and the journal keeps inputs for ever.
            task.request.input.CopyFrom(NULL)
        # Only now: an RPC that changes nothing leaves nothing.
        kernel.stores.payloads.take_in(run.flow_id, task.request)
        kernel.stores.payloads.take_in(run.flow_id, result)
        apply_rpc(kernel.change(run), task.request.rpc_name, task.request.input, result, worker)
        return None

    def _require_ready(self, task: RpcTask, run: Run) -> None:
        if not task.needs_active_run:
            return
        if not run.is_running:
            raise flow_not_exists(run.flow_id, "is not active")
        held = self._kernel.dispatcher.held_lock(run.key, task.locks)
        if held is not None:
            raise lock_conflict(held)

    def refuse(self, task: RpcTask, refusal: ServiceError) -> None:
        """Answer the call with a refusal, if it has not been answered."""
        if task.call_id is not None:
            self._kernel.refuse(task.call_id, refusal)
            task.call_id = None


def _too_much(task: RpcTask, size: int) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"RPC {task.request.rpc_name!r} needs {size} bytes in one message to its Worker, which "
        f"takes {LARGEST_FRAME}; keep less in hard-delete Attributes, and load fewer values",
    )


def _check_request(request: pb.InvokeRPCRequest) -> None:
    if not request.flow_id:
        raise invalid_argument("InvokeRPC needs a flow_id")
    if not request.rpc_name:
        raise invalid_argument("InvokeRPC needs an rpc_name")
    if request.timeout_seconds < 0:
        raise invalid_argument("InvokeRPC has a negative timeout_seconds; use 0 for the default")
    try:
        check_value(request.input, "the RPC input")
        check_lock_keys(request.lock_attribute_keys, f"the options of RPC {request.rpc_name!r}")
    except InvalidMessageError as problem:
        raise invalid_argument(str(problem)) from problem
