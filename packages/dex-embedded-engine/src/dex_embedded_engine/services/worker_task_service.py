"""Owns `dex.WorkerTaskService`: the pull streams of Workers, as bytes on a connection.

Which task goes where is the kernel's business; here a stream is only read, written and ended.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeAlias

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.message import DecodeError

from dex_embedded_engine.errors import invalid_argument
from dex_embedded_engine.gateway import Gateway, WorkerConnection
from dex_embedded_engine.services.decoding import undecodable
from dex_embedded_engine.services.status import refusals_as_status

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_WORKER_ID = re.compile(r"[A-Za-z0-9._-]{1,63}")


class WorkerTaskService(dex_pb2_grpc.WorkerTaskServiceServicer):
    """Pull streams."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def PollWorkerTask(self, request_iterator: object, context: _Context) -> None:
        """Serve one stream of one Worker until either side ends it."""
        async with refusals_as_status(context):
            first = await _next_frame(context)
            if first is grpc.aio.EOF:
                return
            _check_register(first)
            connection = self._gateway.open_stream(first.register)
            orderly = False
            try:
                orderly = await _converse(connection, context)
            finally:
                connection.end(orderly=orderly)


async def _converse(connection: WorkerConnection, context: _Context) -> bool:
    """Carry frames both ways; tell whether the Worker closed its side and was alive after it."""
    writer = asyncio.create_task(_write(connection, context))
    reader = asyncio.create_task(_read(connection, context))
    try:
        await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
        is_closed = reader.done()
        if is_closed:
            # A killed Worker looks like one that half-closed, until something is written to it;
            # by the writer, for gRPC fails a call that writes two frames at once.
            ping = pb.PollWorkerTaskResponse(ping=pb.PollWorkerTaskPing())
            connection.outgoing.put_nowait(ping)
            connection.outgoing.put_nowait(None)
        await writer
        if is_closed:
            await reader
        return is_closed and not context.cancelled()
    except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        return False
    finally:
        for task in (writer, reader):
            task.cancel()
        await asyncio.gather(writer, reader, return_exceptions=True)


async def _write(connection: WorkerConnection, context: _Context) -> None:
    while (frame := await connection.outgoing.get()) is not None:
        await context.write(frame)


async def _read(connection: WorkerConnection, context: _Context) -> None:
    while (frame := await _next_frame(context)) is not grpc.aio.EOF:
        connection.take(frame)


async def _next_frame(context: _Context) -> Any:
    try:
        return await context.read()
    except DecodeError as error:
        raise undecodable("a frame of PollWorkerTask") from error


def _check_register(first: pb.PollWorkerTaskRequest) -> None:
    if first.WhichOneof("frame") != "register":
        raise invalid_argument("the first frame of a Worker stream must be `register`")
    register = first.register
    if _WORKER_ID.fullmatch(register.app_worker_id) is None:
        raise invalid_argument(
            f"app_worker_id {register.app_worker_id!r} must be 1 to 63 ASCII letters, digits, "
            f"dots, underscores or hyphens"
        )
    if not all(register.flow_types):
        raise invalid_argument("the register frame has an empty Flow type; give it a name")
    if register.queue != register.app_worker_id and register.queue not in register.flow_types:
        raise invalid_argument(
            f"queue {register.queue!r} is neither the app_worker_id nor a registered Flow type; "
            f"use one of them"
        )
