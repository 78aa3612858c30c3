"""Failed attempts of Steps: pauses, limits, checkpoints, and what follows the last one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Channel,
    FlowErrorType,
    FlowStatus,
    PersistenceSchema,
    RetryPolicy,
    StepMovement,
    StepOptions,
    Stream,
    Wait,
    WaitForFailurePolicy,
    go_to,
    go_to_many,
    graceful_complete,
    retry_after,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow, Second, Third

lines = Stream("lines", str, 1_000_000)
inbox = Channel("inbox", str)
# Only the pauses between attempts are on the clock then.
PATIENT = timedelta(days=9)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(lines, inbox)


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
    """Make a handler that fails its attempts before the last, which returns what it saw of them."""

    def execute(context: Any, input: str) -> Any:
        if context.attempt < last:
            raise LookupError(f"attempt {context.attempt} of {context.step_execution_id}")
        return graceful_complete([context.attempt, bench.clock.now()])

    return execute


# --- pauses and limits -------------------------------------------------------------------------


async def test_pauses_double_up_to_a_hundred_seconds(bench: Bench) -> None:
    """7.2: the default policy."""
    bench.on(First, failing_until(bench, 10), options=options())
    began = bench.clock.now()
    await bench.start()
    pauses = [1, 2, 4, 8, 16, 32, 64, 100, 100]
    for attempt, pause in enumerate(pauses, start=1):
        failure = await bench.retried("First-1", attempt, pause)
        assert failure.details.original_worker_error_detail == f"attempt {attempt} of First-1"
    assert await bench.output(list[Any]) == [10, began + sum(pauses)]


async def test_policy_of_the_step_decides_the_pauses(bench: Bench) -> None:
    """7.2: initial interval, coefficient and maximum interval."""
    policy = options(
        initial_interval=seconds(3), backoff_coefficient=3.0, maximum_interval=seconds(20)
    )
    bench.on(First, failing_until(bench, 5), options=policy)
    await bench.start()
    for attempt, pause in enumerate([3, 9, 20, 20], start=1):
        await bench.retried("First-1", attempt, pause)
    await bench.output(list[Any])


async def test_last_attempt_fails_the_flow_with_the_error_of_the_worker(bench: Bench) -> None:
    """7.3, 4.6: attempts include the first; WORKER_API_FAIL with the detail, exactly."""
    bench.on(First, failing_until(bench, 9), options=options(maximum_attempts=2))
    await bench.start()
    await bench.retried("First-1", 1, 1)
    result = await bench.result()
    assert (result.status, result.error_type, result.error_message) == (
        FlowStatus.FAILED,
        FlowErrorType.WORKER_API_FAILED,
        "attempt 2 of First-1",
    )
    assert result.completions == ()


async def test_no_attempt_starts_after_the_total_duration(bench: Bench) -> None:
    """7.3: attempts at 0, 4 and 8 seconds; the one at 12 would be beyond 10."""
    policy = options(
        initial_interval=seconds(4), backoff_coefficient=1.0, total_duration=seconds(10)
    )
    bench.on(First, failing_until(bench, 9), options=policy)
    await bench.start()
    await bench.retried("First-1", 1, 4)
    await bench.retried("First-1", 2, 4)
    assert (await bench.result()).error_message == "attempt 3 of First-1"


async def test_default_total_duration_is_four_hours(bench: Bench) -> None:
    """7.2."""
    bench.on(First, failing_until(bench, 9), options=options(initial_interval=seconds(7000)))
    await bench.start()
    await bench.retried("First-1", 1, 7000)
    assert (await bench.result()).error_message == "attempt 2 of First-1"


async def test_handler_may_ask_for_the_pause_before_the_next_attempt(bench: Bench) -> None:
    """7.4: it replaces one pause only; attempts still count."""

    def execute(context: Any, input: str) -> Any:
        if context.attempt == 2:
            raise retry_after(50, LookupError("not ready"))
        raise LookupError(f"attempt {context.attempt}")

    bench.on(First, execute, options=options(maximum_attempts=4))
    await bench.start()
    await bench.retried("First-1", 1, 1)
    failure = await bench.retried("First-1", 2, 50)
    assert failure.details.original_worker_error_detail == "not ready"
    assert failure.details.original_worker_error_type.endswith("LookupError")
    await bench.retried("First-1", 3, 4)
    assert (await bench.result()).error_message == "attempt 4"


async def test_asked_pause_beyond_the_total_duration_ends_the_retries(bench: Bench) -> None:
    """7.3, 7.4."""

    def execute(context: Any, input: str) -> Any:
        raise retry_after(50, LookupError("not ready"))

    bench.on(First, execute, options=options(total_duration=seconds(40)))
    await bench.start()
    assert (await bench.result()).error_message == "not ready"


@pytest.mark.parametrize("error", [ValueError, TypeError])
async def test_mistake_of_a_handler_is_an_ordinary_failure(bench: Bench, error: Any) -> None:
    """D11: the SDK reports it as an invalid result; the engine retries all the same."""

    def execute(context: Any, input: str) -> Any:
        if context.attempt == 1:
            raise error("typo")
        return graceful_complete("corrected")

    bench.on(First, execute)
    await bench.start()
    await bench.retried("First-1", 1, 1)
    assert await bench.output(str) == "corrected"


async def test_result_that_cannot_be_applied_is_not_retried(bench: Bench) -> None:
    """7.12, 7.6: a heartbeat timeout below the minimum, say; the failure policy applies."""
    bad = StepOptions(heartbeat_timeout=seconds(5))
    decision = go_to_many(StepMovement.of(Second, "", options=bad))
    bench.on(First, lambda context, input: decision)
    await bench.start("plain")
    result = await bench.result("plain")
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "'First-1' returned an invalid result" in (result.error_message or "")
    bench.on(First, options=StepOptions().on_execute_failure_proceed_to(Third))
    bench.on(Third, lambda context, input: graceful_complete(context.recovery_error.detail))
    await bench.start("routed")
    assert "heartbeat timeout of 5 seconds" in await bench.output(str, "routed")


# --- what the next attempt knows ---------------------------------------------------------------


async def test_first_attempt_time_stays_and_each_method_has_its_own(bench: Bench) -> None:
    """6.1.5: wait_for and execute count their attempts separately."""

    def seen(context: Any) -> list[float]:
        return [context.attempt, context.first_attempt_at.timestamp()]

    def wait_for(context: Any, input: str) -> Any:
        if context.attempt < 3:
            raise LookupError("no")
        context.set_step_execution_local("wait_for", seen(context))
        return Wait.skip_immediately()

    def execute(context: Any, input: str) -> Any:
        if context.attempt < 2:
            raise LookupError("no")
        return graceful_complete(
            [context.get_step_execution_local("wait_for", list[Any]), seen(context)]
        )

    bench.on(Hold, execute, wait_for=wait_for)
    bench.on(First, lambda context, input: go_to(Hold, input))
    began = bench.clock.now()
    await bench.start()
    await bench.retried("Hold-1", 1, 1)
    await bench.retried("Hold-1", 2, 2)
    await bench.retried("Hold-1", 1, 1)
    assert await bench.output(list[Any]) == [[3, began], [2, began + 3]]


async def checkpoint(bench: Bench, beat: Any) -> list[Any]:
    """Let attempt 1 send frames, and return what attempt 2 finds of them."""

    async def execute(context: Any, input: str) -> Any:
        if context.attempt == 1:
            await beat(context)
            raise LookupError("no")
        has_value = context.has_last_heartbeat_value()
        return graceful_complete([has_value, context.get_last_heartbeat_value(str)])

    bench.on(First, execute)
    await bench.start()
    await bench.retried("First-1", 1, 1)
    return await bench.output(list[Any])


async def test_last_heartbeat_value_reaches_the_next_attempt(bench: Bench) -> None:
    """7.7."""

    async def beat(context: Any) -> None:
        await context.heartbeat("first")
        await context.heartbeat("second")

    assert await checkpoint(bench, beat) == [True, "second"]


async def test_heartbeat_without_value_clears_the_last_one(bench: Bench) -> None:
    """7.7: the field is absent then."""

    async def beat(context: Any) -> None:
        await context.heartbeat("first")
        await context.heartbeat()

    assert await checkpoint(bench, beat) == [False, None]


async def test_heartbeat_value_none_is_a_value(bench: Bench) -> None:
    """7.7."""

    async def beat(context: Any) -> None:
        await context.heartbeat("first")
        await context.heartbeat(None)

    assert await checkpoint(bench, beat) == [True, None]


async def test_stream_message_keeps_the_heartbeat_value(bench: Bench) -> None:
    """7.7."""

    async def beat(context: Any) -> None:
        await context.heartbeat("first")
        lines.write(context, "a line")

    assert await checkpoint(bench, beat) == [True, "first"]


async def test_big_heartbeat_value_arrives_whole(bench: Bench) -> None:
    """7.7, 1.2."""

    async def beat(context: Any) -> None:
        await context.heartbeat("x" * 3_000_000)

    assert await checkpoint(bench, beat) == [True, "x" * 3_000_000]


async def test_methods_do_not_see_each_others_heartbeats(bench: Bench) -> None:
    """7.7: nor does another execution."""

    async def wait_for(context: Any, input: str) -> Any:
        await context.heartbeat("of wait_for")
        return Wait.skip_immediately()

    async def execute(context: Any, input: str) -> Any:
        bench.script.note(f"{context.step_execution_id} {context.has_last_heartbeat_value()}")
        await context.heartbeat("of execute")
        return go_to(Hold, "again") if input == "once" else graceful_complete()

    bench.on(Hold, execute, wait_for=wait_for)
    bench.on(First, lambda context, input: go_to(Hold, "once"))
    await bench.start()
    await bench.result()
    assert bench.script.notes == ["Hold-1 False", "Hold-2 False"]


async def test_engine_restart_costs_the_running_attempt_but_not_its_checkpoint(
    bench: Bench,
) -> None:
    """7.14, 7.15: attempt, first attempt time and heartbeat value are durable."""

    async def execute(context: Any, input: str) -> Any:
        if context.attempt < 3:
            await context.heartbeat(f"attempt {context.attempt}")
            bench.script.note(f"attempt {context.attempt}")
            await bench.script.gate("never")
        return graceful_complete(
            [
                context.attempt,
                context.first_attempt_at.timestamp(),
                context.get_last_heartbeat_value(str),
            ]
        )

    bench.on(First, execute, options=options(maximum_attempts=3))
    began = bench.clock.now()
    await bench.start()
    for attempt, pause in ((1, 1), (2, 2)):
        await bench.script.noted(f"attempt {attempt}")
        await bench.reach(lambda state: True)
        await bench.restart()
        failure = await bench.retried("First-1", attempt, pause)
        reason = failure.details.dispatch_task_error_reason
        assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
    assert await bench.output(list[Any]) == [3, began, "attempt 2"]


# --- what follows the last attempt -------------------------------------------------------------


async def test_recovery_step_gets_the_input_and_the_error(bench: Bench) -> None:
    """7.10, 7.11, 6.1.4: its successors do not inherit the error."""

    def recover(context: Any, input: str) -> Any:
        error = context.recovery_error
        found = [input, error.detail, error.error_type, context.from_step_execution_id]
        bench.script.note(str(found))
        return go_to(Third, "after")

    bench.on(First, lambda context, input: go_to(Second, "parcel"))
    bench.on(
        Second,
        failing_until(bench, 9),
        options=options(maximum_attempts=1).on_execute_failure_proceed_to(Hold),
    )

    def wait_for(context: Any, input: str) -> Wait:
        bench.script.note(context.recovery_error.detail)
        return Wait.skip_immediately()

    bench.on(Hold, recover, wait_for=wait_for)
    bench.on(Third, lambda context, input: graceful_complete(context.recovery_error is None))
    await bench.start()
    assert await bench.output(bool)
    assert bench.script.notes == [
        "attempt 1 of Second-1",
        "['parcel', 'attempt 1 of Second-1', 'builtins.LookupError', 'Second-1']",
    ]


async def test_recovery_step_runs_with_the_options_given_for_it(bench: Bench) -> None:
    """7.10: and is retried by them."""
    bench.on(
        First,
        failing_until(bench, 9),
        options=options(maximum_attempts=1).on_execute_failure_proceed_to(
            Second, options(initial_interval=seconds(30))
        ),
    )
    bench.on(Second, failing_until(bench, 2))
    await bench.start()
    await bench.retried("Second-1", 1, 30)
    assert (await bench.output(list[Any]))[0] == 2


async def test_failed_wait_for_fails_the_flow(bench: Bench) -> None:
    """7.9: the default."""

    def wait_for(context: Any, input: str) -> Any:
        raise LookupError("nothing to wait for")

    retry = RetryPolicy(maximum_attempts=1)
    bench.on(Hold, wait_for=wait_for, options=StepOptions(wait_for_retry=retry))
    bench.on(First, lambda context, input: go_to(Hold, ""))
    await bench.start()
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert result.error_message == "nothing to wait for"


async def test_failed_wait_for_may_proceed_to_execute(bench: Bench) -> None:
    """7.9: same input, the failure in the Context, nothing of the failed attempt committed."""

    def wait_for(context: Any, input: str) -> Any:
        context.set_step_execution_local("key", "value")
        inbox.publish(context, "message")
        raise LookupError("nothing to wait for")

    def execute(context: Any, input: str) -> Any:
        return graceful_complete(
            [
                input,
                context.wait_for_method_failed(),
                context.recovery_error.detail,
                context.get_step_execution_local("key", str),
                inbox.size(context),
            ]
        )

    proceed = StepOptions(
        wait_for_retry=RetryPolicy(maximum_attempts=2),
        wait_for_failure=WaitForFailurePolicy.PROCEED,
    )
    bench.on(Hold, execute, wait_for=wait_for, options=proceed)
    bench.on(First, lambda context, input: go_to(Hold, "parcel"))
    await bench.start()
    await bench.retried("Hold-1", 1, 1)
    assert await bench.output(list[Any]) == ["parcel", True, "nothing to wait for", None, 0]


async def test_step_that_waited_without_failing_is_told_so(bench: Bench) -> None:
    """7.9."""
    bench.on(Hold, lambda context, input: graceful_complete(context.wait_for_method_failed()))
    bench.on(First, lambda context, input: go_to(Hold, ""))
    await bench.start()
    assert await bench.output(bool) is False
