"""Owns how a refusal travels, so that the SDK raises the right exception."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf.any_pb2 import Any as PackedMessage
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from dex_embedded_engine.errors import ServiceError


def status_of(error: ServiceError) -> Status:
    """Build the status whose code and message equal the call's, as the SDK demands."""
    details = pb.ServiceErrorResponse(
        detail=error.detail,
        sub_status=error.sub_status,
        dispatch_task_error_reason=error.dispatch_reason,
    )
    worker = error.worker_error
    if worker is not None:
        details.original_worker_error_detail = worker.detail
        details.original_worker_error_type = worker.error_type
        details.original_worker_error_stack_trace = worker.stack_trace
        details.original_worker_error_status = worker.grpc_status
    packed = PackedMessage()
    packed.Pack(details)
    return Status(code=error.code.value[0], message=error.detail, details=[packed])


@asynccontextmanager
async def refusals_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn a `ServiceError` raised inside into the call's status."""
    try:
        yield
    except ServiceError as error:
        await context.abort_with_status(rpc_status.to_status(status_of(error)))
