"""Owns the clients of the simulation: what they call, what they hear, what must then be true."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc
from dex.dexpb import dex_pb2 as pb
from engine_messages import from_value, move, publish, to_value, writes
from engine_simulation_flows import SCRIPTS
from engine_simulation_scripts import Record
from engine_simulation_workers import STREAM
from google.protobuf.message import Message

from dex_embedded_engine.errors import lock_conflict
from dex_embedded_engine.kernel import flows, reads, streams
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import Call, Event, Refusal, Reply
from dex_embedded_engine.runs import Run
from dex_embedded_engine.storage.streams import StoredMessage

Operation = Callable[[Kernel, int], Message | None]
_EXPECTED_REFUSALS = {
    "start_flow": {grpc.StatusCode.ALREADY_EXISTS},
    "stop_flow": {grpc.StatusCode.NOT_FOUND},
    "read": {grpc.StatusCode.NOT_FOUND},
    "sabotage": {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED},
    "invoke_rpc": {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    },
}
_FINISHING_CALLS = 5
_REUSE_POLICIES = (
    pb.ID_REUSE_POLICY_UNSPECIFIED,
    pb.ID_REUSE_POLICY_DISALLOW_REUSE,
    pb.ID_REUSE_POLICY_ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY,
    pb.ID_REUSE_POLICY_ALLOW_IF_NO_RUNNING,
    pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING,
)
_STOPS = {
    pb.STOP_TYPE_CANCEL: pb.FLOW_STATUS_CANCELED,
    pb.STOP_TYPE_TERMINATE: pb.FLOW_STATUS_TERMINATED,
    pb.STOP_TYPE_FAIL: pb.FLOW_STATUS_FAILED,
}


class Surroundings(Protocol):
    """What clients need of the world around them."""

    @property
    def rng(self) -> random.Random: ...

    @property
    def flow_types(self) -> list[str]:
        """The types that clients start."""

    def post(self, event: Event) -> None:
        """Send an event to the engine."""

    def next_stream_id(self) -> int: ...


@dataclass(frozen=True)
class Pending:
    """A call without an answer.

    Attributes:
        text: for RPCs, what identifies its effect.
        is_last: it belongs to the healthy time and is not repeated.
    """

    kind: str
    flow_id: str
    text: str
    request: Message


class Clients:
    """All clients together."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._world = surroundings
        self._pending: dict[int, Pending] = {}
        self._types: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._done: list[tuple[str, str]] = []
        self._undone: list[tuple[str, str]] = []
        self._broken: set[str] = set()
        self._tokens: dict[str, dict[str, None]] = {}
        self._texts: dict[str, str] = {}
        self._finished: dict[str, int] = {}
        self._stops: dict[str, list[pb.StopType]] = {}
        self._stopped: dict[str, pb.StopType] = {}

    def call(self) -> None:
        """Call something."""
        rng = self._world.rng
        if not self._types or rng.random() < max(0.1, 0.5 / len(self._types)):
            self._start()
            return
        flow_ids = [*self._types]
        flow_id = rng.choice(flow_ids[-3:] if rng.random() < 0.8 else flow_ids)
        choice = rng.random()
        if choice < 0.05:
            self._stop(flow_id)
        elif choice < 0.08:
            self._sabotage(flow_id)
        elif choice < 0.16:
            self._read(flow_id)
        elif choice < 0.26:
            self._read_stream(flow_id)
        else:
            finishers = SCRIPTS[self._types[flow_id]].finishers
            rpcs = sorted({*SCRIPTS[self._types[flow_id]].rpcs} - {*finishers})
            if finishers and rng.random() < 0.03:
                self._invoke(flow_id, rng.choice(finishers))
            elif rpcs:
                self._invoke(flow_id, rng.choice(rpcs))

    def finish(self, open_flows: list[tuple[str, str]]) -> bool:
        """Call what ends the Flows that do not end on their own; tell whether there was any."""
        self._types.update(open_flows)
        called = False
        for flow_id, flow_type in open_flows:
            for name in SCRIPTS[flow_type].finishers:
                if self._finished.get(flow_id, 0) < _FINISHING_CALLS:
                    self._finished[flow_id] = self._finished.get(flow_id, 0) + 1
                    self._invoke(flow_id, name)
                    called = True
        return called

    def hear(self, output: Reply | Refusal) -> None:
        """Take in an answer."""
        pending = self._pending.pop(output.call_id, None)
        if pending is None:
            return
        if isinstance(output, Refusal):
            code = output.error.code
            is_broken = pending.flow_id in self._broken and code is grpc.StatusCode.INTERNAL
            assert is_broken or code in _EXPECTED_REFUSALS[pending.kind], (pending, output.error)
            if pending.kind == "invoke_rpc":
                self._undone.append((pending.flow_id, pending.text))
                self._finished.pop(pending.flow_id, None)
            return
        answer = output.answer
        if isinstance(answer, pb.StartFlowResponse):
            self._runs[answer.run_id] = pending.flow_id
        elif isinstance(answer, pb.ReadStreamResponse):
            self._take_message(pending.flow_id, answer.message)
        elif pending.kind == "stop_flow" and isinstance(pending.request, pb.StopFlowRequest):
            self._stopped[pending.request.run_id] = pending.request.stop_type
        elif isinstance(pending.request, pb.InvokeRPCRequest):
            is_effect = pending.request.rpc_name not in ("look", "take_back")
            if is_effect or answer != pb.InvokeRPCResponse(output=to_value(None)):
                if pending.request.rpc_name != "look":
                    self._done.append((pending.flow_id, pending.text))

    def lose_connection(self) -> None:
        """The engine went down: some clients repeat what was not answered."""
        lost, self._pending = self._pending, {}
        for pending in lost.values():
            if pending.kind != "sabotage" and self._world.rng.random() < 0.6:
                if isinstance(pending.request, pb.InvokeRPCRequest):
                    self._invoke(pending.flow_id, pending.request.rpc_name)
                else:
                    self._send(pending)

    def was_stopped(self, run: Run) -> bool:
        """Tell whether a client ended this run, or may have."""
        return (
            run.run_id in self._stops
            or run.status == pb.FLOW_STATUS_TERMINATED
            or run.error_type == pb.FLOW_ERROR_TYPE_INTERNAL
        )

    def check(self, records: list[Record]) -> None:
        """What was acknowledged is there; what was refused is not."""
        by_run = {record.run.run_id: record for record in records}
        assert self._runs.keys() <= by_run.keys(), "an acknowledged start is lost"
        for run_id, stop_type in self._stopped.items():
            assert by_run[run_id].run.status == _STOPS[stop_type], "an acknowledged stop is lost"
        for record in records:
            broken = record.run.error_type == pb.FLOW_ERROR_TYPE_INTERNAL
            assert not broken or record.run.flow_id in self._broken, record.run.error_message
        effects = {
            (record.run.flow_id, key.removeprefix("rpc/"))
            for record in records
            for key in record.attributes
            if key.startswith("rpc/")
        }
        lost = [each for each in self._done if each not in effects]
        assert lost == [], f"acknowledged RPCs are lost: {lost}"
        ghosts = [each for each in self._undone if each in effects]
        assert ghosts == [], f"refused RPCs had effects: {ghosts}"

    def _start(self) -> None:
        rng = self._world.rng
        if self._types and rng.random() < 0.15:
            flow_id = rng.choice(sorted(self._types))
            script = SCRIPTS[self._types[flow_id]]
            policy = rng.choice(_REUSE_POLICIES)
        else:
            script = SCRIPTS[rng.choice(self._world.flow_types)]
            flow_id = f"{script.name.lower()}-{self._world.next_stream_id()}"
            policy = pb.ID_REUSE_POLICY_DISALLOW_REUSE
        self._types[flow_id] = script.name
        request = script.start(rng)
        request.flow_id = flow_id
        request.flow_type = script.name
        request.request_id = f"request-{self._world.next_stream_id()}"
        options = request.flow_start_options
        options.id_reuse_policy = policy
        options.flow_already_started_options.ignore_already_started_error = True
        options.flow_config_override.worker_target.is_pull_mode = True
        self._send(Pending("start_flow", flow_id, "", request))

    def _stop(self, flow_id: str) -> None:
        runs = [run_id for run_id, owner in self._runs.items() if owner == flow_id]
        if not runs:
            return
        stop_type = self._world.rng.choice(sorted(_STOPS))
        self._stops.setdefault(runs[-1], []).append(stop_type)
        request = pb.StopFlowRequest(
            flow_id=flow_id, run_id=runs[-1], reason="enough", stop_type=stop_type
        )
        self._send(Pending("stop_flow", flow_id, "", request))

    def _invoke(self, flow_id: str, name: str) -> None:
        text = f"{name}-{self._world.next_stream_id()}"
        rpc = SCRIPTS[self._types[flow_id]].rpcs.get(name)
        request = pb.InvokeRPCRequest(
            flow_id=flow_id,
            rpc_name=name,
            input=to_value(text),
            request_id=text,
            lock_attribute_keys=rpc.locks if rpc else (),
            is_transactional=rpc is not None and rpc.is_transactional,
            load_channel_names=rpc.load_channels if rpc else (),
        )
        self._send(Pending("invoke_rpc", flow_id, text, request))

    def _read(self, flow_id: str) -> None:
        rng = self._world.rng
        request: Message = rng.choice(
            (
                pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True),
                pb.GetFlowSummaryRequest(flow_id=flow_id),
                pb.GetFlowStateRequest(flow_id=flow_id),
                pb.GetHistoryEventsRequest(flow_id=flow_id),
            )
        )
        self._send(Pending("read", flow_id, "", request))

    def _read_stream(self, flow_id: str) -> None:
        tokens = ["", *self._tokens.get(flow_id, {})]
        token = tokens[-1] if self._world.rng.random() < 0.8 else self._world.rng.choice(tokens)
        request = pb.ReadStreamRequest(
            flow_id=flow_id,
            flow_type=self._types[flow_id],
            stream_name=STREAM,
            resume_token=token,
        )
        self._send(Pending("read", flow_id, "", request))

    def _take_message(self, flow_id: str, message: pb.StreamMessage) -> None:
        if message.resume_token:
            text = from_value(message.value)
            self._tokens.setdefault(flow_id, {})[message.resume_token] = None
            known = self._texts.setdefault(message.resume_token, text)
            assert known == text, f"position {message.resume_token} was {known}, is {text}"

    def _sabotage(self, flow_id: str) -> None:
        """Have an operation fail after it has changed the run, as if it were refused or broken.

        What is refused must leave no trace; what is broken must end this one Flow and no other.
        """
        way = self._world.rng.choice(["refused", "refused", "broken", "cannot be handed out"])
        if way != "refused":
            self._broken.add(flow_id)
        call_id = self._world.next_stream_id()
        self._pending[call_id] = Pending("sabotage", flow_id, "", pb.WaitForFlowRequest())
        operation = partial(_sabotage, flow_id, way)
        self._world.post(Call(call_id, "sabotage", operation))

    def _send(self, pending: Pending) -> None:
        call_id = self._world.next_stream_id()
        self._pending[call_id] = pending
        self._world.post(Call(call_id, pending.kind, _operation(pending.request)))


