"""Steps that a decision or an RPC cancels, and what their handlers notice of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    Channel,
    FlowStatus,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Stream,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)
from engine_harness import (
    FORGETFUL,
    SETTINGS,
    Bench,
    First,
    Hold,
    Rest,
    ScriptedFlow,
    Second,
    Third,
)

inbox = Channel("inbox", str)
color = Attribute("color", str)
lines = Stream("lines", str, 1_000_000)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(inbox, color, lines)


@pytest.fixture(params=[SETTINGS, FORGETFUL], ids=["loaded", "forgetful"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, settings=request.param) as bench:
        bench.on(Hold, wait_for=lambda context, input: Wait.until(inbox.for_one()))
        yield bench


def fan_out(*movements: tuple[type[Any], str]) -> Any:
    return lambda *_: go_to_many(*(StepMovement.of(step, input) for step, input in movements))


async def active(bench: Bench, *step_ids: str) -> None:
    """Wait until exactly these Step executions are left."""
    await bench.reach(
        lambda state: (
            [each.step_execution_id for each in state.active_step_executions] == list(step_ids)
        )
    )


# --- what is cancelled -------------------------------------------------------------------------


async def test_waiting_steps_of_the_type_are_cancelled(bench: Bench) -> None:
    """6.6.1, 6.6.3: all of them; their wait is dropped, and nothing of them runs."""

    async def second(context: Any, input: str) -> StepDecision:
        await bench.script.gate("second")
        return dead_end().with_canceling_steps(Hold)

    bench.on(First, fan_out((Hold, ""), (Hold, ""), (Rest, ""), (Second, "")))
    bench.on(Rest, wait_for=lambda *_: Wait.until(Timer.by_duration(timedelta(days=1))))
    bench.on(Second, second)
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.waiting("Hold-2")
    await bench.waiting("Rest-1")
    bench.script.open("second")
    await active(bench, "Rest-1")
    bench.on_rpc("ask", publish)
    await bench.call("ask", "message")
    assert len((await bench.state()).pending_channel_messages["inbox"].messages) == 1


def publish(context: Any, input: str) -> RPCResult[str]:
    inbox.publish(context, input)
    return RPCResult("")


async def test_only_siblings_are_cancelled_if_so_decided(bench: Bench) -> None:
    """6.6.1: those that the same execution created."""

    async def third(context: Any, input: str) -> StepDecision:
        await bench.script.gate("third")
        return dead_end().with_canceling_sibling_steps(Hold)

    bench.on(First, fan_out((Second, ""), (Hold, "cousin")))
    bench.on(Second, fan_out((Hold, "sibling"), (Third, "")))
    bench.on(Third, third)
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.waiting("Hold-2")
    bench.script.open("third")
    await active(bench, "Hold-1")
    assert (await bench.state()).active_step_executions[0].from_step_execution_id == "First-1"


async def test_steps_of_the_same_decision_are_not_cancelled_by_it(bench: Bench) -> None:
    """6.6.1: nor is the deciding execution; cancelling what is not there does nothing, 6.6.2."""
    bench.on(First, fan_out((Hold, ""), (Second, "")))

    async def second(context: Any, input: str) -> StepDecision:
        await bench.script.gate("second")
        return go_to(Hold, "").with_canceling_steps(Hold, Second, Third)

    bench.on(Second, second)
    await bench.start()
    await bench.waiting("Hold-1")
    bench.script.open("second")
    await active(bench, "Hold-2")


async def test_step_that_pauses_before_a_retry_is_cancelled(bench: Bench) -> None:
    """6.6.3: no other attempt, no recovery Step; the cancelled Step counts as finished, 6.6.8."""

    def hold(context: Any, input: str) -> Wait:
        bench.script.note(f"attempt {context.attempt}")
        raise LookupError("no")

    async def second(context: Any, input: str) -> StepDecision:
        await bench.script.gate("second")
        return graceful_complete("done").with_canceling_steps(Hold)

    options = StepOptions(
        wait_for_retry=RetryPolicy(maximum_attempts=2)
    ).on_execute_failure_proceed_to(Third)
    bench.on(First, fan_out((Hold, ""), (Second, "")))
    bench.on(Hold, wait_for=hold, options=options)
    bench.on(Second, second)
    await bench.start()
    await bench.failed("Hold-1")
    bench.script.open("second")
    assert await bench.output(str) == "done"
    bench.clock.advance(3600)
    await bench.state()
    assert bench.script.notes == ["attempt 1"]


async def test_step_in_the_queue_is_cancelled(bench: Bench) -> None:
    """6.6.1, 6.6.3: it never runs; here it waits for the lock of the Step that cancels it."""
    locking = StepOptions(execute_lock_attributes=(color.lock(),))

    async def second(context: Any, input: str) -> StepDecision:
        bench.script.note(f"second {input}")
        await bench.script.gate("second")
        return graceful_complete(input).with_canceling_steps(Third)

    bench.on(First, fan_out((Second, "a"), (Third, "b"), (Third, "c")))
    bench.on(Second, second, options=locking)
    bench.on(Third, lambda *_: bench.script.note("third"), options=locking)
    await bench.start()
    await bench.script.noted("second a")
    assert [each.step_type for each in (await bench.state()).queued_steps] == ["Third", "Third"]
    bench.script.open("second")
    assert await bench.output(str) == "a"
    assert bench.script.notes == ["second a"]


async def test_rpc_cancels_steps_before_it_starts_others(bench: Bench) -> None:
    """11.2.5, 6.5.8."""
    bench.on(First, fan_out((Hold, "old")))
    await bench.start()
    await bench.waiting("Hold-1")
    result = RPCResult("", (StepMovement.of(Hold, "new"),)).with_canceling_steps(Hold)
    bench.on_rpc("ask", lambda *_: result)
    await bench.call("ask", "")
    await active(bench, "Hold-2")
    step = await bench.waiting("Hold-2")
    assert step.from_step_execution_id == "__rpc/ask"


async def test_cancelled_step_has_no_event_of_its_own(bench: Bench) -> None:
    """6.6.7."""
    bench.on(First, fan_out((Hold, "")))
    await bench.start()
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", lambda *_: RPCResult("").with_canceling_steps(Hold))
    await bench.call("ask", "")
    await active(bench)
    assert [event.WhichOneof("payload") for event in await bench.history()] == [
        "flow_started_or_continued",
        "step_execute_completed",
        "step_wait_for_completed",
        "rpc_execution_completed",
    ]


async def test_cancellation_survives_a_restart(bench: Bench) -> None:
    """6.6.3."""
    bench.on(First, fan_out((Hold, ""), (Rest, "")))
    bench.on(Rest, wait_for=lambda *_: Wait.until(Timer.by_duration(timedelta(days=1))))
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.waiting("Rest-1")
    bench.on_rpc("ask", lambda *_: RPCResult("").with_canceling_steps(Hold))
    await bench.call("ask", "")
    await bench.restart()
    await active(bench, "Rest-1")


# --- what a running handler notices ------------------------------------------------------------


async def cancelled_while_it_runs(bench: Bench, frame: Any = None) -> None:
    """Cancel Second while its handler runs; the handler goes on to send `frame`, if any."""

    async def second(context: Any, input: str) -> StepDecision:
        bench.script.note("running")
        color.set(context, "red")
        inbox.publish(context, "message")
        try:
            await bench.script.gate("second")
            assert not context.is_cancellation_requested()
            if frame is not None:
                await frame(context)
                await bench.script.gate("never")
        except asyncio.CancelledError:
            bench.script.note(f"cancelled {context.is_cancellation_requested()}")
            raise
        bench.script.note("finished")
        return go_to(Third, "")

    bench.on(First, fan_out((Second, ""), (Hold, "")))
    bench.on(Second, second, options=StepOptions().on_execute_failure_proceed_to(Third))
    bench.on(Third, lambda *_: bench.script.note("third"))
    await bench.start()
    await bench.script.noted("running")
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", lambda *_: RPCResult("").with_canceling_steps(Second))
    await bench.call("ask", "")
    await active(bench, "Hold-1")
    bench.script.open("second")


async def nothing_was_committed(bench: Bench) -> None:
    """Check that neither the attempt nor anything after it has left anything."""
    await bench.workers[0].stop()
    state = await bench.state()
    assert not state.attributes
    assert not state.pending_channel_messages
    assert [each.step_execution_id for each in state.active_step_executions] == ["Hold-1"]
    assert "third" not in bench.script.notes


async def test_handler_without_frames_finishes_and_its_result_is_dropped(bench: Bench) -> None:
    """6.6.4: the cancellation is delivered only in reply to a frame."""
    await cancelled_while_it_runs(bench)
    await bench.script.noted("finished")
    await nothing_was_committed(bench)
    assert "cancelled True" not in bench.script.notes


async def test_handler_is_cancelled_by_its_next_heartbeat(bench: Bench) -> None:
    """6.6.4, 6.6.5."""
    await cancelled_while_it_runs(bench, lambda context: context.heartbeat("alive"))
    await bench.script.noted("cancelled True")
    await nothing_was_committed(bench)


async def test_handler_is_cancelled_by_its_next_stream_message(bench: Bench) -> None:
    """6.6.4, 14.3: the message itself is dropped."""

    async def write(context: Any) -> None:
        lines.write(context, "late")

    await cancelled_while_it_runs(bench, write)
    await bench.script.noted("cancelled True")
    await nothing_was_committed(bench)
    assert not (await bench.client.list_stream_messages("flow", lines, 10)).messages


async def test_cancelled_handler_frees_its_slot_and_its_lock(tmp_path: Path) -> None:
    """9.11, 12.20: the lock at once, the slot when the handler has ended."""
    async with Bench(tmp_path, Stage, tasks=2) as bench:
        locking = StepOptions(execute_lock_attributes=(color.lock(),))

        async def second(context: Any, input: str) -> StepDecision:
            bench.script.note("running")
            await bench.script.gate("second")
            await context.heartbeat()
            await bench.script.gate("never")
            return dead_end()

        bench.on(First, fan_out((Second, "")))
        bench.on(Second, second, options=locking)
        bench.on(Third, options=locking)
        await bench.start()
        await bench.script.noted("running")
        result = RPCResult("", (StepMovement.of(Third, "free"),)).with_canceling_steps(Second)
        bench.on_rpc("ask", lambda *_: result)
        await bench.call("ask", "")
        bench.script.open("second")
        result_of_flow = await bench.result()
        assert result_of_flow.status is FlowStatus.COMPLETED
        assert result_of_flow.single_output(str) == "free"
