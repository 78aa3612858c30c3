"""Owns how a run ends: by decision, by request, by timeout, or because nothing is left to do."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution
from dex_embedded_engine.transitions.change import Change

_STOPPED = {
    pb.STOP_TYPE_CANCEL: (pb.FLOW_STATUS_CANCELED, pb.FLOW_ERROR_TYPE_UNSPECIFIED),
    pb.STOP_TYPE_TERMINATE: (pb.FLOW_STATUS_TERMINATED, pb.FLOW_ERROR_TYPE_UNSPECIFIED),
    pb.STOP_TYPE_FAIL: (pb.FLOW_STATUS_FAILED, pb.FLOW_ERROR_TYPE_CLIENT_API_FAILING_FLOW),
}


def close(
    change: Change,
    status: pb.FlowStatus,
    error_type: pb.FlowErrorType = pb.FLOW_ERROR_TYPE_UNSPECIFIED,
    error_message: str = "",
) -> None:
    """Give the run its final status; whatever is still out stops counting."""
    run = change.run
    for execution in list(run.executions.values()):
        revoke(change, execution)
        change.finish(execution)
    run.status = status
    run.closed_at = change.now
    run.deadline_at = None
    run.error_type = error_type
    run.error_message = error_message
    change.ready.clear()
    change.closed = True
    change.record(
        pb.FlowHistoryEvent(
            flow_closed=pb.FlowClosedHistoryEvent(
                flow_status=status,
                results=run.outputs,
                error_type=error_type,
                error_message=error_message,
                sticky_app_worker_id=run.sticky_worker,
            )
        )
    )


def stop(change: Change, stop_type: pb.StopType, reason: str) -> None:
    """Close the run because a client asked for it."""
    status, error_type = _STOPPED[stop_type]
    failing = stop_type == pb.STOP_TYPE_FAIL
    close(change, status, error_type, reason if failing else "")


def add_output(change: Change, execution: Execution, output: pb.Value) -> None:
    """Keep a completion of `execution` among the run's results."""
    change.run.outputs.append(
        pb.StepCompletionOutput(
            completed_step_type=execution.step_type,
            completed_step_execution_id=execution.id,
            completed_step_output=output,
        )
    )


def complete_if_idle(change: Change) -> None:
    """Complete the run if a branch asked for it and no other is left."""
    if change.run.closing and change.run.is_running and not change.run.executions:
        close(change, pb.FLOW_STATUS_COMPLETED)


def revoke(change: Change, execution: Execution) -> None:
    """Make the attempt of `execution` that is out, if any, stop counting, and tell its handler."""
    if execution.task_id is not None:
        change.revoked.append(execution.task_id)
        execution.task_id = None


def disown(change: Change, execution: Execution) -> None:
    """Make the attempt that is out stop counting; its handler hears of it with its next frame."""
    if execution.task_id is not None:
        change.disowned.append(execution.task_id)
        execution.task_id = None
