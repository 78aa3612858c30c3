"""Owns what must be true of the engine during a simulation, and of its data at the end."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dex.dexpb import dex_pb2 as pb
from engine_messages import from_value
from engine_simulation_flows import SCRIPTS
from engine_simulation_scripts import Record
from engine_simulation_workers import STREAM

from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import (
    Event,
    Output,
    StreamEnded,
    StreamFrame,
    ToStream,
    Wake,
    flow_topic,
)
from dex_embedded_engine.runs import Execution, Message, Run

Method = tuple[str, str, str]
_EVERYTHING = 1 << 30
_ENDED = ("step_execute_completed", "step_execute_failed")


class Ledger:
    """Follows what was committed and handed out, and checks each hand-out against it."""

    def __init__(self) -> None:
        self.attempts: dict[Method, int] = {}
        self.stream_texts: dict[str, tuple[Method, int]] = {}
        self._entered: set[tuple[Method, int]] = set()
        self._out: dict[str, tuple[int, Method, int]] = {}
        self._handed_back: set[Method] = set()
        self._heard: set[str] = set()
        self._heartbeats: dict[Method, pb.Value | None] = {}
        self._snapshots: dict[Method, bytes] = {}
        self._open_runs: dict[int, str] = {}
        self.keep()

    def enter(self, task: pb.PollWorkerTask) -> None:
        """Note that a body begins: that of one attempt never begins twice."""
        method = _method(task)
        if method is not None:
            attempt = (method, _request(task).context.attempt)
            assert attempt not in self._entered, f"the body of {attempt} is entered twice"
            self._entered.add(attempt)

    def commit(
        self,
        kernel: Kernel,
        inspector: sqlite3.Connection,
        batch: Sequence[Event],
        outputs: Sequence[Output],
    ) -> None:
        """Take in a committed batch."""
        ended: dict[int, bool] = {}
        for event in batch:
            if isinstance(event, StreamFrame):
                self._take_frame(event.frame)
            elif isinstance(event, StreamEnded):
                ended[event.stream_id] = event.orderly
                for task_id, (stream_id, _, _) in list(self._out.items()):
                    if stream_id == event.stream_id:
                        self._undo(task_id, orderly=event.orderly)
        for output in outputs:
            if isinstance(output, ToStream):
                kind = output.frame.WhichOneof("frame")
                if kind == "task":
                    self._hand_out(kernel, output.stream_id, output.frame.task)
                    if output.stream_id in ended:
                        self._undo(output.frame.task.task_id, orderly=ended[output.stream_id])
                elif kind == "cancel_task":
                    self._out.pop(output.frame.cancel_task.task_id, None)
        self._watch_closes(inspector, outputs)
        _check_wakes(kernel, inspector)

    def keep(self) -> None:
        """Whatever was committed up to now survives a power loss."""
        self._safe = (dict(self._heartbeats), dict(self.stream_texts))

    def lose_power(self) -> None:
        """What was committed without a sync is gone: that may be heartbeats and Stream messages."""
        heartbeats, texts = self._safe
        self._heartbeats, self.stream_texts = dict(heartbeats), dict(texts)

    def lose_engine(self) -> None:
        """The engine went down: whatever was out is lost."""
        self._out.clear()

    def _take_frame(self, frame: pb.PollWorkerTaskRequest) -> None:
        if frame.WhichOneof("frame") == "reject":
            taken = self._out.pop(frame.reject.task_id, None)
            if taken is not None:
                self._give_back(taken[1])
            return
        part = frame.task_frame
        if part.task_id not in self._out:
            return
        _, method, attempt = self._out[part.task_id]
        output = part.WhichOneof("output") or ""
        kind = (
            getattr(part, output).WhichOneof("output") if output in ("wait_for", "execute") else ""
        )
        if kind in ("heartbeat", "stream_write"):
            self._heard.add(part.task_id)
        if kind == "heartbeat":
            beat = getattr(part, output).heartbeat
            self._heartbeats[method] = beat.value if beat.HasField("value") else None
        elif kind == "stream_write":
            text = from_value(getattr(part, output).stream_write.value)
            self.stream_texts[text] = (method, attempt)
        else:
            del self._out[part.task_id]

    def _undo(self, task_id: str, *, orderly: bool) -> None:
        taken = self._out.pop(task_id, None)
        if orderly and taken is not None and task_id not in self._heard:
            self._give_back(taken[1])

    def _give_back(self, method: Method) -> None:
        self._handed_back.add(method)
        self._snapshots.pop(method, None)

    def _hand_out(self, kernel: Kernel, stream_id: int, task: pb.PollWorkerTask) -> None:
        method = _method(task)
        if method is None:
            return
        request = _request(task)
        attempt, last = request.context.attempt, self.attempts.get(method, 0)
        expected = last if method in self._handed_back else last + 1
        assert attempt == expected, f"{method}: attempt {attempt} follows {last}"
        self._handed_back.discard(method)
        self.attempts[method] = attempt
        if attempt == 1:
            self._heartbeats.pop(method, None)
        beat = request.context.last_heartbeat_value if _has_beat(request) else None
        assert beat == self._heartbeats.get(method), f"{method}: heartbeat {beat}"
        self._out[task.task_id] = (stream_id, method, attempt)
        self._check_options(kernel, method, request)

    def _check_options(
        self, kernel: Kernel, method: Method, request: pb.InvokeExecuteMethodRequest
    ) -> None:
        run = kernel.find_run(request.context.flow_id, request.context.run_id)
        found = [each for each in run.executions.values() if each.id == method[1]]
        if not found:
            return
        (execution,) = found
        policy = (
            execution.options.wait_for_retry_policy
            if method[2] == "wait_for"
            else execution.options.execute_retry_policy
        )
        assert not 0 < policy.maximum_attempts < request.context.attempt, method
        if execution.lock_keys():
            return
        seen = _bytes([*request.attributes, *request.channel_infos.values()])
        for name in sorted(request.loaded_channel_messages):
            seen += _bytes([request.loaded_channel_messages[name]])
        first = self._snapshots.setdefault(method, seen)
        assert first == seen, f"{method}: attempt {request.context.attempt} sees another snapshot"

    def _watch_closes(self, inspector: sqlite3.Connection, outputs: Sequence[Output]) -> None:
        woken = {output.topic for output in outputs if isinstance(output, Wake)}
        rows = inspector.execute("SELECT run_key, flow_id, status FROM runs").fetchall()
        for key, flow_id, status in rows:
            if status == pb.FLOW_STATUS_RUNNING:
                self._open_runs[key] = flow_id
            elif self._open_runs.pop(key, None) is not None:
                assert flow_topic(flow_id) in woken, f"nobody is told that {flow_id} closed"


def _check_wakes(kernel: Kernel, inspector: sqlite3.Connection) -> None:
    """Nothing is overdue, and the engine asks to be woken for whatever comes next."""
    query = """
        SELECT min(deadline_at) FROM runs WHERE status = 1
        UNION ALL SELECT min(wake_at) FROM executions
    """
    moments = [row[0] for row in inspector.execute(query).fetchall() if row[0] is not None]
    if moments:
        due = kernel.next_due()
        assert min(moments) > kernel.now, "something is overdue"
        assert due is not None and due <= min(moments), (due, moments)


def check_memory(kernel: Kernel, inspector: sqlite3.Connection) -> None:
    """The runs in memory are the runs on the disk, and keep nothing that no snapshot shows."""
    for (key,) in inspector.execute("SELECT run_key FROM runs ORDER BY run_key").fetchall():
        run, stored = kernel.run(key), kernel.stores.runs.load(key)
        assert _describe(run) == _describe(stored), f"run {run.flow_id} differs from the disk"
        if not run.pins():
            assert not run.ghosts, run.flow_id
            assert not run.stale_attributes, run.flow_id


def read_record(kernel: Kernel, key: int) -> Record:
    """Read a run with its journal and its Attributes."""
    stores = kernel.stores
    run = stores.runs.load(key)
    events: list[tuple[float, str, Any]] = []
    for entry in stores.runs.events(key, 1, 100_000):
        assert entry.event_id == len(events) + 1, "the journal has a gap"
        kind = entry.event.WhichOneof("payload") or ""
        payload = getattr(entry.event, kind)
        stores.payloads.put_back(run.flow_id, payload, _EVERYTHING)
        events.append((entry.at, kind, payload))
    assert len(events) == run.event_count
    holder = pb.GetAttributesResponse(
        attributes=stores.attributes.read_everything(key, run.flow_id)
    )
    outputs = pb.FlowResult(results=run.outputs)
    for message in (holder, outputs, run.start):
        stores.payloads.put_back(run.flow_id, message, _EVERYTHING)
    run.outputs = list(outputs.results)
    attributes = {each.key: from_value(each.value) for each in holder.attributes}
    return Record(run, events, attributes)


def check_record(record: Record, ledger: Ledger, *, was_stopped: bool) -> None:
    """A closed run and its journal tell the same story, and it is the one that was observed."""
    run = record.run
    assert not run.is_running, f"{run.flow_id} is stuck: {_describe(run)}"
    kinds = [kind for _, kind, _ in record.events]
    assert kinds[0] == "flow_started_or_continued" and kinds[-1] == "flow_closed"
    assert kinds.count("flow_closed") == kinds.count("flow_started_or_continued") == 1
    _check_methods(record, ledger)
    _check_numbers(record)
    _check_attributes(record)
    _check_messages(record)
    script = SCRIPTS[run.flow_type]
    script.check_always(record)
    if not was_stopped:
        script.check(record)


def check_streams(kernel: Kernel, records: Sequence[Record], ledger: Ledger) -> None:
    """A Stream holds what was written, once and in order, and all of an accepted attempt."""
    kept: set[str] = set()
    order = list(ledger.stream_texts)
    for flow_id, flow_type in sorted({(each.run.flow_id, each.run.flow_type) for each in records}):
        page = kernel.stores.streams.page_before(
            (flow_type, STREAM), flow_id, kernel.stores.streams.last_position + 1, 100_000
        )
        texts = [from_value(message.value) for message in reversed(page)]
        positions = [order.index(text) for text in texts]
        assert positions == sorted(set(positions)), texts
        kept.update(texts)
    accepted = {
        (_event_method(record, kind, event), event.context.final_attempt)
        for record in records
        for _, kind, event in record.events
        if kind in ("step_wait_for_completed", "step_execute_completed")
    }
    for text, written_by in ledger.stream_texts.items():
        assert text in kept or written_by not in accepted, f"{text} of {written_by} is lost"


def check_leftovers(inspector: sqlite3.Connection) -> None:
    """Closed runs leave no executions, no old Attribute versions and no consumed messages."""
    for what, query in {
        "executions": "SELECT * FROM executions",
        "old versions": "SELECT key FROM attributes GROUP BY run_key, key HAVING count(*) > 1",
        "deletions": "SELECT * FROM attributes WHERE value IS NULL",
        "messages": "SELECT * FROM messages WHERE removed IS NOT NULL",
    }.items():
        rows = inspector.execute(query).fetchall()
        assert rows == [], f"{what} are left: {rows}"


def _check_methods(record: Record, ledger: Ledger) -> None:
    ended: Counter[str] = Counter()
    waited: Counter[str] = Counter()
    for _, kind, event in record.events:
        if not kind.startswith("step_"):
            continue
        step_id = event.context.step_execution_id
        method = _event_method(record, kind, event)
        (ended if kind in _ENDED else waited)[step_id] += 1
        assert kind in _ENDED or not ended[step_id], f"{step_id} waits after its end"
        assert event.context.final_attempt == ledger.attempts[method], method
    assert not {step_id for step_id, count in (ended + waited).items() if count > 2}
    twice = [step_id for step_id, count in [*ended.items(), *waited.items()] if count > 1]
    assert twice == [], f"applied twice: {twice}"


def _event_method(record: Record, kind: str, event: Any) -> Method:
    name = "wait_for" if "wait_for" in kind else "execute"
    return (record.run.run_id, event.context.step_execution_id, name)


def _check_numbers(record: Record) -> None:
    created: Counter[str] = Counter()
    start = record.run.start
    if start.start_step_type:
        created[start.start_step_type] += 1
    for index, (_, kind, event) in enumerate(record.events):
        if kind == "step_execute_completed":
            closes = record.events[index + 1][1] == "flow_closed"
            decision = event.output.step_decision
            conditional = decision.HasField("close_decision")
            if not (conditional and closes):
                created.update(each.step_type for each in decision.next_steps)
        elif kind == "rpc_execution_completed":
            created.update(each.step_type for each in event.step_decision.next_steps)
    counters = Counter(record.run.counters)
    del counters["sabotage"]
    extra = counters - created
    assert not created - counters
    assert sum(extra.values()) <= 1 + len(record.of_kind("step_execute_failed")), extra


def _check_attributes(record: Record) -> None:
    replayed: dict[str, Any] = {}
    for _, kind, event in record.events:
        if kind == "flow_started_or_continued":
            for each in event.initial_start.initial_attributes:
                replayed[each.key] = from_value(each.value)
        for write in getattr(_effects(kind, event), "upsert_attributes", ()):
            if not write.is_hard_delete_on_null:
                replayed[write.key] = from_value(write.value)
    kept = {key: value for key, value in replayed.items() if value is not None}
    actual = {key: value for key, value in record.attributes.items() if key != "secret"}
    assert kept == actual, (kept, actual)


def _check_messages(record: Record) -> None:
    published: Counter[tuple[str, bytes]] = Counter()
    gone: Counter[tuple[str, bytes]] = Counter()
    deleted = created = ended = 0
    for _, kind, event in record.events:
        effects = _effects(kind, event)
        published.update(_messages(getattr(effects, "publish_to_channel", ())))
        deleted += len(getattr(effects, "delete_from_channel", ()))
        if kind in _ENDED:
            ended += 1
            for result in event.input.condition_results.channel_results:
                gone.update((result.channel_name, _bytes([value])) for value in result.values)
    created = sum(record.run.counters.values())
    left: list[Message] = [each for queue in record.run.channels.values() for each in queue]
    gone.update((each.channel, _bytes([each.value])) for each in left)
    assert not gone - published, f"consumed twice: {gone - published}"
    if created == ended:
        assert sum((published - gone).values()) == deleted, published - gone


def _messages(messages: Iterable[pb.ChannelMessage]) -> list[tuple[str, bytes]]:
    return [(each.channel_name, _bytes([each.value])) for each in messages]


def _effects(kind: str, event: Any) -> Any:
    return event.output if kind.startswith("step_") else event


def _method(task: pb.PollWorkerTask) -> Method | None:
    kind = task.WhichOneof("request") or ""
    if kind == "rpc":
        return None
    context = _request(task).context
    return (context.run_id, context.step_execution_id, kind)


def _request(task: pb.PollWorkerTask) -> pb.InvokeExecuteMethodRequest:
    request: pb.InvokeExecuteMethodRequest = getattr(task, task.WhichOneof("request") or "")
    return request


def _has_beat(request: pb.InvokeExecuteMethodRequest) -> bool:
    return request.context.HasField("last_heartbeat_value")


def _bytes(messages: Iterable[Any]) -> bytes:
    return b"|".join(each.SerializeToString(deterministic=True) for each in messages)


def _describe(run: Run) -> dict[str, object]:
    facts = {
        name: value
        for name, value in vars(run).items()
        if name not in ("executions", "channels", "ghosts", "start", "config", "outputs")
    }
    return {
        **facts,
        "outputs": _bytes(run.outputs),
        "start": _bytes([run.start, run.config]),
        "executions": [_describe_execution(each) for _, each in sorted(run.executions.items())],
        "channels": {
            name: [_describe_message(each) for each in queue]
            for name, queue in sorted(run.channels.items())
        },
        "ghosts": sorted((each.position, each.created, each.removed) for each in run.ghosts),
    }


def _describe_execution(execution: Execution) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name, value in vars(execution).items():
        if name in ("task_id", "stored"):
            continue
        if name == "timers":
            facts[name] = [(timer.fires_at, timer.done) for timer in execution.timers]
        elif name == "step_locals":
            facts[name] = _bytes(execution.step_locals)
        elif hasattr(value, "SerializeToString"):
            facts[name] = _bytes([value])
        else:
            facts[name] = value
    return facts


def _describe_message(message: Message) -> tuple[object, ...]:
    return (
        message.position,
        message.channel,
        message.message_id,
        _bytes([message.value]),
        message.created,
        message.removed,
    )
