"""Owns the Steps that run one tool call, and their recovery."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dex import AsyncContext, Context, Step, StepDecision, Wait, go_to_many

from dex_agents.errors import (
    AgentRunError,
    InvalidArgumentsError,
    ToolCallError,
    ToolCallFailedError,
)
from dex_agents.events import AgentEventType
from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import read_header
from dex_agents.session_schema import call_key, output_name, part_key
from dex_agents.size_limits import (
    DISPLAY_CHARACTERS,
    INLINE_OUTPUT,
    KIB,
    PART,
    cut_characters,
    split_text,
    travelling_size,
)
from dex_agents.steps.context import (
    USER_FAILURES,
    beat,
    emit,
    read_call,
    read_failures,
    reraise_if_canceled,
    running,
    write_call,
)
from dex_agents.stored_record import TOOL_OUTPUT_PART, StoredRecord, record_size
from dex_agents.tool_calls import (
    DeferredToolCall,
    ToolCallContext,
    ToolCallRecord,
    ToolCallStatus,
    outcome_of_lost_call,
)
from dex_agents.turn_failure import describe_error

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_LOGGER = logging.getLogger(__name__)
_LEAST_OUTPUT = 4 * KIB
_FAILED = "The tool call failed: {reason}"


class _BodyNotEnteredError(Exception):
    """What came before the tool's body failed; nothing happened."""


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
            text = _FAILED.format(reason="it could not be started")
            return self._commit(context, record.end(ToolCallStatus.FAILED, text))
        self._announce_start(context, record)
        failures = read_failures(context)
        try:
            output = await self._run_body(context, record, failures)
        except (InvalidArgumentsError, ToolCallFailedError) as error:
            text = _FAILED.format(reason=error)
            return self._commit(context, record.end(ToolCallStatus.FAILED, text))
        except USER_FAILURES as error:  # the border to the user's tool
            reraise_if_canceled(error)
            return await self._fail(context, record, failures + 1, error)
        return self._commit(context, record.end(ToolCallStatus.COMPLETED, output))

    def _announce_start(self, context: AsyncContext, record: ToolCallRecord) -> None:
        emit(
            self._runtime,
            context,
            AgentEventType.TOOL_CALL_STARTED,
            record.turn_id,
            event_id=f"tool_call_started/{record.turn_id}/{record.tool_call_id}",
            data={
                "tool_call_id": record.tool_call_id,
                "tool_name": record.tool_name,
                "arguments": dict(record.effective_arguments),
            },
        )

    async def _run_body(self, context: AsyncContext, record: ToolCallRecord, failures: int) -> str:
        call = DeferredToolCall(
            tool_call_id=record.tool_call_id,
            tool_name=record.tool_name,
            arguments=record.effective_arguments,
            effect=record.effect,
            requires_approval=record.interrupt_id is not None,
            timeout=record.timeout,
            approval_timeout=record.approval_timeout,
        )
        request = ToolCallContext(
            session_id=context.flow_id,
            turn_id=record.turn_id,
            call=call,
            attempt=context.attempt,
            config=read_header(self._runtime, context).config,
            report_progress=self._progress_reporter(context, record),
        )
        timeout = record.timeout or self._runtime.settings.tool_timeout
        name = f"tool {record.tool_name!r}"
        async with running(self._runtime, context, failures, timeout, name):
            try:
                runner = await self._runtime.prepared_runner()
            except Exception as error:  # the border to the user's agent
                raise _BodyNotEnteredError(describe_error(error)) from None
            output: object = await runner.execute_deferred_tool_call(request)
        if not isinstance(output, str):
            raise AgentRunError(f"the runner returned {type(output).__name__!r} for a tool call")
        return output

    def _progress_reporter(
        self, context: AsyncContext, record: ToolCallRecord
    ) -> Callable[[Any], None]:
        type = AgentEventType.TOOL_CALL_PROGRESS
        count = 0

        def report(data: Any) -> None:
            nonlocal count
            count += 1
            emit(
                self._runtime,
                context,
                type,
                record.turn_id,
                event_id=f"{type}/{context.step_execution_id}/{context.attempt}/{count}",
                data={"tool_call_id": record.tool_call_id, "data": data},
            )

        return report

    async def _fail(
        self, context: AsyncContext, record: ToolCallRecord, failures: int, error: BaseException
    ) -> StepDecision:
        _LOGGER.warning("tool %r failed, failure %d", record.tool_name, failures, exc_info=error)
        await beat(context, failures)
        repeatable = not record.effect.is_single_attempt
        if repeatable and failures < self._runtime.settings.maximum_failures:
            raise ToolCallError from None
        if isinstance(error, _BodyNotEnteredError) and context.attempt == 1:
            text = _FAILED.format(reason=error)
            return self._commit(context, record.end(ToolCallStatus.FAILED, text))
        reason = describe_error(error, limit=self._runtime.settings.tool_output_budget)
        return self._commit(context, outcome_of_lost_call(record, reason))

    def _commit(self, context: Context, record: ToolCallRecord) -> StepDecision:
        """Store the final record; a long output goes beside it, a too long one is replaced."""
        output = record.output or ""
        size = travelling_size(output)
        # The next model call loads the record; an edit of its arguments came after the budget.
        edit = (
            0
            if record.resolution is None
            else travelling_size(json.dumps(record.to_json()["resolution"]))
        )
        limit = max(record.output_limit - edit, min(record.output_limit, _LEAST_OUTPUT))
        if size > limit:
            text = (
                f"The result is too long: it takes {size} bytes, and at most {limit} fit beside "
                f"those of the other calls."
            )
            record = replace(record, output=text)
        elif size > INLINE_OUTPUT:
            name = output_name(call_key(record.turn_id, record.tool_call_id))
            parts = [StoredRecord(TOOL_OUTPUT_PART, part) for part in split_text(output, PART)]
            for index, part in enumerate(parts):
                self._runtime.schema.parts.set(context, part_key(name, index), part)
            record = replace(
                record,
                output=cut_characters(output, DISPLAY_CHARACTERS // 4),
                output_parts=len(parts),
                output_bytes=sum(record_size(part) for part in parts),
            )
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
            reason = "the Worker that ran it was lost, or did not end in time"
            record = outcome_of_lost_call(record, reason)
            write_call(self._runtime, context, record)
        return go_to_many(self._movements.announce(record))
