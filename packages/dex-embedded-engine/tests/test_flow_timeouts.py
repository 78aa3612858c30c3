"""The soft timeout of a whole Flow, and its handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    AsyncContext,
    Attribute,
    Channel,
    FlowErrorType,
    FlowStatus,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    graceful_complete,
)
from engine_harness import Bench, First, Hold, Script, ScriptedFlow

color = Attribute("color", str)
inbox = Channel("inbox", str)
DAY = 24 * 3600


class Patient(ScriptedFlow):
    """Waits for a message for ever."""

    starts_with = Hold

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(color, inbox)


class Repair(Step[None]):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:  # type: ignore[override]
        error = context.recovery_error
        return force_complete([input, None if error is None else error.detail])


class Handled(Patient):
    def get_steps(self) -> StepList[str]:
        return super().get_steps().other_steps(Repair(self.script))

    async def handle_timeout(self, context: AsyncContext) -> StepDecision:  # type: ignore[override]
        decision = await self.script.play("handle_timeout", context, None)
        assert isinstance(decision, StepDecision)
        return decision


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Handled, Patient) as bench:
        bench.on(
            Hold,
            lambda context, input: graceful_complete(inbox.results(context)[0]),
            wait_for=lambda context, input: Wait.until(inbox.for_one()),
        )
        yield bench


def in_days(days: int, **options: Any) -> StartFlowOptions:
    return StartFlowOptions(timeout=timedelta(days=days), **options)


async def start_and_wait(bench: Bench, options: StartFlowOptions, *, handled: bool = False) -> None:
    await bench.start(options=options, flow=bench.flows[0 if handled else 1])
    await bench.waiting("Hold-1")


async def test_flow_fails_when_its_time_is_over(bench: Bench) -> None:
    """5.1, 5.2, 4.6: counted from the start, in the engine's time, also across a restart."""
    await start_and_wait(bench, in_days(3))
    bench.clock.advance(DAY)
    await bench.restart()
    await bench.clock.alarm(2 * DAY)
    bench.clock.advance(2 * DAY)
    result = await bench.result()
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.FLOW_TIMEOUT)
    assert result.error_message == f"Flow timed out after {3 * DAY} seconds"


async def test_flow_whose_time_ended_while_there_was_no_engine_fails_when_there_is_one(
    bench: Bench,
) -> None:
    """5.1, 17.6."""
    await start_and_wait(bench, in_days(1))
    await bench.stop_engine()
    bench.clock.advance(2 * DAY)
    await bench.start_engine()
    assert (await bench.result()).error_type is FlowErrorType.FLOW_TIMEOUT


async def test_flow_is_cancelled_when_its_time_is_over(bench: Bench) -> None:
    """5.3, 4.6: by the CANCEL policy, without an error."""
    await start_and_wait(bench, in_days(1, timeout_policy=FlowTimeoutPolicy.CANCEL))
    bench.clock.advance(DAY)
    result = await bench.result()
    assert (result.status, result.error_type, result.error_message) == (
        FlowStatus.CANCELED,
        None,
        None,
    )


async def test_flow_with_a_handler_can_still_ask_to_fail(bench: Bench) -> None:
    """5.2: FAIL is not overridden by the handler."""
    await start_and_wait(bench, in_days(1, timeout_policy=FlowTimeoutPolicy.FAIL), handled=True)
    bench.clock.advance(DAY)
    assert (await bench.result()).error_type is FlowErrorType.FLOW_TIMEOUT


async def test_completed_flow_does_not_time_out(bench: Bench) -> None:
    """5.3: what is committed first decides."""
    bench.on(Hold, wait_for=lambda context, input: Wait.skip_immediately())
    bench.on(Hold, lambda context, input: graceful_complete("in time"))
    await bench.start(options=in_days(1))
    assert await bench.output(str) == "in time"
    bench.clock.advance(DAY)
    await bench.restart()
    assert await bench.output(str) == "in time"


async def test_handler_decides_how_the_flow_ends(bench: Bench) -> None:
    """5.4: one Execute call of sys:timeout_handler-1 with the Flow's state."""

    def handle(context: Any, _: None) -> Any:
        color.set(context, f"{color.get(context)}der")
        return force_complete([context.step_execution_id, context.attempt, bench.clock.now()])

    bench.on_rpc("handle_timeout", handle)
    began = bench.clock.now()
    await start_and_wait(bench, in_days(1).with_attribute(color, "red"), handled=True)
    bench.clock.advance(DAY)
    assert await bench.output(list[Any]) == ["sys:timeout_handler-1", 1, began + DAY]
    assert (await bench.state()).attributes[0].value.string_value == "redder"


