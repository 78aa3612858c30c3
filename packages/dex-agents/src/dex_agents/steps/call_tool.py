"""Owns the Steps that run one tool call, and their recovery."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Step, StepDecision, Wait, go_to_many

from dex_agents.errors import InvalidArgumentsError, ToolCallError, ToolCallFailedError
from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import read_header
from dex_agents.session_schema import call_key, output_name
from dex_agents.steps.context import (
    beat,
    beating,
    emit,
    read_call,
    read_failures,
    write_call,
)
from dex_agents.stored_record import RUN_STATE, StoredRecord
from dex_agents.tool_calls import (
    DeferredToolCall,
    ToolCallContext,
    ToolCallRecord,
    ToolCallStatus,
    outcome_of_lost_call,
)

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_LOGGER = logging.getLogger(__name__)
INLINE_OUTPUT_BYTES = 16 * 1024


class CallTool(Step[StoredRecord]):
    """Runs a call that may be repeated: a read, or an idempotent write."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def wait_for(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> Wait:
        """Commit that the body is about to be entered."""
        record = read_call(self._runtime, context, input)
        if record.status is ToolCallStatus.PENDING:
            write_call(self._runtime, context, replace(record, status=ToolCallStatus.RUNNING))
        return Wait.skip_immediately()

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Enter the body; commit what came of it."""
        record = read_call(self._runtime, context, input)
        if record.status.is_final:
            return go_to_many(self._movements.announce(record))
        if context.wait_for_method_failed():
            text = "The tool call failed: it could not be started"
            return self._commit(context, record.end(ToolCallStatus.FAILED, text))
        key = call_key(record.turn_id, record.tool_call_id)
        emit(
            self._runtime,
            context,
            AgentEventType.TOOL_CALL_STARTED,
            record.turn_id,
            event_id=f"tool_call_started/{key}",
            data={
                "tool_call_id": record.tool_call_id,
                "tool_name": record.tool_name,
                "arguments": dict(record.effective_arguments),
            },
        )
        failures = read_failures(context)
        try:
            output = await self._run_body(context, record, failures)
        except (InvalidArgumentsError, ToolCallFailedError) as error:
            text = f"The tool call failed: {error}"
            return self._commit(context, record.end(ToolCallStatus.FAILED, text))
        except Exception as error:  # the border to the user's tool
            return await self._fail(context, record, failures + 1, error)
        return self._commit(context, record.end(ToolCallStatus.COMPLETED, output))

    async def _run_body(self, context: AsyncContext, record: ToolCallRecord, failures: int) -> str:
        settings = self._runtime.settings
        call = DeferredToolCall(
            tool_call_id=record.tool_call_id,
            tool_name=record.tool_name,
            arguments=record.effective_arguments,
            effect=record.effect,
        )
        config = read_header(self._runtime, context).config
        request = ToolCallContext(context.flow_id, record.turn_id, call, context.attempt, config)
        async with (
            beating(self._runtime, context, failures),
            asyncio.timeout(record.timeout or settings.tool_timeout),
        ):
            return await self._runtime.require_runner().execute_deferred_tool_call(request)

    async def _fail(
        self, context: AsyncContext, record: ToolCallRecord, failures: int, error: Exception
    ) -> StepDecision:
        _LOGGER.warning("tool %r failed, failure %d", record.tool_name, failures, exc_info=error)
        await beat(context, failures)
        repeatable = not record.effect.is_single_attempt
        if repeatable and failures < self._runtime.settings.maximum_failures:
            raise ToolCallError from None
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self._commit(context, outcome_of_lost_call(record, reason))

    def _commit(self, context: AsyncContext, record: ToolCallRecord) -> StepDecision:
        """Store the final record; a long output goes beside it, a too long one is replaced."""
        output = record.output or ""
        size = len(output.encode())
        limit = self._runtime.settings.tool_output_budget // record.siblings
        if size > limit:
            text = f"The result has {size} bytes; at most {limit} fit beside the other calls'."
            record = replace(record, output=text)
        elif size > INLINE_OUTPUT_BYTES:
            key = call_key(record.turn_id, record.tool_call_id)
            parts = self._runtime.schema.write_parts(context, output_name(key), RUN_STATE, output)
            record = replace(record, output=output[:1000], output_parts=parts)
        write_call(self._runtime, context, record)
        return go_to_many(self._movements.announce(record))


class CallSingleAttemptTool(CallTool):
    """Runs a call that must not be repeated: its Step has a single attempt."""


class RecoverToolCall(Step[StoredRecord]):
    """Ends a call whose attempts are used up because Workers were lost."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Record what is known: nothing happened, or the outcome is unknown."""
        record = read_call(self._runtime, context, input)
        if not record.status.is_final:
            record = outcome_of_lost_call(record, "the Worker that ran it was lost")
            write_call(self._runtime, context, record)
        return go_to_many(self._movements.announce(record))
