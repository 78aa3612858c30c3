"""Steps that find no Worker, or none with room: waiting uses up neither attempts nor time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepMovement,
    StepOptions,
    graceful_complete,
)
from engine_harness import Bench, First, ScriptedFlow, Second

# Only the pauses between attempts are on the clock then.
PATIENT = timedelta(days=9)


class Stage(ScriptedFlow):
    pass


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        yield bench


def options(**retry: Any) -> StepOptions:
    return StepOptions(
        heartbeat_timeout=PATIENT,
        execute_method_timeout=PATIENT,
        execute_retry=RetryPolicy(**retry),
    )


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def failing_until(bench: Bench, last: int) -> Any:
    """Make a handler that fails its attempts before the last."""

    def execute(context: Any, input: str) -> Any:
        if context.attempt < last:
            raise LookupError("no")
        return graceful_complete([context.attempt, bench.clock.now()])

    return execute


async def test_step_without_a_worker_uses_no_attempt_and_no_time(tmp_path: Path) -> None:
    """D1: a single attempt and ten seconds, after an hour and a restart without a Worker."""
    async with Bench(tmp_path, Stage, has_worker=False) as bench:
        policy = options(maximum_attempts=1, total_duration=seconds(10))
        bench.on(First, failing_until(bench, 1), options=policy)
        await bench.start()
        bench.clock.advance(3600)
        await bench.restart()
        bench.clock.advance(3600)
        await bench.add_worker()
        assert await bench.output(list[Any]) == [1, bench.clock.now()]


async def test_wait_for_a_worker_between_attempts_uses_no_time(bench: Bench) -> None:
    """D1: nor does it move the first attempt time."""
    policy = options(total_duration=seconds(10))
    bench.on(First, failing_until(bench, 3), options=policy)
    await bench.start()
    await bench.failed("First-1")
    await bench.workers[0].stop()
    bench.clock.advance(3600)
    await bench.state()
    await bench.add_worker()
    await bench.retried("First-1", 2, 2)
    assert (await bench.output(list[Any]))[0] == 3


async def test_wait_for_room_at_a_worker_uses_no_time(tmp_path: Path) -> None:
    """D1: an hour behind another Step, and ten seconds for all attempts."""
    async with Bench(tmp_path, Stage, tasks=2) as bench:
        bench.on(First, failing_until(bench, 3), options=options(total_duration=seconds(10)))

        async def second(context: Any, input: str) -> Any:
            bench.script.note("second")
            await bench.script.gate("second")
            return graceful_complete()

        bench.on(Second, second, options=options())
        bench.on_rpc("ask", lambda *_: RPCResult("", (StepMovement.of(Second, ""),)))
        await bench.start()
        await bench.failed("First-1")
        await bench.call("ask", "")
        await bench.script.noted("second")
        bench.clock.advance(3600)
        await bench.reach(lambda state: len(state.active_step_executions) == 2)
        bench.script.open("second")
        await bench.retried("First-1", 2, 2)
        await bench.reach(lambda state: not state.active_step_executions)
        assert (await bench.result()).status is FlowStatus.COMPLETED


async def test_pause_that_ends_while_the_engine_is_down_uses_no_time_beyond_it(
    bench: Bench,
) -> None:
    """D1: an hour without an engine, and ten seconds for all attempts."""
    bench.on(First, failing_until(bench, 3), options=options(total_duration=seconds(10)))
    await bench.start()
    await bench.failed("First-1")
    await bench.stop_engine()
    bench.clock.advance(3600)
    await bench.start_engine()
    await bench.retried("First-1", 2, 2)
    assert (await bench.output(list[Any]))[0] == 3
