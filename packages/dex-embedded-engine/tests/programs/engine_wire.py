"""Owns talking to an engine below the SDK: raw stubs, refusals as the SDK reads them, a Worker
that is spoken by hand, and what stands in the database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from engine_messages import to_value
from grpc_status import rpc_status

GUARD = 20.0
UNCATEGORIZED = pb.ERROR_SUB_STATUS_UNCATEGORIZED
SERVICES = ("FlowService", "WorkerTaskService")


@dataclass(frozen=True)
class Refusal:
    """What a caller gets in the place of an answer."""

    code: grpc.StatusCode
    sub_status: pb.ErrorSubStatus
    detail: str
    error: pb.ServiceErrorResponse


class Wire:
    """A channel to an engine, and stubs on it.

    Args:
        address: the engine's gRPC target.
    """

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.flows: Any = dex_pb2_grpc.FlowServiceStub(self.channel)
        self.tasks: Any = dex_pb2_grpc.WorkerTaskServiceStub(self.channel)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.channel.close()

    async def start(self, flow_id: str, **fields: Any) -> str:
        """Start a Flow of type "Hand" with one Step "S", and return the run id."""
        request = good_start(flow_id)
        request.MergeFrom(pb.StartFlowRequest(**fields))
        return str((await self.flows.StartFlow(request)).run_id)

    async def result(self, flow_id: str) -> pb.FlowResult:
        """Wait until the Flow has closed."""
        request = pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True)
        result: pb.FlowResult = await asyncio.wait_for(self.flows.WaitForFlow(request), GUARD)
        return result

    async def poll(self, *frames: pb.PollWorkerTaskRequest) -> pb.PollWorkerTaskResponse:
        """Open a Worker stream, send `frames`, and return the first frame that comes back."""
        call = self.tasks.PollWorkerTask()
        try:
            for frame in frames:
                await call.write(frame)
            answer: pb.PollWorkerTaskResponse = await asyncio.wait_for(call.read(), GUARD)
            return answer
        finally:
            call.cancel()

    async def send_bytes(self, service: str, method: str, body: bytes) -> bytes:
        """Call a method with a request that is not serialized, and return the answer like it."""
        path = f"/dex.{service}/{method}"
        if service == "FlowService":
            unary: Any = self.channel.unary_unary(path)
            return bytes(await asyncio.wait_for(unary(body), GUARD))
        call: Any = self.channel.stream_stream(path)()
        try:
            await call.write(body)
            return bytes(await asyncio.wait_for(call.read(), GUARD))
        finally:
            call.cancel()


class HandWorker:
    """A Worker stream spoken by hand: one task at a time, answered with whatever the test says.

    Args:
        wire: to the engine.
        flow_type: the queue it serves.
    """

    def __init__(self, wire: Wire, flow_type: str = "Hand", worker_id: str = "hand") -> None:
        self._call = wire.tasks.PollWorkerTask()
        self._register = pb.PollWorkerTaskRegister(
            queue=flow_type, app_worker_id=worker_id, flow_types=[flow_type]
        )
        self._task_id = ""

    async def __aenter__(self) -> HandWorker:
        await self.send(register=self._register)
        frame = await self.read()
        assert frame.WhichOneof("frame") == "registered", frame
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call.cancel()

    async def task(self) -> pb.PollWorkerTask:
        """Wait for the next task."""
        while (frame := await self.read()).WhichOneof("frame") != "task":
            pass
        self._task_id = frame.task.task_id
        return frame.task

    async def answer(self, **output: Any) -> None:
        """Send one frame of the current task: ``execute=``, ``wait_for=``, ``rpc=`` and so on."""
        await self.send(task_frame=pb.PollWorkerTaskFrame(task_id=self._task_id, **output))

    async def execute(self, **result: Any) -> None:
        """Answer the current task with an execute result."""
        output = pb.InvokeExecuteMethodOutput(result=pb.InvokeExecuteMethodResponse(**result))
        await self.answer(execute=output)

    async def wait_for(self, **result: Any) -> None:
        """Answer the current task with a wait_for result."""
        output = pb.InvokeWaitForMethodOutput(result=pb.InvokeWaitForMethodResponse(**result))
        await self.answer(wait_for=output)

    async def send(self, **frame: Any) -> None:
        """Send a frame."""
        await self._call.write(pb.PollWorkerTaskRequest(**frame))

    async def read(self) -> pb.PollWorkerTaskResponse:
        """Return the next frame of the engine."""
        frame: Any = await asyncio.wait_for(self._call.read(), GUARD)
        assert frame is not grpc.aio.EOF, "the engine ended the Worker's stream"
        assert isinstance(frame, pb.PollWorkerTaskResponse)
        return frame


async def refusal_of(call: Awaitable[Any]) -> Refusal:
    """Await a call that is refused, and read the refusal as the SDK does."""
    try:
        answer = await asyncio.wait_for(call, GUARD)
    except grpc.aio.AioRpcError as error:
        return read_refusal(error)
    raise AssertionError(f"the call was answered: {answer!r}")


def read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """Read a refusal; fails unless the details say the same as the call."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # raises when they differ
    assert status is not None, f"no details: {error}"
    details = pb.ServiceErrorResponse()
    assert status.details[0].Unpack(details)
    assert details.detail == error.details()
    return Refusal(error.code(), details.sub_status, details.detail, details)


def good_start(flow_id: str) -> pb.StartFlowRequest:
    """Start a Flow of type "Hand" whose Step "S" has no wait_for."""
    return pb.StartFlowRequest(
        flow_id=flow_id,
        flow_type="Hand",
        request_id=f"request of {flow_id}",
        start_step_type="S",
        step_input=to_value(1),
        step_options=pb.StepOptions(skip_wait_for=True),
        flow_start_options=pb.FlowStartOptions(),
    )


def served_methods() -> list[tuple[str, str]]:
    """Name every method of the services for Clients and Workers: (service, method)."""
    return [
        (service, method.name)
        for service in SERVICES
        for method in pb.DESCRIPTOR.services_by_name[service].methods
    ]


def spoil(message: Any, path: str, content: Any) -> None:
    """Put `content` into the field at the dotted `path`; None clears it."""
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    if content is None:
        message.ClearField(name)
    elif isinstance(content, list | dict):
        message.ClearField(name)
        message.MergeFrom(type(message)(**{name: content}))
    elif hasattr(content, "CopyFrom"):
        getattr(message, name).CopyFrom(content)
    else:
        setattr(message, name, content)


def everything_stored(data_dir: Path) -> dict[str, list[tuple[object, ...]]]:
    """Read every row of every table but the one of the engine's own counters."""
    with closing(sqlite3.connect(f"file:{data_dir}/engine.sqlite3?mode=ro", uri=True)) as database:
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        names = sorted(name for (name,) in tables if name not in ("meta", "sqlite_sequence"))
        return {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
