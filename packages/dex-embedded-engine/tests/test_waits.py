"""What Steps wait for, when that is there, and what execute is told of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Channel,
    ChannelMap,
    ConditionCombination,
    FlowErrorType,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import FORGETFUL, SETTINGS, Bench, First, Hold, Rest, ScriptedFlow, Second

inbox = Channel("inbox", str)
outbox = Channel("outbox", str)
topics = ChannelMap("topics", str)
DAY = 24 * 3600


class Stage(ScriptedFlow):
    starts_with = Hold

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(inbox, outbox, topics)


def seen(context: Any, input: str) -> Any:
    """Complete with everything execute is told about its wait."""
    return graceful_complete(
        {
            "timers": [context.has_timer_fired(index) for index in range(3)],
            "inbox": list(inbox.results(context)),
            "outbox": list(outbox.results(context)),
        }
    )


def report(*fired: bool, inbox: Any = (), outbox: Any = ()) -> dict[str, Any]:
    timers = [*fired, False, False, False][:3]
    return {"timers": timers, "inbox": list(inbox), "outbox": list(outbox)}


@pytest.fixture(params=[SETTINGS, FORGETFUL], ids=["loaded", "forgetful"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, settings=request.param) as bench:
        bench.on(Hold, seen)
        yield bench


async def publish(bench: Bench, *texts: str, channel: Channel[str] = inbox) -> None:
    """Publish all texts in one commit."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        for text in texts:
            channel.publish(context, text)
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "")


async def start(bench: Bench, wait: Wait) -> None:
    """Start a Flow whose first Step waits, and let it wait."""
    bench.on(Hold, wait_for=lambda context, input: wait)
    await bench.start()


async def output(bench: Bench) -> dict[str, Any]:
    return await bench.output(dict[str, Any])


async def left(bench: Bench, channel: str = "inbox") -> list[str]:
    """Return what is still in the Channel."""
    messages = (await bench.state()).pending_channel_messages[channel].messages
    return [message.value.string_value for message in messages]


def days(number: int, name: str | None = None) -> Any:
    return Timer.by_duration(timedelta(days=number), condition_id=name)


# --- Channels ----------------------------------------------------------------------------------

BOUNDS = {
    "one": (inbox.for_one(), 1, "a"),
    "exactly two": (inbox.for_n(2), 2, "ab"),
    "at least two": (inbox.at_least(2), 2, "ab"),
    "two to three": (inbox.for_range(at_least=2, at_most=3), 2, "ab"),
}


@pytest.mark.parametrize("name", BOUNDS)
async def test_wait_ends_with_the_lower_bound(bench: Bench, name: str) -> None:
    """6.4.4: messages that come one by one."""
    condition, needed, taken = BOUNDS[name]
    await start(bench, Wait.until(condition))
    for text in taken[: needed - 1]:
        await publish(bench, text)
        await bench.waiting("Hold-1")
    await publish(bench, taken[-1])
    assert await output(bench) == report(inbox=taken)


TAKEN = {
    "one": (inbox.for_one(), "a"),
    "exactly two": (inbox.for_n(2), "ab"),
    "exactly none": (inbox.for_n(0), ""),
    "at least two": (inbox.at_least(2), "abcd"),
    "at least none": (inbox.at_least(0), "abcd"),
    "two to three": (inbox.for_range(at_least=2, at_most=3), "abc"),
    "at most three": (inbox.at_most(3), "abc"),
    "at most nine": (inbox.at_most(9), "abcd"),
}


@pytest.mark.parametrize("name", TAKEN)
async def test_wait_takes_what_is_there_up_to_the_upper_bound(bench: Bench, name: str) -> None:
    """6.4.4, 6.4.7d: the rest stays, in order."""
    condition, taken = TAKEN[name]
    await start(bench, Wait.all_of(condition, outbox.for_one()))
    await publish(bench, *"abcd")
    await bench.waiting("Hold-1")
    await publish(bench, "now", channel=outbox)
    assert await output(bench) == report(inbox=taken, outbox=["now"])
    assert await left(bench) == list("abcd"[len(taken) :])


