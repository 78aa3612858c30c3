"""Starting, describing, awaiting and stopping Flows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    Attribute,
    DexServiceError,
    FlowAlreadyStartedError,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    IdReusePolicy,
    LongPollTimeoutError,
    PersistenceSchema,
    RPCResult,
    StartFlowOptions,
    StepList,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    StopType,
    force_fail,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, ScriptedFlow, guard

color = Attribute("color", str)
shape = Attribute("shape", str)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(color, shape)


class Bare(ScriptedFlow):
    """Without a starting Step."""

    def get_steps(self) -> StepList[str]:
        return StepList.without_start_step(First(self.script))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, Bare) as bench:
        yield bench


# --- starting ----------------------------------------------------------------------------------


async def test_flow_starts_without_a_worker_and_goes_on_when_one_comes(tmp_path: Path) -> None:
    """3.7, 3.16: a start needs no Worker; every run has an id of its own."""
    async with Bench(tmp_path, Stage, has_worker=False) as bench:
        assert await bench.start("a", "1") != await bench.start("b", "2")
        await bench.add_worker()
        assert await bench.output(str, "a") == "1"
        assert await bench.output(str, "b") == "2"


STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELED", "TERMINATED")
STARTS = {
    IdReusePolicy.DEFAULT: (),
    IdReusePolicy.DISALLOW: (),
    IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED: STATES[2:],
    IdReusePolicy.ALLOW_IF_NOT_RUNNING: STATES[1:],
    IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING: STATES,
}


async def bring_to(bench: Bench, state: str, flow_id: str = "flow", **options: Any) -> str:
    """Start a Flow and bring it into the state; return its run id."""

    async def first(context: Any, input: str) -> Any:
        if input == "FAILED":
            return force_fail("no")
        if input in ("RUNNING", "CANCELED", "TERMINATED"):
            await bench.script.gate("never")
        return graceful_complete(input)

    bench.on(First, first)
    run_id = await bench.start(flow_id, state, **options)
    if state in ("CANCELED", "TERMINATED"):
        kind = StopType.CANCEL if state == "CANCELED" else StopType.TERMINATE
        await bench.client.stop_flow(flow_id, StopFlowOptions(kind))
    if state != "RUNNING":
        assert (await bench.result(flow_id)).status.name == state
    return run_id


@pytest.mark.parametrize("policy", STARTS, ids=lambda policy: policy.value)
async def test_used_flow_id_may_be_used_again_as_its_policy_says(
    bench: Bench, policy: IdReusePolicy
) -> None:
    """3.8: the table of policies and states of the latest run."""
    for state in STATES:
        old = await bring_to(bench, state, f"flow-{state}")
        options = StartFlowOptions(id_reuse_policy=policy)
        if state not in STARTS[policy]:
            with pytest.raises(FlowAlreadyStartedError) as refusal:
                await bench.start(f"flow-{state}", "new", options)
            assert refusal.value.code is grpc.StatusCode.ALREADY_EXISTS
            assert (await bench.client.describe_flow(f"flow-{state}")).run_id == old
            continue
        new = await bench.start(f"flow-{state}", "new", options)
        assert new != old
        assert await bench.output(str, f"flow-{state}") == "new"
        assert (await bench.client.describe_flow(f"flow-{state}")).run_id == new


async def test_running_run_is_terminated_when_its_id_is_taken_over(bench: Bench) -> None:
    """3.8, 4.9: the old run is TERMINATED and still there under its run id."""
    old = await bring_to(bench, "RUNNING")
    policy = IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING
    await bench.start(input="new", options=StartFlowOptions(id_reuse_policy=policy))
    request = pb.GetFlowSummaryRequest(flow_id="flow", run_id=old)
    summary = await bench.service.GetFlowSummary(request)
    assert summary.flow_status == pb.FLOW_STATUS_TERMINATED
    assert await bench.output(str) == "new"


async def test_handler_of_a_run_that_was_taken_over_changes_nothing_in_the_next(
    bench: Bench,
) -> None:
    """3.8, 4.8, 12.38."""

    async def first(context: Any, input: str) -> Any:
        seen = color.get(context)
        color.set(context, input)
        bench.script.note(input)
        try:
            await bench.script.gate(input)
        except asyncio.CancelledError:
            bench.script.note("cancelled")
        return graceful_complete([input, seen])

    bench.on(First, first)
    await bench.start(input="old")
    await bench.script.noted("old")
    policy = IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING
    await bench.start(input="new", options=StartFlowOptions(id_reuse_policy=policy))
    await bench.script.noted("cancelled")
    bench.script.open("new")
    assert await bench.output(list[Any]) == ["new", None]
    assert (await bench.state()).attributes[0].value.string_value == "new"


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
async def test_repeated_start_answers_with_the_run_it_started(bench: Bench, state: str) -> None:
    """3.9: with ignore_already_started and the same request id, whatever the input."""
    options = StartFlowOptions(request_id="r1", ignore_already_started=True)
    run_id = await bring_to(bench, state, options=options)
    assert await bench.start(input="other", options=options) == run_id
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=StartFlowOptions(request_id="r1"))
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=StartFlowOptions(ignore_already_started=True, request_id="r2"))
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=StartFlowOptions(ignore_already_started=True))


async def test_starts_that_race_with_the_same_request_id_start_one_run(bench: Bench) -> None:
    """3.9, 18.5."""
    bench.on(First, lambda context, input: graceful_complete(input))
    options = StartFlowOptions(request_id="r1", ignore_already_started=True)
    starts = (bench.start(input="once", options=options) for _ in range(20))
    assert len(set(await asyncio.gather(*starts))) == 1
    assert await bench.output(str) == "once"


async def test_repeated_request_id_starts_another_run_where_the_policy_allows_it(
    bench: Bench,
) -> None:
    """3.10: the request id deduplicates only what the policy refuses."""
    options = StartFlowOptions(
        request_id="r1",
        ignore_already_started=True,
        id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING,
    )
    old = await bring_to(bench, "COMPLETED", options=options)
    assert await bench.start(input="again", options=options) != old
    assert await bench.output(str) == "again"


async def test_refused_start_changes_nothing(bench: Bench) -> None:
    """3.11: neither Attributes nor the journal."""
    await bring_to(bench, "RUNNING", options=StartFlowOptions().with_attribute(color, "red"))
    before = await bench.state(), await bench.history()
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=StartFlowOptions().with_attribute(color, "blue"))
    assert (await bench.state(), await bench.history()) == before


async def test_start_delay_holds_back_only_the_starting_step(bench: Bench) -> None:
    """3.12: the run is RUNNING at once and serves RPCs; the Step comes after the delay."""
    bench.on(First, lambda context, input: graceful_complete(bench.clock.now()))
    began = bench.clock.now()
    await bench.start(options=StartFlowOptions(start_delay=timedelta(days=2)))
    assert (await bench.client.describe_flow("flow")).status is FlowStatus.RUNNING
    assert await bench.call("ask", "hello") == "hello"
    await bench.restart()
    await bench.clock.alarm(2 * 24 * 3600)
    bench.clock.advance(2 * 24 * 3600)
    assert await bench.output(float) == began + 2 * 24 * 3600


async def test_initial_attributes_are_there_for_the_first_step(bench: Bench) -> None:
    """3.5: a None means absent."""
    bench.on(
        First, lambda context, input: graceful_complete([color.get(context), shape.get(context)])
    )
    options = StartFlowOptions().with_attribute(color, "red")
    absent: Any = None
    await bench.start(options=options.with_attribute(shape, absent))
    assert await bench.output(list[Any]) == ["red", None]
    assert [entry.key for entry in (await bench.state()).attributes] == ["color"]


async def test_flow_without_starting_step_runs_until_an_rpc_gives_it_one(bench: Bench) -> None:
    """3.3, 4.2, 11.2.5."""
    bare = bench.flows[1]
    await bench.start(input=None, flow=bare)
    state = await bench.state()
    assert not state.active_step_executions
    assert (await bench.client.describe_flow("flow")).status is FlowStatus.RUNNING
    bench.on_rpc("ask", lambda context, input: RPCResult("", (StepMovement.of(First, input),)))
    await guard(bench.client.invoke_rpc(bare.ask, "flow", "go"))
    assert await bench.output(str) == "go"


async def test_malformed_start_is_refused(bench: Bench) -> None:
    """3.1, 7.6: no request id, no Flow type, a heartbeat timeout below the minimum."""
    for request in (
        pb.StartFlowRequest(flow_id="flow", flow_type="Stage"),
        pb.StartFlowRequest(flow_id="flow", request_id="r"),
        pb.StartFlowRequest(flow_type="Stage", request_id="r"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await bench.service.StartFlow(request)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    bench.on(First, options=StepOptions(heartbeat_timeout=timedelta(seconds=9)))
    with pytest.raises(DexServiceError, match="heartbeat timeout of 9 seconds") as refusal:
        await bench.start()
    assert refusal.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(FlowNotFoundError):
        await bench.client.describe_flow("flow")


# --- describing and awaiting -------------------------------------------------------------------


async def test_describe_tells_the_current_run(bench: Bench) -> None:
    """4.9."""
    run_id = await bring_to(bench, "COMPLETED")
    info = await bench.client.describe_flow("flow")
    assert (info.flow_id, info.run_id, info.flow_type) == ("flow", run_id, "Stage")
    assert info.status is FlowStatus.COMPLETED
    assert info.started_at == datetime.fromtimestamp(bench.clock.now(), UTC)
    summary = await bench.service.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="flow"))
    assert summary.first_run_id == run_id
    assert summary.run_attempt == 1
    assert summary.close_time.seconds == bench.clock.now()


async def test_unknown_flow_is_not_found(bench: Bench) -> None:
    """2.4: which exception depends on what was asked for."""
    with pytest.raises(FlowNotFoundError):
        await bench.client.describe_flow("nobody")
    with pytest.raises(FlowNotFoundError):
        await bench.client.wait_for_flow("nobody")
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.client.stop_flow("nobody")
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.call("ask", "hello", flow_id="nobody")


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=5)])
async def test_waiting_for_an_open_flow_ends_with_a_retryable_timeout(
    bench: Bench, timeout: timedelta | None
) -> None:
    """4.3: after the caller's time, or after the cap of 60 seconds."""
    seconds = 60.0 if timeout is None else timeout.total_seconds()
    await bench.start(input=None, flow=bench.flows[1])
    waiting = asyncio.create_task(bench.client.wait_for_flow("flow", timeout))
    await bench.clock.alarm(seconds)
    bench.clock.advance(seconds)
    with pytest.raises(LongPollTimeoutError) as expired:
        await guard(waiting)
    assert expired.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_waiting_ends_when_the_flow_closes(bench: Bench) -> None:
    """4.3: for everybody who waits."""
    bare = bench.flows[1]
    await bench.start(input=None, flow=bare)
    waiting = [asyncio.create_task(bench.client.wait_for_flow("flow")) for _ in range(5)]
    await bench.clock.alarm(60, times=5)
    bench.on_rpc("ask", lambda context, input: RPCResult("", (StepMovement.of(First, input),)))
    await guard(bench.client.invoke_rpc(bare.ask, "flow", "done"))
    results = await guard(asyncio.gather(*waiting))
    assert [result.single_output(str) for result in results] == ["done"] * 5


