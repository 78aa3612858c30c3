"""Owns the session's header, turn outcomes, and the inputs that Steps hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from dex_agents.stored_record import SESSION, STEP_INPUT, TURN, StoredRecord, write_record
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
        old_calls: (call key, parts of its output) of the last turn, deleted when the next one ends.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    turn_number: int = 0
    message_count: int = 0
    message_bytes: int = 0
    queue_head: int = 0
    queue_tail: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    last_turn_error: str | None = None
    old_calls: tuple[tuple[str, int], ...] = ()

    @property
    def turn_id(self) -> str:
        """Id of the current or last turn."""
        return f"turn-{self.turn_number}"

    def to_record(self) -> StoredRecord:
        """Return the stored form."""
        data = {**asdict(self), "config": dict(self.config), "usage": self.usage.to_json()}
        return write_record(SESSION, data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionHeader:
        """Read the stored form."""
        calls = tuple((key, parts) for key, parts in data["old_calls"])
        return cls(**{**data, "usage": TokenUsage.from_json(data["usage"]), "old_calls": calls})


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
        calls: (call key, parts of its output) of all its tool calls.
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
        parts: parts of a long output; 0 when it stands in the record.
        text: the begin of the output.
    """

    tool_call_id: str
    tool_name: str
    status: str
    text: str
    parts: int = 0


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
        run_state_format: its format.
        usage: tokens of the turn so far.
        config: the session's configuration.
    """

    turn_number: int
    message_count: int
    message_bytes: int
    queue_head: int
    round: int = 1
    calls: tuple[str, ...] = ()
    done: tuple[CallSummary, ...] = ()
    run_state_parts: int = 0
    run_state_format: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def turn_id(self) -> str:
        """Id of the turn."""
        return f"turn-{self.turn_number}"

    def next_round(
        self, calls: tuple[str, ...], run_state: tuple[str, int], usage: TokenUsage
    ) -> TurnPosition:
        """Return where the turn stands once the model has asked for `calls`."""
        return replace(
            self,
            round=self.round + 1,
            calls=calls,
            run_state_format=run_state[0],
            run_state_parts=run_state[1],
            usage=self.usage + usage,
        )

    def to_record(self) -> StoredRecord:
        """Return the stored form."""
        data = {**asdict(self), "config": dict(self.config), "usage": self.usage.to_json()}
        return write_record(STEP_INPUT, data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TurnPosition:
        """Read the stored form."""
        return cls(
            **{
                **data,
                "calls": tuple(data["calls"]),
                "done": tuple(CallSummary(**each) for each in data["done"]),
                "usage": TokenUsage.from_json(data["usage"]),
            }
        )
