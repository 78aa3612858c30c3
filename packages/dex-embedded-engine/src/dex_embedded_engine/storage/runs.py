"""Owns how runs, executions, Channel messages and the journal stand in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution, Message, Phase, Run, Standing, Timer
from dex_embedded_engine.storage.attributes import AttributeStore
from dex_embedded_engine.storage.connection import Connection
from dex_embedded_engine.storage.statements import load_statements
from dex_embedded_engine.transitions.change import Change

_SQL = load_statements("runs")


@dataclass(frozen=True)
class JournalEntry:
    """One event. `origin` says where the movement stands that the event's Step came from."""

    event_id: int
    at: float
    origin: tuple[int, int]
    event: pb.FlowHistoryEvent


class RunStore:
    """Reads runs whole and writes what a `Change` says."""

    def __init__(self, connection: Connection, attributes: AttributeStore) -> None:
        self._connection = connection
        self._attributes = attributes

    def insert(self, run: Run) -> None:
        """Store a new run's identity and give it its key."""
        cursor = self._connection.run(
            _SQL["insert_run"],
            (
                run.run_id,
                run.flow_id,
                run.flow_type,
                run.request_id,
                run.first_run_id,
                run.run_attempt,
                run.started_at,
                run.status,
            ),
        )
        assert cursor.lastrowid is not None
        run.key = cursor.lastrowid
        self._connection.run(
            _SQL["insert_details"],
            (run.key, run.start.SerializeToString(), run.config.SerializeToString()),
        )

    def find_key(self, flow_id: str, run_id: str) -> int | None:
        """Return the key of the named run, or of the latest one when `run_id` is empty."""
        if run_id:
            row = self._connection.run(_SQL["key_of_run"], (flow_id, run_id)).fetchone()
        else:
            row = self._connection.run(_SQL["latest_key"], (flow_id,)).fetchone()
        return None if row is None else int(row[0])

    def keys_with_work(self) -> list[int]:
        """Return the runs that have an execution to hand out, or one that was out."""
        return [int(row[0]) for row in self._connection.run(_SQL["keys_with_work"])]

    def wakes(self) -> list[tuple[float, int]]:
        """Return (unix seconds, run key) of everything that waits for a moment."""
        return [(float(row[1]), int(row[0])) for row in self._connection.run(_SQL["wakes"])]

    def load(self, key: int) -> Run:
        """Read a run whole, but for its Attribute values."""
        run = _run_from(self._connection.run(_SQL["select_run"], (key,)).fetchone())
        for row in self._connection.run(_SQL["select_executions"], (key,)):
            execution = _execution_from(row)
            run.executions[execution.ordinal] = execution
        for row in self._connection.run(_SQL["select_messages"], (key,)):
            message = _message_from(row)
            if message.removed is None:
                run.channels.setdefault(message.channel, []).append(message)
            else:
                run.ghosts.append(message)
        run.stale_attributes = self._attributes.stale_keys(key)
        return run

    def save(self, change: Change) -> None:
        """Write everything `change` edited but Attributes, which are written as they come."""
        run = change.run
        self._save_header(change)
        for execution in change.dropped:
            if execution.stored:
                self._connection.run(_SQL["drop_execution"], (run.key, execution.ordinal))
        if change.touched:
            self._connection.run_many(
                _SQL["put_execution"],
                [_execution_row(run.key, execution) for execution in change.touched.values()],
            )
            for execution in change.touched.values():
                execution.stored = True
        self._save_messages(change)
        self._connection.run_many(
            _SQL["insert_event"],
            [
                (run.key, event_id, change.now, *origin, event.SerializeToString())
                for event_id, event, origin in change.events
            ],
        )
        self._release_snapshots(change)

    def save_heartbeat(self, run: Run, execution: Execution) -> None:
        """Write only the heartbeat value of `execution`."""
        self._connection.run(
            _SQL["set_heartbeat"], (_bytes(execution.heartbeat), run.key, execution.ordinal)
        )

    def events(self, key: int, first: int, count: int) -> Iterator[JournalEntry]:
        """Yield the journal from event `first` on, as stored."""
        rows = self._connection.run(_SQL["select_events"], (key, first, count)).fetchall()
        for event_id, at, origin_event, origin_index, body in rows:
            event = pb.FlowHistoryEvent.FromString(body)
            yield JournalEntry(event_id, at, (origin_event, origin_index), event)

    def event(self, key: int, event_id: int) -> JournalEntry:
        """Return one journal event, as stored."""
        row = self._connection.run(_SQL["select_event"], (key, event_id)).fetchone()
        return JournalEntry(event_id, 0.0, (row[0], row[1]), pb.FlowHistoryEvent.FromString(row[2]))

    def _save_header(self, change: Change) -> None:
        run = change.run
        self._connection.run(
            _SQL["update_run"],
            (
                run.status,
                run.closed_at,
                run.deadline_at,
                run.sequence,
                run.event_count,
                run.message_count,
                run.execution_count,
                json.dumps(run.counters, separators=(",", ":")),
                int(run.closing),
                run.sticky_worker,
                run.key,
            ),
        )
        if run.outputs or change.closed:
            result = pb.FlowResult(
                results=run.outputs, error_type=run.error_type, error_message=run.error_message
            )
            self._connection.run(_SQL["update_result"], (result.SerializeToString(), run.key))

    def _save_messages(self, change: Change) -> None:
        run = change.run
        kept = [message for message in change.added if message.removed is None]
        self._connection.run_many(
            _SQL["insert_message"],
            [
                (
                    run.key,
                    message.position,
                    message.channel,
                    message.message_id,
                    message.value.SerializeToString(),
                    message.created,
                )
                for message in kept
            ],
        )
        for message in change.hidden:
            self._connection.run(_SQL["hide_message"], (message.removed, run.key, message.position))
        for message in change.removed:
            if message.created != run.sequence:
                self._connection.run(_SQL["drop_message"], (run.key, message.position))

    def _release_snapshots(self, change: Change) -> None:
        run = change.run
        if not run.ghosts and not run.stale_attributes:
            return
        pins = run.pins()
        for message in list(run.ghosts):
            assert message.removed is not None
            if not any(message.created <= pin < message.removed for pin in pins):
                run.ghosts.remove(message)
                self._connection.run(_SQL["drop_message"], (run.key, message.position))
        for key in list(run.stale_attributes):
            if self._attributes.drop_unread(run.key, key, pins):
                run.stale_attributes.discard(key)


