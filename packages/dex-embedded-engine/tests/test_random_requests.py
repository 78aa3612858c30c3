"""Requests and Worker results made at random: the engine judges them all and never stumbles."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_messages import any_of, channel, dead_end, force_complete, go_to, move, to_value
from engine_wire import GUARD, HandWorker, Wire, good_start
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from dex_embedded_engine import EmbeddedEngine, EngineSettings

FORBIDDEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE}
ALWAYS_START = pb.FlowStartOptions(
    id_reuse_policy=pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING,
)
GOOD: dict[str, Any] = {
    "StartFlow": good_start("new"),
    "InvokeRPC": pb.InvokeRPCRequest(flow_id="open", rpc_name="ask", input=to_value(1)),
    "WriteStream": pb.WriteStreamRequest(
        flow_id="open",
        flow_type="Hand",
        stream_name="s",
        source="me",
        value=to_value("x"),
        stream_capacity_bytes=10_000,
    ),
    "StopFlow": pb.StopFlowRequest(flow_id="open", stop_type=pb.STOP_TYPE_CANCEL),
    "GetHistoryEvents": pb.GetHistoryEventsRequest(flow_id="open", start_internal_event_id=1),
    "LoadBlobs": pb.LoadBlobsRequest(entries=[pb.LoadBlobRequestEntry(flow_id="open")]),
    "ReadStream": pb.ReadStreamRequest(flow_id="open", flow_type="Hand", stream_name="s"),
    "ListStreamMessages": pb.ListStreamMessagesRequest(
        flow_id="open", flow_type="Hand", stream_name="s", page_size=1
    ),
}
GOOD["StartFlow"].flow_start_options.CopyFrom(ALWAYS_START)
TEXTS = ["", "a", "open", "new", "S", "T", "map/entry", "\0", "ä\n%", "json", "raw", "x" * 3000]
WHOLE = [0, 1, -1, 5, 60, 2**31 - 1, -(2**31)]
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.sampled_from(TEXTS),
    FieldDescriptor.TYPE_BYTES: st.sampled_from([b"", b"\xff", b"null", b"y" * 3000]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: st.sampled_from(WHOLE),
    FieldDescriptor.TYPE_INT64: st.sampled_from([*WHOLE, 2**63 - 1, -(2**63)]),
    FieldDescriptor.TYPE_FLOAT: st.sampled_from([0.0, 1.5, -1.0, math.nan, math.inf]),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, 1e300, math.nan, -math.inf]),
}
DEEPEST = 6


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 0) -> Any:
    """Make a message with some of its fields set to anything their type allows."""
    message = GetMessageClass(descriptor)()
    fields = list(descriptor.fields)
    if depth > DEEPEST or not fields:
        return message
    for field in draw(st.lists(st.sampled_from(fields), max_size=4)):
        content = contents(field, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            drawn: Any = draw(st.lists(content, max_size=2))
        else:
            drawn = draw(content)
        message.MergeFrom(type(message)(**{field.name: drawn}))
    return message


def contents(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Say what may stand in a field, or in one place of a repeated field."""
    if field.message_type is not None:
        return messages(field.message_type, depth + 1)
    if field.enum_type is not None:
        return st.sampled_from([*field.enum_type.values_by_number, 99])
    return SCALARS[field.type]


@st.composite
def torn(draw: st.DrawFn, whole: bytes) -> bytes:
    """Overwrite, cut out or double a part of good bytes."""
    start = draw(st.integers(0, len(whole)))
    end = draw(st.integers(start, min(len(whole), start + 8)))
    return whole[:start] + draw(st.binary(max_size=8)) + whole[end:]


def requests(method: str) -> st.SearchStrategy[bytes]:
    """Make requests of a method: noise, torn good ones, and good ones with random fields."""
    good = GOOD[method]
    whole = good.SerializeToString()

    def merged(extra: Message) -> bytes:
        request = type(good)()
        request.CopyFrom(good)
        request.MergeFrom(extra)
        return bytes(request.SerializeToString())

    return st.one_of(st.binary(max_size=200), torn(whole), messages(good.DESCRIPTOR).map(merged))


class Bench:
    """An engine and a connection on a loop that stands still between examples."""

    def __init__(self, data_dir: Path, runner: asyncio.Runner) -> None:
        self._data_dir = data_dir
        self._runner = runner
        self._stack = AsyncExitStack()
        self.wire: Wire

    def run(self, work: Awaitable[Any]) -> Any:
        async def guarded() -> Any:
            return await asyncio.wait_for(work, GUARD)

        return self._runner.run(guarded())

    async def start(self) -> None:
        numbers = EngineSettings(shutdown_grace=0, long_poll_wait=0.001)
        engine = EmbeddedEngine(self._data_dir, durability="process-crash-safe", settings=numbers)
        await self._stack.enter_async_context(engine)
        self.wire = await self._stack.enter_async_context(Wire(engine.address))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def attend(self) -> None:
        """Have a Worker answer every task, until the engine or the test ends."""
        worker = await self._stack.enter_async_context(HandWorker(self.wire))
        answering = asyncio.create_task(_answer_all(worker))
        self._stack.callback(answering.cancel)

    async def judge(self, call: Awaitable[Any]) -> Any:
        """Await an answer or a refusal that blames the caller; the engine goes on after it."""
        answer = None
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            assert error.code() not in FORBIDDEN, error
        await self.wire.flows.HealthCheck(Empty())
        return answer

    async def look_at_everything(self) -> None:
        """Read every Flow by every request that looks at Flows."""
        for flow_id in (text for text in TEXTS if text):
            target: dict[str, Any] = {"flow_id": flow_id}
            await self.judge(self.wire.flows.GetFlowSummary(pb.GetFlowSummaryRequest(**target)))
            await self.judge(self.wire.flows.GetFlowState(pb.GetFlowStateRequest(**target)))
            await self.judge(self.wire.flows.GetHistoryEvents(pb.GetHistoryEventsRequest(**target)))

    async def serve_a_flow(self) -> None:
        """Take a Flow from its start to its end."""
        async with HandWorker(self.wire, "Good") as worker:
            await self.wire.start("good", flow_type="Good")
            await worker.task()
            await worker.execute(step_decision=force_complete())
            assert (await self.wire.result("good")).flow_status == pb.FLOW_STATUS_COMPLETED


