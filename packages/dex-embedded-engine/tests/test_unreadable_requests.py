"""Requests that never reach an operation: bytes that are no message, methods that are not served,
messages that are too large, Worker streams that begin wrongly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_messages import graceful, to_value
from engine_wire import (
    GUARD,
    UNCATEGORIZED,
    HandWorker,
    Wire,
    good_start,
    read_refusal,
    refusal_of,
    served_methods,
)
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine import EmbeddedEngine, EngineSettings

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LIMIT = 20_000
UNREADABLE = {
    "half a varint": b"\xff",
    "an unknown wire type": b"\x0f\x00",
    "a length beyond the end": b"\x0a\x7fabc",
    "text that is not UTF-8": b"\x0a\x02\xff\xfe",
    "groups without end": b"\x0b" * 200,
}
ANSWERED_WHEN_EMPTY = {
    "GetServerInfo",
    "HealthCheck",
    "SyncAttributeIndexes",
    "LoadBlobs",
    "SearchFlows",
}
REGISTER = pb.PollWorkerTaskRegister(queue="Hand", app_worker_id="hand", flow_types=["Hand"])
FIRST_FRAMES: dict[str, tuple[pb.PollWorkerTaskRequest, str]] = {
    "nothing": (pb.PollWorkerTaskRequest(), "first frame of a Worker stream must be `register`"),
    "a pong": (pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong()), "must be `register`"),
    "a rejection": (pb.PollWorkerTaskRequest(reject=pb.PollWorkerTaskReject()), "`register`"),
    "a result": (pb.PollWorkerTaskRequest(task_frame=pb.PollWorkerTaskFrame()), "`register`"),
}
BAD_REGISTERS: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"app_worker_id": ""}, "app_worker_id '' must be 1 to 63 ASCII letters"),
    "a long id": ({"app_worker_id": "w" * 64}, "must be 1 to 63 ASCII letters"),
    "a space": ({"app_worker_id": "a b"}, "app_worker_id 'a b' must be 1 to 63 ASCII letters"),
    "a line end": ({"app_worker_id": "ab\n"}, r"app_worker_id 'ab\n' must be 1 to 63"),
    "not ASCII": ({"app_worker_id": "wörk"}, "app_worker_id 'wörk' must be 1 to 63 ASCII"),
    "no queue": ({"queue": ""}, "queue '' is neither the app_worker_id nor a registered Flow"),
    "a foreign queue": ({"queue": "Other"}, "queue 'Other' is neither the app_worker_id nor"),
    "a nameless type": ({"flow_types": [""], "queue": ""}, "has an empty Flow type; give it"),
}


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    settings = EngineSettings(receive_limit=LIMIT, dispatch_wait=0.01, retry_initial_interval=0.01)
    async with (
        EmbeddedEngine(
            tmp_path / "data", durability="process-crash-safe", settings=settings
        ) as engine,
        Wire(engine.address) as wire,
    ):
        yield wire


async def read_to_the_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def serves_a_flow(wire: Wire, flow_id: str = "good") -> None:
    await wire.start(flow_id)
    async with HandWorker(wire) as worker:
        await worker.task()
        await worker.execute(step_decision=graceful())
        assert (await wire.result(flow_id)).flow_status == pb.FLOW_STATUS_COMPLETED


@pytest.mark.parametrize(("service", "method"), served_methods())
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    service: str, method: str, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    readable = {"text that is not UTF-8"} if method in ("GetServerInfo", "HealthCheck") else set()
    for name in UNREADABLE.keys() - readable:
        refusal = await refusal_of(wire.send_bytes(service, method, UNREADABLE[name]))
        if refusal.code is not grpc.StatusCode.UNIMPLEMENTED:
            assert (refusal.code, refusal.sub_status) == (INVALID, UNCATEGORIZED), name
            assert f"of {method} cannot be decoded; send the message" in refusal.detail
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    await wire.flows.HealthCheck(Empty())


@pytest.mark.parametrize("method", [name for service, name in served_methods() if "F" in service])
async def test_an_empty_request_is_answered_or_refused_with_details(
    method: str, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    call = wire.send_bytes("FlowService", method, b"")
    try:
        await call
        assert method in ANSWERED_WHEN_EMPTY
    except grpc.aio.AioRpcError as error:
        refusal = read_refusal(error)
        assert refusal.code in (INVALID, grpc.StatusCode.UNIMPLEMENTED)
        if refusal.code is grpc.StatusCode.UNIMPLEMENTED:
            advice = "is not served by the embedded engine; use a Dex Server for it"
            assert refusal.detail == f"{method} {advice}"
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("path", ["/dex.FlowService/Nothing", "/dex.MatchingService/AddTask"])
async def test_a_method_that_the_protocol_does_not_serve_here_is_unimplemented(
    path: str, wire: Wire
) -> None:
    unary: Any = wire.channel.unary_unary(path)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(unary(b""), GUARD)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_request_above_the_receive_limit_is_refused_and_the_engine_goes_on(
    wire: Wire,
) -> None:
    body = b"\x0a" + bytes(LIMIT)
    outcomes = await asyncio.gather(
        *(wire.send_bytes(service, method, body) for service, method in served_methods()),
        return_exceptions=True,
    )
    for outcome in outcomes:
        assert isinstance(outcome, grpc.aio.AioRpcError), outcome
        assert outcome.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LIMIT) in (outcome.details() or "")
    await serves_a_flow(wire)


async def test_a_frame_above_the_receive_limit_loses_one_attempt_of_one_flow(wire: Wire) -> None:
    options = pb.StepOptions(execute_retry_policy=pb.RetryPolicy(maximum_attempts=1))
    await wire.start("large", step_options=options)
    async with HandWorker(wire) as worker:
        await worker.task()
        await worker.execute(
            upsert_attributes=[pb.AttributeWrite(key="a", value=to_value("x" * LIMIT))]
        )
        result = await wire.result("large")
    assert result.error_type == pb.FLOW_ERROR_TYPE_WORKER_API_FAIL
    assert result.error_message == "Worker 'hand' disconnected during the call"
    await serves_a_flow(wire)


@pytest.mark.parametrize("size", [1000, 3000, 8000, LIMIT - 100])
@pytest.mark.parametrize("letter", ["x", "ä", "\n", "%", "\U0001f600"])
async def test_a_refusal_that_quotes_a_long_name_still_reaches_the_caller(
    letter: str, size: int, wire: Wire
) -> None:
    flow_id = letter * (size // len(letter.encode()))
    refusal = await refusal_of(wire.flows.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=flow_id)))
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert refusal.sub_status == pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS
    assert refusal.detail.startswith("Flow '")
    assert refusal.detail.endswith("' does not exist")


@pytest.mark.parametrize("frame", FIRST_FRAMES)
async def test_a_worker_stream_must_begin_with_register(frame: str, wire: Wire) -> None:
    first, phrase = FIRST_FRAMES[frame]
    refusal = await refusal_of(wire.poll(first))
    assert (refusal.code, refusal.sub_status) == (INVALID, UNCATEGORIZED)
    assert phrase in refusal.detail
    await serves_a_flow(wire)


@pytest.mark.parametrize("problem", BAD_REGISTERS)
async def test_a_register_frame_with_a_bad_name_is_refused(problem: str, wire: Wire) -> None:
    fields, phrase = BAD_REGISTERS[problem]
    register = pb.PollWorkerTaskRegister(
        **{"queue": "Hand", "app_worker_id": "hand", "flow_types": ["Hand"], **fields}
    )
    refusal = await refusal_of(wire.poll(pb.PollWorkerTaskRequest(register=register)))
    assert (refusal.code, refusal.sub_status) == (INVALID, UNCATEGORIZED)
    assert phrase in refusal.detail
    await serves_a_flow(wire)


async def test_a_worker_may_serve_its_own_queue_and_names_of_63_letters(wire: Wire) -> None:
    name = "A-z_0.9" * 9
    register = pb.PollWorkerTaskRegister(queue=name, app_worker_id=name, flow_types=["Hand"])
    answer = await wire.poll(pb.PollWorkerTaskRequest(register=register))
    assert answer.WhichOneof("frame") == "registered"


async def test_an_unreadable_frame_ends_the_stream_and_the_task_goes_to_another_worker(
    wire: Wire,
) -> None:
    await wire.start("torn")
    stream: Any = wire.channel.stream_stream("/dex.WorkerTaskService/PollWorkerTask")()
    await stream.write(pb.PollWorkerTaskRequest(register=REGISTER).SerializeToString())
    await asyncio.wait_for(stream.read(), GUARD)
    task = pb.PollWorkerTaskResponse.FromString(await asyncio.wait_for(stream.read(), GUARD))
    assert task.task.execute.context.attempt == 1
    await stream.write(b"\xff")
    refusal = await refusal_of(read_to_the_end(stream))
    assert (refusal.code, refusal.sub_status) == (INVALID, UNCATEGORIZED)
    assert refusal.detail.startswith("a frame of PollWorkerTask cannot be decoded")
    async with HandWorker(wire) as worker:
        assert (await worker.task()).execute.context.attempt == 2


async def test_frames_that_answer_no_task_are_ignored(wire: Wire) -> None:
    async with HandWorker(wire) as worker:
        await worker.execute(step_decision=pb.StepDecision())
        await worker.send()
        await worker.send(register=REGISTER)
        await worker.send(reject=pb.PollWorkerTaskReject(task_id="nobody's"))
        await wire.start("calm")
        task = await worker.task()
        await worker.send(task_frame=pb.PollWorkerTaskFrame(task_id="nobody's"))
        assert task.execute.context.flow_id == "calm"
        await worker.execute(step_decision=graceful())
        assert (await wire.result("calm")).flow_status == pb.FLOW_STATUS_COMPLETED


async def test_an_rpc_that_no_worker_takes_says_so(wire: Wire) -> None:
    await wire.flows.StartFlow(good_start("alone"))
    request = pb.InvokeRPCRequest(flow_id="alone", rpc_name="ask", input=to_value(1))
    refusal = await refusal_of(wire.flows.InvokeRPC(request))
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.sub_status == pb.ERROR_SUB_STATUS_WORKER_API_ERROR
    reason = refusal.error.dispatch_task_error_reason
    assert reason == pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE
    assert "no Worker took RPC 'ask' within 0.01 seconds" in refusal.detail
