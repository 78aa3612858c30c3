"""Owns what users see of a mistake of the engine itself: the call and the Flow end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.errors import ServiceError
from dex_embedded_engine.transitions.closing import close

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel


def engine_fault(bug: BaseException) -> ServiceError:
    """Build the refusal of a call that the engine could not carry out."""
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        f"the engine could not apply this request ({type(bug).__name__}); its log has the details",
    )


def fail_run_by_engine(kernel: Kernel, key: int, bug: BaseException) -> None:
    """Fail the run with an INTERNAL error, telling the handlers that are out."""
    run = kernel.run(key)
    if not run.is_running:
        return
    for task in kernel.dispatcher.tasks_out():
        if task.run_key == key and task.task_id is not None and not task.is_rpc:
            kernel.workers.tell_handler(task.task_id, now=True)
    close(
        kernel.change(run),
        pb.FLOW_STATUS_FAILED,
        pb.FLOW_ERROR_TYPE_INTERNAL,
        f"the engine could not apply an event of this Flow: {type(bug).__name__}",
    )