async def _answer_all(worker: HandWorker) -> None:
    while True:
        task = await worker.task()
        if task.WhichOneof("request") == "rpc":
            await worker.answer(rpc=pb.InvokeWorkerRPCResponse(output=task.rpc.input))
        elif task.WhichOneof("request") == "execute":
            await worker.execute(step_decision=dead_end())
        else:
            await worker.wait_for()


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        bench = Bench(tmp_path / "data", runner)
        bench.run(bench.start())
        bench.run(bench.wire.start("open"))
        yield bench
        bench.run(bench.stop())
    # A Flow that the engine failed by a mistake of its own would be logged.
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@contextmanager
def holds_afterwards(bench: Bench) -> Iterator[None]:
    """Check that what was stored can be read, now and by the next engine, and a Flow is served."""
    yield
    bench.run(bench.look_at_everything())
    bench.run(bench.stop())
    bench.run(bench.start())
    bench.run(bench.look_at_everything())
    bench.run(bench.serve_a_flow())


@pytest.mark.parametrize("method", GOOD)
def test_no_random_request_is_a_failure_of_the_engine(method: str, bench: Bench) -> None:
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(requests(method))
    def judge(body: bytes) -> None:
        bench.run(bench.judge(bench.wire.send_bytes("FlowService", method, body)))

    bench.run(bench.attend())
    with holds_afterwards(bench):
        judge()


def results(good: Message) -> st.SearchStrategy[Message]:
    """Make frames of a method: any, and good results with random fields."""
    part = type(good).DESCRIPTOR.fields_by_name["result"]

    def merged(extra: Message) -> Message:
        frame = type(good)()
        frame.CopyFrom(good)
        frame.MergeFrom(type(good)(result=extra))
        return frame

    return st.one_of(messages(good.DESCRIPTOR), messages(part.message_type).map(merged))


RESULTS: dict[str, Any] = {
    "wait_for": pb.InvokeWaitForMethodOutput(
        result=pb.InvokeWaitForMethodResponse(waiting_condition=any_of(channel("c", "x")))
    ),
    "execute": pb.InvokeExecuteMethodOutput(
        result=pb.InvokeExecuteMethodResponse(step_decision=go_to(move("T")))
    ),
}


@pytest.mark.parametrize("kind", ["wait_for", "execute"])
def test_no_random_worker_result_stops_the_engine(kind: str, bench: Bench) -> None:
    async def answer(output: Message) -> None:
        request = good_start("new")
        request.flow_start_options.CopyFrom(ALWAYS_START)
        request.step_options.skip_wait_for = kind == "execute"
        await bench.wire.flows.StartFlow(request)
        async with HandWorker(bench.wire) as worker:
            while (await worker.task()).WhichOneof("request") != kind:
                await worker.execute(step_decision=force_complete())
            await worker.answer(**{kind: output})
            await worker.answer(worker_error=pb.WorkerErrorResponse(detail="no"))
        state = pb.GetFlowStateRequest(flow_id="new")
        await bench.judge(bench.wire.flows.GetFlowState(state))

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(results(RESULTS[kind]))
    def judge(output: Message) -> None:
        bench.run(answer(output))

    with holds_afterwards(bench):
        judge()


def test_no_random_rpc_result_stops_the_engine(bench: Bench) -> None:
    good = pb.InvokeWorkerRPCResponse(output=to_value(1))

    async def answer(extra: pb.InvokeWorkerRPCResponse) -> None:
        result = pb.InvokeWorkerRPCResponse()
        result.CopyFrom(good)
        result.MergeFrom(extra)
        async with HandWorker(bench.wire, "Asked") as worker:
            call = bench.wire.flows.InvokeRPC(
                pb.InvokeRPCRequest(flow_id="new", rpc_name="ask", input=to_value(1))
            )
            while (await worker.task()).WhichOneof("request") != "rpc":
                await worker.execute(step_decision=pb.StepDecision())
            await worker.answer(rpc=result)
            await bench.judge(call)

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(messages(good.DESCRIPTOR))
    def judge(extra: pb.InvokeWorkerRPCResponse) -> None:
        bench.run(answer(extra))

    start = pb.StartFlowRequest(flow_id="new", flow_type="Asked", request_id="r")
    bench.run(bench.wire.flows.StartFlow(start))
    with holds_afterwards(bench):
        judge()
