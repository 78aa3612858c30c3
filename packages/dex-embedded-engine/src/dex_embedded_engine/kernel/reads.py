"""Owns requests that only look: blobs, the state of a run, its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.errors import ServiceError, invalid_argument
from dex_embedded_engine.kernel.requests import channel_message
from dex_embedded_engine.runs import Execution, Phase, Run, Standing, Timer
from dex_embedded_engine.storage.runs import JournalEntry
from dex_embedded_engine.transitions.change import NO_ORIGIN
from dex_embedded_engine.transitions.events import timestamp
from dex_embedded_engine.values import is_reference, reference_id

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_ANSWER_BYTES = 4 * 1024 * 1024 - 64 * 1024
_ENTRY_BYTES = 64
_PAGE_BYTES = 1024 * 1024
_LARGEST_PAGE = 1000
_DEFAULT_PAGE = 100


def load_blobs(kernel: Kernel, request: pb.LoadBlobsRequest) -> pb.LoadBlobsResponse:
    """Return the values behind blob references."""
    answer = pb.LoadBlobsResponse()
    size = 0
    for entry in request.entries:
        if not entry.flow_id or not is_reference(entry.blob_value):
            raise invalid_argument("LoadBlobs needs a flow_id and a blob reference in each entry")
        blob_id = reference_id(entry.blob_value)
        size += (kernel.stores.payloads.size(entry.flow_id, blob_id) or 0) + _ENTRY_BYTES
        if size > _ANSWER_BYTES:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the requested values are together larger than one answer of 4 MiB; "
                "let the handler load fewer or smaller values",
            )
        value = kernel.stores.payloads.read(entry.flow_id, blob_id)
        if value is None:
            raise ServiceError(
                grpc.StatusCode.NOT_FOUND, f"Flow {entry.flow_id!r} has no blob {blob_id!r}"
            )
        answer.values[blob_id].CopyFrom(value)
    return answer


def get_flow_state(kernel: Kernel, request: pb.GetFlowStateRequest) -> pb.GetFlowStateResponse:
    """Describe everything a run holds now."""
    if not request.flow_id:
        raise invalid_argument("GetFlowState needs a flow_id")
    run = kernel.find_run(request.flow_id, request.run_id)
    answer = pb.GetFlowStateResponse(
        flow_config=run.config,
        attributes=kernel.stores.attributes.read_everything(
            run.key, run.flow_id, with_secrets=False
        ),
        completed_steps=run.outputs,
        sticky_app_worker_id=run.sticky_worker,
    )
    ordered = sorted(run.executions.values(), key=lambda each: (each.step_type, each.number))
    for execution in ordered:
        if execution.standing is Standing.QUEUED and execution.attempt == 0:
            answer.queued_steps.append(_public_movement(execution))
        answer.active_step_executions.append(_active(execution))
    for name, messages in sorted(run.channels.items()):
        answer.pending_channel_messages[name].messages.extend(
            channel_message(message) for message in messages
        )
    kernel.stores.payloads.put_back(run.flow_id, answer, kernel.settings.frame_budget)
    kernel.stores.payloads.fit(run.flow_id, answer, _ANSWER_BYTES)
    return answer


def get_history_events(
    kernel: Kernel, request: pb.GetHistoryEventsRequest
) -> pb.GetHistoryEventsResponse:
    """Return a page of the run's journal."""
    if not request.flow_id:
        raise invalid_argument("GetHistoryEvents needs a flow_id")
    if min(request.start_internal_event_id, request.estimate_page_size, request.run_attempt) < 0:
        raise invalid_argument("GetHistoryEvents has a negative start, page size or run attempt")
    run = kernel.find_run(request.flow_id, request.run_id)
    first = max(1, request.start_internal_event_id)
    if request.next_page_token:
        first = _event_id(request.next_page_token, run)
    wanted = min(request.estimate_page_size or _DEFAULT_PAGE, _LARGEST_PAGE)
    answer = pb.GetHistoryEventsResponse(next_internal_event_id=first)
    budget = _PAGE_BYTES
    for entry in kernel.stores.runs.events(run.key, first, wanted):
        event = entry.event
        event.event_id = entry.event_id
        event.event_time.CopyFrom(timestamp(entry.at))
        event.run_attempt = run.run_attempt
        _restore_input(kernel, run, entry)
        kernel.stores.payloads.put_back(run.flow_id, event, _PAGE_BYTES)
        if answer.events and event.ByteSize() > budget:
            break
        budget -= event.ByteSize()
        answer.events.append(event)
        answer.next_internal_event_id = entry.event_id + 1
    if answer.next_internal_event_id <= run.event_count:
        answer.next_page_token = str(answer.next_internal_event_id).encode()
    return answer


