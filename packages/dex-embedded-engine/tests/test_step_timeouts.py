"""Attempts of Steps that take too long or say nothing for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    FlowErrorType,
    PersistenceSchema,
    RetryPolicy,
    RpcLockConflictError,
    RPCResult,
    StepOptions,
    Stream,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)
from dex.context import Context
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow

from dex_embedded_engine import EngineSettings

lines = Stream("lines", str, 1_000_000)
total = Attribute("total", int)
HOUR = 3600


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(lines, total)

    @rpc(lock_attributes=(total.lock(),))
    async def locked(self, context: Context, input: str) -> RPCResult[str]:
        return RPCResult(input)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        yield bench


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def blocking_first_attempt(bench: Bench, beat: Any = None) -> Any:
    """Make a handler whose first attempt blocks, after `beat`, and whose second returns."""

    async def handler(context: Any, input: str) -> Any:
        bench.script.note(f"attempt {context.attempt}")
        if context.attempt == 1:
            try:
                if beat is not None:
                    await beat(context)
                await bench.script.gate("never")
            except asyncio.CancelledError:
                bench.script.note("cancelled")
                raise
        if "wait_for" in input:
            return Wait.skip_immediately()
        return graceful_complete(context.attempt)

    return handler


async def test_method_timeout_fails_the_attempt_and_tells_the_handler(bench: Bench) -> None:
    """7.5, 7.1: two hours by default."""
    bench.on(First, blocking_first_attempt(bench), options=StepOptions(heartbeat_timeout=hours(9)))
    await bench.start()
    await bench.script.noted("attempt 1")
    await bench.clock.alarm(2 * HOUR)
    bench.clock.advance(2 * HOUR)
    await bench.script.noted("cancelled")
    failure = await bench.retried("First-1", 1, 1)
    detail = failure.details.original_worker_error_detail
    assert detail == "Step 'First-1' exceeded its method timeout"
    assert await bench.output(int) == 2


async def test_last_method_timeout_fails_the_flow(bench: Bench) -> None:
    """4.6: WORKER_API_FAIL with a text that contains "timeout"."""
    options = StepOptions(
        execute_method_timeout=hours(1),
        heartbeat_timeout=hours(9),
        execute_retry=RetryPolicy(maximum_attempts=1),
    )
    bench.on(First, blocking_first_attempt(bench), options=options)
    await bench.start()
    await bench.script.noted("attempt 1")
    bench.clock.advance(HOUR)
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "timeout" in (result.error_message or "")


async def test_wait_for_has_a_method_timeout_of_its_own(bench: Bench) -> None:
    """7.5."""
    options = StepOptions(
        wait_for_method_timeout=hours(1),
        execute_method_timeout=hours(3),
        heartbeat_timeout=hours(9),
    )
    blocking = blocking_first_attempt(bench)
    bench.on(First, lambda context, input: go_to(Hold, "wait_for"))
    bench.on(Hold, lambda context, input: graceful_complete(1), wait_for=blocking, options=options)
    await bench.start()
    await bench.script.noted("attempt 1")
    bench.clock.advance(HOUR)
    await bench.retried("Hold-1", 1, 1)
    assert await bench.output(int) == 1


async def test_silent_step_is_retried_after_a_minute_and_the_log_says_how_to_avoid_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """7.6, D5: the default heartbeat timeout, exactly; the hint names the Step."""
    bench.on(First, blocking_first_attempt(bench))
    await bench.start()
    await bench.script.noted("attempt 1")
    await bench.clock.alarm(60)
    bench.clock.advance(60)
    await bench.script.noted("cancelled")
    failure = await bench.retried("First-1", 1, 1)
    assert "heartbeat timeout of 60 seconds" in failure.details.original_worker_error_detail
    assert await bench.output(int) == 2
    hints = [record.message for record in caplog.records if "sent no heartbeat" in record.message]
    assert len(hints) == 1
    assert "'First-1'" in hints[0]
    assert "heartbeat()" in hints[0]


@pytest.mark.parametrize("frame", ["heartbeat", "stream"])
async def test_any_frame_restarts_the_heartbeat_clock(
    bench: Bench, frame: str, caplog: pytest.LogCaptureFixture
) -> None:
    """7.6: a Stream message counts; and there is no hint for a Step that does beat."""

    async def beat(context: Any) -> None:
        for number in range(3):
            await bench.script.gate(f"beat {number}")
            if frame == "heartbeat":
                await context.heartbeat(number)
            else:
                lines.write(context, str(number))
            bench.script.note(f"beat {number}")

    bench.on(
        First,
        blocking_first_attempt(bench, beat),
        options=StepOptions(heartbeat_timeout=timedelta(seconds=10)),
    )
    await bench.start()
    await bench.script.noted("attempt 1")
    for number in range(3):
        bench.clock.advance(9)
        bench.script.open(f"beat {number}")
        await bench.script.noted(f"beat {number}")
        if number < 2:
            # The deadline planned before is looked at in one second, and moved to ten from now.
            await frame_arrived(bench, frame, number)
    await frame_arrived(bench, frame, 2)
    assert not (await bench.state()).active_step_executions[0].HasField("last_failure_info")
    bench.clock.advance(10)
    await bench.retried("First-1", 1, 1)
    assert await bench.output(int) == 2
    assert not [record for record in caplog.records if "sent no heartbeat" in record.message]


async def frame_arrived(bench: Bench, frame: str, number: int) -> None:
    """Wait until the engine has taken the frame in."""
    if frame == "stream":
        token = ""
        for _ in range(number + 1):
            token = (await bench.client.read_stream("flow", lines, token)).resume_token
    else:
        # A frame that the same Worker sent later has been taken in: so has this one.
        await bench.call("ask", "later")


async def test_result_of_an_attempt_that_timed_out_is_dropped(bench: Bench) -> None:
    """12.38, 6.6.3: even if the handler swallows the cancellation."""

    async def execute(context: Any, input: str) -> Any:
        bench.script.note(f"attempt {context.attempt}")
        total.set(context, total.get(context) + 1)
        if context.attempt == 1:
            try:
                await bench.script.gate("never")
            except asyncio.CancelledError:
                bench.script.note("swallowed")
            return graceful_complete("late")
        return graceful_complete("in time")

    bench.on(First, execute)
    await bench.start()
    await bench.script.noted("attempt 1")
    bench.clock.advance(60)
    await bench.script.noted("swallowed")
    await bench.retried("First-1", 1, 1)
    assert await bench.output(str) == "in time"
    assert (await bench.state()).attributes[0].value.int_value == 1


async def test_timeout_survives_as_a_failed_attempt_across_a_restart(bench: Bench) -> None:
    """7.15: the attempt counts, and the pause before the next goes on."""
    bench.on(First, blocking_first_attempt(bench))
    await bench.start()
    await bench.script.noted("attempt 1")
    bench.clock.advance(60)
    await bench.failed("First-1")
    await bench.restart()
    await bench.retried("First-1", 1, 1)
    assert await bench.output(int) == 2


async def test_step_of_a_worker_that_fell_silent_is_retried_with_its_lock(tmp_path: Path) -> None:
    """12.17, 12.27, 9.11: neither attempt nor lock waits for a Worker that says nothing."""
    async with Bench(tmp_path, Stage, settings=EngineSettings()) as bench:
        options = StepOptions(heartbeat_timeout=hours(1), execute_lock_attributes=(total.lock(),))
        bench.on(First, blocking_first_attempt(bench), options=options)
        await bench.start()
        await bench.script.noted("attempt 1")
        with pytest.raises(RpcLockConflictError):
            await bench.call("locked", "")
        bench.clock.advance(60)
        failure = await bench.failed("First-1")
        reason = failure.details.dispatch_task_error_reason
        assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
        assert await bench.call("locked", "free") == "free"
        await bench.script.noted("cancelled")
        await bench.retried("First-1", 1, 1)
        assert await bench.output(int) == 2