async def test_upper_bound_alone_never_blocks(bench: Bench) -> None:
    """6.4.4: an empty Channel is enough."""
    await start(bench, Wait.until(inbox.at_most(3)))
    assert await output(bench) == report()


async def test_instances_of_a_channel_map_are_waited_for_separately(bench: Bench) -> None:
    """6.4.4, 11.1.1: also one whose name must be quoted."""
    bench.on(Hold, lambda context, input: graceful_complete(list(topics.results(context, "ä b"))))
    await start(bench, Wait.until(topics.for_one("ä b")))

    def ask(context: Any, input: str) -> RPCResult[str]:
        topics.publish(context, input, f"to {input}")
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "other")
    await bench.waiting("Hold-1")
    await bench.call("ask", "ä b")
    assert await bench.output(list[Any]) == ["to ä b"]
    assert await left(bench, "topics/other") == ["to other"]


async def test_two_conditions_on_one_channel_add_up(bench: Bench) -> None:
    """6.4.7c: minima first, then the rest in the order of declaration."""
    await start(bench, Wait.all_of(inbox.for_range(at_least=1, at_most=2), inbox.for_n(2)))
    await publish(bench, *"ab")
    await bench.waiting("Hold-1")
    await publish(bench, *"cde")
    assert await output(bench) == report(inbox="abcd")
    assert await left(bench) == ["e"]


async def test_oldest_of_several_waiting_steps_is_served_first(bench: Bench) -> None:
    """6.4.8: one message goes to exactly one of them."""

    def execute(context: Any, input: str) -> Any:
        bench.script.note(f"{context.step_execution_id} {inbox.results(context)[0]}")
        return dead_end()

    bench.on(First, lambda context, input: go_to_many(*(StepMovement.of(Rest, "") for _ in "abc")))
    bench.on(Rest, execute, wait_for=lambda context, input: Wait.until(inbox.for_one()))
    bench.on(Hold, lambda context, input: go_to_many(StepMovement.of(First, "")))
    await bench.start()
    for number in (1, 2, 3):
        await bench.waiting(f"Rest-{number}")
    await publish(bench, "a")
    await bench.script.noted("Rest-1 a")
    await publish(bench, "b", "c")
    await bench.script.noted("Rest-2 b")
    await bench.script.noted("Rest-3 c")
    assert len(bench.script.notes) == 3


# --- timers ------------------------------------------------------------------------------------


async def test_timer_of_many_days_fires_at_its_time(bench: Bench) -> None:
    """6.4.3: not a second earlier; the deadline is absolute and survives restarts."""
    await start(bench, Wait.until(days(30)))
    timer = (await bench.waiting("Hold-1")).timers[0]
    assert timer.firing_unix_timestamp_seconds == bench.clock.now() + 30 * DAY
    assert timer.status == pb.INTERNAL_TIMER_STATUS_PENDING
    bench.clock.advance(10 * DAY)
    await bench.restart()
    await bench.clock.alarm(20 * DAY)
    bench.clock.advance(20 * DAY - 1)
    await bench.waiting("Hold-1")
    bench.clock.advance(1)
    assert await output(bench) == report(True)


async def test_timer_that_is_over_when_the_engine_starts_fires_at_once(bench: Bench) -> None:
    """17.6."""
    await start(bench, Wait.until(days(1)))
    await bench.waiting("Hold-1")
    await bench.stop_engine()
    bench.clock.advance(2 * DAY)
    await bench.start_engine()
    assert await output(bench) == report(True)


async def test_timer_of_no_time_is_ready_at_once(bench: Bench) -> None:
    """6.4.3."""
    await start(bench, Wait.until(days(0)))
    assert await output(bench) == report(True)


async def test_timer_begins_with_the_wait_and_not_with_the_step(bench: Bench) -> None:
    """6.4.3: a wait_for that had to be retried has lost nothing."""

    def wait_for(context: Any, input: str) -> Wait:
        if context.attempt == 1:
            raise LookupError("no")
        return Wait.until(days(1))

    bench.on(Hold, wait_for=wait_for)
    await bench.start()
    await bench.retried("Hold-1", 1, 1)
    timer = (await bench.waiting("Hold-1")).timers[0]
    assert timer.firing_unix_timestamp_seconds == bench.clock.now() + DAY


