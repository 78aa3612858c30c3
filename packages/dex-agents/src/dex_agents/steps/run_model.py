"""Owns the Step that makes one model call, and its recovery when Workers are lost too often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, go_to_many, retry_after

from dex_agents.errors import ModelCallError
from dex_agents.events import AgentEventType
from dex_agents.messages import AgentMessage, MessageDraft
from dex_agents.runner_contract import (
    FrameworkRunState,
    RunModelRequest,
    RunModelResult,
    ToolCallsRequested,
    TurnFinished,
)
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import TurnPosition, TurnRecord, TurnState
from dex_agents.session_schema import call_key, message_key, output_name, run_state_name
from dex_agents.steps.context import beat, beating, emit, read_failures, read_turn, write_call
from dex_agents.steps.model_emitter import ModelEmitter
from dex_agents.stored_record import (
    MAXIMUM_RECORD_BYTES,
    MESSAGE,
    RUN_STATE,
    STEP_INPUT,
    TOOL_CALL,
    StoredRecord,
    read_record,
    record_size,
    write_record,
)
from dex_agents.tool_calls import ToolCallRecord, ToolCallStatus
from dex_agents.turn_failure import build_failure_note, describe_failure, retry_pause
from dex_agents.usage import TokenUsage
from dex_agents.wall_clock import read_wall_clock

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_LOGGER = logging.getLogger(__name__)


class RunModel(Step[StoredRecord]):
    """One model call: the turn's messages and outcome, or its tool calls, are what it commits."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Call the runner; commit what came of it."""
        position = TurnPosition.from_json(read_record(STEP_INPUT, input, "the Step's input"))
        turn_id = position.turn_id
        if position.round == 1:
            emit(
                self._runtime,
                context,
                AgentEventType.TURN_STARTED,
                turn_id,
                event_id=f"turn_started/{turn_id}",
            )
        failures = read_failures(context)
        try:
            result = await self._call_model(context, position, failures)
            self._require_usable(position, result)
        except Exception as error:  # the border to the runner and the user's agent
            return await self._fail(context, position, failures + 1, error)
        if isinstance(result, TurnFinished):
            return self._finish(context, position, result.messages, result.usage)
        return self._request_tools(context, position, result)

    async def _call_model(
        self, context: AsyncContext, position: TurnPosition, failures: int
    ) -> RunModelResult:
        runtime = self._runtime
        request = RunModelRequest(
            session_id=context.flow_id,
            turn_id=position.turn_id,
            round=position.round,
            messages=await runtime.history(context, position),
            run_state=self._run_state(context, position),
            tool_results=self._results(context, position),
            config=position.config,
        )
        emitter = ModelEmitter(runtime, context, position.turn_id)
        try:
            async with (
                beating(runtime, context, failures),
                asyncio.timeout(runtime.settings.model_timeout),
            ):
                return await runtime.require_runner().run_model(request, emitter)
        finally:
            emitter.close()

    def _run_state(self, context: AsyncContext, position: TurnPosition) -> FrameworkRunState | None:
        if position.run_state_parts == 0:
            return None
        body = self._runtime.schema.read_parts(
            context, run_state_name(position.turn_id), position.run_state_parts
        )
        return FrameworkRunState(position.run_state_format, body)

    def _results(self, context: AsyncContext, position: TurnPosition) -> list[ToolCallRecord]:
        schema = self._runtime.schema
        parts = {summary.tool_call_id: summary.parts for summary in position.done}
        results = []
        for each in position.calls:
            key = call_key(position.turn_id, each)
            stored = schema.calls.get(context, key)
            record = ToolCallRecord.from_json(read_record(TOOL_CALL, stored, f"call {key!r}"))
            if parts.get(each):
                output = schema.read_parts(context, output_name(key), parts[each])
                record = replace(record, output=output)
            results.append(record)
        return results

    def _require_usable(self, position: TurnPosition, result: RunModelResult) -> None:
        """Refuse ids that would make two calls one, and messages that cannot be stored."""
        if isinstance(result, TurnFinished):
            for draft in result.messages:
                size = len(draft.framework_item.encode()) + len(draft.text.encode())
                if size > MAXIMUM_RECORD_BYTES - 4096:
                    raise ValueError(f"a message of {size} bytes is too large to be stored")
            return
        ids = [call.tool_call_id for call in result.calls]
        known = {summary.tool_call_id for summary in position.done}
        if not ids or len(set(ids)) != len(ids) or known.intersection(ids):
            raise ValueError(f"tool call ids {ids!r} are missing or not unique within the turn")
        if any(not each or "/" in each for each in ids):
            raise ValueError(f"tool call ids {ids!r} must be non-empty and contain no '/'")

    def _finish(
        self,
        context: AsyncContext,
        position: TurnPosition,
        drafts: Sequence[MessageDraft],
        usage: TokenUsage,
        error: str | None = None,
    ) -> StepDecision:
        schema = self._runtime.schema
        turn_id = position.turn_id
        count, size = position.message_count, position.message_bytes
        for draft in drafts:
            count += 1
            message = AgentMessage.of(draft, count, turn_id)
            record = write_record(MESSAGE, message.to_json())
            schema.messages.set(context, message_key(count), record)
            size += record_size(record)
        turn = TurnRecord(
            turn_id,
            state=TurnState.COMPLETED if error is None else TurnState.FAILED,
            error=error,
            message_count=count,
            message_bytes=size,
            usage=position.usage + usage,
            calls=tuple(
                (call_key(turn_id, summary.tool_call_id), summary.parts)
                for summary in position.done
            ),
            run_state_parts=position.run_state_parts,
        )
        schema.turns.set(context, turn_id, turn.to_record())
        return go_to_many(self._movements.finish_turn(position))

    def _request_tools(
        self, context: AsyncContext, position: TurnPosition, result: ToolCallsRequested
    ) -> StepDecision:
        schema = self._runtime.schema
        turn_id = position.turn_id
        now = read_wall_clock()
        parts = schema.write_parts(
            context, run_state_name(turn_id), RUN_STATE, result.run_state.body
        )
        for index in range(parts, position.run_state_parts):
            schema.parts.delete(context, f"{run_state_name(turn_id)}#{index}")
        records = [
            ToolCallRecord(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                arguments=call.arguments,
                effect=call.effect,
                turn_id=turn_id,
                round=position.round,
                index=index,
                siblings=len(result.calls),
                status=(
                    ToolCallStatus.AWAITING_APPROVAL
                    if call.requires_approval
                    else ToolCallStatus.PENDING
                ),
                timeout=call.timeout,
                approval_timeout=call.approval_timeout,
                interrupt_id=(
                    call_key(turn_id, call.tool_call_id) if call.requires_approval else None
                ),
                raised_at=now if call.requires_approval else 0.0,
            )
            for index, call in enumerate(result.calls)
        ]
        for record in records:
            write_call(self._runtime, context, record)
        ids = tuple(record.tool_call_id for record in records)
        resumed = position.next_round(ids, (result.run_state.format, parts), result.usage)
        return go_to_many(
            *(
                self._movements.await_approval(record)
                if record.interrupt_id is not None
                else self._movements.call_tool(record)
                for record in records
            ),
            self._movements.resume_turn(resumed),
        )

    async def _fail(
        self, context: AsyncContext, position: TurnPosition, failures: int, error: Exception
    ) -> StepDecision:
        _LOGGER.warning(
            "model call of session %r failed, failure %d", context.flow_id, failures, exc_info=error
        )
        await beat(context, failures)
        if failures < self._runtime.settings.maximum_failures:
            pause = retry_pause(error)
            if pause is not None:
                raise retry_after(pause, ModelCallError()) from None
            raise ModelCallError from None
        note = build_failure_note(self._runtime.require_runner(), position)
        return self._finish(
            context,
            position,
            [] if note is None else [note],
            TokenUsage(),
            describe_failure(error, failures),
        )


class RecoverModelCall(Step[StoredRecord]):
    """Ends a turn whose model call lost more Workers than it may."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Record the failure as the turn's outcome, unless there is one."""
        position = TurnPosition.from_json(read_record(STEP_INPUT, input, "the Step's input"))
        turn = read_turn(self._runtime, context, position.turn_id)
        if turn.state is TurnState.RUNNING:
            failed = TurnRecord(
                position.turn_id,
                state=TurnState.FAILED,
                error="the model call lost too many Workers",
                message_count=position.message_count,
                message_bytes=position.message_bytes,
                usage=position.usage,
                run_state_parts=position.run_state_parts,
            )
            self._runtime.schema.turns.set(context, position.turn_id, failed.to_record())
        return go_to_many(self._movements.finish_turn(position))
