"""Owns tool calls: what a model asks for, what becomes of it, and what the model is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from dex_agents.size_limits import MIB
from dex_agents_tool_policy import ToolEffect

OUTCOME_UNKNOWN_TEXT = (
    "The outcome is unknown: the call of tool {name!r} was started and did not report back. It may "
    "have taken effect. Do not repeat it before you have checked."
)


class ToolCallStatus(StrEnum):
    """Where a tool call stands. The last five are final."""

    PENDING = "pending"
    AWAITING_APPROVAL = "awaiting_approval"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELED = "canceled"
    OUTCOME_UNKNOWN = "outcome_unknown"

    @property
    def is_final(self) -> bool:
        """Whether nothing can change any more."""
        return self not in _OPEN


_OPEN = frozenset(
    {ToolCallStatus.PENDING, ToolCallStatus.AWAITING_APPROVAL, ToolCallStatus.RUNNING}
)


@dataclass(frozen=True)
class DeferredToolCall:
    """A call that a model asked for and that the session is to run.

    Attributes:
        tool_call_id: the model's id; unique within the turn, not empty, without ``/``.
        tool_name: the tool.
        arguments: JSON data.
        effect: decides whether the call may be repeated.
        requires_approval: whether somebody must approve it first.
        timeout: longest run of the body, seconds; None takes the session's.
        approval_timeout: seconds after which an unanswered approval counts as rejected.
    """

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    effect: ToolEffect = ToolEffect.UNCLASSIFIED
    requires_approval: bool = False
    timeout: float | None = None
    approval_timeout: float | None = None


@dataclass(frozen=True)
class Resolution:
    """The answer to an interrupt.

    Attributes:
        approved: whether the call may run.
        reason: why, in the answerer's words.
        arguments: what the call runs with instead, if edited.
        resolved_by: who answered.
        resolved_at: unix seconds.
    """

    approved: bool
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    resolved_by: str | None = None
    resolved_at: float = 0.0

    def is_same_answer(self, other: Resolution) -> bool:
        """Tell whether `other` says the same, whoever says it and when."""
        return (self.approved, self.reason, self.arguments) == (
            other.approved,
            other.reason,
            other.arguments,
        )


@dataclass(frozen=True)
class ToolCallRecord:
    """The one record of a tool call.

    Attributes:
        turn_id: the turn that asked for it.
        round: the model call of the turn that asked for it, from 1.
        index: its place among the calls of that model message.
        siblings: how many calls that model message made.
        arguments: what the model asked for.
        status: where it stands.
        output: what the tool returned, or what the model is told instead.
        interrupt_id: set if it needs an approval.
        raised_at: when the approval was asked for, unix seconds.
        resolution: the answer to the approval.
        output_parts: parts of an output too long for the record, which then holds its begin.
        output_bytes: size of those parts.
        output_limit: bytes that its output may take; a longer one is replaced by a sentence.
    """

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    effect: ToolEffect
    turn_id: str
    round: int
    index: int
    siblings: int
    status: ToolCallStatus = ToolCallStatus.PENDING
    output: str | None = None
    timeout: float | None = None
    approval_timeout: float | None = None
    interrupt_id: str | None = None
    raised_at: float = 0.0
    resolution: Resolution | None = None
    output_parts: int = 0
    output_bytes: int = 0
    output_limit: int = 2 * MIB

    @property
    def effective_arguments(self) -> Mapping[str, Any]:
        """What the call really runs with."""
        if self.resolution is not None and self.resolution.arguments is not None:
            return self.resolution.arguments
        return self.arguments

    def end(self, status: ToolCallStatus, output: str) -> ToolCallRecord:
        """Return the record with its final status."""
        return replace(self, status=status, output=output)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, ``dex-agents.tool-call.v1``."""
        data = {name: getattr(self, name) for name in _PLAIN}
        data["arguments"] = dict(self.arguments)
        data["effect"] = self.effect.value
        data["status"] = self.status.value
        resolution = self.resolution
        data["resolution"] = (
            None
            if resolution is None
            else {
                "approved": resolution.approved,
                "reason": resolution.reason,
                "arguments": (None if resolution.arguments is None else dict(resolution.arguments)),
                "resolved_by": resolution.resolved_by,
                "resolved_at": resolution.resolved_at,
            }
        )
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolCallRecord:
        """Read the stored form."""
        resolution = data["resolution"]
        return cls(
            **{name: data[name] for name in _PLAIN},
            arguments=data["arguments"],
            effect=ToolEffect(data["effect"]),
            status=ToolCallStatus(data["status"]),
            resolution=None if resolution is None else Resolution(**resolution),
        )


_PLAIN = (
    "tool_call_id",
    "tool_name",
    "turn_id",
    "round",
    "index",
    "siblings",
    "output",
    "timeout",
    "approval_timeout",
    "interrupt_id",
    "raised_at",
    "output_parts",
    "output_bytes",
    "output_limit",
)


def outcome_of_lost_call(record: ToolCallRecord, reason: str) -> ToolCallRecord:
    """Return the final record of a call whose attempts are used up.

    A read is failed: nothing happened. A write may have taken effect: its outcome is unknown.
    """
    if record.effect is ToolEffect.READ:
        return record.end(ToolCallStatus.FAILED, f"The tool call failed: {reason}")
    text = OUTCOME_UNKNOWN_TEXT.format(name=record.tool_name)
    return record.end(ToolCallStatus.OUTCOME_UNKNOWN, text)


def ignore_progress(data: object) -> None:
    """Drop a report; stands in where nobody listens."""


@dataclass(frozen=True)
class ToolCallContext:
    """What a runner gets to run one call.

    Attributes:
        session_id: the session.
        turn_id: the turn.
        call: the call, with the arguments it really runs with.
        attempt: 1 for the first.
        config: the session's configuration, JSON data.
        report_progress: sends JSON data to whoever watches; within the event loop only.
        idempotency_key: ``<session>/<turn>/<tool call>``, the same on every attempt.
    """

    session_id: str
    turn_id: str
    call: DeferredToolCall
    attempt: int
    config: Mapping[str, Any] = field(default_factory=dict)
    report_progress: Callable[[Any], None] = ignore_progress

    @property
    def idempotency_key(self) -> str:
        return f"{self.session_id}/{self.turn_id}/{self.call.tool_call_id}"
