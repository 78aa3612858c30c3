"""Owns which Worker stream gets which task: streams, queues, exclusions and Attribute locks.

Pure bookkeeping in memory; its times are instants that grow even while the engine's clock is
made to stand still, for its pauses are about other processes. It does not know what a task
contains, nor whether its hand-out is durable; it starts empty after a restart, and Workers and
queued Steps are told to it anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

_FIRST_DECLINE_PAUSE = 0.005
_LONGEST_DECLINE_PAUSE = 1.0
# How long a stream that its Worker may be about to close is left alone. Closing takes the Worker
# a few milliseconds; a task sent meanwhile would come back undelivered.
_RETIREMENT_PAUSE = 0.02
# A task that has been out longer than this is a long one: its stream is not expected back soon.
_LONG_TASK = 0.004


class StreamPhase(Enum):
    """What a Worker's stream can be used for.

    HELD streams are connected but not yet acknowledged. A Worker opens a spare stream for each
    task it starts and retires one when the task ends; leaving the spare unacknowledged until it
    is needed spares both sides that churn.
    """

    HELD = "held"
    IDLE = "idle"
    BUSY = "busy"
    GONE = "gone"


@dataclass(eq=False)
class Task:
    """Something for a Worker to do.

    Attributes:
        flow_type: which Workers can do it.
        run_key: the run it belongs to.
        locks: Attribute locks it holds from hand-out to end.
        is_rpc: RPCs are handed out before Steps.
        excluded: Workers that do not know the name.
        preferred_worker: the Worker that served the run last.
        task_id: id of this hand-out; None while queued.
        watched_at: when its deadlines will next be looked at, unix seconds.
    """

    flow_type: str
    run_key: int
    locks: tuple[str, ...] = ()
    is_rpc: bool = False
    excluded: set[str] = field(default_factory=set)
    preferred_worker: str = ""
    task_id: str | None = None
    stream: WorkerStream | None = None
    watched_at: float | None = None


@dataclass(eq=False)
class WorkerStream:
    """One pull stream of a Worker: it serves one queue and carries one task at a time."""

    stream_id: int
    queue: str
    worker: WorkerState
    phase: StreamPhase = StreamPhase.HELD
    task: Task | None = None
    handed_out_at: float = 0.0
    usable_at: float = 0.0
    last_frame_at: float = 0.0


@dataclass(eq=False)
class WorkerState:
    """One Worker process, known by its app_worker_id while it has a stream.

    Attributes:
        idle_targets: by queue, how many idle streams the Worker keeps; it closes others.
    """

    worker_id: str
    flow_types: frozenset[str]
    streams: dict[int, WorkerStream] = field(default_factory=dict)
    declined_until: dict[bool, float] = field(default_factory=dict)
    decline_pause: float = _FIRST_DECLINE_PAUSE
    running: int = 0
    served: int = 0
    idle_targets: dict[str, int] = field(default_factory=dict)

    def serves(self, task: Task, now: float) -> bool:
        """Tell whether the task may be offered to this Worker now."""
        return (
            task.flow_type in self.flow_types
            and self.worker_id not in task.excluded
            and self.declined_until.get(task.is_rpc, 0.0) <= now
        )

    def free_stream(self, flow_type: str, now: float) -> WorkerStream | None:
        """Return a stream that can take a task of `flow_type` now, an acknowledged one first."""
        held: WorkerStream | None = None
        for stream in self.streams.values():
            if stream.queue not in (flow_type, self.worker_id):
                continue
            if stream.phase is StreamPhase.IDLE and stream.usable_at <= now:
                return stream
            if stream.phase is StreamPhase.HELD:
                held = held or stream
        return held if self.is_occupied(now) else None

    def is_occupied(self, now: float) -> bool:
        """Tell whether the streams in use are taken by long tasks, so that a spare is worth it.

        Short tasks run fastest one after the other on the same stream: taking a spare into use
        for them only makes the Worker open another one and close it again.
        """
        long = recent = 0
        for stream in self.streams.values():
            if stream.phase is StreamPhase.BUSY:
                if stream.handed_out_at + _LONG_TASK <= now:
                    long += 1
                else:
                    recent += 1
        return 0 < long and recent <= long

    def moments(self) -> Iterator[float]:
        """Yield when this Worker may take a task that it could not take before, unix seconds."""
        yield from self.declined_until.values()
        has_spare = any(stream.phase is StreamPhase.HELD for stream in self.streams.values())
        for stream in self.streams.values():
            yield stream.usable_at
            if has_spare and stream.phase is StreamPhase.BUSY:
                yield stream.handed_out_at + _LONG_TASK

    def learn_idle_target(self, queue: str) -> None:
        """Before its first task, the idle streams a Worker opens are those it keeps."""
        if self.served == 0:
            count = sum(stream.queue == queue for stream in self.streams.values())
            self.idle_targets[queue] = max(count, self.idle_targets.get(queue, 1))

    def may_retire(self, stream: WorkerStream, now: float) -> bool:
        """Tell whether the Worker has enough other idle streams to close this one.

        A stream that was handed a task a moment ago may have looked idle to the Worker when it
        decided.
        """
        idle = sum(
            other is not stream
            and other.queue == stream.queue
            and (
                other.phase is StreamPhase.IDLE
                or (
                    other.phase is StreamPhase.BUSY
                    and other.handed_out_at > now - _RETIREMENT_PAUSE
                )
            )
            for other in self.streams.values()
        )
        return idle >= self.idle_targets.get(stream.queue, 1)


@dataclass
class _Queue:
    rpcs: deque[Task] = field(default_factory=deque)
    steps: deque[Task] = field(default_factory=deque)


class Dispatcher:
    """Pairs queued tasks with free streams.

    Args:
        register: called when a held stream is acknowledged to its Worker.
    """

    def __init__(self, register: Callable[[WorkerStream], None]) -> None:
        self._register = register
        self._workers: dict[str, WorkerState] = {}
        self._queues: dict[str, _Queue] = {}
        self._out: dict[str, Task] = {}
        self._locks: dict[tuple[int, str], Task] = {}
        self._lock_waiters: dict[int, list[Task]] = {}

    def open_stream(
        self, stream_id: int, queue: str, worker_id: str, flow_types: Iterable[str], now: float
    ) -> WorkerStream:
        """Take in a new stream; it is acknowledged at once only if its queue has no other."""
        types = frozenset(flow_types)
        worker = self._workers.get(worker_id)
        if worker is None:
            worker = self._workers[worker_id] = WorkerState(worker_id, types)
        worker.flow_types = types
        stream = WorkerStream(stream_id, queue, worker, last_frame_at=now)
        worker.streams[stream_id] = stream
        worker.learn_idle_target(queue)
        self._acknowledge_one(worker, queue)
        return stream

    def close_stream(self, stream: WorkerStream) -> Task | None:
        """Forget a stream; return the task that was out on it, if any."""
        task = stream.task
        if task is not None:
            self._end(task)
        stream.phase = StreamPhase.GONE
        worker = stream.worker
        worker.streams.pop(stream.stream_id, None)
        if not worker.streams:
            self._workers.pop(worker.worker_id, None)
            self._forgive(worker.worker_id)
        else:
            self._acknowledge_one(worker, stream.queue)
        return task

    def enqueue(self, task: Task) -> None:
        """Queue a task behind the others of its kind."""
        queue = self._queues.setdefault(task.flow_type, _Queue())
        (queue.rpcs if task.is_rpc else queue.steps).append(task)

    def requeue(self, task: Task) -> None:
        """Put a task that was not taken back in front."""
        queue = self._queues.setdefault(task.flow_type, _Queue())
        (queue.rpcs if task.is_rpc else queue.steps).appendleft(task)

    def withdraw(self, task: Task) -> None:
        """Forget a queued task."""
        queue = self._queues.get(task.flow_type)
        waiting = self._lock_waiters.get(task.run_key, [])
        if task in waiting:
            waiting.remove(task)
        elif queue is not None:
            tasks = queue.rpcs if task.is_rpc else queue.steps
            if task in tasks:
                tasks.remove(task)

    def pairs(self, now: float) -> Iterator[tuple[Task, WorkerStream]]:
        """Yield tasks with the free stream each may go to, RPCs first, until none fits.

        The caller hands each out with `hand_out`, or drops it by not doing so.
        """
        for flow_type, queue in list(self._queues.items()):
            for tasks in (queue.rpcs, queue.steps):
                yield from self._pairs_of(flow_type, tasks, now)
            if not queue.rpcs and not queue.steps:
                del self._queues[flow_type]

    def hand_out(self, task: Task, stream: WorkerStream, task_id: str, now: float) -> None:
        """Note that `task` goes out on `stream`; its locks are held from now on."""
        if stream.phase is StreamPhase.HELD:
            self._register(stream)
        stream.phase = StreamPhase.BUSY
        stream.task = task
        stream.handed_out_at = now
        stream.worker.running += 1
        stream.worker.served += 1
        task.task_id = task_id
        task.stream = stream
        self._out[task_id] = task
        for key in task.locks:
            self._locks[task.run_key, key] = task

    def finish(self, stream: WorkerStream, now: float) -> None:
        """Note that the Worker has ended its task and that the stream is free again."""
        task = stream.task
        if task is not None:
            self._end(task)
        worker = stream.worker
        stream.phase = StreamPhase.IDLE
        if worker.may_retire(stream, now):
            stream.usable_at = now + _RETIREMENT_PAUSE
        worker.declined_until.clear()
        worker.decline_pause = _FIRST_DECLINE_PAUSE

    def decline(self, stream: WorkerStream, now: float) -> Task | None:
        """Note that the Worker has no room; return the task, and when to ask again is counted."""
        task = stream.task
        if task is None:
            return None
        self._end(task)
        stream.phase = StreamPhase.IDLE
        worker = stream.worker
        worker.declined_until[task.is_rpc] = now + worker.decline_pause
        worker.decline_pause = min(worker.decline_pause * 2, _LONGEST_DECLINE_PAUSE)
        return task

    def doubt(self, worker: WorkerState) -> list[WorkerStream]:
        """Set the Worker's free streams aside until `trust`; return them, to be asked for a sign.

        One of its streams broke. If the Worker died, the others are dead too, and a task sent on
        one of them would count as an attempt.
        """
        doubted = []
        for stream in worker.streams.values():
            if stream.phase is StreamPhase.HELD:
                self._register(stream)
                stream.phase = StreamPhase.IDLE
            if stream.phase is StreamPhase.IDLE:
                stream.usable_at = math.inf
                doubted.append(stream)
        return doubted

    def trust(self, stream: WorkerStream) -> None:
        """Use a stream again: its Worker has shown that it lives."""
        if stream.usable_at == math.inf:
            stream.usable_at = 0.0

    def task_out(self, task_id: str) -> Task | None:
        """Return the task of a hand-out that has not ended."""
        return self._out.get(task_id)

    def tasks_out(self) -> list[Task]:
        """Return every task that a Worker has now."""
        return list(self._out.values())

    def held_lock(self, run_key: int, keys: Iterable[str]) -> str | None:
        """Return the first of `keys` that another task holds, or None."""
        return next((key for key in keys if (run_key, key) in self._locks), None)

    def next_retry(self, now: float) -> float | None:
        """Return when a queued task may find a Worker that it does not find now, unix seconds."""
        if not self._queues:
            return None
        moments = [
            moment
            for worker in self._workers.values()
            for moment in worker.moments()
            if now < moment < math.inf
        ]
        return min(moments, default=None)

    def may_hand_out(self, since: float, now: float) -> bool:
        """Tell whether a queued task may go out at `now` that could not at `since`.

        It may also when a Worker that is in doubt shows that it lives.
        """
        return bool(self._queues) and any(
            since < moment <= now or moment == math.inf
            for worker in self._workers.values()
            for moment in worker.moments()
        )

    def has_worker(self, flow_type: str) -> bool:
        """Tell whether any connected Worker registers `flow_type`."""
        return any(flow_type in worker.flow_types for worker in self._workers.values())

    def release_locks(self, task: Task) -> None:
        """Give up the locks of `task` before it has ended: its result can no longer commit."""
        for key in task.locks:
            if self._locks.get((task.run_key, key)) is task:
                del self._locks[task.run_key, key]
        for waiter in reversed(self._lock_waiters.pop(task.run_key, [])):
            self.requeue(waiter)

    def _forgive(self, worker_id: str) -> None:
        """Offer every task to the next Worker of this id: it may be a newer program."""
        waiting = [task for tasks in self._lock_waiters.values() for task in tasks]
        for queue in self._queues.values():
            waiting += [*queue.rpcs, *queue.steps]
        for task in (*waiting, *self._out.values()):
            task.excluded.discard(worker_id)

    def _pairs_of(
        self, flow_type: str, tasks: deque[Task], now: float
    ) -> Iterator[tuple[Task, WorkerStream]]:
        passed: list[Task] = []
        while tasks:
            task = tasks.popleft()
            stream = self._stream_for(task, now)
            if stream is None:
                passed.append(task)
                if not task.excluded:
                    break
            elif not task.is_rpc and self.held_lock(task.run_key, task.locks) is not None:
                self._lock_waiters.setdefault(task.run_key, []).append(task)
            else:
                yield task, stream
        tasks.extendleft(reversed(passed))

    def _stream_for(self, task: Task, now: float) -> WorkerStream | None:
        preferred = self._workers.get(task.preferred_worker)
        candidates = sorted(
            (worker for worker in self._workers.values() if worker.serves(task, now)),
            key=lambda worker: (worker.running, worker is not preferred),
        )
        for worker in candidates:
            stream = worker.free_stream(task.flow_type, now)
            if stream is not None:
                return stream
        return None

    def _end(self, task: Task) -> None:
        stream = task.stream
        if stream is not None:
            stream.task = None
            stream.worker.running -= 1
        if task.task_id is not None:
            self._out.pop(task.task_id, None)
        task.task_id = None
        task.stream = None
        self.release_locks(task)

    def _acknowledge_one(self, worker: WorkerState, queue: str) -> None:
        streams = [stream for stream in worker.streams.values() if stream.queue == queue]
        if any(stream.phase in (StreamPhase.IDLE, StreamPhase.BUSY) for stream in streams):
            return
        for stream in streams:
            if stream.phase is StreamPhase.HELD:
                self._register(stream)
                stream.phase = StreamPhase.IDLE
                return