@pytest.mark.parametrize("kind", ["fail", "go_to", "dead_end", "graceful"])
async def test_decision_of_the_handler_is_an_ordinary_one(bench: Bench, kind: str) -> None:
    """5.6: the other Steps go on beside it."""
    decisions: dict[str, Any] = {
        "fail": force_fail("too late"),
        "go_to": go_to(First, "after the timeout"),
        "dead_end": dead_end(),
        "graceful": graceful_complete("handled"),
    }

    def handle(context: Any, _: None) -> Any:
        bench.script.note("handled")
        return decisions[kind]

    bench.on_rpc("handle_timeout", handle)
    bench.on(First, lambda context, input: force_complete(input))
    await start_and_wait(bench, in_days(1), handled=True)
    bench.clock.advance(DAY)
    await bench.script.noted("handled")
    if kind == "fail":
        assert (await bench.result()).error_message == "too late"
    elif kind == "go_to":
        assert await bench.output(str) == "after the timeout"
    else:
        await publish(bench, "message")
        completions = (await bench.result()).completions
        outputs = [completion.decode(str) for completion in completions]
        assert outputs == (["handled", "message"] if kind == "graceful" else ["message"])


async def publish(bench: Bench, text: str) -> None:
    def ask(context: Any, input: str) -> Any:
        inbox.publish(context, input)
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", text)


async def test_steps_go_on_while_the_handler_runs(bench: Bench) -> None:
    """5.6, 5.4: the handler is an active Step; a Step may complete the Flow before it."""

    async def handle(context: Any, _: None) -> Any:
        bench.script.note("handling")
        await bench.script.gate("never")
        return force_fail("late")

    bench.on_rpc("handle_timeout", handle)
    bench.on(Hold, lambda context, input: force_complete("won"))
    await start_and_wait(bench, in_days(1), handled=True)
    bench.clock.advance(DAY)
    await bench.script.noted("handling")
    active = [each.step_execution_id for each in (await bench.state()).active_step_executions]
    assert active == ["Hold-1", "sys:timeout_handler-1"]
    await publish(bench, "message")
    assert await bench.output(str) == "won"


async def test_handler_is_retried_by_its_own_policy_and_then_fails_the_flow(bench: Bench) -> None:
    """5.5, 5.7: attempts, the pause between them, WORKER_API_FAIL."""

    def handle(context: Any, _: None) -> Any:
        raise LookupError(f"attempt {context.attempt}")

    bench.on_rpc("handle_timeout", handle)
    retry = RetryPolicy(initial_interval=timedelta(seconds=7), maximum_attempts=2)
    handler = FlowTimeoutHandlerOptions(retry=retry)
    await start_and_wait(bench, in_days(1, timeout_handler_options=handler), handled=True)
    bench.clock.advance(DAY)
    await bench.retried("sys:timeout_handler-1", 1, 7)
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert result.error_message == "attempt 2"


async def test_failed_handler_goes_to_its_recovery_step(bench: Bench) -> None:
    """5.7: with the input None and the handler's error."""

    def handle(context: Any, _: None) -> Any:
        raise LookupError("no way out")

    bench.on_rpc("handle_timeout", handle)
    handler = FlowTimeoutHandlerOptions(retry=RetryPolicy(maximum_attempts=1))
    options = in_days(1, timeout_handler_options=handler.on_failure_proceed_to(Repair))
    await start_and_wait(bench, options, handled=True)
    bench.clock.advance(DAY)
    assert await bench.output(list[Any]) == [None, "no way out"]


async def test_handler_that_takes_too_long_times_out_itself(bench: Bench) -> None:
    """5.5: its clocks start when the timer fires."""

    async def handle(context: Any, _: None) -> Any:
        bench.script.note(f"attempt {context.attempt}")
        if context.attempt == 1:
            await bench.script.gate("never")
        return force_complete("second")

    bench.on_rpc("handle_timeout", handle)
    handler = FlowTimeoutHandlerOptions(
        method_timeout=timedelta(hours=1), heartbeat_timeout=timedelta(hours=2)
    )
    await start_and_wait(bench, in_days(1, timeout_handler_options=handler), handled=True)
    bench.clock.advance(DAY)
    await bench.script.noted("attempt 1")
    bench.clock.advance(3600)
    failure = await bench.retried("sys:timeout_handler-1", 1, 1)
    assert "timeout" in failure.details.original_worker_error_detail
    assert await bench.output(str) == "second"
