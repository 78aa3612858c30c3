"""Several Workers, Workers that know less, Workers that stop, and engines that come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    Channel,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StepOptions,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import (
    Bench,
    First,
    Hold,
    RunningWorker,
    Script,
    ScriptedFlow,
    Second,
)

inbox = Channel("inbox", str)
total = Attribute("total", int)


class Stage(ScriptedFlow):
    def get_flow_type(self) -> str:
        return "Stage"

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(inbox, total)


class OlderStage(Stage):
    """The same Flow type before it had its Step Hold."""

    steps = (First, Second)


class StageFromHold(Stage):
    starts_with = Hold


class Elsewhere(ScriptedFlow):
    """Another Flow type."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        yield bench


async def worker_of(bench: Bench, flow: ScriptedFlow, **options: Any) -> RunningWorker:
    return await bench.add_worker(bench.make_registry(flow), **options)


# --- several Workers ---------------------------------------------------------------------------


async def test_two_workers_share_the_steps_of_a_flow_type(tmp_path: Path) -> None:
    """12.14: Steps that one Worker alone could not run at the same time."""
    async with Bench(tmp_path, Stage, tasks=3) as bench:
        await bench.add_worker()

        async def first(context: Any, input: str) -> Any:
            bench.script.note("running")
            await bench.script.gate("first")
            return graceful_complete(input)

        bench.on(First, first)
        for number in range(4):
            await bench.start(str(number), str(number))
        await bench.script.noted("running", times=4)
        workers = [(await bench.state(str(n))).sticky_app_worker_id for n in range(4)]
        assert sorted(map(workers.count, set(workers))) == [2, 2]
        bench.script.open("first")
        for number in range(4):
            assert await bench.output(str, str(number)) == str(number)


async def test_idle_worker_is_preferred_to_a_busy_one_and_the_last_one_to_another(
    tmp_path: Path,
) -> None:
    """12.32: a Flow stays with its Worker while nothing speaks against it."""
    async with Bench(tmp_path, Stage) as bench:
        await bench.add_worker()
        bench.on(First, lambda context, input: go_to(First, input[1:]) if input else WAIT)
        bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
        await bench.start(input="x" * 20)
        await bench.waiting("Hold-1")
        worker = (await bench.state()).sticky_app_worker_id
        for number in range(2, 6):
            bench.on_rpc("ask", publish)
            bench.on(Hold, lambda *_: WAIT)
            await bench.call("ask", "message")
            await bench.waiting(f"Hold-{number}")
            assert (await bench.state()).sticky_app_worker_id == worker


WAIT = go_to(Hold, "")


def publish(context: Any, input: str) -> RPCResult[str]:
    inbox.publish(context, input)
    return RPCResult("")


async def test_worker_that_does_not_know_a_step_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """12.21, D1: no attempt is used up while it is the only one."""
    async with Bench(tmp_path, StageFromHold, has_worker=False) as bench:
        older = await worker_of(bench, OlderStage(bench.script))

        async def hold(context: Any, input: str) -> Any:
            return graceful_complete(context.attempt)

        once = RetryPolicy(maximum_attempts=1)
        bench.on(Hold, hold, options=StepOptions(wait_for_retry=once, execute_retry=once))
        with caplog.at_level(logging.WARNING, "dex_embedded_engine"):
            await bench.start()
            await bench.reach(lambda _: any("'Hold'" in each for each in caplog.messages))
        assert len((await bench.state()).queued_steps) == 1
        bench.clock.advance(3600)
        assert await bench.call("ask", "served meanwhile") == "served meanwhile"
        await bench.add_worker()
        assert await bench.output(int) == 1
        for number in range(5):
            await bench.start(str(number))
        for number in range(5):
            assert await bench.output(int, str(number)) == 1
        await older.stop()


async def test_unknown_step_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """12.21: Steps behind it in the queue, of the same Flow type."""
    async with Bench(tmp_path, StageFromHold, has_worker=False) as bench:
        older = OlderStage(bench.script)
        await worker_of(bench, older)
        await bench.start("stuck")
        client = bench.make_client(bench.make_registry(older))
        try:
            await client.start_flow(older, "fine", "fine")
        finally:
            await client.close()
        assert await bench.output(str, "fine") == "fine"
        assert len((await bench.state("stuck")).active_step_executions) == 1


async def test_worker_of_other_flow_types_is_offered_nothing(tmp_path: Path) -> None:
    """12.9."""
    async with Bench(tmp_path, Stage, has_worker=False) as bench:
        await worker_of(bench, Elsewhere(bench.script))
        await bench.start()
        assert len((await bench.state()).queued_steps) == 1
        await bench.add_worker()
        await bench.output(str)


async def test_worker_runs_as_many_steps_as_it_has_room_for(bench: Bench) -> None:
    """12.22: all but one slot; the others wait and use up no attempt."""

    async def first(context: Any, input: str) -> Any:
        bench.script.note("running")
        await bench.script.gate("first")
        return graceful_complete(context.attempt)

    bench.on(First, first)
    for number in range(30):
        await bench.start(str(number))
    await bench.script.noted("running", times=7)
    assert await bench.call("ask", "hello", flow_id="29") == "hello"
    assert bench.script.notes.count("running") == 7
    bench.script.open("first")
    for number in range(30):
        assert await bench.output(int, str(number)) == 1


