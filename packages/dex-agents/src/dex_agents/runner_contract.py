"""Owns what an adapter implements so that a framework's agents run as durable sessions.

The session owns when something runs, how often, and what is stored. A runner owns how one model
call is made and how one tool is called. It keeps nothing between calls: the next one may be on
another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dex_agents.messages import AgentMessage, MessageDraft
from dex_agents.tool_calls import DeferredToolCall, ToolCallContext, ToolCallRecord
from dex_agents.usage import TokenUsage
from dex_agents_tool_policy import ToolPolicy


@dataclass(frozen=True)
class FrameworkRunState:
    """What a framework needs to go on after the tool calls of a model message.

    Attributes:
        format: name and version, the runner's own.
        body: text; the session stores it without looking into it.
    """

    format: str
    body: str


@dataclass(frozen=True)
class RunModelRequest:
    """One model call to make.

    Attributes:
        session_id: the session.
        turn_id: the turn.
        round: the turn's model call, from 1.
        messages: the whole stored conversation, oldest first, the turn's user message last. They
            are this call's own objects.
        run_state: None on the turn's first call; later what the call before returned.
        tool_results: final records of the calls that the call before asked for, in its order.
        config: the session's configuration, JSON data.
    """

    session_id: str
    turn_id: str
    round: int
    messages: Sequence[AgentMessage]
    run_state: FrameworkRunState | None = None
    tool_results: Sequence[ToolCallRecord] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolCallsRequested:
    """The model asked for tools.

    Attributes:
        calls: in the model's order; at least one.
        run_state: handed back with the results.
        usage: tokens of the call.
    """

    calls: Sequence[DeferredToolCall]
    run_state: FrameworkRunState
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True)
class TurnFinished:
    """The turn is over.

    Attributes:
        messages: everything the turn adds to the conversation, in order.
        usage: tokens of the call.
    """

    messages: Sequence[MessageDraft]
    usage: TokenUsage = field(default_factory=TokenUsage)


RunModelResult = ToolCallsRequested | TurnFinished


class ModelCallEmitter(Protocol):
    """Where a runner sends what a model says while it says it. Safe within the event loop only."""

    def text(self, delta: str) -> None:
        """Send a piece of the answer."""

    def reasoning(self, delta: str) -> None:
        """Send a piece of the provider's reasoning."""

    def model_call_started(self) -> None:
        """Say that a model call begins; a graph may make several in one Step."""

    def model_call_finished(self, usage: TokenUsage) -> None:
        """Say that a model call has ended, and what it used."""


class AgentFrameworkRunner(Protocol):
    """A framework's agent. One object serves all sessions of a Worker at the same time."""

    async def prepare(self) -> None:
        """Build what only a Worker needs: the agent, model clients, tool connections.

        Called before the first model call, tool call or check of arguments, and not again once it
        has returned. `open_agent_host` calls it before it takes work; an exception stops the host.
        """

    async def run_model(
        self, request: RunModelRequest, emitter: ModelCallEmitter
    ) -> RunModelResult:
        """Make one model call and return what came of it. No tool runs in here.

        May raise anything: the session repeats the call, three failures end the turn.
        """

    async def execute_deferred_tool_call(self, context: ToolCallContext) -> str:
        """Run one tool call and return the text the model gets.

        Raises:
            InvalidArgumentsError: the arguments do not match; the body was not entered.
            ToolCallFailedError: the tool says that it failed and that nothing happened.
            Exception: anything else may mean that the call took effect.
        """

    def resolve_tool_policy(self, tool_name: str) -> ToolPolicy:
        """Return the policy of the tool of this name, for calls that are being validated."""

    def validate_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> None:
        """Check edited arguments.

        Raises:
            InvalidArgumentsError: they do not match the tool's schema.
        """

    def build_user_message(
        self, content: str | list[dict[str, Any]], message_id: str
    ) -> MessageDraft:
        """Turn what a user sent into a message of the framework.

        May be called before `prepare`. An exception refuses the message.

        Args:
            content: text or content blocks.
            message_id: unique in the session; the same on a retry.
        """
