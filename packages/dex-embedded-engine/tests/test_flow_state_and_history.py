"""What GetFlowState and GetHistoryEvents tell of a Flow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    Attribute,
    AttributeMap,
    Channel,
    IdReusePolicy,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow, Second, Third, guard

color = Attribute("color", str)
shelf = AttributeMap("shelf", str)
inbox = Channel("inbox", str)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(color, shelf, inbox)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
        yield bench


def text(value: pb.Value) -> str:
    """Return the text that a Step got as input or gave as output."""
    return value.string_value


def kinds(events: list[pb.FlowHistoryEvent]) -> list[str]:
    return [event.WhichOneof("payload") or "" for event in events]


# --- state -------------------------------------------------------------------------------------


async def test_state_shows_what_every_step_is_at(bench: Bench) -> None:
    """15.3: running, waiting, backing off and queued; sorted by type and number."""

    async def second(context: Any, input: str) -> Any:
        bench.script.note(f"running {input}")
        if input == "fail":
            raise LookupError("no")
        await bench.script.gate("second")
        return graceful_complete(f"output {input}")

    steps = (
        StepMovement.of(Third, "t"),
        StepMovement.of(Second, "fail"),
        StepMovement.of(Hold, "h"),
        StepMovement.of(Second, "run"),
    )
    bench.on(First, lambda *_: go_to_many(*steps))
    bench.on(Second, second)
    bench.on(Third, lambda *_: graceful_complete("early"))
    await bench.start()
    await bench.failed("Second-1")
    await bench.script.noted("running run")
    await bench.waiting("Hold-1")
    state = await bench.reach(lambda state: len(state.completed_steps) == 1)
    active = [(each.step_execution_id, each.phase) for each in state.active_step_executions]
    assert active == [
        ("Hold-1", pb.ACTIVE_STEP_PHASE_WAITING),
        ("Second-1", pb.ACTIVE_STEP_PHASE_ACTIVE),
        ("Second-2", pb.ACTIVE_STEP_PHASE_ACTIVE),
    ]
    assert [text(each.movement.step_input) for each in state.active_step_executions] == [
        "h",
        "fail",
        "run",
    ]
    assert {each.from_step_execution_id for each in state.active_step_executions} == {"First-1"}
    assert [each.completed_step_execution_id for each in state.completed_steps] == ["Third-1"]
    assert not state.queued_steps
    assert state.sticky_app_worker_id


async def test_state_shows_steps_that_no_worker_has_taken(tmp_path: Path) -> None:
    """15.3."""
    async with Bench(tmp_path, Stage, has_worker=False) as bench:
        await bench.start(input="parcel")
        state = await bench.state()
        assert [(each.step_type, text(each.step_input)) for each in state.queued_steps] == [
            ("First", "parcel")
        ]


async def test_state_shows_the_last_failure_while_backing_off(bench: Bench) -> None:
    """7.13, 15.4: attempt, detail, type and stack trace; also after a restart."""

    def first(context: Any, input: str) -> Any:
        raise LookupError(f"attempt {context.attempt}")

    bench.on(First, first)
    await bench.start()
    await bench.retried("First-1", 1, 1)
    await bench.failed("First-1", 2)
    await bench.restart()
    failure = await bench.failed("First-1", 2)
    assert failure.details.original_worker_error_detail == "attempt 2"
    assert failure.details.original_worker_error_type == "builtins.LookupError"
    assert failure.details.original_worker_error_status == grpc.StatusCode.UNKNOWN.value[0]
    assert "LookupError: attempt 2" in failure.details.original_worker_error_stack_trace


async def test_state_shows_what_a_step_waits_for(bench: Bench) -> None:
    """15.3: conditions and when timers fire; locals; Attributes and messages of the Flow."""

    def hold(context: Any, input: str) -> Wait:
        context.set_step_execution_local("kept", "for execute")
        color.set(context, "red")
        inbox.publish(context, "a")
        return Wait.all_of(inbox.for_n(2), Timer.by_duration(timedelta(hours=1), condition_id="t"))

    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(Hold, wait_for=hold)
    await bench.start(options=StartFlowOptions().with_attribute(shelf, "a b", "apple"))
    step = await bench.waiting("Hold-1")
    condition = step.waiting_condition
    assert condition.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ALL_COMPLETED
    assert [each.channel_name for each in condition.channel_conditions] == ["inbox"]
    assert [(each.condition_id, each.firing_unix_timestamp_seconds) for each in step.timers] == [
        ("t", bench.clock.now() + 3600)
    ]
    assert [(each.key, text(each.value)) for each in step.step_execution_locals] == [
        ("kept", "for execute")
    ]
    state = await bench.state()
    assert [(each.key, text(each.value)) for each in state.attributes] == [
        ("color", "red"),
        ("shelf/a%20b", "apple"),
    ]
    (message,) = state.pending_channel_messages["inbox"].messages
    assert text(message.value) == "a"


async def test_state_of_a_closed_flow_is_its_last_one(bench: Bench) -> None:
    """15.3, 4.10."""

    def first(context: Any, input: str) -> Any:
        color.set(context, "red")
        return graceful_complete("done")

    bench.on(First, first)
    await bench.start()
    await bench.result()
    await bench.restart()
    state = await bench.state()
    assert not state.active_step_executions
    assert [text(each.completed_step_output) for each in state.completed_steps] == ["done"]
    assert [text(each.value) for each in state.attributes] == ["red"]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await bench.service.GetFlowState(pb.GetFlowStateRequest(flow_id="nobody"))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


# --- history -----------------------------------------------------------------------------------


async def plain_sequence(bench: Bench) -> list[pb.FlowHistoryEvent]:
    """Run First, Hold and Third, with an RPC that lets Hold go on; return the journal."""

    def first(context: Any, input: str) -> Any:
        color.set(context, "red")
        return go_to(Hold, "second input")

    def ask(context: Any, input: str) -> RPCResult[str]:
        inbox.publish(context, input)
        return RPCResult("thanks")

    bench.on(First, first)
    bench.on(Hold, lambda *_: go_to(Third, "third input"))
    bench.on_rpc("ask", ask)
    await bench.start(input="first input")
    await bench.waiting("Hold-1")
    bench.clock.advance(10)
    await bench.call("ask", "message")
    await bench.result()
    return await bench.history()


async def test_journal_of_a_plain_sequence_is_exactly_this(bench: Bench) -> None:
    """15.1: one event for each thing that happened, with growing ids and times."""
    began = int(bench.clock.now())
    events = await plain_sequence(bench)
    assert kinds(events) == [
        "flow_started_or_continued",
        "step_execute_completed",
        "step_wait_for_completed",
        "rpc_execution_completed",
        "step_execute_completed",
        "step_execute_completed",
        "flow_closed",
    ]
    assert [event.event_id for event in events] == list(range(1, 8))
    assert [event.event_time.seconds - began for event in events] == [0, 0, 0, 10, 10, 10, 10]
    assert {event.run_attempt for event in events} == {1}


async def test_start_and_close_are_told_whole(bench: Bench) -> None:
    """15.1."""
    events = await plain_sequence(bench)
    started = events[0].flow_started_or_continued
    run_id = (await bench.client.describe_flow("flow")).run_id
    assert (started.flow_execution_id.flow_id, started.flow_execution_id.run_id) == ("flow", run_id)
    assert started.flow_type == "Stage"
    assert started.initial_start.start_step_type == "First"
    assert text(started.initial_start.step_input) == "first input"
    closed = events[-1].flow_closed
    assert closed.flow_status == pb.FLOW_STATUS_COMPLETED
    assert [text(each.completed_step_output) for each in closed.results] == ["third input"]


async def test_step_events_carry_input_output_and_context(bench: Bench) -> None:
    """15.1: inputs are those that the Steps really got."""
    events = await plain_sequence(bench)
    first = events[1].step_execute_completed
    assert text(first.input.step_input) == "first input"
    assert first.context.step_execution_id == "First-1"
    assert first.context.final_attempt == 1
    assert [text(each.value) for each in first.output.upsert_attributes] == ["red"]
    assert [each.step_type for each in first.output.step_decision.next_steps] == ["Hold"]
    waited = events[2].step_wait_for_completed
    assert text(waited.input.step_input) == "second input"
    assert waited.context.step_execution_id == "Hold-1"
    assert waited.context.from_step_execution_id == "First-1"
    assert len(waited.output.wait_for_condition.channel_conditions) == 1
    called = events[3].rpc_execution_completed
    assert (called.rpc_name, text(called.input), text(called.output)) == (
        "ask",
        "message",
        "thanks",
    )
    assert [text(each.value) for each in called.publish_to_channel] == ["message"]
    assert called.served_by_app_worker_id
    held = events[4].step_execute_completed
    assert text(held.input.step_input) == "second input"
    (result,) = held.input.condition_results.channel_results
    assert [text(value) for value in result.values] == ["message"]
    assert text(events[5].step_execute_completed.input.step_input) == "third input"


async def test_attempts_of_a_method_are_one_event(bench: Bench) -> None:
    """15.1: with the number of the last attempt, the last failure and the whole time."""

    def first(context: Any, input: str) -> Any:
        if context.attempt < 3:
            raise LookupError(f"attempt {context.attempt}")
        return graceful_complete()

    retry = RetryPolicy(initial_interval=timedelta(seconds=5), maximum_attempts=9)
    bench.on(First, first, options=StepOptions(execute_retry=retry))
    await bench.start()
    await bench.retried("First-1", 1, 5)
    await bench.retried("First-1", 2, 10)
    await bench.result()
    events = await bench.history()
    assert kinds(events) == ["flow_started_or_continued", "step_execute_completed", "flow_closed"]
    context = events[1].step_execute_completed.context
    assert context.final_attempt == 3
    assert context.last_failure_info.attempt == 2
    assert context.last_failure_info.details.original_worker_error_detail == "attempt 2"
    assert context.duration.seconds == 15
    assert context.method_options.retry_policy.maximum_attempts == 9


async def test_failed_methods_and_recovery_are_told(bench: Bench) -> None:
    """15.1: the input of the recovery Step is the one of the failed Step."""

    def fail(context: Any, input: str) -> Any:
        raise LookupError("no")

    once = RetryPolicy(maximum_attempts=1)
    options = StepOptions(execute_retry=once).on_execute_failure_proceed_to(
        Hold, StepOptions(wait_for_retry=once)
    )
    bench.on(First, fail, options=options)
    bench.on(Hold, wait_for=fail)
    await bench.start(input="parcel")
    await bench.result()
    events = await bench.history()
    assert kinds(events) == [
        "flow_started_or_continued",
        "step_execute_failed",
        "step_wait_for_failed",
        "flow_closed",
    ]
    failed = events[1].step_execute_failed
    assert failed.output.failure.details.original_worker_error_detail == "no"
    assert text(failed.input.step_input) == "parcel"
    recovery = events[2].step_wait_for_failed
    assert text(recovery.input.step_input) == "parcel"
    assert recovery.context.from_step_execution_id == "First-1"
    assert events[3].flow_closed.error_type == pb.FLOW_ERROR_TYPE_WORKER_API_FAIL


async def test_journal_is_read_page_by_page(bench: Bench) -> None:
    """15.1: from any event on; a new event continues where the last page ended."""
    bench.on(First, lambda context, input: go_to(First, input[1:]) if input else dead_end())
    await bench.start(input="x" * 9)
    await bench.reach(lambda state: not state.active_step_executions)
    request = pb.GetHistoryEventsRequest(flow_id="flow", estimate_page_size=4)
    found: list[int] = []
    pages = 0
    while True:
        answer = await guard(bench.service.GetHistoryEvents(request))
        found += [event.event_id for event in answer.events]
        pages += 1
        if not answer.next_page_token:
            break
        request.next_page_token = answer.next_page_token
    assert found == list(range(1, 12))
    assert pages == 3
    assert answer.next_internal_event_id == 12
    later = pb.GetHistoryEventsRequest(flow_id="flow", start_internal_event_id=12)
    assert not (await guard(bench.service.GetHistoryEvents(later))).events
    await bench.client.stop_flow("flow")
    (event,) = (await guard(bench.service.GetHistoryEvents(later))).events
    assert event.event_id == 12
    assert event.flow_closed.flow_status == pb.FLOW_STATUS_CANCELED


async def test_journal_with_big_values_fits_into_answers(bench: Bench) -> None:
    """1.2, 15.1: pages are shorter then; a value larger than a page stays a reference."""
    sizes = [600_000 + number for number in range(8)] + [2_000_000]

    def first(context: Any, input: str) -> Any:
        rest = input.split()
        color.set(context, "x" * int(rest[0]))
        return go_to(First, " ".join(rest[1:])) if rest[1:] else graceful_complete()

    bench.on(First, first)
    await bench.start(input=" ".join(map(str, sizes)))
    await bench.result()
    values = [
        write.value
        for event in await bench.history()
        for write in event.step_execute_completed.output.upsert_attributes
    ]
    assert [len(text(value)) for value in values] == [*sizes[:-1], 0]
    entry = pb.LoadBlobRequestEntry(flow_id="flow", blob_value=values[-1])
    loaded = await guard(bench.service.LoadBlobs(pb.LoadBlobsRequest(entries=[entry])))
    (value,) = loaded.values.values()
    assert len(text(value)) == sizes[-1]


async def test_journal_of_an_earlier_run_stays(bench: Bench) -> None:
    """4.10: by run id; an unknown run is not found."""
    await bench.start(input="old")
    await bench.result()
    old = (await bench.client.describe_flow("flow")).run_id
    policy = IdReusePolicy.ALLOW_IF_NOT_RUNNING
    await bench.start(input="new", options=StartFlowOptions(id_reuse_policy=policy))
    await bench.result()
    request = pb.GetHistoryEventsRequest(flow_id="flow", run_id=old)
    events = (await guard(bench.service.GetHistoryEvents(request))).events
    assert text(events[0].flow_started_or_continued.initial_start.step_input) == "old"
    assert text((await bench.history())[0].flow_started_or_continued.initial_start.step_input) == (
        "new"
    )
    request.run_id = "no such run"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await bench.service.GetHistoryEvents(request)
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
