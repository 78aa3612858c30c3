"""Owns what a client reads of a session: the snapshot, and the result of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dex_agents.messages import AgentMessage
from dex_agents.session_header import SessionStatus, TurnState
from dex_agents.tool_calls import ToolCallRecord
from dex_agents.usage import TokenUsage


@dataclass(frozen=True)
class PendingInterrupt:
    """A tool call that waits for approval.

    Attributes:
        interrupt_id: give it to `resolve_interrupt`.
        tool_call_id: the call.
        tool_name: the tool.
        arguments: what the model wants it to be called with.
        raised_at: unix seconds.
        expires_at: when it counts as rejected, unix seconds; None for never.
    """

    interrupt_id: str
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    raised_at: float
    expires_at: float | None = None


@dataclass(frozen=True)
class QueuedMessage:
    """A user message that waits for its turn."""

    message_id: str
    content: str | list[dict[str, Any]]


@dataclass(frozen=True)
class AgentSnapshot:
    """A session as it is now.

    Attributes:
        status: what it does.
        turn_id: the current or last turn; empty before the first.
        messages: stored messages after the asked sequence, oldest first.
        message_count: stored messages in all.
        pending_interrupts: what waits for an answer.
        tool_calls: records of the current and the last turn.
        queued_messages: in the order of their turns.
        last_turn_error: why the last turn failed; None if it did not.
        usage: tokens of all turns that have ended.
    """

    status: SessionStatus
    turn_id: str
    messages: tuple[AgentMessage, ...]
    message_count: int
    pending_interrupts: tuple[PendingInterrupt, ...]
    tool_calls: tuple[ToolCallRecord, ...]
    queued_messages: tuple[QueuedMessage, ...]
    last_turn_error: str | None
    usage: TokenUsage


@dataclass(frozen=True)
class TurnResult:
    """How a turn ended.

    Attributes:
        turn_id: the turn.
        state: completed, failed or canceled.
        messages: what the turn added, the user's message first.
        error: why it failed.
        usage: tokens of its model calls.
    """

    turn_id: str
    state: TurnState
    messages: tuple[AgentMessage, ...]
    error: str | None
    usage: TokenUsage

    @property
    def text(self) -> str:
        """The text of the last message, the answer of a completed turn."""
        return self.messages[-1].text if self.messages else ""
