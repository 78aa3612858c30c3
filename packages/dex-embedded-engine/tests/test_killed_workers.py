"""Worker processes that are killed, or absent, and what that costs a Step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import engine_flows
import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_embedded_engine import EmbeddedEngine, VirtualClock


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(folder: Path, clock: VirtualClock) -> AsyncIterator[EmbeddedEngine]:
    async with EmbeddedEngine(folder / "data", clock=clock) as running:
        yield running


async def read_failure(engine: EmbeddedEngine, flow_id: str) -> pb.StepMethodFailure:
    """Return the last failure of the Flow's only active Step, once there is one."""
    async with asyncio.timeout(20), grpc.aio.insecure_channel(engine.address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        while True:
            state = await stub.GetFlowState(pb.GetFlowStateRequest(flow_id=flow_id))
            for step in state.active_step_executions:
                if step.HasField("last_failure_info"):
                    failure: pb.StepMethodFailure = step.last_failure_info
                    return failure


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_worker_killed_inside_a_handler_costs_one_attempt_and_the_next_one_goes_on(
    mode: str,
    engine: EmbeddedEngine,
    clock: VirtualClock,
    start_worker: Any,
    flow_client: Any,
    close_gate: Any,
    ledger: Path,
) -> None:
    gate = close_gate("work")
    first = await start_worker(engine.address, mode, echo=True)
    await flow_client.start("Job", "job", "work")
    assert await first.read_line() == "work job 1"
    # The message was sent behind the heartbeat, so the engine has both.
    assert (await flow_client.client.read_stream("job", engine_flows.beats, "")).value == 1
    await first.kill()
    failure = await read_failure(engine, "job")
    assert failure.attempt == 1
    assert failure.details.dispatch_task_error_reason == (
        pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
    )
    second = await start_worker(engine.address, mode, echo=True)
    clock.advance(1)
    assert await second.read_line() == "work job 2"
    gate.open()
    assert await flow_client.result("job", list[int]) == [2, 1]
    assert ledger.read_text(encoding="utf-8").count("work job") == 2


async def test_no_worker_for_a_minute_uses_no_attempt(
    engine: EmbeddedEngine, clock: VirtualClock, start_worker: Any, flow_client: Any
) -> None:
    await flow_client.start("Job", "job", "work")
    await flow_client.start("SingleAttempt", "single", "once")
    for _ in range(6):
        clock.advance(10)
        await flow_client.client.describe_flow("job")
    await start_worker(engine.address)
    assert await flow_client.result("job", list[int]) == [1, 0]
    assert await flow_client.result("single", str) == "done"


async def test_a_single_attempt_whose_worker_was_killed_goes_to_its_recovery_step(
    engine: EmbeddedEngine, start_worker: Any, flow_client: Any, close_gate: Any, ledger: Path
) -> None:
    close_gate("once")
    first = await start_worker(engine.address, echo=True)
    await flow_client.start("SingleAttempt", "single", "once")
    assert await first.read_line() == "once single 1"
    await first.kill()
    await start_worker(engine.address)
    assert await flow_client.result("single", list[str]) == ["once", "WorkerDisconnected"]
    assert ledger.read_text(encoding="utf-8").splitlines() == ["once single 1", "recover single"]


@pytest.mark.full
async def test_a_single_attempt_is_never_entered_twice_whenever_its_worker_is_killed(
    folder: Path, start_worker: Any, connect: Any, close_gate: Any, ledger: Path
) -> None:
    """The kill comes at the moment of the hand-out: a dying Worker looks like a half-close."""
    gate = close_gate("once")
    async with EmbeddedEngine(folder / "other") as engine:
        client = connect(engine.address)
        for number in range(15):
            worker = await start_worker(engine.address)
            await client.start("SingleAttempt", f"single-{number}", "once")
            await worker.kill()
        gate.open()
        await start_worker(engine.address)
        for number in range(15):
            await client.result(f"single-{number}")
    entries = [
        line for line in ledger.read_text(encoding="utf-8").splitlines() if line.startswith("once")
    ]
    assert len(entries) == len(set(entries))
    assert all(entry.endswith(" 1") for entry in entries)
