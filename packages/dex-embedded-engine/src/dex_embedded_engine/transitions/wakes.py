"""Owns what the passing of time does to a run: pauses end, timers fire, the Flow times out."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import TIMEOUT_HANDLER, Phase, Standing
from dex_embedded_engine.transitions.change import NO_ORIGIN, Change
from dex_embedded_engine.transitions.closing import close
from dex_embedded_engine.transitions.conditions import settle_waits


def fire_due(change: Change) -> None:
    """Apply everything of the run that is due at `change.now`."""
    run = change.run
    if run.deadline_at is not None and run.deadline_at <= change.now:
        run.deadline_at = None
        _time_out(change)
        if not run.is_running:
            return
    fired = False
    for execution in sorted(run.executions.values(), key=lambda each: each.ordinal):
        if execution.standing is Standing.PAUSED and _is_due(execution.wake_at, change.now):
            change.make_ready(execution)
        elif execution.phase is Phase.WAITING:
            for timer in execution.timers:
                if not timer.done and timer.fires_at <= change.now:
                    timer.done = fired = True
                    change.touch(execution)
    if fired:
        settle_waits(change)


def _is_due(moment: float | None, now: float) -> bool:
    return moment is not None and moment <= now


def _time_out(change: Change) -> None:
    request = change.run.start
    policy = request.flow_timeout_policy
    if policy == pb.FLOW_TIMEOUT_POLICY_CANCEL:
        close(change, pb.FLOW_STATUS_CANCELED)
    elif policy == pb.FLOW_TIMEOUT_POLICY_HANDLER:
        change.create(_handler_movement(change), lineage="", origin=NO_ORIGIN)
    else:
        close(
            change,
            pb.FLOW_STATUS_FAILED,
            pb.FLOW_ERROR_TYPE_FLOW_TIMEOUT,
            f"Flow timed out after {request.flow_timeout_seconds} seconds",
        )


def _handler_movement(change: Change) -> pb.StepMovement:
    options = change.run.start.flow_start_options.timeout_handler_options
    step_options = pb.StepOptions(
        skip_wait_for=True,
        execute_timeout_seconds=options.method_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        execute_failure_policy=options.failure_policy,
        execute_failure_proceed_step_type=options.failure_proceed_step_type,
        execute_durability_override=options.durability_override,
        execute_lock_attribute_keys=options.lock_attribute_keys,
        execute_load_attribute_map_instances=options.load_attribute_map_instances,
        execute_load_channel_names=options.load_channel_names,
        execute_load_channel_map_instances=options.load_channel_map_instances,
    )
    if options.HasField("retry_policy"):
        step_options.execute_retry_policy.CopyFrom(options.retry_policy)
    if options.HasField("failure_proceed_step_options"):
        step_options.execute_failure_proceed_step_options.CopyFrom(
            options.failure_proceed_step_options
        )
    return pb.StepMovement(step_type=TIMEOUT_HANDLER, step_options=step_options)
