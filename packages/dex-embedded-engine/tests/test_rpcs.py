"""RPCs: on open and closed Flows, their effects, failures and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    Attribute,
    Channel,
    Context,
    DexServiceError,
    FlowNotActiveOrNotFoundError,
    IdReusePolicy,
    PersistenceSchema,
    RPCResult,
    StartFlowOptions,
    StepDecision,
    StepMovement,
    Wait,
    WorkerInvocationError,
    dead_end,
    force_complete,
    go_to,
    graceful_complete,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow, Second, guard
from grpc_status import rpc_status

color = Attribute("color", str)
total = Attribute("total", int)
inbox = Channel("inbox", str)


class Stage(ScriptedFlow):
    def get_flow_type(self) -> str:
        return "Stage"

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(color, total, inbox)

    @rpc(is_transactional=True)
    async def transact(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("transact", context, input)

    @rpc(lock_attributes=(total.lock(),))
    async def lock(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("lock", context, input)

    @rpc(timeout=timedelta(seconds=5))
    async def hurry(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("hurry", context, input)

    @rpc(timeout=timedelta(minutes=5))
    async def patient(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("patient", context, input)

    @rpc
    async def procedure(self, context: Context) -> None:
        await self.script.play("procedure", context, None)


class NewerStage(Stage):
    """The same Flow type with an RPC that older Workers do not know."""

    @rpc
    async def newer(self, context: Context, input: str) -> RPCResult[str]:
        return RPCResult(f"newer {input}")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        bench.on(First, lambda *_: go_to(Hold, ""))
        bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
        await bench.start()
        await bench.waiting("Hold-1")
        yield bench


def painting(bench: Bench, name: str = "ask") -> None:
    """Let the RPC write its input."""

    def paint(context: Any, input: str) -> RPCResult[str]:
        before = color.get(context)
        color.set(context, input)
        return RPCResult(before or "")

    bench.on_rpc(name, paint)


async def close(bench: Bench) -> None:
    await bench.client.stop_flow("flow")
    await bench.result()


# --- open and closed Flows ---------------------------------------------------------------------


async def test_handler_sees_where_it_runs(bench: Bench) -> None:
    """6.1.5, 6.1.6: no attempt, no Step."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        seen = [context.flow_id, context.attempt, context.step_execution_id]
        return RPCResult(str([*seen, context.run_id == input]))

    bench.on_rpc("ask", ask)
    run_id = (await bench.client.describe_flow("flow")).run_id
    assert await bench.call("ask", run_id) == "['flow', 0, '', True]"


async def test_rpc_without_effects_leaves_no_trace(bench: Bench) -> None:
    """11.2.2, 15.1, 11.2.8."""
    before = await bench.state(), await bench.history()
    assert await bench.call("ask", "hello") == "hello"
    assert await bench.call("procedure") is None
    assert (await bench.state(), await bench.history()) == before


async def test_effects_are_committed_before_the_answer(bench: Bench) -> None:
    """11.2.11: and the next RPC sees them; also after a restart."""
    painting(bench)
    for before, after in (("", "red"), ("red", "blue")):
        assert await bench.call("ask", after) == before
    await bench.restart()
    assert await bench.call("ask", "green") == "blue"


async def test_closed_flow_can_be_read_but_not_changed(bench: Bench) -> None:
    """11.2.2, 11.2.3: the handler of a writing RPC has run all the same."""
    await close(bench)
    assert await bench.call("ask", "hello") == "hello"
    for name in ("transact", "lock"):
        bench.on_rpc(name, lambda *_: bench.script.note("called"))
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await bench.call(name, "")
    assert bench.script.notes == []
    painting(bench)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.call("ask", "red")
    assert not (await bench.state()).attributes


@pytest.mark.parametrize("name", ["ask", "transact"])
async def test_flow_that_closes_during_an_rpc_is_not_changed(bench: Bench, name: str) -> None:
    """11.2.2, 18.4."""

    async def paint(context: Any, input: str) -> RPCResult[str]:
        color.set(context, input)
        bench.script.note("painting")
        await bench.script.gate("paint")
        return RPCResult("")

    bench.on_rpc(name, paint)
    calling = asyncio.create_task(bench.call(name, "red"))
    await bench.script.noted("painting")
    await close(bench)
    bench.script.open("paint")
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await calling
    assert not (await bench.state()).attributes


