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

# gRPC drops the answer when its trailers exceed 8 KiB. The text of an error travels in them three
# times, once with every byte that is not plain ASCII written as three.
_TRAILER_BYTES = 7800
_LONGEST_TEXT = 1100
_LONGEST_NAME = 256
_CUT = " [...] "


def status_of(error: ServiceError) -> Status:
    """Build the status whose code and message equal the call's, as the SDK demands."""
    message = _shorten(error.detail, _LONGEST_TEXT)
    details = pb.ServiceErrorResponse(
        detail=message,
        sub_status=error.sub_status,
        dispatch_task_error_reason=error.dispatch_reason,
    )
    worker = error.worker_error
    if worker is not None:
        details.original_worker_error_detail = _shorten(worker.detail, _LONGEST_TEXT)
        details.original_worker_error_type = _shorten(worker.error_type, _LONGEST_NAME)
        details.original_worker_error_status = worker.grpc_status
        room = _TRAILER_BYTES - details.ByteSize() - _written_size(message)
        details.original_worker_error_stack_trace = _shorten(worker.stack_trace, max(0, room))
    packed = PackedMessage()
    packed.Pack(details)
    return Status(code=error.code.value[0], message=message, details=[packed])


@asynccontextmanager
async def refusals_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn a `ServiceError` raised inside into the call's status."""
    try:
        yield
    except ServiceError as error:
        await context.abort_with_status(rpc_status.to_status(status_of(error)))


def _shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text of more than `limit` bytes: it says at its end what to do."""
    body = text.encode()
    if len(body) <= limit:
        return text
    half = (limit - len(_CUT)) // 2
    if half <= 0:
        return ""
    return body[:half].decode(errors="ignore") + _CUT + body[-half:].decode(errors="ignore")


def _written_size(message: str) -> int:
    """Return the bytes `message` takes as the call's message and once more inside the status."""
    body = message.encode()
    plain = sum(0x20 <= byte < 0x7F and byte != 0x25 for byte in body)
    return plain + 3 * (len(body) - plain) + len(body)