def _sabotage(flow_id: str, way: str, kernel: Kernel, call_id: int) -> Message:
    run = kernel.find_run(flow_id)
    change = kernel.change(run)
    if way == "cannot be handed out":
        step = move("sabotage")
        step.step_input.internal_blob_id_for_string_value = "lost"
        if run.is_running:
            change.create(step, lineage="", origin=(1, 0))
        return pb.WaitForFlowRequest()
    change.writes.extend(writes({"sabotage": 1, "total": 99, "steps": 99}))
    change.publish([*publish("inbox", "sabotage"), *publish("never", 1)])
    for execution in list(run.executions.values()):
        change.finish(execution)
    change.create(move("sabotage"), lineage="", origin=(1, 0))
    run.deadline_at = None
    secret = pb.AttributeWrite(key="secret", value=to_value("x"), is_hard_delete_on_null=True)
    kernel.write_hard(flow_id, [secret])
    message = StoredMessage(0, kernel.now, "sabotage", to_value("sabotage"))
    kernel.stores.streams.append((run.flow_type, STREAM), flow_id, message, (1e6, 1e6))
    if way == "broken":
        raise LookupError(way)
    raise lock_conflict(way)


def _operation(request: Message) -> Operation:
    """Return what the service would do with a request; the engine may edit its copy."""
    copy = type(request).FromString(request.SerializeToString())

    def operate(kernel: Kernel, call_id: int) -> Message | None:
        if isinstance(copy, pb.StartFlowRequest):
            return flows.start_flow(kernel, copy, call_id)
        if isinstance(copy, pb.StopFlowRequest):
            return flows.stop_flow(kernel, copy)
        if isinstance(copy, pb.InvokeRPCRequest):
            kernel.workers.rpcs.invoke(copy, call_id)
            return None
        if isinstance(copy, pb.WaitForFlowRequest):
            return flows.flow_result(kernel, copy)
        if isinstance(copy, pb.GetFlowSummaryRequest):
            return flows.get_flow_summary(kernel, copy)
        if isinstance(copy, pb.GetFlowStateRequest):
            return reads.get_flow_state(kernel, copy)
        if isinstance(copy, pb.ReadStreamRequest):
            return streams.read_stream(kernel, copy)
        assert isinstance(copy, pb.GetHistoryEventsRequest)
        return reads.get_history_events(kernel, copy)

    return operate
