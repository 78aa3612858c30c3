"""Owns how a run begins, and which start requests an existing run of the same id refuses."""

from __future__ import annotations

from enum import Enum

from dex.dexpb import dex_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from dex_embedded_engine.runs import Run
from dex_embedded_engine.transitions.change import Change

_ANY_CLOSED = frozenset({pb.ID_REUSE_POLICY_ALLOW_IF_NO_RUNNING})


class Verdict(Enum):
    """What a start request may do, given the latest run of its Flow id."""

    START = "start"
    TERMINATE_AND_START = "terminate_and_start"
    REFUSE = "refuse"


def judge_reuse(latest: Run | None, policy: pb.IdReusePolicy) -> Verdict:
    """Apply the id reuse table."""
    if latest is None:
        return Verdict.START
    if policy == pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING:
        return Verdict.TERMINATE_AND_START if latest.is_running else Verdict.START
    if latest.is_running:
        return Verdict.REFUSE
    if policy in _ANY_CLOSED:
        return Verdict.START
    abnormal = latest.status != pb.FLOW_STATUS_COMPLETED
    if policy == pb.ID_REUSE_POLICY_ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY and abnormal:
        return Verdict.START
    return Verdict.REFUSE


def begin(change: Change) -> None:
    """Record the start, set initial Attributes, arm the timeout, queue the starting Step."""
    run = change.run
    request = run.start
    options = request.flow_start_options
    event_id = change.record(_started_event(run))
    change.writes.extend(write for write in options.attributes if not write.is_hard_delete_on_null)
    if request.flow_timeout_seconds > 0:
        run.deadline_at = change.now + request.flow_timeout_seconds
    if not request.start_step_type:
        return
    change.create(
        pb.StepMovement(
            step_type=request.start_step_type,
            step_input=request.step_input,
            step_options=request.step_options,
        ),
        lineage="",
        origin=(event_id, 0),
        wake_at=change.now + options.flow_start_delay_seconds,
    )


def _started_event(run: Run) -> pb.FlowHistoryEvent:
    request = run.start
    started = pb.FlowStartedOrContinuedHistoryEvent(
        flow_execution_id=pb.FlowExecutionID(flow_id=run.flow_id, run_id=run.run_id),
        flow_type=run.flow_type,
        flow_config=run.config,
        flow_timeout=Duration(seconds=request.flow_timeout_seconds),
        flow_timeout_policy=request.flow_timeout_policy,
        initial_start=pb.FlowInitialStart(
            start_step_type=request.start_step_type,
            step_input=request.step_input if request.HasField("step_input") else None,
            step_options=request.step_options if request.HasField("step_options") else None,
            initial_attributes=[
                pb.KV(key=write.key, value=write.value)
                for write in request.flow_start_options.attributes
                if not write.is_hard_delete_on_null
            ],
        ),
    )
    if request.flow_start_options.HasField("timeout_handler_options"):
        started.timeout_handler_options.CopyFrom(request.flow_start_options.timeout_handler_options)
    return pb.FlowHistoryEvent(flow_started_or_continued=started)
