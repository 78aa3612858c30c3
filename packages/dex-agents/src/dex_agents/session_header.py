"""Owns the session's header, turn outcomes, and the inputs that Steps hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from dex_agents.size_limits import FAILURE_NOTE, travelling_size
from dex_agents.stored_record import (
    CALL_RESULT,
    POSITION,
    SESSION,
    TURN,
    StoredRecord,
    parse_record,
    write_record,
)
from dex_agents.usage import TokenUsage


class SessionStatus(StrEnum):
    """What a session does now."""

    IDLE = "idle"
    RUNNING = "running"
    CLOSED = "closed"


class TurnState(StrEnum):
    """What became of a turn."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


def turn_id_of(number: int) -> str:
    """Name a turn; there is none before the first."""
    return f"turn-{number}" if number else ""


@dataclass(frozen=True)
class SessionHeader:
    """What is decided under the session's lock.

    Attributes:
        config: JSON data that reaches nodes and tools.
        turn_number: turns begun so far.
        message_count: messages stored by finished turns and by the begin of the current one.
        message_bytes: their size.
        queue_head: the oldest waiting message's number.
        queue_tail: the number the next waiting message gets.
        usage: tokens of all turns that have ended.
        last_turn_error: why the last turn failed, if it did.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    turn_number: int = 0
    message_count: int = 0
    message_bytes: int = 0
    queue_head: int = 0
    queue_tail: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    last_turn_error: str | None = None

    @property
    def turn_id(self) -> str:
        """Id of the current or last turn; empty before the first."""
        return turn_id_of(self.turn_number)

    def to_record(self) -> StoredRecord:
        """Return the stored form."""
        data = {**asdict(self), "config": dict(self.config), "usage": self.usage.to_json()}
        return write_record(SESSION, data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionHeader:
        """Read the stored form."""
        return cls(**{**data, "usage": TokenUsage.from_json(data["usage"])})


@dataclass(frozen=True)
class TurnRecord:
    """One turn, as the snapshot and FinishTurn read it.

    Attributes:
        turn_id: the turn.
        state: its outcome, once there is one.
        error: why it failed.
        message_count: messages in the conversation after it.
        message_bytes: their size.
        usage: tokens of its model calls.
        calls: (tool call id, parts of its output) of its tool calls; a call that runs has 0 parts.
        run_state_parts: parts of the stored run state, deleted when it ends.
    """

    turn_id: str
    state: TurnState = TurnState.RUNNING
    error: str | None = None
    message_count: int = 0
    message_bytes: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    calls: tuple[tuple[str, int], ...] = ()
    run_state_parts: int = 0

    def to_record(self) -> StoredRecord:
        """Return the stored form."""
        data = {**asdict(self), "state": self.state.value, "usage": self.usage.to_json()}
        return write_record(TURN, data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TurnRecord:
        """Read the stored form."""
        return cls(
            **{
                **data,
                "state": TurnState(data["state"]),
                "usage": TokenUsage.from_json(data["usage"]),
                "calls": tuple((key, parts) for key, parts in data["calls"]),
            }
        )


@dataclass(frozen=True)
class CallSummary:
    """What a turn-failure note says of a call, and what the next model call needs to find it.

    Attributes:
        tool_call_id: the model's id.
        text: the begin of the output.
        parts: parts of a long output; 0 when it stands in the record.
        size: bytes of the record and its parts.
    """

    tool_call_id: str
    tool_name: str
    status: str
    text: str
    parts: int = 0
    size: int = 0

    def to_record(self) -> StoredRecord:
        """Return the form in which it is reported to the turn."""
        return write_record(CALL_RESULT, asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallSummary:
        """Read the stored form."""
        return cls(**data)


@dataclass(frozen=True)
class TurnPosition:
    """Where a turn stands: what its Steps hand to each other.

    Attributes:
        round: the model call, from 1.
        message_count: messages the model call is given.
        message_bytes: their size.
        queue_head: number of the oldest waiting message; no other Step moves it in this turn.
        calls: tool call ids of the last model message, in its order.
        done: summaries of all finished calls of the turn.
        run_state_parts: parts of the run state to go on from; 0 on the first round.
        run_state_bytes: their size.
        run_state_format: what they hold.
        usage: tokens of the turn so far.
        has_history: whether the history travels with the model call's Step.
    """

    turn_number: int
    message_count: int
    message_bytes: int
    queue_head: int
    round: int = 1
    calls: tuple[str, ...] = ()
    done: tuple[CallSummary, ...] = ()
    run_state_parts: int = 0
    run_state_bytes: int = 0
    run_state_format: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    has_history: bool = True

    @property
    def turn_id(self) -> str:
        """Id of the turn."""
        return turn_id_of(self.turn_number)

    @property
    def results(self) -> tuple[CallSummary, ...]:
        """Summaries of the calls of the last model message."""
        return tuple(each for each in self.done if each.tool_call_id in self.calls)

    @property
    def required_bytes(self) -> int:
        """Size of what the model call cannot do without, beside the history."""
        return self.run_state_bytes + sum(each.size for each in self.results)

    def with_results(self, results: tuple[CallSummary, ...]) -> TurnPosition:
        """Return where the turn stands once the calls of a model message are done.

        A Step's input has a limit too: of many calls the oldest lose their text.
        """
        done = list(self.done + results)
        room = FAILURE_NOTE
        for index in range(len(done) - 1, -1, -1):
            room -= travelling_size(done[index].text)
            if room < 0:
                done[index] = replace(done[index], text="")
        return replace(self, done=tuple(done))

    def to_record(self) -> StoredRecord:
        """Return the stored form."""
        return write_record(POSITION, {**asdict(self), "usage": self.usage.to_json()})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TurnPosition:
        """Read the stored form."""
        return cls(
            **{
                **data,
                "calls": tuple(data["calls"]),
                "done": tuple(CallSummary.from_json(each) for each in data["done"]),
                "usage": TokenUsage.from_json(data["usage"]),
            }
        )

    @classmethod
    def from_record(cls, record: StoredRecord) -> TurnPosition:
        """Read a Step's input."""
        return parse_record(POSITION, record, "the Step's input", cls.from_json)