async def test_rpc_of_an_earlier_run_is_answered_by_that_run(bench: Bench) -> None:
    """11.2.1: by run id."""
    painting(bench)
    old = (await bench.client.describe_flow("flow")).run_id
    await bench.call("ask", "red")
    await close(bench)
    bench.on_rpc("ask", lambda context, input: RPCResult(color.get(context) or "nothing"))
    await bench.start(options=StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING))
    assert await bench.call("ask", "") == "nothing"
    assert await bench.call("ask", "", run_id=old) == "red"
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.call("ask", "", run_id="no such run")


# --- effects on Steps --------------------------------------------------------------------------


async def test_rpc_starts_steps(bench: Bench) -> None:
    """11.2.5, 6.1.3: after its Attributes are written; they know where they come from."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        color.set(context, input)
        return RPCResult("", (StepMovement.of(Second, "a"), StepMovement.of(Second, "b")))

    def second(context: Any, input: str) -> StepDecision:
        bench.script.note(f"{input} {color.get(context)} {context.from_step_execution_id}")
        return dead_end()

    bench.on_rpc("ask", ask)
    bench.on(Second, second)
    await bench.call("ask", "red")
    await bench.script.noted("a red __rpc/ask")
    await bench.script.noted("b red __rpc/ask")


async def test_transaction_is_all_or_nothing(bench: Bench) -> None:
    """11.2.3: a failing handler commits nothing; a good one everything at once."""

    def transact(context: Any, input: str) -> RPCResult[str]:
        color.set(context, "red")
        total.set(context, 7)
        inbox.publish(context, "message")
        if input == "fail":
            raise LookupError("no")
        return RPCResult("", (StepMovement.of(Second, ""),))

    bench.on_rpc("transact", transact)
    bench.on(Second, lambda context, _: force_complete([color.get(context), total.get(context)]))
    bench.on(Hold, lambda *_: dead_end())
    before = await bench.state()
    with pytest.raises(WorkerInvocationError):
        await bench.call("transact", "fail")
    assert await bench.state() == before
    await bench.call("transact", "commit")
    assert await bench.output(list[Any]) == ["red", 7]


async def test_step_may_call_an_rpc_of_its_own_flow_while_all_slots_are_busy(
    tmp_path: Path,
) -> None:
    """D10, 12.22: with more Steps queued than the Worker takes."""
    async with Bench(tmp_path, Stage, tasks=3) as bench:

        async def first(context: Any, input: str) -> StepDecision:
            bench.script.note("running")
            await bench.script.gate("first")
            answer = await bench.call("ask", f"from {input}", flow_id=context.flow_id)
            return graceful_complete(answer)

        bench.on(First, first)
        for number in range(6):
            await bench.start(f"flow {number}", str(number))
        await bench.script.noted("running", times=2)
        assert await bench.call("ask", "outside", flow_id="flow 5") == "outside"
        bench.script.open("first")
        for number in range(6):
            assert await bench.output(str, f"flow {number}") == f"from {number}"


# --- failures ----------------------------------------------------------------------------------


async def test_error_of_the_handler_reaches_the_caller(bench: Bench) -> None:
    """2.7, 11.2.6: type, detail and code; the RPC is not retried."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        bench.script.note("called")
        raise LookupError("the shelf is empty")

    bench.on_rpc("ask", ask)
    with pytest.raises(WorkerInvocationError) as error:
        await bench.call("ask", "")
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.worker_code is grpc.StatusCode.UNKNOWN
    assert error.value.worker_error_type == "builtins.LookupError"
    assert error.value.worker_error_detail == "the shelf is empty"
    assert "the shelf is empty" in error.value.detail
    assert bench.script.notes == ["called"]


@pytest.mark.parametrize(("name", "seconds"), [("ask", 60), ("hurry", 5), ("patient", 60)])
async def test_handler_that_takes_too_long_is_told_to_stop(
    bench: Bench, name: str, seconds: int
) -> None:
    """11.2.7: a minute by default, which is also the most."""

    async def slow(context: Any, input: str) -> RPCResult[str]:
        color.set(context, "red")
        bench.script.note("running")
        try:
            await bench.script.gate("never")
        except asyncio.CancelledError:
            bench.script.note("cancelled")
        return RPCResult("late")

    bench.on_rpc(name, slow)
    calling = asyncio.create_task(bench.call(name, ""))
    await bench.script.noted("running")
    bench.clock.advance(seconds - 1)
    await bench.state()
    assert not calling.done()
    bench.clock.advance(1)
    with pytest.raises(WorkerInvocationError, match="timeout"):
        await calling
    await bench.script.noted("cancelled")
    await bench.workers[0].stop()
    assert not (await bench.state()).attributes


