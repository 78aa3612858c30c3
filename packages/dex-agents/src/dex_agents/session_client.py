"""Owns talking to sessions: start, send, read events and the snapshot, answer interrupts."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dex import (
    AsyncClient,
    AttributeMapLoad,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    LongPollTimeoutError,
    RPCInvokeOptions,
    RpcLockConflictError,
    StartFlowOptions,
)

from dex_agents.errors import (
    AgentUsageError,
    InterruptAlreadyResolvedError,
    InterruptNotFoundError,
    InvalidArgumentsError,
    SessionAlreadyStartedError,
    SessionNotFoundError,
)
from dex_agents.events import AgentEvent, AgentEventType
from dex_agents.messages import AgentMessage, Content, require_content
from dex_agents.session_flow import AgentSessionFlow, read_message_records
from dex_agents.session_header import SessionHeader, SessionStatus, TurnRecord, TurnState
from dex_agents.snapshot import AgentSnapshot, PendingInterrupt, QueuedMessage, TurnResult
from dex_agents.stored_record import (
    ANSWER,
    EVENT,
    MESSAGE,
    QUEUED_MESSAGE,
    REQUEST,
    SENT,
    SESSION,
    TOOL_CALL,
    TURN,
    StoredRecord,
    read_record,
    write_record,
)
from dex_agents.tool_calls import ToolCallRecord, ToolCallStatus
from dex_agents.usage import TokenUsage

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_MOST_QUEUED = 20
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
        sequence: its place in the conversation; None while it waits for its turn.
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
        lock_timeout: how long calls that decide wait for each other, seconds.
    """

    def __init__(
        self, client: AsyncClient, flow: AgentSessionFlow, *, lock_timeout: float = 30.0
    ) -> None:
        self._client = client
        self._flow = flow
        self._lock_timeout = lock_timeout

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
            SessionAlreadyStartedError: the session exists.
        """
        if not session_id:
            raise AgentUsageError("session_id is empty; name the conversation")
        data = {
            "content": require_content(content),
            "message_id": request_id or uuid.uuid4().hex,
            "config": dict(config or {}),
        }
        options = StartFlowOptions(
            request_id=request_id, ignore_already_started=request_id is not None
        )
        try:
            await self._client.start_flow(
                self._flow, session_id, write_record(REQUEST, data), options
            )
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
            SessionNotFoundError: no such session.
        """
        message_id = message_id or uuid.uuid4().hex
        request = {"content": require_content(content), "message_id": message_id}
        answer = await self._invoke(
            self._flow.accept_user_message,
            session_id,
            request,
            (self._flow.schema.sent.load(message_id),),
        )
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

        Raises:
            EmptyMessageError: there is nothing in `content`.
        """
        message_id = message_id or uuid.uuid4().hex
        token = await self._newest_token(session_id)
        try:
            receipt = await self.send_user_message(session_id, content, message_id=message_id)
        except SessionNotFoundError:
            await self.start_session(session_id, content, config=config, request_id=message_id)
            receipt = MessageReceipt(message_id, 1, "turn-1")
        turn_id = receipt.turn_id
        while True:
            turn_id = turn_id or await self._turn_of(session_id, message_id)
            turn = None if turn_id is None else await self._read_turn(session_id, turn_id)
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
        """Yield events for ever, each once."""
        seen: set[str] = set()
        while True:
            try:
                message = await self.read_agent_event(session_id, resume_token)
            except LongPollTimeoutError:
                continue
            resume_token = message.resume_token
            event_id = json.loads(message.value.payload)["event_id"]
            if event_id not in seen:
                seen.add(event_id)
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
            SessionNotFoundError: no such session.
        """
        if edited_arguments is not None and not approved:
            raise AgentUsageError(
                "edited_arguments go with approved=True; a rejected call has none"
            )
        resolution = {
            "approved": approved,
            "reason": reason,
            "arguments": None if edited_arguments is None else dict(edited_arguments),
            "resolved_by": resolved_by,
        }
        answer = await self._invoke(
            self._flow.answer_interrupt,
            session_id,
            {"interrupt_id": interrupt_id, "resolution": resolution},
            (self._flow.schema.calls.load(interrupt_id),) if interrupt_id else (),
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
        """
        header, status, turn = await self._read_state(session_id)
        if header is None:
            return _empty_snapshot()
        if turn is not None and turn.state is not TurnState.RUNNING:
            # The outcome is committed; FinishTurn is about to take it into the header.
            count, error = turn.message_count, turn.error
            if status is SessionStatus.RUNNING and header.queue_head == header.queue_tail:
                status = SessionStatus.IDLE
        else:
            count, error = header.message_count, header.last_turn_error
        calls, queued = await self._read_open_state(session_id, header)
        last = min(count, after_sequence + limit)
        records = await read_message_records(
            self._client, self._flow, session_id, after_sequence + 1, last
        )
        return AgentSnapshot(
            status=status,
            turn_id=header.turn_id,
            messages=tuple(_message(record) for record in records),
            message_count=count,
            pending_interrupts=tuple(
                _interrupt(call)
                for call in calls
                if call.status is ToolCallStatus.AWAITING_APPROVAL and call.resolution is None
            ),
            tool_calls=calls,
            queued_messages=queued,
            last_turn_error=error,
            usage=header.usage,
        )

    async def _read_state(
        self, session_id: str
    ) -> tuple[SessionHeader | None, SessionStatus, TurnRecord | None]:
        data = await self._invoke(self._flow.read_session, session_id, {}, ())
        if data["header"] is None:
            return None, SessionStatus.RUNNING, None
        header = SessionHeader.from_json(
            read_record(SESSION, StoredRecord(*data["header"]), "the session")
        )
        turn = await self._read_turn(session_id, header.turn_id)
        return header, SessionStatus(data["status"]), turn

    async def _read_turn(self, session_id: str, turn_id: str) -> TurnRecord | None:
        data = await self._invoke(
            self._flow.read_session,
            session_id,
            {"turns": [turn_id]},
            (self._flow.schema.turns.load(turn_id),),
        )
        if data["turn"] is None:
            return None
        record = StoredRecord(*data["turn"])
        return TurnRecord.from_json(read_record(TURN, record, f"turn {turn_id!r}"))

    async def _turn_of(self, session_id: str, message_id: str) -> str | None:
        data = await self._invoke(
            self._flow.read_session,
            session_id,
            {"sent": [message_id]},
            (self._flow.schema.sent.load(message_id),),
        )
        if data["sent"] is None:
            return None
        turn_id: str | None = read_record(SENT, StoredRecord(*data["sent"]), "sent")["turn_id"]
        return turn_id

    async def _turn_result(self, session_id: str, turn: TurnRecord) -> TurnResult:
        records = await read_message_records(
            self._client, self._flow, session_id, 1, turn.message_count
        )
        messages = [_message(record) for record in records]
        return TurnResult(
            turn_id=turn.turn_id,
            state=turn.state,
            messages=tuple(each for each in messages if each.turn_id == turn.turn_id),
            error=turn.error,
            usage=turn.usage,
        )

    async def _read_open_state(
        self, session_id: str, header: SessionHeader
    ) -> tuple[tuple[ToolCallRecord, ...], tuple[QueuedMessage, ...]]:
        last = min(header.queue_tail, header.queue_head + _MOST_QUEUED)
        keys = [str(number) for number in range(header.queue_head, last)]
        loads = tuple(self._flow.schema.queued.load(key) for key in keys)
        data = await self._invoke(self._flow.read_open_state, session_id, {"queued": keys}, loads)
        calls = [
            ToolCallRecord.from_json(read_record(TOOL_CALL, StoredRecord(*each), "a call"))
            for each in data["calls"]
        ]
        queued = [
            read_record(QUEUED_MESSAGE, StoredRecord(*each), "a waiting message")
            for each in data["queued"]
        ]
        calls.sort(key=lambda call: (int(call.turn_id.split("-")[1]), call.round, call.index))
        return tuple(calls), tuple(
            QueuedMessage(each["message_id"], each["content"]) for each in queued
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

    async def _invoke(
        self,
        method: Callable[..., Any],
        session_id: str,
        request: Mapping[str, Any],
        loads: tuple[AttributeMapLoad, ...],
    ) -> dict[str, Any]:
        """Invoke an RPC, waiting for whoever holds the session's lock."""
        invoke: Callable[..., Awaitable[StoredRecord]] = self._client.invoke_rpc
        options = RPCInvokeOptions(load_attribute_map_instances=loads)
        deadline = asyncio.get_running_loop().time() + self._lock_timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await invoke(
                    method, session_id, write_record(REQUEST, request), options=options
                )
                return read_record(ANSWER, answer, "the answer")
            except FlowNotActiveOrNotFoundError:
                raise SessionNotFoundError(session_id) from None
            except RpcLockConflictError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(pause * 2, _LONGEST_PAUSE)


def _message(record: StoredRecord) -> AgentMessage:
    return AgentMessage.from_json(read_record(MESSAGE, record, "a message"))


def _interrupt(call: ToolCallRecord) -> PendingInterrupt:
    assert call.interrupt_id is not None
    timeout = call.approval_timeout
    return PendingInterrupt(
        call.interrupt_id,
        call.tool_call_id,
        call.tool_name,
        call.arguments,
        call.raised_at,
        None if timeout is None else call.raised_at + timeout,
    )


def _empty_snapshot() -> AgentSnapshot:
    """The session was accepted and its first Step has not run yet."""
    return AgentSnapshot(SessionStatus.RUNNING, "", (), 0, (), (), (), None, TokenUsage())
