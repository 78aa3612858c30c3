"""Owns requests about whole Flows: start, stop, summary, result, registered indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine.errors import (
    ServiceError,
    flow_not_exists,
    invalid_argument,
    unimplemented,
)
from dex_embedded_engine.kernel.steps import clear_hard_writes, hard_writes
from dex_embedded_engine.runs import Run
from dex_embedded_engine.transitions import checks
from dex_embedded_engine.transitions.closing import stop
from dex_embedded_engine.transitions.events import timestamp
from dex_embedded_engine.transitions.starts import Verdict, begin, judge_reuse
from dex_embedded_engine.values import InvalidMessageError, check_value

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_INDEX_TYPES = frozenset(pb.IndexType.values()) - {pb.INDEX_TYPE_UNSPECIFIED}
_STOP_TYPES = frozenset({pb.STOP_TYPE_CANCEL, pb.STOP_TYPE_TERMINATE, pb.STOP_TYPE_FAIL})


def start_flow(
    kernel: Kernel, request: pb.StartFlowRequest, call_id: int
) -> pb.StartFlowResponse | None:
    """Start a run, unless the id reuse policy refuses.

    A refused start changes nothing but the values that are deleted for good: those are
    overwritten anyway. So the refusal is an answer here, not an exception, which would undo them.
    """
    _check_start(request, kernel.settings.minimum_heartbeat_timeout)
    options = request.flow_start_options
    latest = kernel.latest_run(request.flow_id)
    verdict = judge_reuse(latest, options.id_reuse_policy)
    kernel.write_hard(request.flow_id, hard_writes(options.attributes))
    if verdict is Verdict.REFUSE:
        assert latest is not None
        started = options.flow_already_started_options
        if started.ignore_already_started_error and latest.request_id == request.request_id:
            return pb.StartFlowResponse(run_id=latest.run_id)
        kernel.refuse(call_id, _already_started(latest))
        return None
    clear_hard_writes(options.attributes)
    kernel.stores.payloads.take_in(request.flow_id, request)
    if verdict is Verdict.TERMINATE_AND_START:
        assert latest is not None
        stop(kernel.change(latest), pb.STOP_TYPE_TERMINATE, "")
    run_id = kernel.new_id()
    run = Run(
        key=0,
        run_id=run_id,
        flow_id=request.flow_id,
        flow_type=request.flow_type,
        request_id=request.request_id,
        first_run_id=run_id,
        run_attempt=1,
        started_at=kernel.now,
        start=request,
        config=options.flow_config_override,
    )
    begin(kernel.add_run(run))
    return pb.StartFlowResponse(run_id=run_id)


def stop_flow(kernel: Kernel, request: pb.StopFlowRequest) -> Empty:
    """Close an active run at once; no result of it commits afterwards."""
    _require_flow_id(request.flow_id, "StopFlow")
    if request.stop_type not in _STOP_TYPES:
        raise invalid_argument(
            f"StopFlow has unknown stop_type {request.stop_type}; use cancel, terminate or fail"
        )
    run = kernel.find_run(request.flow_id, request.run_id)
    if not run.is_running:
        raise flow_not_exists(request.flow_id, "is not active")
    stop(kernel.change(run), request.stop_type, request.reason)
    return Empty()


def get_flow_summary(
    kernel: Kernel, request: pb.GetFlowSummaryRequest
) -> pb.GetFlowSummaryResponse:
    """Describe the named or the latest run."""
    _require_flow_id(request.flow_id, "GetFlowSummary")
    run = kernel.find_run(request.flow_id, request.run_id)
    return pb.GetFlowSummaryResponse(
        flow_execution_id=pb.FlowExecutionID(flow_id=run.flow_id, run_id=run.run_id),
        first_run_id=run.first_run_id,
        request_id=run.request_id,
        flow_type=run.flow_type,
        flow_status=run.status,
        start_time=timestamp(run.started_at),
        close_time=None if run.closed_at is None else timestamp(run.closed_at),
        run_attempt=run.run_attempt,
    )


def flow_result(kernel: Kernel, request: pb.WaitForFlowRequest) -> pb.FlowResult:
    """Return the run's result; its status is RUNNING while it is open."""
    _require_flow_id(request.flow_id, "WaitForFlow")
    run = kernel.find_run(request.flow_id, request.run_id)
    result = pb.FlowResult(
        flow_status=run.status, error_type=run.error_type, error_message=run.error_message
    )
    if not run.is_running and request.needs_results:
        result.results.extend(run.outputs)
        kernel.stores.payloads.put_back(run.flow_id, result, kernel.settings.frame_budget)
        kernel.stores.payloads.fit(run.flow_id, result, kernel.settings.frame_budget)
    return result


