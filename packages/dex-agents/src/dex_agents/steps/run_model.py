"""Owns the Step that makes one model call, and its recovery when Workers are lost too often."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, Context, Step, StepDecision, go_to_many, retry_after

from dex_agents.errors import ModelCallError, TurnLimitError
from dex_agents.events import AgentEventType
from dex_agents.runner_contract import FrameworkRunState, RunModelRequest
from dex_agents.runtime import SessionRuntime
from dex_agents.session_hand_over import read_header
from dex_agents.session_header import TurnPosition, TurnState
from dex_agents.session_schema import call_key, output_name, run_state_name
from dex_agents.steps.context import (
    USER_FAILURES,
    beat,
    emit,
    read_failures,
    read_turn,
    reraise_if_canceled,
    running,
)
from dex_agents.steps.model_emitter import ModelEmitter
from dex_agents.steps.model_outcome import Outcome, OutcomePlanner
from dex_agents.stored_record import (
    RUN_STATE_PART,
    TOOL_CALL,
    TOOL_OUTPUT_PART,
    StoredRecord,
    parse_record,
)
from dex_agents.tool_calls import ToolCallRecord
from dex_agents.turn_failure import build_failure_note, describe_error, retry_pause
from dex_agents.usage import TokenUsage

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements

_LOGGER = logging.getLogger(__name__)


class RunModel(Step[StoredRecord]):
    """One model call: the turn's messages and outcome, or its tool calls, are what it commits."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._planner = OutcomePlanner(runtime, movements)

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Call the runner; commit what came of it."""
        position = TurnPosition.from_record(input)
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
        emitter = ModelEmitter(self._runtime, context, turn_id)
        try:
            outcome = await self._call_model(context, position, failures, emitter)
        except USER_FAILURES as error:  # the border to the runner and the user's agent
            reraise_if_canceled(error)
            emitter.close()
            return await self._fail(context, position, failures + 1, error)
        finally:
            emitter.close()
        return outcome.apply(context)

    async def _call_model(
        self, context: AsyncContext, position: TurnPosition, failures: int, emitter: ModelEmitter
    ) -> Outcome:
        runtime = self._runtime
        name = f"the model call of session {context.flow_id!r}"
        async with running(runtime, context, failures, runtime.settings.model_timeout, name):
            runner = await runtime.prepared_runner()
            request = RunModelRequest(
                session_id=context.flow_id,
                turn_id=position.turn_id,
                round=position.round,
                messages=await runtime.history(context, position),
                run_state=self._run_state(context, position),
                tool_results=self._results(context, position),
                config=read_header(runtime, context).config,
            )
            result = await runner.run_model(request, emitter)
        return self._planner.plan(position, result)

    def _run_state(self, context: Context, position: TurnPosition) -> FrameworkRunState | None:
        if position.round == 1:
            return None
        name = run_state_name(position.turn_id)
        body = self._runtime.schema.read_parts(
            context, name, position.run_state_parts, RUN_STATE_PART
        )
        return FrameworkRunState(position.run_state_format, body)

    def _results(self, context: Context, position: TurnPosition) -> list[ToolCallRecord]:
        schema = self._runtime.schema
        parts = {summary.tool_call_id: summary.parts for summary in position.results}
        results = []
        for each in position.calls:
            key = call_key(position.turn_id, each)
            stored = schema.find(context, schema.calls, key)
            record = parse_record(TOOL_CALL, stored, f"call {key!r}", ToolCallRecord.from_json)
            if parts[each]:
                output = schema.read_parts(context, output_name(key), parts[each], TOOL_OUTPUT_PART)
                record = replace(record, output=output)
            results.append(record)
        return results

    async def _fail(
        self, context: AsyncContext, position: TurnPosition, failures: int, error: BaseException
    ) -> StepDecision:
        _LOGGER.warning(
            "model call of session %r failed, failure %d", context.flow_id, failures, exc_info=error
        )
        await beat(context, failures)
        is_final = isinstance(error, TurnLimitError)
        if not is_final and failures < self._runtime.settings.maximum_failures:
            pause = retry_pause(error)
            if pause is not None:
                raise retry_after(pause, ModelCallError()) from None
            raise ModelCallError from None
        times = "" if is_final else f" {failures} times, last"
        reason = f"the model call failed{times} with {describe_error(error)}"
        return end_failed_turn(self._runtime, self._planner, position, reason).apply(context)


class RecoverModelCall(Step[StoredRecord]):
    """Ends a turn whose model call lost more Workers than it may."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._runtime = runtime
        self._movements = movements
        self._planner = OutcomePlanner(runtime, movements)

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: StoredRecord
    ) -> StepDecision:
        """Record the failure as the turn's outcome, unless there is one."""
        position = TurnPosition.from_record(input)
        turn = read_turn(self._runtime, context, position.turn_id)
        if turn.state is not TurnState.RUNNING:
            return go_to_many(self._movements.finish_turn(position))
        reason = "the model call lost too many Workers, or did not end in time"
        return end_failed_turn(self._runtime, self._planner, position, reason).apply(context)


def end_failed_turn(
    runtime: SessionRuntime, planner: OutcomePlanner, position: TurnPosition, reason: str
) -> Outcome:
    """Plan the end of a failed turn, with the note that tells the model what it had done."""
    note = build_failure_note(runtime.require_runner(), position)
    return planner.plan_end(position, [] if note is None else [note], TokenUsage(), reason)
