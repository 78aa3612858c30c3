"""Owns the options of every movement a session makes.

A movement's options replace the Step's own, they are not merged. So they are built here and nowhere
else: retries, timeouts, recovery Step, locks, and what the handler is given.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dex import (
    AttributeMapLoad,
    RetryPolicy,
    Step,
    StepMovement,
    StepOptions,
    WaitForFailurePolicy,
)

from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import TurnPosition, turn_id_of
from dex_agents.session_schema import (
    SessionSchema,
    call_key,
    output_name,
    run_state_name,
)
from dex_agents.steps.announce_queued_message import AnnounceQueuedMessage
from dex_agents.steps.announce_tool_result import AnnounceToolResult
from dex_agents.steps.await_tool_approval import AwaitToolApproval
from dex_agents.steps.call_tool import CallSingleAttemptTool, CallTool, RecoverToolCall
from dex_agents.steps.finish_turn import FinishTurn
from dex_agents.steps.resume_turn import ResumeTurn
from dex_agents.steps.run_model import RecoverModelCall, RunModel
from dex_agents.steps.start_agent_session import StartAgentSession
from dex_agents.stored_record import CALL_INPUT, QUEUED_INPUT, StoredRecord, write_record
from dex_agents.tool_calls import ToolCallRecord

_TOTAL = timedelta(days=30)
_HEARTBEAT = timedelta(seconds=60)
_MARGIN = 60


class SessionMovements:
    """Builds movements for one session Flow."""

    def __init__(self, runtime: SessionRuntime) -> None:
        self._runtime = runtime
        self._schema: SessionSchema = runtime.schema

    def locked_options(self) -> StepOptions:
        """Options of the session's first Step."""
        return self._short(locked=True)

    def start_session(self, request: StoredRecord) -> StepMovement[StoredRecord]:
        """Begin the session, in a new execution."""
        return StepMovement.of(StartAgentSession, request, options=self.locked_options())

    def run_model(self, position: TurnPosition) -> StepMovement[StoredRecord]:
        """Make the turn's next model call."""
        schema = self._schema
        turn = position.turn_id
        position = replace(position, has_history=self._runtime.travels(position))
        loads = [schema.turns.load(turn)]
        loads += [schema.calls.load(call_key(turn, each)) for each in position.calls]
        loads += schema.load_parts(run_state_name(turn), position.run_state_parts)
        for summary in position.results:
            name = output_name(call_key(turn, summary.tool_call_id))
            loads += schema.load_parts(name, summary.parts)
        options = self._options(self._runtime.settings.model_timeout)
        options = replace(options, execute_load_attribute_map_instances=tuple(loads))
        if position.has_history:
            options = replace(options, execute_load_attribute_maps=(schema.messages,))
        recovery = self._short(load=(schema.turns.load(turn),))
        return StepMovement.of(
            RunModel,
            position.to_record(),
            options=options.on_execute_failure_proceed_to(RecoverModelCall, recovery),
        )

    def call_tool(self, record: ToolCallRecord) -> StepMovement[StoredRecord]:
        """Run a tool call, or run it once only."""
        key = call_key(record.turn_id, record.tool_call_id)
        load = (self._schema.calls.load(key),)
        timeout = record.timeout or self._runtime.settings.tool_timeout
        options = replace(
            self._options(timeout),
            wait_for_load_attribute_map_instances=load,
            execute_load_attribute_map_instances=load,
        )
        step: type[Step[StoredRecord]] = CallTool
        if record.effect.is_single_attempt:
            step = CallSingleAttemptTool
            options = replace(options, execute_retry=_retry(1))
        recovery = self._short(load=load)
        return StepMovement.of(
            step,
            call_input(record),
            options=options.on_execute_failure_proceed_to(RecoverToolCall, recovery),
        )

    def await_approval(self, record: ToolCallRecord) -> StepMovement[StoredRecord]:
        """Wait for the answer to an interrupt."""
        load = (self._schema.calls.load(call_key(record.turn_id, record.tool_call_id)),)
        options = replace(
            self._short(load=load, locked=True), wait_for_load_attribute_map_instances=load
        )
        return StepMovement.of(AwaitToolApproval, call_input(record), options=options)

    def announce(self, record: ToolCallRecord) -> StepMovement[StoredRecord]:
        """Announce a final tool call record and report it to the turn."""
        load = (self._schema.calls.load(call_key(record.turn_id, record.tool_call_id)),)
        return StepMovement.of(
            AnnounceToolResult, call_input(record), options=self._short(load=load)
        )

    def resume_turn(self, position: TurnPosition) -> StepMovement[StoredRecord]:
        """Wait for all calls of a model message."""
        return StepMovement.of(ResumeTurn, position.to_record(), options=self._short())

    def finish_turn(self, position: TurnPosition) -> StepMovement[StoredRecord]:
        """End the turn and decide, under the lock, what follows."""
        schema = self._schema
        load = [schema.turns.load(position.turn_id), schema.queued.load(str(position.queue_head))]
        before = turn_id_of(position.turn_number - 1)
        if before:
            load.append(schema.turns.load(before))
        return StepMovement.of(
            FinishTurn, position.to_record(), options=self._short(load=tuple(load), locked=True)
        )

    def announce_queued(self, message_id: str) -> StepMovement[StoredRecord]:
        """Announce that a message waits for its turn."""
        data = write_record(QUEUED_INPUT, {"message_id": message_id})
        return StepMovement.of(AnnounceQueuedMessage, data, options=self._short())

    def _options(self, body_timeout: float) -> StepOptions:
        settings = self._runtime.settings
        attempts = settings.maximum_failures + settings.maximum_lost_workers
        whole = timedelta(seconds=int(body_timeout) + _MARGIN)
        return StepOptions(
            wait_for_method_timeout=whole,
            execute_method_timeout=whole,
            heartbeat_timeout=_HEARTBEAT,
            wait_for_retry=_retry(attempts),
            execute_retry=_retry(attempts),
            wait_for_failure=WaitForFailurePolicy.PROCEED,
        )

    def _short(
        self, load: tuple[AttributeMapLoad, ...] = (), *, locked: bool = False
    ) -> StepOptions:
        """Options of a Step that calls nobody: it is repeated until it commits."""
        options = replace(
            self._options(_MARGIN),
            wait_for_retry=_retry(0),
            execute_retry=_retry(0),
            execute_load_attribute_map_instances=load,
        )
        if locked:
            options = replace(options, execute_lock_attributes=(self._schema.lock.lock(),))
        return options


def call_input(record: ToolCallRecord) -> StoredRecord:
    """Return the input of a Step about one call."""
    data = {"turn_id": record.turn_id, "tool_call_id": record.tool_call_id}
    return write_record(CALL_INPUT, data)


def _retry(attempts: int) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        backoff_coefficient=2.0,
        maximum_interval=timedelta(seconds=30),
        maximum_attempts=attempts,
        total_duration=_TOTAL,
    )