def _bytes(message: Any) -> bytes | None:
    return None if message is None else message.SerializeToString()


def _run_from(row: tuple[Any, ...]) -> Run:
    result = pb.FlowResult.FromString(row[20])
    return Run(
        key=row[0],
        run_id=row[1],
        flow_id=row[2],
        flow_type=row[3],
        request_id=row[4],
        first_run_id=row[5],
        run_attempt=row[6],
        started_at=row[7],
        status=row[8],
        closed_at=row[9],
        deadline_at=row[10],
        sequence=row[11],
        event_count=row[12],
        message_count=row[13],
        execution_count=row[14],
        counters=json.loads(row[15]),
        closing=bool(row[16]),
        sticky_worker=row[17],
        start=pb.StartFlowRequest.FromString(row[18]),
        config=pb.FlowConfig.FromString(row[19]),
        outputs=list(result.results),
        error_type=result.error_type,
        error_message=result.error_message,
    )


def _execution_row(run_key: int, execution: Execution) -> tuple[object, ...]:
    timers = [[timer.fires_at, timer.done] for timer in execution.timers]
    step_locals = pb.GetAttributesResponse(attributes=execution.step_locals)
    wakes = [
        timer.fires_at
        for timer in execution.timers
        if not timer.done and execution.phase is Phase.WAITING
    ]
    if execution.wake_at is not None:
        wakes.append(execution.wake_at)
    return (
        run_key,
        execution.ordinal,
        execution.step_type,
        execution.number,
        execution.phase,
        execution.standing,
        min(wakes, default=None),
        *execution.origin,
        execution.attempt,
        execution.first_attempt_at,
        execution.ready_at,
        execution.queued_for,
        execution.snapshot,
        execution.movement.SerializeToString(),
        _bytes(execution.heartbeat),
        _bytes(execution.last_failure),
        _bytes(execution.condition),
        json.dumps(timers) if timers else None,
        _bytes(execution.results),
        step_locals.SerializeToString() if execution.step_locals else None,
    )


def _execution_from(row: tuple[Any, ...]) -> Execution:
    timers = json.loads(row[17]) if row[17] else []
    standing = Standing(row[4])
    return Execution(
        ordinal=row[0],
        step_type=row[1],
        number=row[2],
        phase=Phase(row[3]),
        standing=standing,
        wake_at=row[5] if standing is Standing.PAUSED else None,
        origin=(row[6], row[7]),
        attempt=row[8],
        first_attempt_at=row[9],
        ready_at=row[10],
        queued_for=row[11],
        snapshot=row[12],
        movement=pb.StepMovement.FromString(row[13]),
        heartbeat=None if row[14] is None else pb.Value.FromString(row[14]),
        last_failure=None if row[15] is None else pb.StepMethodFailure.FromString(row[15]),
        condition=None if row[16] is None else pb.WaitingCondition.FromString(row[16]),
        timers=[Timer(fires_at, done) for fires_at, done in timers],
        results=None if row[18] is None else pb.ConditionResults.FromString(row[18]),
        step_locals=(
            [] if row[19] is None else list(pb.GetAttributesResponse.FromString(row[19]).attributes)
        ),
        stored=True,
    )


def _message_from(row: tuple[Any, ...]) -> Message:
    return Message(row[0], row[1], row[2], pb.Value.FromString(row[3]), row[4], row[5])
