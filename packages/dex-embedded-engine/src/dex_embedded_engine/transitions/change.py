"""Owns the record of what one event changes in one run, and the smallest edits that make it up.

Whoever stores a `Change` needs no other source; whoever applies one needs no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution, Message, Phase, Run, Standing, Timer
from dex_embedded_engine.values import NULL

NO_ORIGIN = (0, 0)
_MAXIMUM_COUNTERS = 2**31 - 1


@dataclass
class Change:
    """What one event does to `run`; the run itself is edited at the same time.

    Attributes:
        now: the event's time, unix seconds.
        hidden: messages removed now that a snapshot still shows; they became the run's ghosts.
        new_id: makes ids, for example of Channel messages.
        ready: executions that may now be handed out, in order.
        revoked: ids of attempts that no longer count; their handlers are told to stop now.
        disowned: ids of attempts that no longer count; their handlers are told when they next
            send a frame (a cancellation reaches a handler only then).
        finished: (step type, number) of executions that ended.
        closed: the run reached a final status.
    """

    run: Run
    now: float
    new_id: Callable[[], str]
    writes: list[pb.AttributeWrite] = field(default_factory=list)
    added: list[Message] = field(default_factory=list)
    removed: list[Message] = field(default_factory=list)
    hidden: list[Message] = field(default_factory=list)
    touched: dict[int, Execution] = field(default_factory=dict)
    dropped: list[Execution] = field(default_factory=list)
    events: list[tuple[int, pb.FlowHistoryEvent, tuple[int, int]]] = field(default_factory=list)
    ready: list[Execution] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    disowned: list[str] = field(default_factory=list)
    finished: list[tuple[str, int]] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.run.sequence += 1

    def record(self, event: pb.FlowHistoryEvent, origin: tuple[int, int] = NO_ORIGIN) -> int:
        """Append `event` to the journal and return its id.

        Args:
            origin: where the journal holds the movement of the Step the event is about.
        """
        self.run.event_count += 1
        self.events.append((self.run.event_count, event, origin))
        return self.run.event_count

    def touch(self, execution: Execution) -> None:
        """Note that `execution` was edited."""
        self.touched[execution.ordinal] = execution

    def create(
        self,
        movement: pb.StepMovement,
        *,
        lineage: str,
        origin: tuple[int, int],
        recovery: pb.RecoveryErrorInfo | None = None,
        wake_at: float | None = None,
    ) -> Execution:
        """Number and queue a new execution of `movement`.

        Args:
            movement: type, input and options.
            lineage: id of what created it.
            origin: where the journal holds the movement.
            recovery: the error it recovers from.
            wake_at: it becomes ready only then, unix seconds.
        """
        run = self.run
        number = run.counters.get(movement.step_type, 0) + 1
        if number > _MAXIMUM_COUNTERS:
            raise OverflowError(f"Step type {movement.step_type!r} has no numbers left")
        run.counters[movement.step_type] = number
        run.execution_count += 1
        own = pb.StepMovement()
        own.CopyFrom(movement)
        own.from_step_execution_id_internal_only = lineage
        own.ClearField("recovery_error_internal_only")
        if recovery is not None:
            own.recovery_error_internal_only.CopyFrom(recovery)
        skips_wait_for = own.step_options.skip_wait_for
        execution = Execution(
            ordinal=run.execution_count,
            step_type=own.step_type,
            number=number,
            movement=own,
            origin=origin,
            phase=Phase.EXECUTE if skips_wait_for else Phase.WAIT_FOR,
            ready_at=self.now,
        )
        run.executions[execution.ordinal] = execution
        self.touch(execution)
        if wake_at is not None and wake_at > self.now:
            execution.standing = Standing.PAUSED
            execution.wake_at = wake_at
        else:
            self.ready.append(execution)
        return execution

    def make_ready(self, execution: Execution) -> None:
        """Queue `execution` for hand-out; its attempts go on counting."""
        # A pause that ended while the engine was down, or busy, was over at its time all the same.
        execution.ready_at = self.now if execution.wake_at is None else execution.wake_at
        execution.standing = Standing.QUEUED
        execution.wake_at = None
        self.touch(execution)
        self.ready.append(execution)

    def begin_execute(self, execution: Execution, results: pb.ConditionResults) -> None:
        """Move `execution` from waiting to a queued execute call."""
        execution.begin_method(Phase.EXECUTE, self.now)
        execution.results = results
        self.touch(execution)
        self.ready.append(execution)

    def park(self, execution: Execution, condition: pb.WaitingCondition) -> None:
        """Let `execution` wait; relative timers become absolute now."""
        execution.begin_method(Phase.WAITING, self.now)
        execution.standing = Standing.PARKED
        execution.condition = condition
        execution.timers = [
            Timer(self.now + timer.duration_seconds) for timer in condition.timer_conditions
        ]
        self.touch(execution)

    def finish(self, execution: Execution) -> None:
        """End `execution`; nothing of it can commit afterwards."""
        del self.run.executions[execution.ordinal]
        self.touched.pop(execution.ordinal, None)
        self.dropped.append(execution)
        self.finished.append((execution.step_type, execution.number))
        execution.task_id = None

    def publish(self, messages: Iterable[pb.ChannelMessage]) -> None:
        """Append `messages` to their Channels, with ids of our own."""
        for published in messages:
            self.run.message_count += 1
            message = Message(
                position=self.run.message_count,
                channel=published.channel_name,
                message_id=self.new_id(),
                value=published.value if published.HasField("value") else NULL,
                created=self.run.sequence,
            )
            self.run.channels.setdefault(message.channel, []).append(message)
            self.added.append(message)

    def remove(self, message: Message) -> None:
        """Take `message` out of its Channel, by consumption or deletion."""
        queue = self.run.channels[message.channel]
        queue.remove(message)
        if not queue:
            del self.run.channels[message.channel]
        message.removed = self.run.sequence
        self.removed.append(message)

    def hide_shown(self) -> None:
        """Hide, rather than drop, removed messages that a snapshot of an unfinished call shows.

        To be done before anything is handed out at such a snapshot again.
        """
        if not self.removed:
            return
        pins = self.run.pins()
        shown = [
            message
            for message in self.removed
            if any(message.created <= pin < self.run.sequence for pin in pins)
        ]
        if shown:
            self.removed = [message for message in self.removed if message not in shown]
            self.hidden.extend(shown)
            self.run.ghosts.extend(shown)

    def delete_messages(self, deletions: Iterable[pb.ChannelMessageDeletion]) -> None:
        """Apply deletions; one that finds no message does nothing."""
        for deletion in deletions:
            message = find_message(self.run, deletion)
            if message is not None:
                self.remove(message)


def find_message(run: Run, deletion: pb.ChannelMessageDeletion) -> Message | None:
    """Return the pending message that `deletion` names, or None."""
    for message in run.channels.get(deletion.channel_name, ()):
        if message.message_id == deletion.message_id:
            return message
    return None
