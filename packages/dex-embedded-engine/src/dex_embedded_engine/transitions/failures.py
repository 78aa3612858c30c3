"""Owns what becomes of an attempt that failed: another one, another Step, or the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution, Phase, Standing
from dex_embedded_engine.settings import EngineSettings
from dex_embedded_engine.transitions.change import Change
from dex_embedded_engine.transitions.closing import close
from dex_embedded_engine.transitions.events import method_context, method_input

# The SDK keeps to 4 KiB; answers to clients must stay below 4 MiB whatever a Worker sends.
_LONGEST_TEXT = 64 * 1024
_CANCELLED = grpc.StatusCode.CANCELLED.value[0]


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed.

    Attributes:
        detail: what the user reads.
        error_type: class name of the error, or a name of ours.
        retry_after: pause the handler asked for, seconds; 0 for none.
        final: no further attempt can help.
        reason: set when the Worker was lost rather than its handler failing.
        uncounted: the time since the hand-out uses up no total duration (engine restart).
    """

    detail: str
    error_type: str
    stack_trace: str = ""
    retry_after: int = 0
    grpc_status: int = 0
    final: bool = False
    reason: pb.DispatchTaskErrorReason = pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED
    uncounted: bool = False

    @staticmethod
    def reported(error: pb.WorkerErrorResponse) -> Failure:
        """Describe what a Worker reported. A cancellation nobody asked for is a lost Worker."""
        lost = error.grpc_status == _CANCELLED
        return Failure(
            detail=error.detail[:_LONGEST_TEXT],
            error_type=error.error_type[:_LONGEST_TEXT],
            stack_trace=error.stack_trace[:_LONGEST_TEXT],
            retry_after=max(0, error.retry_after_seconds),
            grpc_status=error.grpc_status,
            reason=(
                pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
                if lost
                else pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED
            ),
        )


def worker_lost(detail: str, *, uncounted: bool = False) -> Failure:
    """Describe an attempt whose Worker went away, so that its outcome is unknown."""
    return Failure(
        detail=detail,
        error_type="WorkerDisconnected",
        reason=pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED,
        uncounted=uncounted,
    )


def fail_attempt(
    change: Change, execution: Execution, failure: Failure, settings: EngineSettings
) -> None:
    """Count a failed attempt and decide what follows."""
    execution.task_id = None
    if failure.uncounted:
        execution.queued_for += max(0.0, change.now - execution.ready_at)
    execution.last_failure = _describe(execution, failure)
    pause = None if failure.final else next_pause(execution, change.now, failure, settings)
    if pause is None:
        _give_up(change, execution, failure)
        return
    if pause <= 0:
        change.make_ready(execution)
        return
    execution.standing = Standing.PAUSED
    execution.wake_at = change.now + pause
    change.touch(execution)


def next_pause(
    execution: Execution, now: float, failure: Failure, settings: EngineSettings
) -> float | None:
    """Return the seconds before the next attempt, or None when the policy allows no other."""
    policy = (
        execution.options.wait_for_retry_policy
        if execution.phase is Phase.WAIT_FOR
        else execution.options.execute_retry_policy
    )
    if 0 < policy.maximum_attempts <= execution.attempt:
        return None
    pause = float(failure.retry_after) or backoff(policy, execution.attempt, settings)
    total = policy.total_duration_seconds or settings.retry_total_duration
    spent = now - execution.first_attempt_at - execution.queued_for
    return None if spent + pause > total else pause


def backoff(policy: pb.RetryPolicy, attempt: int, settings: EngineSettings) -> float:
    """Return the policy's pause after failed attempt number `attempt`, seconds."""
    initial = policy.initial_interval_seconds or settings.retry_initial_interval
    coefficient = policy.backoff_coefficient or settings.retry_coefficient
    cap = policy.maximum_interval_seconds or initial * settings.retry_maximum_factor
    pause = float(initial)
    for _ in range(min(attempt - 1, 10_000)):
        pause *= coefficient
        if pause >= cap or coefficient == 1:
            break
    return min(pause, float(cap))


def _give_up(change: Change, execution: Execution, failure: Failure) -> None:
    error = pb.RecoveryErrorInfo(detail=failure.detail, error_type=failure.error_type)
    failed = pb.StepMethodFailedOutput(failure=execution.last_failure)
    context = method_context(execution, change.now)
    options = execution.options
    if execution.phase is Phase.WAIT_FOR:
        change.record(
            pb.FlowHistoryEvent(
                step_wait_for_failed=pb.StepWaitForFailedEvent(
                    input=method_input(execution), output=failed, context=context
                )
            ),
            execution.origin,
        )
        if options.wait_for_failure_policy == (
            pb.WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE
        ):
            execution.movement.recovery_error_internal_only.CopyFrom(error)
            change.begin_execute(execution, pb.ConditionResults(wait_for_failed=True))
            return
        _fail_run(change, failure)
        return
    event_id = change.record(
        pb.FlowHistoryEvent(
            step_execute_failed=pb.StepExecuteFailedEvent(
                input=method_input(execution), output=failed, context=context
            )
        ),
        execution.origin,
    )
    if options.execute_failure_policy == (
        pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
    ):
        change.finish(execution)
        recovery = pb.StepMovement(
            step_type=options.execute_failure_proceed_step_type,
            step_options=options.execute_failure_proceed_step_options,
        )
        recovery.step_input.CopyFrom(_recovery_input(execution))
        change.create(recovery, lineage=execution.id, origin=(event_id, 0), recovery=error)
        return
    _fail_run(change, failure)


def _recovery_input(execution: Execution) -> pb.Value:
    if execution.movement.HasField("step_input"):
        return execution.movement.step_input
    return pb.Value(null_value=0)  # type: ignore[arg-type]  # the stub wants the enum wrapper


def _fail_run(change: Change, failure: Failure) -> None:
    close(change, pb.FLOW_STATUS_FAILED, pb.FLOW_ERROR_TYPE_WORKER_API_FAIL, failure.detail)


def _describe(execution: Execution, failure: Failure) -> pb.StepMethodFailure:
    return pb.StepMethodFailure(
        backend_error=failure.detail,
        attempt=execution.attempt,
        details=pb.ServiceErrorResponse(
            detail=failure.detail,
            sub_status=pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
            original_worker_error_detail=failure.detail,
            original_worker_error_type=failure.error_type,
            original_worker_error_status=failure.grpc_status,
            original_worker_error_stack_trace=failure.stack_trace,
            dispatch_task_error_reason=failure.reason,
        ),
    )