async def test_rpc_without_a_worker_fails_after_the_dispatch_wait(bench: Bench) -> None:
    """12.33, 11.2.6: ten seconds; the message says what is missing."""
    await bench.workers[0].stop()
    calling = asyncio.create_task(bench.call("ask", ""))
    await bench.clock.alarm(10)
    bench.clock.advance(10)
    with pytest.raises(WorkerInvocationError) as error:
        await calling
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "no Worker took RPC 'ask' within 10 seconds" in error.value.detail
    assert "'Stage' is not connected" in error.value.detail
    assert error.value.worker_code is None


async def test_worker_that_comes_in_time_takes_the_rpc(bench: Bench) -> None:
    """12.33."""
    await bench.workers[0].stop()
    calling = asyncio.create_task(bench.call("ask", "hello"))
    await bench.clock.alarm(10)
    bench.clock.advance(9)
    await bench.add_worker()
    assert await calling == "hello"


async def test_rpc_that_a_full_worker_does_not_take_fails(tmp_path: Path) -> None:
    """12.33: every slot is busy with RPCs."""
    async with Bench(tmp_path, Stage, tasks=2) as bench:

        async def ask(context: Any, input: str) -> RPCResult[str]:
            bench.script.note("running")
            await bench.script.gate("ask")
            return RPCResult(input)

        bench.on(First, lambda *_: dead_end())
        bench.on_rpc("ask", ask)
        await bench.start()
        calls = [asyncio.create_task(bench.call("ask", text)) for text in "ab"]
        await bench.script.noted("running", times=2)
        third = asyncio.create_task(bench.call("ask", "c"))
        while not third.done():
            bench.clock.advance(10)
            await bench.state()
        with pytest.raises(WorkerInvocationError, match="is busy"):
            await third
        bench.script.open("ask")
        assert await asyncio.gather(*calls) == ["a", "b"]


async def test_rpc_that_no_worker_knows_fails_with_its_name(bench: Bench) -> None:
    """12.21, 12.33: after the dispatch wait, for another Worker may know it."""
    newer: Any = NewerStage(bench.script)
    client = bench.make_client(bench.make_registry(newer))
    try:
        calling = asyncio.create_task(client.invoke_rpc(newer.newer, "flow", "a"))
        await bench.clock.alarm(10)
        bench.clock.advance(10)
        with pytest.raises(WorkerInvocationError, match="'Stage' knows RPC 'newer'"):
            await guard(calling)
        await bench.add_worker(bench.make_registry(newer))
        assert await guard(client.invoke_rpc(newer.newer, "flow", "b")) == "newer b"
    finally:
        await client.close()


async def test_restart_during_an_rpc_fails_the_call_and_commits_nothing(bench: Bench) -> None:
    """12.27, 17.5."""

    async def ask(context: Any, input: str) -> RPCResult[str]:
        color.set(context, input)
        bench.script.note("running")
        await bench.script.gate("never")
        return RPCResult("")

    bench.on_rpc("ask", ask)
    client = bench.make_client()
    calling = asyncio.create_task(client.invoke_rpc(bench.flow.ask, "flow", "red"))
    await bench.script.noted("running")
    await bench.restart()
    with pytest.raises(DexServiceError) as error:
        await guard(calling)
    assert error.value.code is grpc.StatusCode.UNAVAILABLE
    await client.close()
    assert not (await bench.state()).attributes


async def test_worker_that_goes_away_during_an_rpc_fails_the_call(bench: Bench) -> None:
    """12.27, 12.28: WORKER_DISCONNECTED."""

    async def ask(context: Any, input: str) -> RPCResult[str]:
        bench.script.note("running")
        await bench.script.gate("never")
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.workers[0].stop()
    hasty = await bench.add_worker(stop_drain_timeout=timedelta(milliseconds=1))
    request = pb.InvokeRPCRequest(flow_id="flow", rpc_name="ask", input=pb.Value(string_value=""))
    calling = asyncio.create_task(guard(bench.service.InvokeRPC(request)))
    await bench.script.noted("running")
    await hasty.stop()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await calling
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    failed_call: Any = error.value
    status = rpc_status.from_call(failed_call)
    details = pb.ServiceErrorResponse()
    assert status is not None
    assert status.details[0].Unpack(details)
    reason = details.dispatch_task_error_reason
    assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