def _event_id(token: bytes, run: Run) -> int:
    plain = token.isdigit() and len(token) < 19
    if not plain or not 1 <= int(token) <= run.event_count:
        raise invalid_argument(
            f"next_page_token {token!r} was not given out for this run; start without one"
        )
    return int(token)


def _restore_input(kernel: Kernel, run: Run, entry: JournalEntry) -> None:
    """Put a Step's input and options, which stand in an earlier event, into its own event."""
    movement = _movement_at(kernel, run, entry.origin)
    if movement is None:
        return
    name = entry.event.WhichOneof("payload") or ""
    payload = getattr(entry.event, name)
    if movement.HasField("step_input"):
        payload.input.step_input.CopyFrom(movement.step_input)
    options = movement.step_options
    waits = name.startswith("step_wait_for")
    payload.context.method_options.CopyFrom(
        pb.StepMethodOptions(
            timeout_seconds=(
                options.wait_for_timeout_seconds if waits else options.execute_timeout_seconds
            ),
            heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
            retry_policy=(options.wait_for_retry_policy if waits else options.execute_retry_policy),
        )
    )


def _movement_at(kernel: Kernel, run: Run, origin: tuple[int, int]) -> pb.StepMovement | None:
    if origin == NO_ORIGIN:
        return None
    entry = kernel.stores.runs.event(run.key, origin[0])
    event, index = entry.event, origin[1]
    kind = event.WhichOneof("payload")
    if kind == "flow_started_or_continued":
        start = event.flow_started_or_continued.initial_start
        return pb.StepMovement(
            step_type=start.start_step_type,
            step_input=start.step_input,
            step_options=start.step_options,
        )
    if kind == "step_execute_completed":
        return event.step_execute_completed.output.step_decision.next_steps[index]
    if kind == "rpc_execution_completed":
        return event.rpc_execution_completed.step_decision.next_steps[index]
    failed = _movement_at(kernel, run, entry.origin)
    if failed is None:
        return None
    return pb.StepMovement(
        step_type=failed.step_options.execute_failure_proceed_step_type,
        step_input=failed.step_input,
        step_options=failed.step_options.execute_failure_proceed_step_options,
    )


def _public_movement(execution: Execution) -> pb.StepMovement:
    movement = pb.StepMovement()
    movement.CopyFrom(execution.movement)
    return movement


def _active(execution: Execution) -> pb.ActiveStepExecutionState:
    state = pb.ActiveStepExecutionState(
        step_execution_id=execution.id,
        from_step_execution_id=execution.lineage,
        step_type=execution.step_type,
        phase=(
            pb.ACTIVE_STEP_PHASE_WAITING
            if execution.phase is Phase.WAITING
            else pb.ACTIVE_STEP_PHASE_ACTIVE
        ),
        movement=_public_movement(execution),
        step_execution_locals=execution.step_locals,
        last_failure_info=execution.last_failure,
    )
    condition = execution.condition
    if condition is None or execution.phase is not Phase.WAITING:
        return state
    state.waiting_condition.waiting_condition_type = condition.waiting_condition_type
    state.waiting_condition.timer_conditions.extend(condition.timer_conditions)
    state.waiting_condition.channel_conditions.extend(condition.channel_conditions)
    state.waiting_condition.condition_combinations.extend(condition.condition_combinations)
    for described, timer in zip(condition.timer_conditions, execution.timers, strict=True):
        state.timers.append(_timer_info(described.condition_id, timer))
    return state


def _timer_info(condition_id: str, timer: Timer) -> pb.TimerInfo:
    return pb.TimerInfo(
        condition_id=condition_id,
        firing_unix_timestamp_seconds=int(timer.fires_at),
        status=(pb.INTERNAL_TIMER_STATUS_FIRED if timer.done else pb.INTERNAL_TIMER_STATUS_PENDING),
    )