# --- Workers that stop -------------------------------------------------------------------------


async def test_worker_stops_promptly(bench: Bench) -> None:
    """12.23, 12.26: idle, after many tasks at once."""
    bench.on(First, lambda context, input: graceful_complete(input))
    for number in range(20):
        await bench.start(str(number))
    for number in range(20):
        await bench.result(str(number))
    async with asyncio.timeout(5):
        await bench.workers[0].stop()


async def test_stopping_worker_finishes_what_it_has_begun(bench: Bench) -> None:
    """12.26: and is given nothing else."""

    async def first(context: Any, input: str) -> Any:
        bench.script.note("running")
        await bench.script.gate("first")
        return go_to(Second, "next")

    bench.on(First, first)
    bench.on(Second, lambda context, input: graceful_complete(context.attempt))
    await bench.start()
    await bench.script.noted("running")
    stopping = asyncio.create_task(bench.workers[0].stop())
    bench.script.open("first")
    async with asyncio.timeout(5):
        await stopping
    assert [each.step_type for each in (await bench.state()).queued_steps] == ["Second"]
    await bench.add_worker()
    assert await bench.output(int) == 1


async def test_attempt_that_a_stopping_worker_breaks_off_counts(bench: Bench) -> None:
    """12.28: as one of a lost Worker; another Worker gets the next."""
    await bench.workers[0].stop()
    hasty = await bench.add_worker(stop_drain_timeout=timedelta(milliseconds=1))

    async def first(context: Any, input: str) -> Any:
        bench.script.note(f"attempt {context.attempt}")
        if context.attempt == 1:
            await bench.script.gate("never")
        return graceful_complete(context.attempt)

    bench.on(First, first)
    await bench.start()
    await bench.script.noted("attempt 1")
    await hasty.stop()
    failure = await bench.failed("First-1")
    reason = failure.details.dispatch_task_error_reason
    assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
    await bench.add_worker()
    bench.clock.advance(1)
    assert await bench.output(int) == 2


async def test_newer_worker_takes_over_from_an_older_one(tmp_path: Path) -> None:
    """12.14, 18.13: a rolling replacement, with Flows in between."""
    async with Bench(tmp_path, Stage, has_worker=False) as bench:
        old_script, new_script = Script(), Script()
        for script, name in ((old_script, "old"), (new_script, "new")):
            script.handlers["First.execute"] = lambda *_: WAIT
            script.handlers["Hold.wait_for"] = lambda *_: Wait.until(inbox.for_one())
            script.handlers["Hold.execute"] = lambda *_, name=name: graceful_complete(name)
            script.handlers["ask"] = publish
        old = await worker_of(bench, Stage(old_script))
        for flow_id in ("a", "b"):
            await bench.start(flow_id)
            await bench.waiting("Hold-1", flow_id)
        await bench.call("ask", "message", flow_id="a")
        assert await bench.output(str, "a") == "old"
        await worker_of(bench, Stage(new_script))
        await old.stop()
        await bench.call("ask", "message", flow_id="b")
        assert await bench.output(str, "b") == "new"


# --- engines that come back --------------------------------------------------------------------


async def test_workers_reconnect_to_an_engine_on_the_same_socket(bench: Bench) -> None:
    """7.14, 12.30, 17.6: Flows that run, wait and sleep go on by themselves."""
    await bench.add_worker()
    hour = timedelta(hours=1)

    async def first(context: Any, input: str) -> Any:
        total.set(context, total.get(context) + 1)
        bench.script.note(input)
        if context.attempt < 3 and input == "running":
            await bench.script.gate("never")
        if input in ("waiting", "sleeping"):
            return go_to(Hold, input)
        return graceful_complete(total.get(context))

    def hold(context: Any, input: str) -> Wait:
        asleep = Wait.until(Timer.by_duration(hour))
        return asleep if input == "sleeping" else Wait.until(inbox.for_one())

    bench.on(First, first)
    bench.on(Hold, lambda context, input: graceful_complete(total.get(context)), wait_for=hold)
    for flow_id in ("running", "waiting", "sleeping"):
        await bench.start(flow_id, flow_id)
    await bench.waiting("Hold-1", "waiting")
    await bench.waiting("Hold-1", "sleeping")
    for attempt in (1, 2):
        await bench.script.noted("running", times=attempt)
        await bench.restart()
        await bench.retried("First-1", attempt, attempt, "running")
    assert await bench.output(int, "running") == 1
    bench.on_rpc("ask", publish)
    await bench.call("ask", "message", flow_id="waiting")
    assert await bench.output(int, "waiting") == 1
    bench.clock.advance(3600)
    assert await bench.output(int, "sleeping") == 1


async def test_worker_that_started_before_the_engine_was_stopped_for_long_still_comes(
    bench: Bench,
) -> None:
    """12.30: it has tried in vain meanwhile."""
    await bench.stop_engine()
    # Its streams have ended and its first new ones have failed by the time this one is refused.
    with pytest.raises(RuntimeError, match="GetServerInfo failed"):
        await bench.add_worker()
    await bench.start_engine()
    await bench.start(input="still here")
    assert await bench.output(str) == "still here"