# --- several conditions ------------------------------------------------------------------------


async def test_all_conditions_must_be_ready(bench: Bench) -> None:
    """6.4.6, 6.4.10: results in order of declaration."""
    await start(bench, Wait.all_of(days(2), inbox.for_one(), days(1)))
    await bench.waiting("Hold-1")
    bench.clock.advance(DAY)
    await publish(bench, "a", "b")
    timers = (await bench.waiting("Hold-1")).timers
    assert [timer.status for timer in timers] == [
        pb.INTERNAL_TIMER_STATUS_PENDING,
        pb.INTERNAL_TIMER_STATUS_FIRED,
    ]
    assert await left(bench) == ["a", "b"]
    bench.clock.advance(DAY)
    assert await output(bench) == report(True, True, inbox=["a"])
    assert await left(bench) == ["b"]


async def test_first_ready_condition_ends_a_wait_for_any(bench: Bench) -> None:
    """6.4.6, 6.4.11: losing Channels keep their messages."""
    await start(bench, Wait.any_of(inbox.for_n(2), outbox.for_one(), days(1)))
    await publish(bench, "a")
    await publish(bench, "b", channel=outbox)
    assert await output(bench) == report(outbox=["b"])
    assert await left(bench) == ["a"]


async def test_timers_come_before_channels_in_a_wait_for_any(bench: Bench) -> None:
    """6.4.6: the canonical order, if both are ready."""
    await start(bench, Wait.any_of(inbox.for_one(), days(0)))
    assert await output(bench) == report(True)


async def test_first_declared_channel_wins_a_wait_for_any(bench: Bench) -> None:
    """6.4.6: the other one keeps its message."""
    bench.on(Hold, lambda context, input: go_to_many(StepMovement.of(Rest, "")))

    def both(context: Any, input: str) -> RPCResult[str]:
        outbox.publish(context, "b")
        inbox.publish(context, "a")
        return RPCResult("")

    await start(bench, Wait.until(days(1)))
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", both)
    await bench.call("ask", "")
    bench.on(Rest, seen, wait_for=lambda *_: Wait.any_of(inbox.for_one(), outbox.for_one()))
    bench.clock.advance(DAY)
    assert await output(bench) == report(inbox=["a"])
    assert await left(bench, "outbox") == ["b"]


async def test_first_complete_combination_ends_the_wait(bench: Bench) -> None:
    """6.4.6, 6.4.7e: only its Channels are consumed; a timer that fired is reported anyway."""
    message = inbox.for_one(condition_id="message")
    answer = outbox.for_one(condition_id="answer")
    early, late = days(1, "early"), days(2, "late")
    await start(
        bench,
        Wait.any_combination_of(
            ConditionCombination.of(message, answer),
            ConditionCombination.of(early, late),
            ConditionCombination.of(message, late),
        ),
    )
    await publish(bench, "a")
    await bench.waiting("Hold-1")
    bench.clock.advance(DAY)
    await bench.waiting("Hold-1")
    await publish(bench, "b", channel=outbox)
    assert await output(bench) == report(True, inbox=["a"], outbox=["b"])


async def test_combination_of_timers_consumes_nothing(bench: Bench) -> None:
    """6.4.7e."""
    message = inbox.for_one(condition_id="message")
    answer = outbox.for_one(condition_id="answer")
    early, late = days(1, "early"), days(2, "late")
    await start(
        bench,
        Wait.any_combination_of(
            ConditionCombination.of(message, answer), ConditionCombination.of(early, late)
        ),
    )
    await publish(bench, "a")
    await bench.waiting("Hold-1")
    bench.clock.advance(2 * DAY)
    assert await output(bench) == report(True, True)
    assert await left(bench) == ["a"]


# --- around the wait ---------------------------------------------------------------------------


async def test_skipped_wait_goes_to_execute_without_results(bench: Bench) -> None:
    """6.2.4."""
    await start(bench, Wait.skip_immediately())
    assert await output(bench) == report()


