"""What execute may decide, and when a Flow completes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    Channel,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    PersistenceSchema,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
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
outbox = Channel("outbox", str)
color = Attribute("color", str)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(inbox, outbox, color)


@pytest.fixture(params=[SETTINGS, FORGETFUL], ids=["loaded", "forgetful"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, settings=request.param) as bench:
        bench.on(Hold, wait_for=lambda context, input: Wait.until(inbox.for_one()))
        bench.on_rpc("ask", publish_text)
        yield bench


def publish_text(context: Any, input: str) -> RPCResult[str]:
    inbox.publish(context, input)
    return RPCResult("")


def fan_out(*movements: tuple[type[Any], str]) -> Any:
    """Make a handler that goes to all these Steps."""
    return lambda *_: go_to_many(*(StepMovement.of(step, input) for step, input in movements))


def noting(bench: Bench, decision: StepDecision) -> Any:
    """Make a handler that notes where it comes from and then decides."""

    def execute(context: Any, input: str) -> StepDecision:
        source = context.from_step_execution_id
        bench.script.note(f"{context.step_execution_id} {input} from {source or 'start'}")
        return decision

    return execute


async def outputs(bench: Bench) -> list[tuple[str, str]]:
    """Wait until the Flow has completed; return who completed it with what."""
    result = await bench.result()
    assert result.status is FlowStatus.COMPLETED, result.error_message
    return [(each.step_execution_id, each.decode(str)) for each in result.completions]


# --- next Steps --------------------------------------------------------------------------------


async def test_next_step_gets_its_input_and_its_number(bench: Bench) -> None:
    """6.1.1, 6.1.3, 6.5.2: numbers count per Step type; the source is the deciding execution."""
    bench.on(First, noting(bench, go_to(Second, "a")))
    bench.on(Second, noting(bench, go_to(Third, "b")))
    bench.on(Third, noting(bench, graceful_complete()))
    await bench.start(input="x")
    assert (await bench.result()).completions == ()
    assert bench.script.notes == [
        "First-1 x from start",
        "Second-1 a from First-1",
        "Third-1 b from Second-1",
    ]


async def test_step_may_go_to_itself(bench: Bench) -> None:
    """6.1.2: every execution has its own number and attempts of its own."""

    def execute(context: Any, input: str) -> StepDecision:
        assert context.attempt == 1
        if len(input) == 5:
            return graceful_complete(context.step_execution_id)
        return go_to(First, input + "x")

    bench.on(First, execute)
    await bench.start(input="")
    assert await bench.output(str) == "First-6"


async def test_many_next_steps_are_numbered_in_order(bench: Bench) -> None:
    """6.5.2, 6.1.2."""
    bench.on(First, fan_out((Second, "a"), (Third, "b"), (Second, "c")))
    bench.on(Second, noting(bench, graceful_complete()))
    bench.on(Third, noting(bench, graceful_complete()))
    await bench.start()
    await bench.result()
    assert sorted(bench.script.notes) == [
        "Second-1 a from First-1",
        "Second-2 c from First-1",
        "Third-1 b from First-1",
    ]


async def test_movement_brings_its_own_options(bench: Bench) -> None:
    """6.5.2: they replace those of the Step, and are not merged with them."""
    bench.on(Second, lambda context, input: graceful_complete(color.get(context)))
    locking = StepOptions(execute_lock_attributes=(color.lock(),))
    bench.on(First, lambda *_: go_to_many(StepMovement.of(Second, "", options=locking)))
    await bench.start()
    assert (await bench.result()).status is FlowStatus.COMPLETED
    events = await bench.history()
    movement = events[1].step_execute_completed.output.step_decision.next_steps[0]
    assert movement.step_options.execute_lock_attribute_keys == ["color"]


async def test_recorded_events_stand_in_the_journal(bench: Bench) -> None:
    """6.2.8."""

    def execute(context: Any, input: str) -> StepDecision:
        context.record_event("cost", 12)
        return graceful_complete()

    bench.on(First, execute)
    await bench.start()
    await bench.result()
    recorded = (await bench.history())[1].step_execute_completed.output.record_events
    assert [(entry.key, entry.value.int_value) for entry in recorded] == [("cost", 12)]


# --- completing and failing --------------------------------------------------------------------


async def test_graceful_completion_waits_for_every_other_branch(bench: Bench) -> None:
    """6.5.3: and returns the outputs of all."""
    bench.on(First, fan_out((Second, "fast"), (Hold, "slow")))
    bench.on(Hold, lambda context, input: go_to(Third, inbox.results(context)[0]))
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.reach(lambda state: len(state.completed_steps) == 1)
    assert (await bench.client.describe_flow("flow")).status is FlowStatus.RUNNING
    await bench.restart()
    await bench.call("ask", "message")
    assert await outputs(bench) == [("Second-1", "fast"), ("Third-1", "message")]


async def test_completion_without_output_is_not_among_the_results(bench: Bench) -> None:
    """6.5.3, 4.5: None is an output, nothing is not."""
    bench.on(First, fan_out((Second, ""), (Third, "")))
    bench.on(Second, lambda *_: graceful_complete())
    bench.on(Third, lambda *_: graceful_complete(None))
    await bench.start()
    completions = (await bench.result()).completions
    assert [each.step_execution_id for each in completions] == ["Third-1"]
    assert completions[0].decode(type(None)) is None


async def test_dead_end_alone_keeps_the_flow_open(bench: Bench) -> None:
    """6.5.4, 4.2: until something else completes it."""
    bench.on(First, noting(bench, dead_end()))
    await bench.start()
    await bench.script.noted("First-1  from start")
    await bench.reach(lambda state: not state.active_step_executions)
    assert (await bench.client.describe_flow("flow")).status is FlowStatus.RUNNING
    bench.on_rpc("ask", lambda context, input: RPCResult("", (StepMovement.of(Second, input),)))
    await bench.call("ask", "end")
    assert await outputs(bench) == [("Second-1", "end")]


async def test_last_dead_end_completes_a_flow_that_is_completing(bench: Bench) -> None:
    """6.5.4."""
    bench.on(First, fan_out((Second, "done"), (Hold, "")))
    bench.on(Hold, lambda *_: dead_end())
    await bench.start()
    await bench.reach(lambda state: len(state.completed_steps) == 1)
    await bench.call("ask", "message")
    assert await outputs(bench) == [("Second-1", "done")]


async def test_step_started_by_an_rpc_keeps_a_completing_flow_open(bench: Bench) -> None:
    """6.5.3."""
    bench.on(First, fan_out((Second, "early"), (Hold, "")))
    bench.on(Hold, lambda *_: dead_end())
    await bench.start()
    await bench.reach(lambda state: len(state.completed_steps) == 1)
    bench.on_rpc("ask", lambda context, input: RPCResult("", (StepMovement.of(Rest, input),)))
    bench.on(Rest, wait_for=lambda *_: Wait.until(outbox.for_one()))
    await bench.call("ask", "late")
    await bench.waiting("Rest-1")
    bench.on_rpc("ask", publish_text)
    await bench.call("ask", "message")
    await bench.reach(lambda state: len(state.active_step_executions) == 1)

    def publish(context: Any, input: str) -> RPCResult[str]:
        outbox.publish(context, input)
        return RPCResult("")

    bench.on_rpc("ask", publish)
    await bench.call("ask", "message")
    assert await outputs(bench) == [("Second-1", "early"), ("Rest-1", "late")]


async def test_forced_completion_abandons_the_other_branches(bench: Bench) -> None:
    """6.5.5: earlier outputs are kept, this one is added."""

    async def third(context: Any, input: str) -> StepDecision:
        await bench.script.gate("third")
        return force_complete(input)

    bench.on(First, fan_out((Second, "early"), (Third, "forced"), (Hold, "")))
    bench.on(Third, third)
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.reach(lambda state: len(state.completed_steps) == 1)
    bench.script.open("third")
    assert await outputs(bench) == [("Second-1", "early"), ("Third-1", "forced")]
    assert not (await bench.state()).active_step_executions
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bench.call("ask", "message")


async def test_forced_failure_gives_its_reason(bench: Bench) -> None:
    """6.5.5, 4.6: exactly, even a long one."""
    reason = "no more paper: " + "é" * 3000
    bench.on(First, fan_out((Second, ""), (Hold, "")))
    bench.on(Second, lambda *_: force_fail(reason))
    await bench.start()
    result = await bench.result()
    assert (result.status, result.error_type, result.error_message) == (
        FlowStatus.FAILED,
        FlowErrorType.STEP_DECISION_FAILED,
        reason,
    )
    assert result.completions == ()


async def test_effects_of_the_last_decision_are_committed(bench: Bench) -> None:
    """6.5.7: also those of a forced failure."""

    def execute(context: Any, input: str) -> StepDecision:
        color.set(context, "red")
        inbox.publish(context, "message")
        return force_fail("no")

    bench.on(First, execute)
    await bench.start()
    await bench.result()
    state = await bench.state()
    assert state.attributes[0].value.string_value == "red"
    assert len(state.pending_channel_messages["inbox"].messages) == 1


async def test_decision_without_movements_is_an_ordinary_failure(bench: Bench) -> None:
    """6.5.1: the SDK refuses it, the engine retries."""

    def execute(context: Any, input: str) -> StepDecision:
        return go_to_many() if context.attempt == 1 else graceful_complete("corrected")

    bench.on(First, execute)
    await bench.start()
    failure = await bench.retried("First-1", 1, 1)
    assert "requires a movement" in failure.details.original_worker_error_detail
    assert await bench.output(str) == "corrected"


# --- completing if Channels are empty ----------------------------------------------------------


async def conditional(bench: Bench, *before: str, execute: Any = None) -> None:
    """Start a Flow that, after `before` was published, completes if its inbox is empty."""

    def first(context: Any, input: str) -> StepDecision:
        for text in before:
            inbox.publish(context, text)
        return go_to(Second, "")

    def second(context: Any, input: str) -> StepDecision:
        fallback = StepMovement.of(Third, "fallback")
        return force_complete_if_channels_empty("empty", fallback, inbox, outbox)

    bench.on(First, first)
    bench.on(Second, execute or second)
    await bench.start()


async def test_flow_completes_if_all_named_channels_are_empty(bench: Bench) -> None:
    """6.5.6."""
    await conditional(bench)
    assert await outputs(bench) == [("Second-1", "empty")]


async def test_fallback_runs_if_a_named_channel_is_not_empty(bench: Bench) -> None:
    """6.5.6."""
    await conditional(bench, "message")
    assert await outputs(bench) == [("Third-1", "fallback")]


async def test_message_published_with_the_decision_counts(bench: Bench) -> None:
    """6.5.6, 6.5.7."""

    def second(context: Any, input: str) -> StepDecision:
        outbox.publish(context, "message")
        fallback = StepMovement.of(Third, "fallback")
        return force_complete_if_channels_empty("empty", fallback, inbox, outbox)

    await conditional(bench, execute=second)
    assert await outputs(bench) == [("Third-1", "fallback")]


async def test_message_deleted_with_the_decision_does_not_count(bench: Bench) -> None:
    """6.5.6, 6.5.7."""

    def second(context: Any, input: str) -> StepDecision:
        for message in inbox.pending_messages(context):
            inbox.delete(context, message.message_id)
        fallback = StepMovement.of(Third, "fallback")
        return force_complete_if_channels_empty("empty", fallback, inbox, outbox)

    bench.on(Second, options=StepOptions(execute_load_channels=(inbox,)))
    await conditional(bench, "message", execute=second)
    assert await outputs(bench) == [("Second-1", "empty")]


async def test_message_consumed_by_the_deciding_step_does_not_count(bench: Bench) -> None:
    """6.5.6."""

    def execute(context: Any, input: str) -> StepDecision:
        fallback = StepMovement.of(Third, "fallback")
        return force_complete_if_channels_empty("empty", fallback, inbox)

    bench.on(First, fan_out((Hold, "")))
    bench.on(Hold, execute)
    await bench.start()
    await bench.call("ask", "message")
    assert await outputs(bench) == [("Hold-1", "empty")]


async def test_message_published_while_the_flow_completes_is_not_lost(bench: Bench) -> None:
    """18.4: it is either seen by the decision or refused with the Flow closed."""

    def second(context: Any, input: str) -> StepDecision:
        fallback = StepMovement.of(Third, "fallback")
        return force_complete_if_channels_empty("empty", fallback, inbox)

    async def race(flow_id: str) -> tuple[str, bool]:
        publishing = asyncio.create_task(bench.call("ask", "message", flow_id=flow_id))
        bench.script.open(flow_id)
        output = await bench.output(str, flow_id)
        try:
            await publishing
        except FlowNotActiveOrNotFoundError:
            return output, False
        return output, True

    async def first(context: Any, input: str) -> StepDecision:
        await bench.script.gate(context.flow_id)
        return go_to(Second, "")

    bench.on(First, first)
    bench.on(Second, second)
    flow_ids = [f"flow {number}" for number in range(20)]
    for flow_id in flow_ids:
        await bench.start(flow_id)
    outcomes = await asyncio.gather(*map(race, flow_ids))
    assert set(outcomes) <= {("empty", False), ("fallback", True)}


async def test_message_that_another_step_still_works_on_counts(bench: Bench) -> None:
    """6.5.6: until its execute has ended."""

    async def hold(context: Any, input: str) -> StepDecision:
        bench.script.note("holding")
        await bench.script.gate("hold")
        return dead_end()

    def rest(context: Any, input: str) -> StepDecision:
        again = StepMovement.of(Rest, "again")
        bench.script.note(f"tried {input}")
        return force_complete_if_channels_empty(f"empty {input}", again, inbox)

    bench.on(First, fan_out((Hold, ""), (Rest, "")))
    bench.on(Hold, hold)
    bench.on(Rest, rest, wait_for=lambda *_: Wait.until(outbox.for_one()))
    await bench.start()
    await bench.call("ask", "message")
    await bench.script.noted("holding")

    def publish(context: Any, input: str) -> RPCResult[str]:
        outbox.publish(context, input)
        return RPCResult("")

    bench.on_rpc("ask", publish)
    await bench.call("ask", "try")
    await bench.waiting("Rest-2")
    bench.script.open("hold")
    await bench.reach(lambda state: len(state.active_step_executions) == 1)
    await bench.call("ask", "try")
    assert await outputs(bench) == [("Rest-2", "empty again")]
