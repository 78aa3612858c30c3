"""Worker results that break the protocol: one Flow ends with a clear error, the others go on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_messages import (
    all_of,
    any_combination,
    any_of,
    channel,
    force_complete,
    go_to,
    graceful,
    move,
    timer,
    to_value,
)
from engine_wire import HandWorker, Wire, everything_stored, good_start, refusal_of

from dex_embedded_engine import EmbeddedEngine, EngineSettings

BLOB = pb.Value(internal_blob_id_for_obj_value="0123")
NAN = pb.Value(double_value=math.nan)
UNKNOWN_ENUM = 99


def write(value: pb.Value, key: str = "a", **fields: Any) -> list[pb.AttributeWrite]:
    return [pb.AttributeWrite(key=key, value=value, **fields)]


def entry(value: pb.Value, key: str = "k") -> pb.KV:
    return pb.KV(key=key, value=value)


def decision(kind: int, output: pb.Value | None = None, *next_steps: pb.StepMovement) -> Any:
    close = pb.CloseDecision(close_input=output)
    close.close_decision_type = kind  # type: ignore[assignment]  # may be a number of no meaning
    return pb.StepDecision(close_decision=close, next_steps=next_steps)


def unknown_wait() -> pb.WaitingCondition:
    condition = all_of(timer(1))
    condition.waiting_condition_type = UNKNOWN_ENUM  # type: ignore[assignment]
    return condition


def with_names(made: pb.StepDecision, *names: str) -> pb.StepDecision:
    made.close_decision.conditional_channel_names.extend(names)
    return made


IF_EMPTY = pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY
FORCE_FAIL = pb.CLOSE_DECISION_TYPE_FORCE_FAIL
RETRY = pb.RetryPolicy(maximum_attempts=-1)
# What is wrong with the effects that wait_for, execute and RPC results have in common.
BAD_EFFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "an attribute without key": ({"upsert_attributes": write(to_value(1), "")}, "has no key"),
    "an attribute without value": (
        {"upsert_attributes": write(pb.Value())},
        "Attribute 'a' has no value; send null_value",
    ),
    "an attribute by reference": (
        {"upsert_attributes": write(BLOB)},
        "Attribute 'a' is a blob reference; only the engine may send those",
    ),
    "an infinite attribute": (
        {"upsert_attributes": write(pb.Value(double_value=math.inf))},
        "Attribute 'a' is inf, which is not a finite number",
    ),
    "a number to delete for good": (
        {"upsert_attributes": write(to_value(1), is_hard_delete_on_null=True)},
        "Attribute 'a' is deleted for good; such a value can only be text",
    ),
    "a message without channel": (
        {"publish_to_channel": [pb.ChannelMessage(value=to_value(1))]},
        "a published message names no Channel",
    ),
    "a message by reference": (
        {"publish_to_channel": [pb.ChannelMessage(channel_name="c", value=BLOB)]},
        "a message for Channel 'c' is a blob reference",
    ),
    "a deletion without message": (
        {"delete_from_channel": [pb.ChannelMessageDeletion(channel_name="c")]},
        "a message deletion lacks its Channel or message id",
    ),
    "an event twice": (
        {"record_events": [entry(to_value(1)), entry(to_value(2))]},
        "recorded event key 'k' is empty or repeated",
    ),
    "an event that is no number": ({"record_events": [entry(NAN)]}, "event 'k' is nan, which"),
}
BAD_LOCALS: dict[str, tuple[dict[str, Any], str]] = {
    "a local without key": (
        {"upsert_step_exe_locals": [entry(to_value(1), "")]},
        "step local key '' is empty or repeated",
    ),
    "a local by reference": (
        {"upsert_step_exe_locals": [entry(BLOB)]},
        "step local 'k' is a blob reference",
    ),
}
BAD_DECISIONS: dict[str, tuple[pb.StepDecision, str]] = {
    "empty": (pb.StepDecision(), "the decision is empty"),
    "unspecified close": (decision(0), "unknown close decision type 0"),
    "unknown close": (decision(UNKNOWN_ENUM), "unknown close decision type 99"),
    "output by reference": (
        decision(pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE, BLOB),
        "the completion output is a blob reference",
    ),
    "close and next": (
        decision(pb.CLOSE_DECISION_TYPE_DEAD_END, None, move("T")),
        "a close decision cannot start Steps",
    ),
    "conditional without fallback": (
        decision(IF_EMPTY, to_value(1)),
        "a conditional close needs exactly one fallback Step",
    ),
    "conditional without output": (
        decision(IF_EMPTY, None, move("T")),
        "a conditional close needs an output",
    ),
    "conditional on no name": (
        with_names(decision(IF_EMPTY, to_value(1), move("T")), "c", ""),
        "a conditional close names no Channel",
    ),
    "failing with a number": (decision(FORCE_FAIL, to_value(7)), "gives its reason as text"),
    "nameless step": (go_to(move("")), "a movement names no Step type"),
    "step without input": (
        go_to(pb.StepMovement(step_type="T")),
        "the input of Step 'T' has no value; send null_value",
    ),
    "short heartbeat": (
        go_to(move("T", heartbeat_timeout_seconds=5)),
        "options of Step 'T' have a heartbeat timeout of 5 seconds; use at least 10",
    ),
    "negative retries": (go_to(move("T", execute_retry_policy=RETRY)), "with the number -1; use 0"),
    "nameless cancellation": (go_to(cancel_step_types=[""]), "a cancellation names no Step type"),
    "nameless sibling": (
        go_to(cancel_sibling_step_types=[""]),
        "a cancellation names no Step type",
    ),
}
BAD_CONDITIONS: dict[str, tuple[pb.WaitingCondition, str]] = {
    "nothing to wait for": (all_of(), "a wait needs at least one condition"),
    "unknown type": (unknown_wait(), "unknown waiting condition type 99"),
    "negative timer": (all_of(timer(-1)), "timer of -1 seconds; use 0 to"),
    "endless timer": (all_of(timer(2**62)), "timer of 4611686018427387904 seconds; use 0 to"),
    "nameless channel": (all_of(channel("")), "a Channel condition names no Channel"),
    "negative bound": (all_of(channel("c", at_least=-1)), "bounds of Channel 'c' are -1 to 0"),
    "crossed bounds": (
        all_of(channel("c", at_least=3, at_most=2)),
        "the bounds of Channel 'c' are 3 to 2",
    ),
    "id twice": (
        any_of(timer(1, "x"), channel("c", "x")),
        "condition ids ['x', 'x'] are not unique",
    ),
    "empty combination": (any_combination([timer(1, "x")], []), "combination [] is empty"),
    "unknown id": (any_combination([timer(1, "x")], ["x", "y"]), "names unknown conditions"),
    "no combination": (any_combination([timer(1, "x")]), "combinations belong to, and only to"),
}
BAD_EXECUTES: dict[str, tuple[dict[str, Any], str]] = {
    "no decision": ({}, "execute returned no decision"),
    **{
        name: ({"step_decision": graceful(), **fields}, phrase)
        for name, (fields, phrase) in {**BAD_EFFECTS, **BAD_LOCALS}.items()
    },
    **{name: ({"step_decision": made}, phrase) for name, (made, phrase) in BAD_DECISIONS.items()},
}
BAD_WAITS: dict[str, tuple[dict[str, Any], str]] = {
    **BAD_EFFECTS,
    **BAD_LOCALS,
    **{
        name: ({"waiting_condition": condition}, phrase)
        for name, (condition, phrase) in BAD_CONDITIONS.items()
    },
}
NULL = to_value(None)
BAD_RPCS: dict[str, tuple[dict[str, Any], str]] = {
    "no output": ({}, "the RPC output has no value; send null_value"),
    "an output by reference": ({"output": BLOB}, "the RPC output is a blob reference"),
    "a close": ({"output": NULL, "step_decision": graceful()}, "may only start and cancel Steps"),
    "a nameless step": ({"output": NULL, "step_decision": go_to(move(""))}, "names no Step type"),
    **{
        name: ({"output": NULL, **fields}, phrase) for name, (fields, phrase) in BAD_EFFECTS.items()
    },
}


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def wire(data_dir: Path) -> AsyncIterator[Wire]:
    async with (
        EmbeddedEngine(
            data_dir,
            durability="process-crash-safe",
            settings=EngineSettings(retry_initial_interval=0.01),
        ) as engine,
        Wire(engine.address) as wire,
    ):
        yield wire


@pytest.fixture
async def worker(wire: Wire) -> AsyncIterator[HandWorker]:
    async with HandWorker(wire) as worker:
        yield worker


async def start_idle(wire: Wire, flow_id: str) -> None:
    """Start a Flow without a Step."""
    request = pb.StartFlowRequest(flow_id=flow_id, flow_type="Hand", request_id="r")
    await wire.flows.StartFlow(request)


def ask(wire: Wire, flow_id: str) -> Any:
    """Invoke the RPC "ask"."""
    request = pb.InvokeRPCRequest(flow_id=flow_id, rpc_name="ask", input=to_value(1))
    return wire.flows.InvokeRPC(request)


async def fails_and_others_go_on(wire: Wire, worker: HandWorker, phrase: str) -> None:
    result = await wire.result("bad")
    assert result.flow_status == pb.FLOW_STATUS_FAILED
    assert result.error_type == pb.FLOW_ERROR_TYPE_WORKER_API_FAIL
    assert result.error_message.startswith("Step 'S-1' returned an invalid result: ")
    assert phrase in result.error_message
    await wire.start("good")
    assert (await worker.task()).execute.context.flow_id == "good"
    await worker.execute(step_decision=force_complete("fine"))
    assert (await wire.result("good")).flow_status == pb.FLOW_STATUS_COMPLETED


@pytest.mark.parametrize("problem", BAD_EXECUTES)
async def test_an_invalid_execute_result_fails_its_flow_only(
    problem: str, wire: Wire, worker: HandWorker
) -> None:
    fields, phrase = BAD_EXECUTES[problem]
    await wire.start("bad")
    await worker.task()
    await worker.execute(**fields)
    await fails_and_others_go_on(wire, worker, phrase)


@pytest.mark.parametrize("problem", BAD_WAITS)
async def test_an_invalid_wait_for_result_fails_its_flow_only(
    problem: str, wire: Wire, worker: HandWorker
) -> None:
    fields, phrase = BAD_WAITS[problem]
    request = good_start("bad")
    request.step_options.skip_wait_for = False
    await wire.flows.StartFlow(request)
    assert (await worker.task()).WhichOneof("request") == "wait_for"
    await worker.wait_for(**fields)
    await fails_and_others_go_on(wire, worker, phrase)


@pytest.mark.parametrize("problem", BAD_RPCS)
async def test_an_invalid_rpc_result_is_refused_and_changes_nothing(
    problem: str, wire: Wire, worker: HandWorker, data_dir: Path
) -> None:
    fields, phrase = BAD_RPCS[problem]
    await start_idle(wire, "bad")
    before = everything_stored(data_dir)
    call = ask(wire, "bad")
    await worker.task()
    await worker.answer(rpc=pb.InvokeWorkerRPCResponse(**fields))
    refusal = await refusal_of(call)
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.sub_status == pb.ERROR_SUB_STATUS_WORKER_API_ERROR
    assert refusal.detail.startswith("RPC 'ask' returned an invalid result: ")
    assert phrase in refusal.detail
    assert everything_stored(data_dir) == before


async def test_a_result_of_the_other_method_fails_its_flow_only(
    wire: Wire, worker: HandWorker
) -> None:
    await wire.start("bad")
    await worker.task()
    await worker.wait_for()
    await fails_and_others_go_on(wire, worker, "it answers another method than the one")


async def test_an_invalid_result_is_not_tried_again_but_may_be_recovered_from(
    wire: Wire, worker: HandWorker
) -> None:
    options = pb.StepOptions(
        execute_failure_policy=pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP,
        execute_failure_proceed_step_type="Recover",
        execute_failure_proceed_step_options=pb.StepOptions(skip_wait_for=True),
    )
    await wire.start("saved", step_options=options)
    await worker.task()
    await worker.execute()
    recovery = (await worker.task()).execute
    assert (recovery.step_type, recovery.context.attempt) == ("Recover", 1)
    assert recovery.context.recovery_error.error_type == "InvalidWorkerResult"
    await worker.execute(step_decision=force_complete("saved"))
    assert (await wire.result("saved")).flow_status == pb.FLOW_STATUS_COMPLETED


async def test_the_effects_of_an_rpc_on_a_flow_that_closed_meanwhile_are_refused(
    wire: Wire, worker: HandWorker
) -> None:
    await start_idle(wire, "gone")
    call = ask(wire, "gone")
    await worker.task()
    await wire.flows.StopFlow(pb.StopFlowRequest(flow_id="gone", stop_type=pb.STOP_TYPE_CANCEL))
    await worker.answer(
        rpc=pb.InvokeWorkerRPCResponse(output=NULL, upsert_attributes=write(to_value(1)))
    )
    refusal = await refusal_of(call)
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert refusal.sub_status == pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS


@pytest.mark.parametrize("letter", ["x", "ä"])
async def test_a_long_error_of_a_worker_still_reaches_the_caller(
    letter: str, wire: Wire, worker: HandWorker
) -> None:
    await start_idle(wire, "sad")
    call = ask(wire, "sad")
    await worker.task()
    size = 1 if letter.isascii() else 2
    error = pb.WorkerErrorResponse(
        detail=letter * (1024 // size),
        error_type=letter * (256 // size),
        stack_trace=letter * (100_000 // size),
        grpc_status=2,
    )
    await worker.answer(worker_error=error)
    refusal = await refusal_of(call)
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.error.original_worker_error_detail == error.detail
    assert refusal.error.original_worker_error_type == error.error_type
    assert refusal.error.original_worker_error_status == 2


BAD_BEATS = {"no value": pb.Value(), "not a number": NAN, "a reference": BLOB}


@pytest.mark.parametrize("problem", BAD_BEATS)
async def test_an_invalid_heartbeat_value_is_not_handed_to_the_next_attempt(
    problem: str, wire: Wire, worker: HandWorker
) -> None:
    await wire.start("beaten")
    await worker.task()
    beat = pb.StepMethodHeartbeat(value=BAD_BEATS[problem])
    await worker.answer(execute=pb.InvokeExecuteMethodOutput(heartbeat=beat))
    await worker.answer(worker_error=pb.WorkerErrorResponse(detail="no", error_type="No"))
    second = (await worker.task()).execute.context
    assert second.attempt == 2
    assert not second.HasField("last_heartbeat_value")


async def test_an_invalid_stream_message_is_dropped_and_the_step_goes_on(
    wire: Wire, worker: HandWorker
) -> None:
    await wire.start("talk")
    await worker.task()
    for value, name in ((BLOB, "s"), (pb.Value(), "s"), (to_value("x"), ""), (to_value("y"), "s")):
        written = pb.StepStreamWrite(stream_name=name, stream_capacity_bytes=10_000, value=value)
        await worker.answer(execute=pb.InvokeExecuteMethodOutput(stream_write=written))
    await worker.execute(step_decision=force_complete("fine"))
    assert (await wire.result("talk")).flow_status == pb.FLOW_STATUS_COMPLETED
    request = pb.ListStreamMessagesRequest(
        flow_id="talk", flow_type="Hand", stream_name="s", page_size=10
    )
    page = await wire.flows.ListStreamMessages(request)
    assert [message.value for message in page.messages] == [to_value("y")]


async def test_a_final_frame_of_another_kind_of_task_fails_the_attempt_at_once(
    tmp_path: Path,
) -> None:
    settings = EngineSettings(heartbeat_timeout=1, rpc_timeout=1)
    policy = pb.RetryPolicy(maximum_attempts=1)
    async with (
        EmbeddedEngine(tmp_path / "engine", settings=settings) as engine,
        Wire(engine.address) as wire,
        HandWorker(wire) as worker,
    ):
        await wire.start("bad", step_options=pb.StepOptions(execute_retry_policy=policy))
        await worker.task()
        await worker.answer(rpc=pb.InvokeWorkerRPCResponse(output=NULL))
        await fails_and_others_go_on(wire, worker, "it answers an RPC")
        await start_idle(wire, "asked")
        call = ask(wire, "asked")
        await worker.task()
        await worker.execute(step_decision=graceful())
        refusal = await refusal_of(call)
        assert refusal.detail.startswith("RPC 'ask' returned an invalid result: ")


async def test_a_reason_longer_than_the_inline_limit_is_reported_whole(
    wire: Wire, worker: HandWorker
) -> None:
    reason = "because " * 400
    await wire.start("failing")
    await worker.task()
    await worker.execute(step_decision=decision(FORCE_FAIL, to_value(reason)))
    assert (await wire.result("failing")).error_message == reason


async def test_an_error_of_five_megabytes_can_still_be_read_from_the_result(
    wire: Wire, worker: HandWorker
) -> None:
    policy = pb.RetryPolicy(maximum_attempts=1)
    await wire.start("loud", step_options=pb.StepOptions(execute_retry_policy=policy))
    await worker.task()
    text = "x" * 5_000_000
    await worker.answer(worker_error=pb.WorkerErrorResponse(detail=text, error_type=text))
    assert (await wire.result("loud")).error_message.startswith("xxx")
    await wire.flows.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id="loud"))


async def test_a_negative_retry_after_does_not_skip_the_pause(
    wire: Wire, worker: HandWorker
) -> None:
    policy = pb.RetryPolicy(initial_interval_seconds=60)
    await wire.start("hasty", step_options=pb.StepOptions(execute_retry_policy=policy))
    await worker.task()
    error = pb.WorkerErrorResponse(detail="no", error_type="No", retry_after_seconds=-5)
    await worker.answer(worker_error=error)
    await wire.start("next")
    assert (await worker.task()).execute.context.flow_id == "next"
