"""Owns what an accepted Worker result does to a run. The result has been checked before."""

from __future__ import annotations

from collections.abc import Iterable

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution
from dex_embedded_engine.transitions.change import Change
from dex_embedded_engine.transitions.closing import (
    add_output,
    close,
    complete_if_idle,
    disown,
)
from dex_embedded_engine.transitions.conditions import settle_waits
from dex_embedded_engine.transitions.events import method_context, method_input


def accept_wait_for(
    change: Change, execution: Execution, result: pb.InvokeWaitForMethodResponse
) -> None:
    """Commit a wait_for result: its effects, then the wait, or execute at once without one."""
    change.record(
        pb.FlowHistoryEvent(
            step_wait_for_completed=pb.StepWaitForCompletedEvent(
                input=method_input(execution),
                context=method_context(execution, change.now),
                output=pb.StepWaitForCompletedOutput(
                    wait_for_condition=(
                        result.waiting_condition if result.HasField("waiting_condition") else None
                    ),
                    upsert_attributes=result.upsert_attributes,
                    publish_to_channel=result.publish_to_channel,
                    record_events=result.record_events,
                    upsert_step_execution_locals=result.upsert_step_exe_locals,
                    delete_from_channel=result.delete_from_channel,
                ),
            )
        ),
        execution.origin,
    )
    execution.step_locals = list(result.upsert_step_exe_locals)
    _apply_effects(
        change, result.upsert_attributes, result.delete_from_channel, result.publish_to_channel
    )
    if result.HasField("waiting_condition"):
        change.park(execution, result.waiting_condition)
        for timer in execution.timers:
            timer.done = timer.fires_at <= change.now
    else:
        change.begin_execute(execution, pb.ConditionResults())
    settle_waits(change)


def accept_execute(
    change: Change, execution: Execution, result: pb.InvokeExecuteMethodResponse
) -> None:
    """Commit an execute result: effects, cancellations, then next Steps or the close."""
    event_id = change.record(
        pb.FlowHistoryEvent(
            step_execute_completed=pb.StepExecuteCompletedEvent(
                input=method_input(execution),
                context=method_context(execution, change.now),
                output=pb.StepExecuteCompletedOutput(
                    step_decision=result.step_decision,
                    upsert_attributes=result.upsert_attributes,
                    publish_to_channel=result.publish_to_channel,
                    record_events=result.record_events,
                    upsert_step_execution_locals=result.upsert_step_exe_locals,
                    delete_from_channel=result.delete_from_channel,
                ),
            )
        ),
        execution.origin,
    )
    change.finish(execution)
    _apply_effects(
        change, result.upsert_attributes, result.delete_from_channel, result.publish_to_channel
    )
    decision = result.step_decision
    _cancel(
        change,
        set(decision.cancel_step_types),
        set(decision.cancel_sibling_step_types),
        execution.lineage,
    )
    _follow(change, execution, decision, event_id)
    if change.run.is_running:
        settle_waits(change)
        complete_if_idle(change)


def apply_rpc(
    change: Change,
    rpc_name: str,
    rpc_input: pb.Value,
    result: pb.InvokeWorkerRPCResponse,
    worker_id: str,
) -> None:
    """Commit an RPC result: effects, cancellations, next Steps."""
    decision = result.step_decision
    event_id = change.record(
        pb.FlowHistoryEvent(
            rpc_execution_completed=pb.RpcExecutionCompletedEvent(
                rpc_name=rpc_name,
                input=rpc_input,
                output=result.output,
                step_decision=decision if result.HasField("step_decision") else None,
                upsert_attributes=result.upsert_attributes,
                record_events=result.record_events,
                publish_to_channel=result.publish_to_channel,
                delete_from_channel=result.delete_from_channel,
                served_by_app_worker_id=worker_id,
            )
        )
    )
    _apply_effects(
        change, result.upsert_attributes, result.delete_from_channel, result.publish_to_channel
    )
    _cancel(change, set(decision.cancel_step_types), set(), "")
    for index, movement in enumerate(decision.next_steps):
        change.create(movement, lineage=f"__rpc/{rpc_name}", origin=(event_id, index))
    settle_waits(change)
    complete_if_idle(change)


def has_durable_effects(result: pb.InvokeWorkerRPCResponse) -> bool:
    """Tell whether an RPC result changes the run at all."""
    decision = result.step_decision
    return bool(
        result.upsert_attributes
        or result.publish_to_channel
        or result.delete_from_channel
        or decision.next_steps
        or decision.cancel_step_types
    )


def _apply_effects(
    change: Change,
    writes: Iterable[pb.AttributeWrite],
    deletions: Iterable[pb.ChannelMessageDeletion],
    published: Iterable[pb.ChannelMessage],
) -> None:
    change.writes.extend(write for write in writes if not write.is_hard_delete_on_null)
    change.delete_messages(deletions)
    change.publish(published)


def _cancel(change: Change, types: set[str], sibling_types: set[str], lineage: str) -> None:
    if not types and not sibling_types:
        return
    for execution in list(change.run.executions.values()):
        if execution.step_type in types or (
            execution.step_type in sibling_types and execution.lineage == lineage
        ):
            disown(change, execution)
            change.finish(execution)
            change.ready = [each for each in change.ready if each is not execution]


def _follow(change: Change, execution: Execution, decision: pb.StepDecision, event_id: int) -> None:
    run = change.run
    closing = decision.close_decision
    kind = closing.close_decision_type
    if kind == pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE:
        if closing.HasField("close_input"):
            add_output(change, execution, closing.close_input)
        close(change, pb.FLOW_STATUS_COMPLETED)
        return
    if kind == pb.CLOSE_DECISION_TYPE_FORCE_FAIL:
        close(
            change,
            pb.FLOW_STATUS_FAILED,
            pb.FLOW_ERROR_TYPE_STEP_DECISION_FAILING_FLOW,
            closing.close_input.string_value,
        )
        return
    if kind == pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY and _all_empty(
        change, closing.conditional_channel_names
    ):
        add_output(change, execution, closing.close_input)
        close(change, pb.FLOW_STATUS_COMPLETED)
        return
    if kind == pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE:
        run.closing = True
        if closing.HasField("close_input"):
            add_output(change, execution, closing.close_input)
    for index, movement in enumerate(decision.next_steps):
        change.create(movement, lineage=execution.id, origin=(event_id, index))


def _all_empty(change: Change, names: Iterable[str]) -> bool:
    busy = set(change.run.channels)
    for execution in change.run.executions.values():
        busy |= execution.consumed_channels()
    return busy.isdisjoint(names)
