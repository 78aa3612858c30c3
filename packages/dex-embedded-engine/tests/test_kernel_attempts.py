"""Attempts as the kernel hands them out and takes them back, driven without gRPC and wall clock."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb
from engine_messages import (
    any_of,
    channel,
    force_fail,
    from_value,
    go_to,
    graceful,
    move,
    publish,
    to_value,
    writes,
)
from google.protobuf.message import Message
from grpc import StatusCode

from dex_embedded_engine.errors import lock_conflict
from dex_embedded_engine.kernel import flows, streams
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import (
    Call,
    Event,
    Output,
    Refusal,
    Reply,
    StreamEnded,
    StreamFrame,
    StreamOpened,
    ToStream,
)
from dex_embedded_engine.settings import Durability, EngineSettings
from dex_embedded_engine.storage.stores import Stores

SILENCE = EngineSettings().silent_worker_timeout
Operation = Callable[[Kernel, int], Message | None]


class Desk:
    """A kernel on a real file; streams and calls are numbers."""

    def __init__(self, path: Path) -> None:
        settings = EngineSettings(inline_limit=100)
        ids = (f"id{number}" for number in itertools.count(1))
        self.path = path
        self.stores = Stores.open(path, Durability.PROCESS_CRASH_SAFE, settings)
        self.kernel = Kernel(self.stores, settings, lambda: next(ids))
        self.now = 1_000_000.0
        self.tasks: dict[int, pb.PollWorkerTask] = {}
        self.cancelled: list[int] = []
        self._calls = itertools.count(1)

    def process(self, *events: Event, synced: bool = True) -> list[Output]:
        outputs = self.kernel.process(events, self.now, synced=synced)
        for output in outputs:
            if isinstance(output, ToStream) and output.frame.HasField("task"):
                self.tasks[output.stream_id] = output.frame.task
            if isinstance(output, ToStream) and output.frame.HasField("cancel_task"):
                self.cancelled.append(output.stream_id)
        return outputs

    def advance(self, seconds: float) -> list[Output]:
        self.now += seconds
        return self.process()

    def open(self, *numbers: int, worker: str = "w") -> None:
        for number in numbers:
            register = pb.PollWorkerTaskRegister(
                queue="Flow", app_worker_id=worker, flow_types=["Flow"]
            )
            self.process(StreamOpened(number, register))

    def call(self, kind: str, operation: Operation) -> list[Output]:
        return self.process(Call(next(self._calls), kind, operation))

    def start(self, flow_id: str, movement: pb.StepMovement | None = None, **values: Any) -> None:
        request = pb.StartFlowRequest(flow_id=flow_id, flow_type="Flow", request_id="r")
        if movement is not None:
            request.start_step_type = movement.step_type
            request.step_input.CopyFrom(movement.step_input)
            request.step_options.CopyFrom(movement.step_options)
        request.flow_start_options.attributes.extend(writes(values))
        self.call("start_flow", lambda kernel, call: flows.start_flow(kernel, request, call))

    def invoke(self, flow_id: str, name: str, **fields: Any) -> list[Output]:
        request = pb.InvokeRPCRequest(
            flow_id=flow_id, rpc_name=name, input=to_value(None), **fields
        )

        def operate(kernel: Kernel, call_id: int) -> None:
            kernel.workers.rpcs.invoke(request, call_id)

        return self.call("invoke_rpc", operate)

    def answer(self, number: int, **output: Any) -> list[Output]:
        """Send a frame for the task of a stream; the task stays known, for frames that follow."""
        frame = pb.PollWorkerTaskFrame(task_id=self.tasks[number].task_id, **output)
        return self.process(StreamFrame(number, pb.PollWorkerTaskRequest(task_frame=frame)))

    def decides(self, number: int, decision: pb.StepDecision, **effects: Any) -> list[Output]:
        result = pb.InvokeExecuteMethodResponse(step_decision=decision, **effects)
        return self.answer(number, execute=pb.InvokeExecuteMethodOutput(result=result))

    def fails(self, number: int) -> list[Output]:
        error = pb.WorkerErrorResponse(detail="boom", error_type="Error", grpc_status=2)
        return self.answer(number, worker_error=error)

    def declines(self, number: int) -> list[Output]:
        reject = pb.PollWorkerTaskReject(
            task_id=self.tasks[number].task_id,
            reason=pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY,
        )
        return self.process(StreamFrame(number, pb.PollWorkerTaskRequest(reject=reject)))

    def beats(self, number: int, value: pb.Value | None = None) -> list[Output]:
        beat = pb.StepMethodHeartbeat(value=value)
        return self.answer(number, execute=pb.InvokeExecuteMethodOutput(heartbeat=beat))

    def writes(self, number: int, text: str) -> list[Output]:
        write = pb.StepStreamWrite(
            stream_name="s", stream_capacity_bytes=1 << 20, value=to_value(text)
        )
        return self.answer(number, execute=pb.InvokeExecuteMethodOutput(stream_write=write))

    def read(self, flow_id: str, token: str = "") -> pb.StreamMessage:
        request = pb.ReadStreamRequest(
            flow_id=flow_id, flow_type="Flow", stream_name="s", resume_token=token
        )
        (reply,) = self.call("read", lambda kernel, _: streams.read_stream(kernel, request))
        assert isinstance(reply, Reply) and isinstance(reply.answer, pb.ReadStreamResponse)
        return reply.answer.message

    def seen(self, number: int) -> dict[str, Any]:
        """Return the Attributes that the task of a stream brought."""
        task = self.tasks[number]
        request = getattr(task, task.WhichOneof("request") or "")
        return {each.key: from_value(each.value) for each in request.attributes}

    def context(self, number: int) -> pb.Context:
        task = self.tasks[number]
        request = getattr(task, task.WhichOneof("request") or "")
        context: pb.Context = request.context
        return context

    def ending(self, flow_id: str) -> tuple[str, str, str]:
        run = self.kernel.find_run(flow_id)
        return (
            pb.FlowStatus.Name(run.status).removeprefix("FLOW_STATUS_"),
            pb.FlowErrorType.Name(run.error_type).removeprefix("FLOW_ERROR_TYPE_"),
            run.error_message,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "engine.sqlite3")
    yield desk
    desk.stores.close()


LOCKED = move("a", execute_lock_attribute_keys=["total"])


# --- snapshots -------------------------------------------------------------------------------


def test_attempts_without_locks_see_what_the_first_one_saw(desk: Desk) -> None:
    desk.start("f", move("a"), total=0)
    desk.open(1)
    desk.fails(1)
    desk.invoke("f", "add")
    desk.answer(
        1,
        rpc=pb.InvokeWorkerRPCResponse(
            output=to_value(None), upsert_attributes=writes({"total": 5})
        ),
    )
    desk.advance(1)
    assert desk.context(1).attempt == 2
    assert desk.seen(1) == {"total": 0}


def test_an_attempt_with_locks_sees_what_others_did_while_the_locks_were_free(desk: Desk) -> None:
    desk.start("f", LOCKED, total=0)
    desk.open(1)
    desk.fails(1)
    desk.invoke("f", "add", lock_attribute_keys=["total"])
    desk.answer(
        1,
        rpc=pb.InvokeWorkerRPCResponse(
            output=to_value(None), upsert_attributes=writes({"total": 5})
        ),
    )
    desk.advance(1)
    assert desk.context(1).attempt == 2
    assert desk.seen(1) == {"total": 5}
    rows = sqlite3.connect(desk.path).execute("SELECT count(*) FROM attributes").fetchall()
    assert rows == [(1,)]


def test_an_attempt_sees_messages_of_its_snapshot_that_are_taken_as_it_is_handed_out(
    desk: Desk,
) -> None:
    desk.start("f", move("root"))
    desk.open(1)
    steps = go_to(move("a"), move("b", skip_wait_for=False))
    desk.decides(1, steps, publish_to_channel=publish("c", 1, 2))
    desk.fails(1)
    desk.advance(1)
    assert desk.context(1).step_execution_id == "b-1"
    wait = pb.InvokeWaitForMethodResponse(waiting_condition=any_of(channel("c")))
    desk.answer(1, wait_for=pb.InvokeWaitForMethodOutput(result=wait))
    assert (desk.context(1).step_execution_id, desk.context(1).attempt) == ("a-1", 2)
    assert desk.tasks[1].execute.channel_infos["c"].size == 2


# --- Workers that say nothing ----------------------------------------------------------------


def test_a_silent_worker_is_given_up_however_long_its_heartbeat_timeout_is(desk: Desk) -> None:
    desk.start("f", move("a", heartbeat_timeout_seconds=100_000))
    desk.open(1)
    desk.advance(SILENCE - 1)
    assert desk.cancelled == []
    assert desk.kernel.next_due() == desk.now + 1
    desk.advance(1)
    assert desk.cancelled == [1]
    desk.open(2, worker="v")
    desk.advance(1)
    assert desk.context(2).attempt == 2


def test_keepalives_keep_a_worker_from_being_given_up(desk: Desk) -> None:
    desk.start("f", move("a", heartbeat_timeout_seconds=100_000))
    desk.open(1)
    for _ in range(9):
        desk.now += 20
        pong = pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong())
        desk.process(StreamFrame(1, pong))
    assert desk.cancelled == []


def test_a_silent_worker_keeps_no_lock(desk: Desk) -> None:
    desk.start("f", LOCKED, total=0)
    desk.open(1)
    desk.open(2, worker="v")
    desk.advance(SILENCE)
    desk.advance(1)
    assert desk.context(2).attempt == 2


def test_an_rpc_on_a_silent_worker_keeps_no_lock_and_is_refused(desk: Desk) -> None:
    desk.start("f", total=0)
    desk.open(1)
    desk.invoke("f", "add", lock_attribute_keys=["total"], timeout_seconds=59)
    key = desk.kernel.find_run("f").key
    assert desk.kernel.dispatcher.held_lock(key, ["total"]) == "total"
    outputs = desk.advance(SILENCE)
    assert [type(each) for each in outputs if not isinstance(each, ToStream)] == [Refusal]
    assert desk.kernel.dispatcher.held_lock(key, ["total"]) is None
    assert desk.cancelled == [1]


# --- deadlines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds", "name"),
    [
        ({"execute_timeout_seconds": 7}, 7, "method"),
        ({"heartbeat_timeout_seconds": 12}, 12, "heart"),
    ],
)
def test_an_attempt_that_takes_too_long_fails_and_its_late_result_is_ignored(
    desk: Desk, options: dict[str, Any], seconds: int, name: str
) -> None:
    policy = pb.RetryPolicy(maximum_attempts=1)
    desk.start("f", move("a", execute_retry_policy=policy, **options))
    desk.open(1)
    desk.advance(seconds - 0.1)
    assert desk.cancelled == []
    desk.advance(0.1)
    assert desk.cancelled == [1]
    status, error_type, message = desk.ending("f")
    assert (status, error_type) == ("FAILED", "WORKER_API_FAIL")
    assert "timeout" in message and name in message
    desk.decides(1, graceful("late"))
    assert desk.ending("f")[0] == "FAILED"
    desk.start("g", move("a"))
    assert desk.context(1).flow_id == "g"


def test_a_heartbeat_postpones_the_heartbeat_deadline_but_not_the_method_timeout(
    desk: Desk,
) -> None:
    options = {"execute_timeout_seconds": 25, "heartbeat_timeout_seconds": 10}
    desk.start("f", move("a", **options))
    desk.open(1)
    for _ in range(3):
        desk.advance(8)
        desk.beats(1)
    assert desk.cancelled == []
    desk.advance(1)
    assert desk.cancelled == [1]


def test_a_step_that_was_cancelled_is_told_with_its_next_frame_and_leaves_no_trace(
    desk: Desk,
) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    desk.open(2, worker="v")
    desk.invoke("f", "cancel")
    decision = pb.StepDecision(cancel_step_types=["a"])
    desk.answer(2, rpc=pb.InvokeWorkerRPCResponse(output=to_value(None), step_decision=decision))
    assert desk.cancelled == []
    desk.beats(1)
    desk.beats(1)
    assert desk.cancelled == [1]
    desk.decides(1, graceful("late"))
    assert desk.ending("f")[0] == "RUNNING"


# --- declined and undelivered tasks ----------------------------------------------------------


def test_time_between_a_hand_out_and_its_refusal_uses_up_no_total_duration(desk: Desk) -> None:
    policy = pb.RetryPolicy(total_duration_seconds=10)
    desk.start("f", move("a", execute_retry_policy=policy))
    desk.open(1)
    desk.fails(1)
    desk.advance(1)
    desk.now += 30
    desk.process(StreamEnded(1, orderly=True))
    desk.open(2)
    assert desk.context(2).attempt == 2
    desk.fails(2)
    assert desk.ending("f")[0] == "RUNNING"


def test_an_undelivered_attempt_is_handed_out_again_under_its_number(desk: Desk) -> None:
    policy = pb.RetryPolicy(maximum_attempts=1)
    desk.start("f", move("a", execute_retry_policy=policy))
    desk.open(1)
    desk.process(StreamEnded(1, orderly=True))
    assert desk.kernel.find_run("f").pins() == []
    desk.open(2)
    desk.declines(2)
    desk.open(3, worker="v")
    assert desk.context(3).attempt == 1
    desk.decides(3, graceful("done"))
    assert desk.ending("f") == ("COMPLETED", "UNSPECIFIED", "")


def test_a_stream_that_ends_after_a_heartbeat_has_used_up_the_attempt(desk: Desk) -> None:
    policy = pb.RetryPolicy(maximum_attempts=1)
    desk.start("f", move("a", execute_retry_policy=policy))
    desk.open(1)
    desk.beats(1)
    desk.process(StreamEnded(1, orderly=True))
    assert desk.ending("f")[:2] == ("FAILED", "WORKER_API_FAIL")


# --- what a Worker may not break -------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [pb.Value(), pb.Value(internal_blob_id_for_string_value="made up")]
)
def test_a_heartbeat_value_that_nobody_may_send_is_not_kept(desk: Desk, value: pb.Value) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    desk.beats(1, to_value("good"))
    desk.beats(1, value)
    desk.fails(1)
    desk.advance(1)
    assert desk.context(1).last_heartbeat_value == to_value("good")


def test_a_long_reason_of_a_failing_decision_is_the_error_message_all_the_same(desk: Desk) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    reason = "because " * 1000
    desk.decides(1, force_fail(reason))
    assert desk.ending("f") == ("FAILED", "STEP_DECISION_FAILING_FLOW", reason)


def test_a_flow_that_cannot_be_handed_out_ends_and_the_others_go_on(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.start("broken", move("a"))
    movement = desk.kernel.find_run("broken").executions[1].movement
    movement.step_input.internal_blob_id_for_string_value = "lost"
    desk.start("sound", move("a"))
    desk.open(1)
    assert desk.ending("broken")[:2] == ("FAILED", "INTERNAL")
    assert desk.context(1).flow_id == "sound"
    assert "could not be handed out" in caplog.text


def change_and_raise(error: Exception) -> Operation:
    def operate(kernel: Kernel, call_id: int) -> None:
        run = kernel.find_run("f")
        change = kernel.change(run)
        change.publish(publish("c", 1))
        change.finish(run.executions[1])
        raise error

    return operate


def test_a_request_that_is_refused_half_way_leaves_no_trace(desk: Desk) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    (refusal,) = desk.call("sabotage", change_and_raise(lock_conflict("k")))
    assert isinstance(refusal, Refusal) and refusal.error.code is StatusCode.ABORTED
    assert desk.kernel.find_run("f").channels == {}
    desk.decides(1, graceful("done"))
    assert desk.ending("f") == ("COMPLETED", "UNSPECIFIED", "")


def test_a_mistake_of_the_engine_ends_the_flow_it_happened_to_and_no_other(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    desk.start("sound", move("a"))
    outputs = desk.call("sabotage", change_and_raise(LookupError("a mistake")))
    (refusal,) = [each for each in outputs if isinstance(each, Refusal)]
    assert refusal.error.code is StatusCode.INTERNAL
    assert desk.ending("f")[:2] == ("FAILED", "INTERNAL")
    assert 1 in desk.cancelled
    desk.fails(1)
    assert desk.context(1).flow_id == "sound"
    assert "could not be applied" in caplog.text


# --- Streams and power losses ---------------------------------------------------------------


def test_a_stream_position_that_was_seen_is_not_given_out_again_after_a_power_loss(
    desk: Desk, tmp_path: Path
) -> None:
    desk.start("f", move("a"))
    desk.open(1)
    later = tmp_path / "later.sqlite3"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{desk.path}{suffix}", f"{later}{suffix}")
    desk.writes(1, "lost")
    lost = desk.read("f")
    after = Desk(later)
    after.now = desk.now
    after.open(1)
    after.advance(1)
    after.writes(1, "kept")
    kept = after.read("f", lost.resume_token)
    assert from_value(kept.value) == "kept"
    assert int(kept.resume_token) > int(lost.resume_token)
    after.stores.close()