async def test_closed_flow_is_retained(bench: Bench) -> None:
    """4.10, 11.2.2: summary, result and reading RPC work, also after a restart."""
    bench.on_rpc("ask", lambda context, input: RPCResult(f"{input} {color.get(context)}"))
    options = StartFlowOptions().with_attribute(color, "red")
    run_id = await bring_to(bench, "COMPLETED", options=options)
    for _ in range(2):
        assert (await bench.client.describe_flow("flow")).run_id == run_id
        assert await bench.output(str) == "COMPLETED"
        assert await bench.call("ask", "is") == "is red"
        await bench.restart()


# --- stopping ----------------------------------------------------------------------------------

STOPS = {
    StopType.CANCEL: (FlowStatus.CANCELED, None, None),
    StopType.TERMINATE: (FlowStatus.TERMINATED, None, None),
    StopType.FAIL: (FlowStatus.FAILED, FlowErrorType.CLIENT_API_FAILED, "enough of it"),
}


@pytest.mark.parametrize("kind", STOPS, ids=lambda kind: kind.value)
async def test_stopped_flow_says_how_it_was_stopped(bench: Bench, kind: StopType) -> None:
    """4.6, 4.8: status, error type and message; it can be stopped only once."""
    await bring_to(bench, "RUNNING")
    await bench.client.stop_flow("flow", StopFlowOptions(kind, "enough of it"))
    result = await bench.result()
    assert (result.status, result.error_type, result.error_message) == STOPS[kind]
    assert result.completions == ()
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.client.stop_flow("flow", StopFlowOptions(kind))


async def test_nothing_of_a_running_handler_commits_after_a_stop(bench: Bench) -> None:
    """4.8, 12.20: the handler is told at once; what it returns all the same is dropped."""

    async def first(context: Any, input: str) -> Any:
        color.set(context, "red")
        bench.script.note("running")
        try:
            await bench.script.gate("never")
        except asyncio.CancelledError:
            bench.script.note(f"cancelled {context.is_cancellation_requested()}")
        return graceful_complete("late")

    bench.on(First, first)
    await bench.start()
    await bench.script.noted("running")
    await bench.client.stop_flow("flow")
    await bench.script.noted("cancelled True")
    await bench.workers[0].stop()
    assert (await bench.result()).completions == ()
    assert not (await bench.state()).attributes
    assert [event.WhichOneof("payload") for event in await bench.history()] == [
        "flow_started_or_continued",
        "flow_closed",
    ]
