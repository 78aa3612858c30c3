"""Owns the session Flow: its Steps, and the RPCs that decide or read.

RPCs that decide hold the session's lock. They cannot write events: what they change is announced by
the Step they schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dex import AsyncClient, Context, Flow, PersistenceSchema, RPCResult, StepList, rpc

from dex_agents.errors import AgentUsageError, InvalidArgumentsError
from dex_agents.messages import AgentMessage
from dex_agents.movements import SessionMovements
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.runtime import SessionRuntime
from dex_agents.session_calls import LARGEST_ANSWER, SessionCalls
from dex_agents.session_hand_over import begin_turn, read_header, write_header
from dex_agents.session_header import SessionStatus
from dex_agents.session_schema import SessionSchema
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
    ANSWERED,
    QUEUED_MESSAGE,
    REQUEST,
    SENT,
    TOOL_CALL,
    StoredRecord,
    parse_record,
    read_record,
    record_size,
    write_record,
)
from dex_agents.tool_calls import Resolution, ToolCallRecord, ToolCallStatus
from dex_agents.turn_failure import describe_error
from dex_agents.wall_clock import read_wall_clock


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
        await self._runtime.prepared_runner()

    def bind_client(self, client: AsyncClient | None) -> None:
        """Let model calls read histories that are too long to travel with their Step.

        Args:
            client: None unbinds the one that was bound.
        """
        if client is None:
            self._runtime.read_messages = None
            return
        calls = SessionCalls(client, self)

        async def read(session_id: str, first: int, last: int) -> list[AgentMessage]:
            return await calls.read_messages(session_id, first, last)

        self._runtime.read_messages = read

    @rpc(lock_attributes=(SessionSchema.lock.lock(),))
    def accept_user_message(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Store a user message: as the next turn's, or behind those that wait."""
        sent = read_record(REQUEST, input, "the request")
        schema = self.schema
        known = schema.find(context, schema.sent, sent["message_id"])
        if known is not None:
            receipt = read_record(SENT, known, "the sent message")
            return RPCResult(_answer("accepted", **receipt))
        if schema.header.get(context) is None:
            # The first Step, which begins the first turn, has not run yet.
            return RPCResult(_answer("starting"))
        runner = self._runtime.require_runner()
        try:
            runner.build_user_message(sent["content"], sent["message_id"])
        except Exception as error:  # the border to the runner
            return RPCResult(_answer("refused", detail=describe_error(error)))
        header = read_header(self._runtime, context)
        if schema.status.get(context) == SessionStatus.RUNNING:
            key = str(header.queue_tail)
            schema.queued.set(context, key, write_record(QUEUED_MESSAGE, sent))
            receipt = {"sequence": None, "turn_id": None}
            schema.sent.set(context, sent["message_id"], write_record(SENT, receipt))
            header = replace(header, queue_tail=header.queue_tail + 1)
            write_header(self._runtime, context, header, SessionStatus.RUNNING)
            step = self._movements.announce_queued(sent["message_id"])
            return RPCResult(_answer("accepted", **receipt), (step,))
        step = begin_turn(self._runtime, self._movements, context, header, sent)
        receipt = read_record(
            SENT, schema.find(context, schema.sent, sent["message_id"]), "the sent message"
        )
        return RPCResult(_answer("accepted", **receipt), (step,))

    @rpc(lock_attributes=(SessionSchema.lock.lock(),))
    async def answer_interrupt(
        self, context: Context, input: StoredRecord
    ) -> RPCResult[StoredRecord]:
        """Store the answer to an interrupt, once, and wake the Step that waits for it."""
        request = read_record(REQUEST, input, "the request")
        key = request["interrupt_id"]
        stored = self.schema.find(context, self.schema.calls, key)
        if stored is None:
            return RPCResult(_answer("unknown"))
        record = parse_record(TOOL_CALL, stored, f"call {key!r}", ToolCallRecord.from_json)
        if record.interrupt_id is None:
            return RPCResult(_answer("unknown"))
        resolution = Resolution(**request["resolution"], resolved_at=read_wall_clock())
        if record.resolution is not None:
            same = record.resolution.is_same_answer(resolution)
            return RPCResult(_answer("accepted" if same else "other"))
        if record.status is not ToolCallStatus.AWAITING_APPROVAL:
            return RPCResult(_answer("other"))
        if resolution.arguments is not None:
            try:
                runner = await self._runtime.prepared_runner()
                runner.validate_arguments(record.tool_name, resolution.arguments)
            except InvalidArgumentsError as error:
                return RPCResult(_answer("invalid", detail=str(error)))
            except Exception as error:  # the border to the runner
                return RPCResult(_answer("invalid", detail=describe_error(error)))
        record = replace(record, resolution=resolution)
        self.schema.calls.set(context, key, write_record(TOOL_CALL, record.to_json()))
        self.schema.answers.publish(context, key, write_record(ANSWERED, {}))
        return RPCResult(_answer("accepted"))

    @rpc
    def read_session(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        """Return the header, the status, and as many of the loaded records as fit an answer."""
        wanted: dict[str, list[str]] = read_record(REQUEST, input, "the request")["records"]
        header = self.schema.header.get(context)
        found: dict[str, dict[str, list[str] | None]] = {}
        size = 0
        for name, keys in wanted.items():
            map = self.schema.readable[name]
            found[name] = {}
            for key in keys:
                record = self.schema.find(context, map, key)
                size += 0 if record is None else record_size(record)
                if size > LARGEST_ANSWER and any(found.values()):
                    break
                found[name][key] = _plain(record)
        status = self.schema.status.get(context)
        return RPCResult(_answer("found", header=_plain(header), status=status, records=found))


def session_client_flow(flow_type: str) -> AgentSessionFlow:
    """Define a session Flow for a process that only talks to sessions.

    Such a process needs neither the agent nor its model package or key.
    """
    return AgentSessionFlow(flow_type)


def _answer(outcome: str, **data: Any) -> StoredRecord:
    return write_record(ANSWER, {"outcome": outcome, **data})


def _plain(record: StoredRecord | None) -> list[str] | None:
    return None if record is None else [record.format, record.body]
