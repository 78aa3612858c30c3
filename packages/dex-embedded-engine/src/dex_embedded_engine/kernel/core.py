"""Owns the order of things: loaded runs, the transaction around a batch, hand-outs, deadlines.

What an event means is in the operation modules beside this one; what it does to a run is in
`transitions`; how it is stored is in `storage`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import Error as MessageError
from google.protobuf.message import Message

from dex_embedded_engine.dispatch import Dispatcher, Task, WorkerStream
from dex_embedded_engine.errors import ServiceError, flow_not_exists
from dex_embedded_engine.failpoints import Failpoints
from dex_embedded_engine.kernel.faults import engine_fault, fail_run_by_engine
from dex_embedded_engine.kernel.messages import (
    Call,
    Event,
    Output,
    Refusal,
    Reply,
    ToStream,
    Wake,
    flow_topic,
)
from dex_embedded_engine.kernel.requests import RequestBuilder
from dex_embedded_engine.kernel.tasks import RpcTask, StepTask
from dex_embedded_engine.kernel.workers import WorkerOperations
from dex_embedded_engine.runs import Execution, Run, Standing
from dex_embedded_engine.settings import EngineSettings
from dex_embedded_engine.storage.stores import Stores
from dex_embedded_engine.transitions.change import Change
from dex_embedded_engine.transitions.failures import fail_attempt, worker_lost
from dex_embedded_engine.transitions.wakes import fire_due

_LOGGER = logging.getLogger(__name__)
# What a mistake of ours raises: one Flow ends with it and the others go on. Failures of the
# storage are not among them; they end the engine.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    MessageError,
)


class Kernel:
    """The engine without threads, sockets and clock.

    Args:
        stores: the open database.
        new_id: makes unique ids.
        failpoints: commit points a test may arm.
    """

    def __init__(
        self,
        stores: Stores,
        settings: EngineSettings,
        new_id: Callable[[], str],
        failpoints: Failpoints | None = None,
    ) -> None:
        self.stores = stores
        self.settings = settings
        self.new_id = new_id
        self.now = 0.0
        self.instant = 0.0
        self.dispatcher = Dispatcher(self._acknowledge)
        self.requests = RequestBuilder(stores.attributes, stores.payloads, settings.frame_budget)
        self.outputs: list[Output] = []
        self.workers = WorkerOperations(self)
        self.points: set[str] = set()
        self._failpoints = failpoints or Failpoints()
        self._runs: OrderedDict[int, Run] = OrderedDict()
        self._changes: dict[int, Change] = {}
        self._settled: set[int] = set()
        self._scrub = False
        self._order = itertools.count()
        self._wakes: list[tuple[float, int, int | Task]] = [
            (when, next(self._order), key) for when, key in stores.runs.wakes()
        ]
        heapq.heapify(self._wakes)
        self._pushed: dict[int, float] = {}
        self._unrecovered: list[int] = stores.runs.keys_with_work()

    def process(
        self,
        batch: Sequence[Event],
        now: float,
        *,
        instant: float | None = None,
        synced: bool = True,
    ) -> list[Output]:
        """Apply `batch` in one transaction and return what may now leave the engine.

        Args:
            now: unix seconds.
            instant: seconds that grow even while `now` stands still; None takes `now`.
            synced: whether anything in it is acknowledged or handed out by its outputs.

        Raises:
            EngineFailure: the database failed; the engine must stop.
        """
        self.now = max(self.now, now)
        since, self.instant = self.instant, max(self.instant, now if instant is None else instant)
        self.outputs = []
        self.points = set()
        self._scrub = False
        due = self.next_due()
        is_due = bool(self._unrecovered) or (due is not None and due <= self.now)
        is_due = is_due or self.dispatcher.may_hand_out(since, self.instant)
        self.stores.begin(synced=synced or is_due)
        try:
            self._recover()
            for event in batch:
                self._apply(partial(self._dispatch_event, event), event)
            self._pass_time()
            self._failpoints.reach("before", self.points)
            self.stores.commit(scrub=self._scrub)
            self._failpoints.reach("after", self.points)
        except BaseException:
            self.stores.roll_back()
            raise
        self._shrink()
        return self.outputs

    def next_due(self) -> float | None:
        """Return when `process` should be called next even if nothing happens, unix seconds."""
        return self._wakes[0][0] if self._wakes else None

    def next_retry(self) -> float | None:
        """Return the instant at which a queued task may find a Worker that it does not find now."""
        return self.dispatcher.next_retry(self.instant)

    def find_run(self, flow_id: str, run_id: str = "") -> Run:
        """Return the named run, or the Flow's latest.

        Raises:
            ServiceError: NOT_FOUND, FLOW_NOT_EXISTS.
        """
        run = self.latest_run(flow_id, run_id)
        if run is None:
            known = run_id and self.stores.runs.find_key(flow_id, "") is not None
            raise flow_not_exists(flow_id, f"has no run {run_id!r}" if known else "does not exist")
        return run

    def latest_run(self, flow_id: str, run_id: str = "") -> Run | None:
        """Return the named run, or the Flow's latest, or None."""
        key = self.stores.runs.find_key(flow_id, run_id)
        return None if key is None else self.run(key)

    def run(self, key: int) -> Run:
        """Return the run with this key, reading it if it is not loaded."""
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self.stores.runs.load(key)
            self._reattach(run)
        self._runs.move_to_end(key)
        return run

    def _reattach(self, run: Run) -> None:
        for task in self.dispatcher.tasks_out():
            if isinstance(task, StepTask) and task.run_key == run.key and task.counts:
                run.executions[task.ordinal].task_id = task.task_id

    def add_run(self, run: Run) -> Change:
        """Store a new run's identity and return the change that begins it."""
        self.stores.runs.insert(run)
        self._runs[run.key] = run
        return self.change(run)

    def change(self, run: Run) -> Change:
        """Return the change that the current event makes to `run`."""
        change = self._changes.get(run.key)
        if change is None:
            change = self._changes[run.key] = Change(run, self.now, self.new_id)
        return change

    def reply(self, call_id: int, answer: Message) -> None:
        """Answer a call once the batch is committed."""
        self.outputs.append(Reply(call_id, answer))

    def refuse(self, call_id: int, error: ServiceError) -> None:
        """Refuse a call once the batch is committed."""
        self.outputs.append(Refusal(call_id, error))

    def send(self, stream: WorkerStream, frame: pb.PollWorkerTaskResponse) -> None:
        """Send a frame to a Worker once the batch is committed."""
        self.outputs.append(ToStream(stream.stream_id, frame))

    def wake(self, topic: tuple[str, ...]) -> None:
        """Let waiters on `topic` look again once the batch is committed."""
        self.outputs.append(Wake(topic))

    def watch(self, task: Task, when: float) -> None:
        """Have the deadlines of `task` checked at `when`, unix seconds, or earlier."""
        if task.watched_at is not None and task.watched_at <= when:
            return
        task.watched_at = when
        heapq.heappush(self._wakes, (when, next(self._order), task))

    def write_hard(self, flow_id: str, writes: Sequence[pb.AttributeWrite]) -> None:
        """Write values that are deleted for good; they do not wait for the result's commit."""
        if writes and self.stores.attributes.write_hard(flow_id, writes):
            self._scrub = True
            self.points.add("hard_delete")

    def _dispatch_event(self, event: Event) -> None:
        if isinstance(event, Call):
            self.points.add(event.kind)
            answer = event.operation(self, event.call_id)
            if answer is not None:
                self.reply(event.call_id, answer)
        else:
            self.workers.handle(event)

    def _apply(self, action: Callable[[], None], event: Event | None) -> None:
        self._changes.clear()
        self._settled.clear()
        mark = len(self.outputs)
        with self.stores.savepoint() as savepoint:
            try:
                action()
            except ServiceError as refusal:
                assert isinstance(event, Call)
                self._undo(mark, savepoint.undo)
                self.refuse(event.call_id, refusal)
            except _MISTAKES as bug:
                touched = self._undo(mark, savepoint.undo)
                _LOGGER.exception("an event could not be applied to runs %r", touched)
                if isinstance(event, Call):
                    self.refuse(event.call_id, engine_fault(bug))
                for key in touched:
                    fail_run_by_engine(self, key, bug)
            self._settle()
            for change in self._changes.values():
                self.stores.runs.save(change)
                self._plan_wake(change.run)

    def _undo(self, mark: int, undo: Callable[[], None]) -> list[int]:
        undo()
        del self.outputs[mark:]
        touched = list(self._changes)
        for key in touched:
            self._runs.pop(key, None)
        self._changes.clear()
        return touched

    def _settle(self) -> None:
        """Make what the changes say true: write Attributes, queue Steps, hand out, until quiet."""
        progress = True
        while progress:
            self._publish_changes()
            progress = False
            for task, stream in self.dispatcher.pairs(self.instant):
                self._hand_out(task, stream)
                progress = True

    def _hand_out(self, task: Task, stream: WorkerStream) -> None:
        try:
            self.workers.hand_out(task, stream)
        except _MISTAKES as bug:
            # Nothing has gone to the Worker: a task is out only once its frame could be built.
            _LOGGER.exception("a task of run %r could not be handed out", task.run_key)
            if isinstance(task, RpcTask):
                self.workers.rpcs.refuse(task, engine_fault(bug))
            else:
                fail_run_by_engine(self, task.run_key, bug)

    def _publish_changes(self) -> None:
        for change in self._changes.values():
            run = change.run
            change.hide_shown()
            if change.writes:
                stale = self.stores.attributes.write(
                    run.key, run.sequence, change.writes, run.pins()
                )
                run.stale_attributes |= stale
                change.writes.clear()
            for execution in change.ready:
                self._enqueue(run, execution)
            change.ready.clear()
            for task_id in change.revoked:
                self.workers.tell_handler(task_id, now=True)
            change.revoked.clear()
            for task_id in change.disowned:
                self.workers.tell_handler(task_id, now=False)
            change.disowned.clear()
            if change.closed and run.key not in self._settled:
                self._settled.add(run.key)
                self.wake(flow_topic(run.flow_id))

    def _enqueue(self, run: Run, execution: Execution) -> None:
        self.dispatcher.enqueue(
            StepTask(
                flow_type=run.flow_type,
                run_key=run.key,
                locks=execution.lock_keys(),
                preferred_worker=run.sticky_worker,
                ordinal=execution.ordinal,
            )
        )

    def _recover(self) -> None:
        """Queue what was queued before the engine stopped; what was out has been lost."""
        keys, self._unrecovered = self._unrecovered, []
        for key in keys:
            self._apply(partial(self._recover_run, key), None)

    def _recover_run(self, key: int) -> None:
        run = self.run(key)
        lost = [each for each in run.executions.values() if each.standing is Standing.RUNNING]
        queued = [each for each in run.executions.values() if each.standing is Standing.QUEUED]
        for execution in queued:
            self._enqueue(run, execution)
        if lost:
            self.points.add("recovery")
            change = self.change(run)
            for execution in lost:
                if execution.ordinal in run.executions:
                    failure = worker_lost(
                        "the engine was restarted during the attempt; its outcome is unknown",
                        uncounted=True,
                    )
                    fail_attempt(change, execution, failure, self.settings)

    def _pass_time(self) -> None:
        while self._wakes and self._wakes[0][0] <= self.now:
            when, _, what = heapq.heappop(self._wakes)
            if isinstance(what, Task):
                self._apply(partial(self._check_task, what, when), None)
            else:
                self._apply(partial(self._wake_run, what), None)
        self._apply(lambda: None, None)

    def _check_task(self, task: Task, when: float) -> None:
        if task.watched_at != when:
            return
        task.watched_at = None
        moment = self.workers.check_task(task)
        if moment is not None:
            self.watch(task, moment)

    def _wake_run(self, key: int) -> None:
        self._pushed.pop(key, None)
        run = self.run(key)
        wake = run.next_wake()
        if not run.is_running or wake is None:
            return
        if wake > self.now:
            self._plan_wake(run)
            return
        self.points.add("time_passed")
        fire_due(self.change(run))

    def _plan_wake(self, run: Run) -> None:
        wake = run.next_wake() if run.is_running else None
        if wake is None:
            return
        planned = self._pushed.get(run.key)
        if planned is None or wake < planned:
            self._pushed[run.key] = wake
            heapq.heappush(self._wakes, (wake, next(self._order), run.key))

    def _acknowledge(self, stream: WorkerStream) -> None:
        registered = pb.PollWorkerTaskRegistered(supports_unknown_name_rejection=True)
        self.send(stream, pb.PollWorkerTaskResponse(registered=registered))

    def _shrink(self) -> None:
        """Forget idle runs that were not used for the longest time."""
        excess = len(self._runs) - self.settings.loaded_runs
        if excess <= 0:
            return
        for key in list(self._runs):
            if excess <= 0:
                return
            run = self._runs[key]
            if all(execution.task_id is None for execution in run.executions.values()):
                del self._runs[key]
                excess -= 1