def sync_attribute_indexes(
    kernel: Kernel, request: pb.SyncAttributeIndexRequest
) -> pb.SyncAttributeIndexResponse:
    """Register the union of all Workers' Attribute indexes; a changed type is refused."""
    known = kernel.stores.registry.indexes()
    for key, kind in request.attribute_indexes.items():
        if not key:
            raise invalid_argument("SyncAttributeIndexes has an empty index key; name the index")
        if kind not in _INDEX_TYPES:
            raise invalid_argument(
                f"Attribute index {key!r} has unknown type {kind}; use one of pb.IndexType"
            )
        if known.get(key, kind) != kind:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"Attribute index {key!r} is registered as {pb.IndexType.Name(known[key])}, "
                f"not as {pb.IndexType.Name(kind)}; use another index key",
            )
    kernel.stores.registry.add_indexes(
        (key, kind) for key, kind in request.attribute_indexes.items() if key not in known
    )
    return pb.SyncAttributeIndexResponse()


def _already_started(latest: Run) -> ServiceError:
    state = "is running" if latest.is_running else "has been used"
    return ServiceError(
        grpc.StatusCode.ALREADY_EXISTS,
        f"Flow {latest.flow_id!r} {state}, and the id reuse policy does not allow a new run",
        pb.ERROR_SUB_STATUS_FLOW_ALREADY_STARTED,
    )


def _check_start(request: pb.StartFlowRequest, minimum_heartbeat: float) -> None:
    _require_flow_id(request.flow_id, "StartFlow")
    if not request.flow_type:
        raise invalid_argument("StartFlow needs a flow_type")
    if not request.request_id:
        raise invalid_argument("StartFlow needs a request_id")
    options = request.flow_start_options
    if min(request.flow_timeout_seconds, options.flow_start_delay_seconds) < 0:
        raise invalid_argument("StartFlow has a negative timeout or delay; use 0 for none")
    if options.id_reuse_policy not in pb.IdReusePolicy.values():
        raise invalid_argument(f"StartFlow has unknown id_reuse_policy {options.id_reuse_policy}")
    if request.flow_timeout_policy not in pb.FlowTimeoutPolicy.values():
        raise invalid_argument(
            f"StartFlow has unknown flow_timeout_policy {request.flow_timeout_policy}"
        )
    if options.HasField("retry_policy"):
        raise unimplemented("flow retry policies are not served by this engine")
    target = options.flow_config_override.worker_target
    if target.address and not target.is_pull_mode:
        raise unimplemented(
            f"Worker target {target.address!r} is a listening Worker; this engine serves pull "
            f"Workers: WorkerOptions(pull=PullWorkerOptions())"
        )
    try:
        _check_start_content(request, minimum_heartbeat)
    except InvalidMessageError as problem:
        raise invalid_argument(f"StartFlow: {problem}") from problem


def _check_start_content(request: pb.StartFlowRequest, minimum_heartbeat: float) -> None:
    options = request.flow_start_options
    checks.check_attribute_writes(options.attributes)
    if request.start_step_type:
        check_value(request.step_input, f"the input of Step {request.start_step_type!r}")
        checks.check_step_options(request.step_options, request.start_step_type, minimum_heartbeat)
    elif request.HasField("step_input"):
        raise InvalidMessageError("there is an input but no starting Step")
    checks.check_timeout_handler(options.timeout_handler_options, minimum_heartbeat)
    checks.check_flow_config(options.flow_config_override)


def _require_flow_id(flow_id: str, operation: str) -> None:
    if not flow_id:
        raise invalid_argument(f"{operation} needs a flow_id")
