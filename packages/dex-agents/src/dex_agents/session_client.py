"""Owns talking to sessions: start, send, read events and the snapshot, answer interrupts."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from dex import (
    AsyncClient,
    FlowAlreadyStartedError,
    FlowNotFoundError,
    LongPollTimeoutError,
    StartFlowOptions,
)

from dex_agents.errors import (
    AgentUsageError,
    InputTooLargeError,
    InterruptAlreadyResolvedError,
    InterruptNotFoundError,
    InvalidArgumentsError,
    MessageRefusedError,
    SessionAlreadyStartedError,
    SessionNotFoundError,
    StoredRecordError,
    WorkerUnavailableError,
)
from dex_agents.events import AgentEvent, AgentEventType
from dex_agents.messages import AgentMessage, Content, require_content
from dex_agents.session_calls import SessionCalls
from dex_agents.session_flow import AgentSessionFlow
from dex_agents.session_header import (
    TurnRecord,
    TurnState,
)
from dex_agents.session_schema import is_usable_name
from dex_agents.size_limits import CALL_ARGUMENTS, CONFIG, REASON, RECORD
from dex_agents.snapshot import AgentSnapshot, TurnResult
from dex_agents.snapshot_reader import SnapshotReader, parse_turn
from dex_agents.stored_record import (
    EVENT,
    SENT,
    START,
    StoredRecord,
    read_record,
    record_size,
    write_record,
)

_MOST_QUEUED = 20
_REMEMBERED_EVENTS = 10_000
_TURN_PAGE = 8
_TURN_ENDS = frozenset(
    {AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED, AgentEventType.TURN_CANCELED}
)


@dataclass(frozen=True)
class SessionEvent:
    """An event as it was read.

    Attributes:
        value: the event.
        resume_token: read on from here; stays valid across restarts.
    """

    value: AgentEvent
    resume_token: str


@dataclass(frozen=True)
class MessageReceipt:
    """What became of a user message.

    Attributes:
        message_id: its id.
        sequence: its place in the conversation; None while it waits for its turn, or if the agent
            could not take it.
        turn_id: its turn; None while it waits.
    """

    message_id: str
    sequence: int | None
    turn_id: str | None


class AgentSessionClient:
    """Talks to the sessions of one flow.

    Args:
        client: an AsyncClient whose Registry holds `flow`.
        flow: the flow, as hosted or from `session_client_flow`.
        lock_timeout: how long a call waits for others that decide and for a Worker, seconds.

    Attributes:
        calls: reads the session's records as they are stored.
    """

    def __init__(
        self, client: AsyncClient, flow: AgentSessionFlow, *, lock_timeout: float = 30.0
    ) -> None:
        self._client = client
        self._flow = flow
        self.calls = SessionCalls(client, flow, lock_timeout)

    async def start_session(
        self,
        session_id: str,
        content: Content,
        *,
        config: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Start a session with its first message; returns once that is stored.

        Args:
            session_id: becomes the Flow id.
            content: text, or content blocks.
            config: JSON data (``configurable``, tags, metadata) that reaches nodes and tools.
            request_id: makes a repeated start with the same id a success.

        Raises:
            EmptyMessageError: there is nothing in `content`.
            InputTooLargeError: the message or `config` is too large.
            SessionAlreadyStartedError: the session exists.
        """
        if not session_id.strip():
            raise AgentUsageError("session_id is empty; name the conversation")
        data: dict[str, Any] = {
            "content": require_content(content),
            "message_id": _require_message_id(request_id),
            "config": dict(config or {}),
        }
        _write_input("the configuration", data["config"], CONFIG)
        record = _write_input("the message", data, RECORD - CONFIG)
        options = StartFlowOptions(
            request_id=request_id, ignore_already_started=request_id is not None
        )
        try:
            await self._client.start_flow(self._flow, session_id, record, options)
        except FlowAlreadyStartedError:
            raise SessionAlreadyStartedError(session_id) from None

    async def send_user_message(
        self, session_id: str, content: Content, *, message_id: str | None = None
    ) -> MessageReceipt:
        """Send a message; returns once it is stored. During a turn it waits for its own.

        Args:
            message_id: makes a repeated send with the same id a success without effect.

        Raises:
            EmptyMessageError: there is nothing in `content`.
            InputTooLargeError: the message is too large.
            MessageRefusedError: the agent cannot take it.
            SessionNotFoundError: no such session.
            WorkerUnavailableError: no Worker answered.
        """
        message_id = _require_message_id(message_id)
        request = {"content": require_content(content), "message_id": message_id}
        _write_input("the message", request, RECORD - CONFIG)
        answer = await self.calls.decide(
            self._flow.accept_user_message,
            _require_session_id(session_id),
            request,
            {"sent": [message_id]},
        )
        if answer["outcome"] == "refused":
            raise MessageRefusedError(answer["detail"])
        if answer["outcome"] == "starting":
            raise WorkerUnavailableError(self._flow.get_flow_type(), self.calls.patience)
        return MessageReceipt(message_id, answer["sequence"], answer["turn_id"])

    async def run_turn(
        self,
        session_id: str,
        content: Content,
        *,
        config: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> TurnResult:
        """Send a message, starting the session if there is none, and wait for its turn's end.

        Interrupts must be answered by somebody else meanwhile.

        Args:
            config: for a session that this starts; one that exists keeps its own.

        Raises:
            EmptyMessageError: there is nothing in `content`.
            WorkerUnavailableError: no Worker answered.
        """
        message_id = _require_message_id(message_id)
        token = await self._newest_token(session_id)
        try:
            await self.send_user_message(session_id, content, message_id=message_id)
        except SessionNotFoundError:
            try:
                await self.start_session(session_id, content, config=config, request_id=message_id)
            except SessionAlreadyStartedError:
                # Somebody else has started it meanwhile, or it is closed.
                await self.send_user_message(session_id, content, message_id=message_id)
        while True:
            turn = await self._turn_of(session_id, message_id)
            if turn is not None and turn.state is not TurnState.RUNNING:
                return await self._turn_result(session_id, turn)
            token = await self._wait_turn_end(session_id, token)

    async def read_agent_event(self, session_id: str, resume_token: str = "") -> SessionEvent:
        """Return the next event, waiting for it.

        Args:
            resume_token: of the event before; empty for the oldest kept one.

        Raises:
            LongPollTimeoutError: nothing happened for a while; call again.
        """
        message = await self._client.read_stream(session_id, self._flow.schema.events, resume_token)
        data = read_record(EVENT, message.value, "an event")
        event = AgentEvent(data["type"], json.dumps(data["payload"], ensure_ascii=False))
        return SessionEvent(event, message.resume_token)

    async def stream_agent_events(
        self, session_id: str, resume_token: str = ""
    ) -> AsyncIterator[SessionEvent]:
        """Yield events for ever, each once.

        Raises:
            SessionNotFoundError: no such session.
        """
        try:
            await self._client.describe_flow(_require_session_id(session_id))
        except FlowNotFoundError:
            raise SessionNotFoundError(session_id) from None
        seen: OrderedDict[str, None] = OrderedDict()
        while True:
            try:
                message = await self.read_agent_event(session_id, resume_token)
            except LongPollTimeoutError:
                continue
            resume_token = message.resume_token
            event_id = json.loads(message.value.payload)["event_id"]
            if event_id in seen:
                continue
            seen[event_id] = None
            if len(seen) > _REMEMBERED_EVENTS:
                seen.popitem(last=False)
            yield message

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        reason: str | None = None,
        edited_arguments: Mapping[str, Any] | None = None,
        resolved_by: str | None = None,
    ) -> None:
        """Answer an interrupt. The same answer again is accepted, another one refused.

        Args:
            approved: whether the call may run.
            reason: told to the model when it may not.
            edited_arguments: what the call is to run with instead.
            resolved_by: who answers; stored.

        Raises:
            InterruptNotFoundError: the session has no such interrupt.
            InterruptAlreadyResolvedError: it was answered otherwise.
            InvalidArgumentsError: the edited arguments do not match the tool's schema.
            InputTooLargeError: an argument of this call is too large.
            SessionNotFoundError: no such session.
            WorkerUnavailableError: no Worker answered.
        """
        if edited_arguments is not None and not approved:
            raise AgentUsageError(
                "edited_arguments go with approved=True; a rejected call has none"
            )
        words = {"reason": reason, "resolved_by": resolved_by}
        _write_input("the reason", words, REASON)
        arguments = None if edited_arguments is None else dict(edited_arguments)
        _write_input("edited_arguments", {"arguments": arguments}, CALL_ARGUMENTS)
        if "/" in interrupt_id or not interrupt_id.strip():
            raise InterruptNotFoundError(session_id, interrupt_id)
        resolution = {"approved": bool(approved), **words, "arguments": arguments}
        answer = await self.calls.decide(
            self._flow.answer_interrupt,
            _require_session_id(session_id),
            {"interrupt_id": interrupt_id, "resolution": resolution},
            {"calls": [interrupt_id]},
        )
        if answer["outcome"] == "unknown":
            raise InterruptNotFoundError(session_id, interrupt_id)
        if answer["outcome"] == "other":
            raise InterruptAlreadyResolvedError(session_id, interrupt_id)
        if answer["outcome"] == "invalid":
            raise InvalidArgumentsError(answer["detail"])

    async def get_agent_snapshot(
        self, session_id: str, *, after_sequence: int = 0, limit: int = 1000
    ) -> AgentSnapshot:
        """Return the session as it is now.

        Args:
            after_sequence: only messages after this one.
            limit: at most so many messages, the oldest of them.

        Raises:
            SessionNotFoundError: no such session.
            WorkerUnavailableError: no Worker answered.
        """
        if after_sequence < 0 or limit < 0:
            raise AgentUsageError("after_sequence and limit must not be negative")
        reader = SnapshotReader(self.calls, _require_session_id(session_id))
        return await reader.read(after_sequence, limit)

    async def _turn_of(self, session_id: str, message_id: str) -> TurnRecord | None:
        """Return the turn that a message got, or None while it waits."""
        sent = (await self.calls.read(session_id, sent=[message_id])).find("sent", message_id)
        if sent is None:
            return None
        turn_id: str | None = read_record(SENT, sent, f"message {message_id!r}")["turn_id"]
        if turn_id is None:
            return None
        turns = await self.calls.read(session_id, turns=[turn_id])
        return parse_turn(turn_id, turns.find("turns", turn_id))

    async def _turn_result(self, session_id: str, turn: TurnRecord) -> TurnResult:
        # A turn's messages are the last ones of the conversation it left behind.
        last = turn.message_count
        messages: list[AgentMessage] = []
        while last > 0:
            first = max(1, last - _TURN_PAGE + 1)
            page = await self.calls.read_messages(session_id, first, last)
            messages[:0] = [each for each in page if each.turn_id == turn.turn_id]
            if len([each for each in page if each.turn_id == turn.turn_id]) < len(page):
                break
            last = first - 1
        return TurnResult(
            turn_id=turn.turn_id,
            state=turn.state,
            messages=tuple(messages),
            error=turn.error,
            usage=turn.usage,
        )

    async def _newest_token(self, session_id: str) -> str:
        page = await self._client.list_stream_messages(session_id, self._flow.schema.events, 1)
        return page.messages[0].resume_token if page.messages else ""

    async def _wait_turn_end(self, session_id: str, token: str) -> str:
        while True:
            try:
                message = await self.read_agent_event(session_id, token)
            except LongPollTimeoutError:
                return token
            token = message.resume_token
            if message.value.type in _TURN_ENDS:
                return token


def _require_session_id(session_id: str) -> str:
    if not session_id.strip():
        raise SessionNotFoundError(session_id)
    return session_id


def _require_message_id(message_id: str | None) -> str:
    if message_id is None:
        return uuid.uuid4().hex
    if not is_usable_name(message_id):
        raise AgentUsageError(
            f"message id {message_id!r} cannot be used; choose up to 128 characters without '/'"
        )
    return message_id


def _write_input(what: str, data: Mapping[str, Any], limit: int) -> StoredRecord:
    """Return what is sent.

    Raises:
        AgentUsageError: it is not JSON, or too large.
    """
    try:
        record = write_record(START, data)
    except StoredRecordError:
        raise AgentUsageError(f"{what} must be JSON data: text, numbers, lists and dicts") from None
    size = record_size(record)
    if size > limit:
        raise InputTooLargeError(what, size, limit)
    return record
