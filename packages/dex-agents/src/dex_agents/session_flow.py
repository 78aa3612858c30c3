"""Owns the session Flow: its Steps, and the RPCs that decide or read.

RPCs that decide hold the session's lock. They cannot write events: what they change is announced by
the Step they schedule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from dex import (
    AsyncClient,
    Context,
    Flow,
    PersistenceSchema,
    RPCInvokeOptions,
    RPCResult,
    StepList,
    rpc,
)

from dex_agents.errors import AgentUsageError, InvalidArgumentsError
from dex_agents.movements import SessionMovements
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import begin_turn, read_header, write_header
from dex_agents.session_header import SessionStatus
from dex_agents.session_schema import SessionSchema, message_key
from dex_agents.settings import SessionSettings
from dex_agents.steps.announce_queued_message import AnnounceQueuedMessage
from dex_agents.steps.announce_tool_result import AnnounceToolResult
from dex_agents.steps.await_tool_approval import AwaitToolApproval
from dex_agents.steps.call_tool import CallSingleAttemptTool, CallTool, RecoverToolCall
from dex_agents.steps.finish_turn import FinishTurn
from dex_agents.steps.resume_turn import ResumeTurn
from dex_agents.steps.run_model import RecoverModelCall, RunModel
from dex_agents.steps.start_agent_session import StartAgentSession
from dex_agents.stored_record import (
    ANSWER,
    QUEUED_MESSAGE,
    REQUEST,
    SENT,
    STEP_INPUT,
    TOOL_CALL,
    StoredRecord,
    read_record,
    write_record,
)
from dex_agents.tool_calls import Resolution, ToolCallRecord, ToolCallStatus
from dex_agents.wall_clock import read_wall_clock

_PAGE_OF_MESSAGES = 8


class AgentSessionFlow(Flow[StoredRecord]):
    """One conversation, durable.

    Args:
        flow_type: its name in the engine; the same in every process.
        runner: the adapter; None in a process that only talks to sessions.
        settings: the numbers it runs with.
    """

    def __init__(
        self,
        flow_type: str,
        runner: AgentFrameworkRunner | None = None,
        settings: SessionSettings | None = None,
    ) -> None:
        if not flow_type or "/" in flow_type:
            raise AgentUsageError(
                f"flow_type {flow_type!r} must not be empty or contain '/'; name the agent"
            )
        self._flow_type = flow_type
        self.schema = SessionSchema()
        self._runtime = SessionRuntime(self.schema, settings or SessionSettings(), runner)
        self._movements = SessionMovements(self._runtime)

    def get_flow_type(self) -> str:
        return self._flow_type

    def get_steps(self) -> StepList[StoredRecord]:
        parts = (self._runtime, self._movements)
        return StepList.start_step(StartAgentSession(*parts)).other_steps(
            RunModel(*parts),
            RecoverModelCall(*parts),
            CallTool(*parts),
            CallSingleAttemptTool(*parts),
            RecoverToolCall(*parts),
            AwaitToolApproval(*parts),
            AnnounceToolResult(*parts),
            AnnounceQueuedMessage(*parts),
            ResumeTurn(*parts),
            FinishTurn(*parts),
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        return self.schema.persistence()

    async def prepare(self) -> None:
        """Build what only a Worker needs; `open_agent_host` calls it before it takes work."""
        if self._runtime.runner is None:
            raise AgentUsageError(
                f"flow {self._flow_type!r} has no agent, it can only be talked to; host the flow "
                f"that was built with one"
            )
        await self._runtime.runner.prepare()

    def bind_client(self, client: AsyncClient) -> None:
        """Let model calls read histories that are too long to travel with their Step."""

        async def read(session_id: str, first: int, last: int) -> list[StoredRecord]:
            return await read_message_records(client, self, session_id, first, last)

        self._runtime.read_messages = read

    @rpc(lock_attributes=(SessionSchema.lock.lock(),))
    def accept_user_message(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Store a user message: as the next turn's, or behind those that wait."""
        sent = read_record(REQUEST, input, "the request")
        schema = self.schema
        known = schema.find(context, schema.sent, sent["message_id"])
        if known is not None:
            return RPCResult(_answer(read_record(SENT, known, "the sent message")))
        header = read_header(self._runtime, context)
        if schema.status.get(context) == SessionStatus.RUNNING:
            key = str(header.queue_tail)
            schema.queued.set(context, key, write_record(QUEUED_MESSAGE, sent))
            receipt: dict[str, Any] = {"sequence": None, "turn_id": None}
            schema.sent.set(context, sent["message_id"], write_record(SENT, receipt))
            header = replace(header, queue_tail=header.queue_tail + 1)
            write_header(self._runtime, context, header, SessionStatus.RUNNING)
            step = self._movements.announce_queued(sent["message_id"])
            return RPCResult(_answer(receipt), (step,))
        step = begin_turn(self._runtime, self._movements, context, header, sent)
        turn_number = header.turn_number + 1
        receipt = {"sequence": header.message_count + 1, "turn_id": f"turn-{turn_number}"}
        return RPCResult(_answer(receipt), (step,))

    @rpc(lock_attributes=(SessionSchema.lock.lock(),))
    def answer_interrupt(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Store the answer to an interrupt, once, and wake the Step that waits for it."""
        request = read_record(REQUEST, input, "the request")
        key = request["interrupt_id"]
        stored = self.schema.find(context, self.schema.calls, key)
        if stored is None:
            return RPCResult(_answer({"outcome": "unknown"}))
        record = ToolCallRecord.from_json(read_record(TOOL_CALL, stored, f"call {key!r}"))
        if record.interrupt_id is None:
            return RPCResult(_answer({"outcome": "unknown"}))
        resolution = Resolution(**request["resolution"], resolved_at=read_wall_clock())
        if record.resolution is not None:
            same = record.resolution.is_same_answer(resolution)
            return RPCResult(_answer({"outcome": "accepted" if same else "other"}))
        if record.status is not ToolCallStatus.AWAITING_APPROVAL:
            return RPCResult(_answer({"outcome": "other"}))
        if resolution.arguments is not None:
            try:
                self._runtime.require_runner().validate_arguments(
                    record.tool_name, resolution.arguments
                )
            except InvalidArgumentsError as error:
                return RPCResult(_answer({"outcome": "invalid", "detail": str(error)}))
        record = replace(record, resolution=resolution)
        self.schema.calls.set(context, key, write_record(TOOL_CALL, record.to_json()))
        self.schema.answers.publish(context, key, write_record(STEP_INPUT, {}))
        return RPCResult(_answer({"outcome": "accepted"}))

    @rpc
    def read_session(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Return the header and what was loaded of turns and sent messages."""
        request = read_record(REQUEST, input, "the request")
        schema = self.schema
        header = schema.header.get(context)
        data: dict[str, Any] = {"header": None, "status": schema.status.get(context)}
        if header is not None:
            data["header"] = _plain(header)
        for turn_id in request.get("turns", ()):
            data["turn"] = _plain(schema.find(context, schema.turns, turn_id))
        for message_id in request.get("sent", ()):
            data["sent"] = _plain(schema.sent.get(context, message_id))
        return RPCResult(_answer(data))

    @rpc(load_attribute_maps=(SessionSchema.calls,))
    def read_open_state(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Return the tool calls and the waiting messages that were loaded."""
        request = read_record(REQUEST, input, "the request")
        schema = self.schema
        calls = [
            _plain(schema.calls.get(context, key))
            for key in schema.calls.get_all_instance_keys(context)
        ]
        queued = [_plain(schema.queued.get(context, key)) for key in request["queued"]]
        return RPCResult(_answer({"calls": calls, "queued": [each for each in queued if each]}))

    @rpc
    def read_messages(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Return the messages that were loaded."""
        request = read_record(REQUEST, input, "the request")
        found = [
            _plain(self.schema.messages.get(context, message_key(sequence)))
            for sequence in range(request["first"], request["last"] + 1)
        ]
        return RPCResult(_answer({"messages": [each for each in found if each]}))


def session_client_flow(flow_type: str) -> AgentSessionFlow:
    """Define a session Flow for a process that only talks to sessions.

    Such a process needs neither the agent nor its model package or key.
    """
    return AgentSessionFlow(flow_type)


async def read_message_records(
    client: AsyncClient, flow: AgentSessionFlow, session_id: str, first: int, last: int
) -> list[StoredRecord]:
    """Read stored messages `first` to `last`, a few at a time, so that every answer is small."""
    records: list[StoredRecord] = []
    for start in range(first, last + 1, _PAGE_OF_MESSAGES):
        end = min(start + _PAGE_OF_MESSAGES - 1, last)
        loads = tuple(
            flow.schema.messages.load(message_key(sequence)) for sequence in range(start, end + 1)
        )
        invoke: Callable[..., Awaitable[StoredRecord]] = client.invoke_rpc
        answer = await invoke(
            flow.read_messages,
            session_id,
            write_record(REQUEST, {"first": start, "last": end}),
            options=RPCInvokeOptions(load_attribute_map_instances=loads),
        )
        found = read_record(ANSWER, answer, "the answer")["messages"]
        records.extend(StoredRecord(*each) for each in found)
    return records


def _answer(data: dict[str, Any]) -> StoredRecord:
    return write_record(ANSWER, data)


def _plain(record: StoredRecord | None) -> list[str] | None:
    return None if record is None else [record.format, record.body]