@pytest.mark.parametrize("restarted", [False, True])
async def test_step_locals_go_from_wait_for_to_execute_only(bench: Bench, restarted: bool) -> None:
    """6.2.7: also across a restart, also to a second attempt; not to the next Step."""

    def wait_for(context: Any, input: str) -> Wait:
        if context.attempt == 1:
            context.set_step_execution_local("lost", "of a failed attempt")
            raise LookupError("no")
        context.set_step_execution_local("small", input)
        context.set_step_execution_local("big", {"text": "x" * 100_000})
        return Wait.until(days(1))

    def found(context: Any) -> list[Any]:
        big = context.get_step_execution_local("big", dict[str, Any])
        return [
            context.get_step_execution_local("small", str),
            None if big is None else len(big["text"]),
            context.get_step_execution_local("lost", str),
        ]

    def execute(context: Any, input: str) -> Any:
        if context.attempt == 1:
            raise LookupError("no")
        bench.script.note(str(found(context)))
        return go_to_many(StepMovement.of(Second, ""))

    bench.on(Hold, execute, wait_for=wait_for)
    bench.on(Second, lambda context, input: graceful_complete(found(context)))
    await bench.start(input="parcel")
    await bench.retried("Hold-1", 1, 1)
    await bench.waiting("Hold-1")
    if restarted:
        await bench.restart()
    bench.clock.advance(DAY)
    await bench.retried("Hold-1", 1, 1)
    assert await bench.output(list[Any]) == [None, None, None]
    assert bench.script.notes == ["['parcel', 100000, None]"]


async def test_execute_gets_the_input_of_wait_for(bench: Bench) -> None:
    """6.2.6: a big one too."""
    text = "x" * 500_000
    bench.on(Hold, lambda context, input: graceful_complete(input == text))
    bench.on(Hold, wait_for=lambda context, input: Wait.until(days(0 if input == text else 9)))
    await bench.start(input=text)
    assert await bench.output(bool)


async def test_effects_of_wait_for_are_committed_before_the_wait(bench: Bench) -> None:
    """6.2.2, 6.4.9: a wait can be satisfied by what its own wait_for published."""

    def wait_for(context: Any, input: str) -> Wait:
        inbox.publish(context, "to myself")
        outbox.publish(context, "to others")
        return Wait.until(inbox.for_one())

    bench.on(Hold, wait_for=wait_for)
    await bench.start()
    assert await output(bench) == report(inbox=["to myself"])
    assert await left(bench, "outbox") == ["to others"]


async def test_unsatisfied_wait_blocks_only_itself(bench: Bench) -> None:
    """6.4.12."""
    bench.on(Hold, lambda *_: go_to_many(StepMovement.of(Rest, ""), StepMovement.of(First, "")))
    bench.on(Rest, wait_for=lambda *_: Wait.until(inbox.for_one()))

    def first(context: Any, input: str) -> Any:
        bench.script.note("first")
        return dead_end()

    bench.on(First, first)
    await start(bench, Wait.skip_immediately())
    await bench.script.noted("first")
    await bench.waiting("Rest-1")


async def test_consumed_messages_are_not_taken_again_by_another_attempt(bench: Bench) -> None:
    """6.4.10, 6.3.5: every attempt of execute gets the same results; so after a restart."""

    def execute(context: Any, input: str) -> Any:
        bench.script.note(f"{context.attempt} {list(inbox.results(context))}")
        if context.attempt < 3:
            raise LookupError("no")
        return seen(context, input)

    bench.on(Hold, execute)
    await start(bench, Wait.until(inbox.for_n(2)))
    await publish(bench, *"abc")
    await bench.retried("Hold-1", 1, 1)
    await bench.failed("Hold-1", 2)
    await bench.restart()
    bench.clock.advance(2)
    assert await output(bench) == report(inbox="ab")
    assert bench.script.notes == ["1 ['a', 'b']", "2 ['a', 'b']", "3 ['a', 'b']"]
    assert await left(bench) == ["c"]


async def test_wait_that_asks_for_too_much_time_is_an_invalid_result(bench: Bench) -> None:
    """6.4.2, 7.12: it is not retried."""
    once = StepOptions(wait_for_retry=RetryPolicy(maximum_attempts=5))
    bench.on(Hold, options=once)
    await start(bench, Wait.until(days(1_000_000)))
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "invalid result" in (result.error_message or "")
