"""Owns the simulation of a whole engine below gRPC: one seed decides everything that happens.

The kernel runs on a real database file; time, Workers, clients and crashes come from the seed.
Campaigns: ``python engine_simulation.py --seeds 1000 --start 0``.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from dex.dexpb import dex_pb2 as pb
from engine_simulation_checks import (
    Ledger,
    check_leftovers,
    check_memory,
    check_record,
    check_streams,
    read_record,
)
from engine_simulation_clients import Clients
from engine_simulation_disk import SimulatedDisk
from engine_simulation_flows import SCRIPTS
from engine_simulation_workers import ModelWorker

from dex_embedded_engine.failpoints import FAILPOINTS, Failpoints
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import (
    Event,
    Output,
    Refusal,
    Reply,
    StreamEnded,
    Tick,
    ToStream,
)
from dex_embedded_engine.settings import EngineSettings
from dex_embedded_engine.thread import _needs_sync

_START = 1_000_000.0
_ROUNDS = 3000
_NAMES = ("count", "join", "bump", "shift", "add", "attempt", "victim", "leaf", "nap", "send")


class SimulatedCrashError(Exception):
    """The engine process dies here."""


class Simulation:
    """One seed's history: a chaotic time, then a healthy one in which every Flow must end.

    Args:
        folder: where the database file goes.
        steps: how long the chaotic time is.
    """

    def __init__(self, seed: int, folder: Path, steps: int = 250) -> None:
        self.rng = random.Random(seed)
        self.now = _START
        self.is_healthy = False
        self._is_clock_steady = True
        self.trace: list[str] = []
        self._steps = steps
        self._counter = itertools.count(1)
        self._inbox: deque[Event] = deque()
        self._notices: list[StreamEnded] = []
        self.workers: list[ModelWorker] = []
        self.ledger = Ledger()
        count = self.rng.choice([1, 1, 2, 3, len(SCRIPTS)])
        self.flow_types = sorted(self.rng.sample(sorted(SCRIPTS), count))
        self.clients = Clients(self)
        self._settings = EngineSettings(
            inline_limit=self.rng.choice([40, 1024]),
            frame_budget=self.rng.choice([300, 1 << 21]),
            loaded_runs=self.rng.choice([0, 1, 1000]),
        )
        self._failpoint_chance = self.rng.choice([0, 0.3, 0.8])
        self._crash_chance = self.rng.choice([0, 0.01, 0.03])
        self._chances: dict[Callable[[], None], float] = {
            self._process_some: self.rng.choice([10, 30]),
            self._move_a_worker: self.rng.choice([30, 60]),
            self.clients.call: self.rng.choice([5, 12, 30]),
            self._pass_time: self.rng.choice([3, 8, 20]),
            self._crash: self.rng.choice([0, 0.5, 1]),
            self._lose_a_worker: self.rng.choice([0, 1, 3]),
            self._break_a_stream: self.rng.choice([0, 1, 3]),
            self._add_worker: self.rng.choice([1, 3]),
            self._notice: 4,
        }
        self.disk = SimulatedDisk(
            folder / f"seed{seed}.sqlite3", self._settings, loses_power=self.rng.random() < 0.25
        )
        self.kernel = self._open()

    def run(self) -> str:
        """Let it all happen; return a digest of everything that was observed."""
        for _ in range(self.rng.randrange(1, 4)):
            self._add_worker()
        for _ in range(self._steps):
            self._act()
        self._recover_everything()
        self._finish_flows()
        self._check()
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def close(self) -> None:
        """Close the database file."""
        self.disk.close()

    def post(self, event: Event) -> None:
        """Send an event to the engine."""
        self._inbox.append(event)

    def next_stream_id(self) -> int:
        """Return a number for a new stream."""
        return next(self._counter)

    def next_text(self) -> str:
        """Return a text that was never used before."""
        return f"text-{next(self._counter)}"

    def load(self, flow_id: str, value: pb.Value) -> pb.Value:
        """Return what a blob reference stands for."""
        return self.kernel.stores.payloads.concrete(flow_id, value)

    def entered(self, task: pb.PollWorkerTask) -> None:
        """Note that a handler body begins."""
        self.ledger.enter(task)

    def note(self, line: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f"{self.now - _START:.3f} {line}")

    # --- the chaotic time -----------------------------------------------------------------------

    def _act(self) -> None:
        chances = dict(self._chances)
        if not self._inbox:
            chances[self._process_some] = 0.5
        if not self._worker_moves():
            chances[self._move_a_worker] = 0
        (action,) = self.rng.choices([*chances], [*chances.values()])
        action()

    def _process_some(self) -> None:
        count = self.rng.choice([1, 1, 2, 4, 100])
        batch = [self._inbox.popleft() for _ in range(min(count, len(self._inbox)))]
        self._process(batch or [Tick()])

    def _move_a_worker(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            moves = self._worker_moves()
            if moves:
                self.rng.choice(moves)()

    def _worker_moves(self) -> list[Callable[[], None]]:
        return [move for worker in self.workers for move in worker.moves()]

    def _pass_time(self) -> None:
        due = self._next_due()
        choice = self.rng.random()
        if due is not None and choice < 0.4:
            self.now = max(self.now, due)
        elif choice < 0.9:
            self.now += self.rng.choice([0.001, 0.01, 0.1, 1.0])
        else:
            self.now += self.rng.choice([5.0, 12.0, 61.0])
            for worker in self.workers:
                if self.rng.random() < 0.6:
                    worker.keep_alive()
        self.note("time")

    def _next_due(self) -> float | None:
        moments = (self.kernel.next_due(), self.kernel.next_retry())
        return min((each for each in moments if each is not None), default=None)

    def _add_worker(self) -> None:
        if len(self.workers) >= 3:
            return
        types = self.flow_types
        if self.rng.random() < 0.3:
            types = sorted(self.rng.sample(types, (len(types) + 1) // 2))
        missing = frozenset(self.rng.sample(_NAMES, 3)) if self.rng.random() < 0.2 else frozenset()
        worker_id = self.rng.choice(self._free_ids())
        worker = ModelWorker(self, worker_id, types, missing, self.rng.choice([1, 2, 4]))
        self.workers.append(worker)
        worker.connect()
        self.note(f"worker {worker_id} {types} without {sorted(missing)}")

    def _free_ids(self) -> list[str]:
        taken = {worker.worker_id for worker in self.workers}
        return [each for each in ("w1", "w2", "w3", "w4") if each not in taken]

    def _lose_a_worker(self) -> None:
        if not self.workers:
            return
        worker = self.rng.choice(self.workers)
        if self.rng.random() < 0.4:
            self.note(f"worker {worker.worker_id} stops")
            worker.stop()
        else:
            self.note(f"worker {worker.worker_id} dies")
            self._notices.extend(worker.die())
        self._forget_stopped_workers()

    def _break_a_stream(self) -> None:
        self._forget_stopped_workers()
        if self.workers:
            worker = self.rng.choice(self.workers)
            self._notices.append(worker.lose_stream())
            self.note(f"a stream of worker {worker.worker_id} breaks")

    def _forget_stopped_workers(self) -> None:
        self.workers = [worker for worker in self.workers if worker.streams]

    def _notice(self) -> None:
        self.rng.shuffle(self._notices)
        for _ in range(self.rng.randrange(len(self._notices) + 1)):
            self.post(self._notices.pop())
        self._forget_stopped_workers()

    # --- the engine -----------------------------------------------------------------------------

    def _open(self) -> Kernel:
        self._armed = ""
        if not self.is_healthy and self.rng.random() < self._failpoint_chance:
            self._armed = f"{self.rng.choice(FAILPOINTS)}:{self.rng.randrange(1, 8)}"
        failpoints = Failpoints(self._armed, _strike)
        return Kernel(self.disk.stores, self._settings, self._new_id, failpoints)

    def _new_id(self) -> str:
        return f"id{next(self._counter):06d}"

    def _process(self, batch: list[Event]) -> None:
        kernel = self.kernel
        synced = any(_needs_sync(event) for event in batch)
        try:
            outputs = kernel.process(batch, self.now, synced=synced)
        except SimulatedCrashError:
            committed = self._armed.startswith("after/")
            self.note(f"the engine dies, batch committed: {committed}")
            if committed:
                self._take_note(batch, kernel.outputs)
            self._restart()
            return
        self.note(f"{len(batch)} events, {' '.join(map(_describe, outputs))}")
        self._take_note(batch, outputs)
        if self.rng.random() < 0.05:
            check_memory(kernel, self.disk.inspector)
        if not self.is_healthy and self.rng.random() < self._crash_chance:
            told = self.rng.randrange(len(outputs) + 1)
            self.note(f"the engine dies when it has told {told} of it")
            self._deliver(outputs[:told])
            self._restart()
            return
        self._deliver(outputs)

    def _take_note(self, batch: list[Event], outputs: list[Output]) -> None:
        is_safe = self.disk.note_commit()
        for output in outputs:
            hands_out = isinstance(output, ToStream) and output.frame.HasField("task")
            assert self.disk.stores.is_synced or not (hands_out or isinstance(output, Reply))
        self.ledger.commit(self.kernel, self.disk.inspector, batch, outputs)
        if is_safe:
            self.ledger.keep()

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, ToStream):
                for worker in self.workers:
                    worker.receive(output.stream_id, output.frame)
            elif isinstance(output, Reply | Refusal):
                self.clients.hear(output)

    def _crash(self) -> None:
        self.note("the engine dies between two batches")
        self._restart()

    def _restart(self) -> None:
        self._inbox.clear()
        self._notices.clear()
        self.ledger.lose_engine()
        if self.rng.random() < 0.4:
            # The clock of the machine may have been set back, too.
            step = self.rng.choice([0.5, 20.0, 100.0, -30.0])
            self._is_clock_steady = self._is_clock_steady and step > 0
            self.now += step
        if self.disk.loses_power and self.rng.random() < 0.5:
            self.note("the power fails")
            self.disk.lose_power()
            self.ledger.lose_power()
        else:
            self.disk.reopen()
        self.kernel = self._open()
        for worker in self.workers:
            worker.die()
            if not worker.is_stopping:
                worker.connect()
        self._forget_stopped_workers()
        self.clients.lose_connection()
        self._process([Tick()])

    # --- the healthy time -----------------------------------------------------------------------

    def _recover_everything(self) -> None:
        self.note("from now on all is well")
        self.is_healthy = True
        if self.rng.random() < 0.3:
            self._restart()
        for worker in list(self.workers):
            if self.rng.random() < 0.5:
                self._notices.extend(worker.die())
                self.workers.remove(worker)
        self._inbox.extend(self._notices)
        self._notices.clear()
        if not any(worker.knows_all() for worker in self.workers):
            worker = ModelWorker(self, self.rng.choice(self._free_ids()), self.flow_types)
            self.workers.append(worker)
            worker.connect()

    def _finish_flows(self) -> None:
        for round_number in range(_ROUNDS):
            self._settle()
            if not self._open_flows():
                break
            if not self.clients.finish(self._open_flows()):
                due = self._next_due()
                assert due is not None, f"nothing is due, but open: {self._open_flows()}"
                # A handler that hangs in the only slot of the only Worker is waited out.
                self.now = max(self.now + (60 if round_number > 300 else 0), due)
                self._process([Tick()])
        # A handler that hangs for a Flow that is over ends with its method timeout.
        self.now += 3 * 3600.0
        self._process([Tick()])
        self._settle()

    def _settle(self) -> None:
        for _ in range(_ROUNDS * 10):
            moves = self._worker_moves()
            if self._inbox and (not moves or self.rng.random() < 0.5):
                self._process_some()
            elif moves:
                self.rng.choice(moves)()
            else:
                return
        raise AssertionError("the engine and its Workers go round in circles")

    def _open_flows(self) -> list[tuple[str, str]]:
        rows = self.disk.inspector.execute(
            "SELECT flow_id, flow_type FROM runs WHERE status = 1 ORDER BY run_key"
        )
        return [(row[0], row[1]) for row in rows.fetchall()]

    def _check(self) -> None:
        kernel = self.kernel
        check_memory(kernel, self.disk.inspector)
        assert kernel.dispatcher.tasks_out() == []
        assert not [each for worker in self.workers for each in worker.handlers()]
        keys = self.disk.inspector.execute("SELECT run_key FROM runs").fetchall()
        records = [read_record(kernel, key) for (key,) in keys]
        runs = Counter(record.run.flow_id for record in records)
        for record in records:
            record.is_clock_steady = self._is_clock_steady
            record.is_only_run = runs[record.run.flow_id] == 1
            was_stopped = self.clients.was_stopped(record.run)
            check_record(record, self.ledger, was_stopped=was_stopped)
            locks = ("total", "left", "right")
            assert kernel.dispatcher.held_lock(record.run.key, locks) is None
        check_streams(kernel, records, self.ledger)
        check_leftovers(self.disk.inspector)
        self.clients.check(records)


def _strike() -> None:
    raise SimulatedCrashError


def _describe(output: Output) -> str:
    if isinstance(output, ToStream):
        body = output.frame.SerializeToString(deterministic=True)
        kind = output.frame.WhichOneof("frame")
        return f"{output.stream_id}<-{kind}:{hashlib.sha256(body).hexdigest()[:8]}"
    if isinstance(output, Reply):
        return f"reply:{output.call_id}"
    if isinstance(output, Refusal):
        return f"refusal:{output.call_id}:{output.error.detail}"
    return f"wake:{output.topic}"


def main(arguments: list[str]) -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", type=int, default=0, help="lines of a failed seed's trace")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    failed: list[int] = []
    began = time.perf_counter()
    for seed in range(options.start, options.start + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            simulation = Simulation(seed, Path(folder))
            try:
                simulation.run()
            except Exception:
                # The border to what is tested: whatever went wrong is this seed's result.
                failed.append(seed)
                print("\n".join(simulation.trace[len(simulation.trace) - options.trace :]))
                print(f"seed {seed} failed:\n{traceback.format_exc(limit=-4)}", flush=True)
            finally:
                simulation.close()
        if failed and options.first:
            break
    print(f"{time.perf_counter() - began:.0f} s, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
