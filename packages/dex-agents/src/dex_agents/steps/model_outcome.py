"""Owns what a model call's result becomes: the records and movements of one commit.

Everything here is worked out before anything is written, so that a result which cannot be stored
counts as a failure of the model call and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dex import AttributeMap, Context, StepDecision, StepMovement, go_to_many

from dex_agents.errors import AgentRunError, TurnTooLargeError, TurnTooManyCallsError
from dex_agents.messages import AgentMessage, MessageDraft
from dex_agents.runner_contract import RunModelResult, ToolCallsRequested, TurnFinished
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import TurnPosition, TurnRecord, TurnState
from dex_agents.session_schema import call_key, is_usable_name, part_key, run_state_name
from dex_agents.size_limits import (
    CALL_ARGUMENTS,
    CALLS_OF_A_TURN,
    COMMIT,
    IDENTIFIER_CHARACTERS,
    PART,
    RECORD,
    RUN_STATE,
    split_text,
    travelling_size,
)
from dex_agents.stored_messages import build_message_records
from dex_agents.stored_record import (
    RUN_STATE_PART,
    TOOL_CALL,
    StoredRecord,
    record_size,
    write_record,
)
from dex_agents.tool_calls import DeferredToolCall, ToolCallRecord, ToolCallStatus
from dex_agents.usage import TokenUsage
from dex_agents.wall_clock import read_wall_clock

if TYPE_CHECKING:
    from dex_agents.movements import SessionMovements


@dataclass
class Outcome:
    """What a model call's Step commits.

    Attributes:
        writes: (map, key, record); None deletes.
        movements: what follows.
    """

    writes: list[tuple[AttributeMap[StoredRecord], str, StoredRecord | None]] = field(
        default_factory=list
    )
    movements: list[StepMovement[StoredRecord]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes it commits."""
        return sum(record_size(record) for _, _, record in self.writes if record is not None)

    def apply(self, context: Context) -> StepDecision:
        """Write it, and go on."""
        for map, key, record in self.writes:
            if record is None:
                map.delete(context, key)
            else:
                map.set(context, key, record)
        return go_to_many(*self.movements)


class OutcomePlanner:
    """Plans what a model call's result becomes."""

    def __init__(self, runtime: SessionRuntime, movements: SessionMovements) -> None:
        self._schema = runtime.schema
        self._settings = runtime.settings
        self._movements = movements

    def plan(self, position: TurnPosition, result: RunModelResult) -> Outcome:
        """Plan the outcome of a model call.

        Raises:
            TurnTooLargeError: it cannot be stored; repeating the call does not help.
            AgentRunError: the runner returned something that breaks its contract.
        """
        if isinstance(result, TurnFinished):
            return self.plan_end(position, result.messages, result.usage)
        if isinstance(result, ToolCallsRequested):
            return self._plan_calls(position, result)
        raise AgentRunError(f"the runner returned {type(result).__name__!r}")

    def plan_end(
        self,
        position: TurnPosition,
        drafts: Sequence[MessageDraft],
        usage: TokenUsage,
        error: str | None = None,
    ) -> Outcome:
        """Plan the turn's end: its messages and its outcome.

        Args:
            error: why it failed, if it did.
        """
        outcome = Outcome()
        turn_id = position.turn_id
        count, size = position.message_count, position.message_bytes
        for draft in drafts:
            count += 1
            records = build_message_records(AgentMessage.of(draft, count, turn_id))
            for key, record in records.items():
                outcome.writes.append((self._schema.messages, key, record))
                size += record_size(record)
        turn = TurnRecord(
            turn_id,
            state=TurnState.COMPLETED if error is None else TurnState.FAILED,
            error=error,
            message_count=count,
            message_bytes=size,
            usage=position.usage + usage,
            calls=tuple((each.tool_call_id, each.parts) for each in position.done),
            run_state_parts=position.run_state_parts,
        )
        outcome.writes.append((self._schema.turns, turn_id, turn.to_record()))
        outcome.movements.append(self._movements.finish_turn(position))
        if outcome.size > COMMIT:
            raise TurnTooLargeError("what the turn adds to the conversation", outcome.size, COMMIT)
        return outcome

    def _plan_calls(self, position: TurnPosition, result: ToolCallsRequested) -> Outcome:
        _require_usable_ids(position, [call.tool_call_id for call in result.calls])
        turn_id = position.turn_id
        outcome = Outcome()
        parts = self._write_run_state(outcome, position, result.run_state.body)
        state_bytes = outcome.size
        records = [
            _build_call(position, call, index, len(result.calls))
            for index, call in enumerate(result.calls)
        ]
        stored = [write_record(TOOL_CALL, record.to_json()) for record in records]
        room = COMMIT - RECORD - state_bytes - sum(record_size(each) for each in stored)
        if room <= 0:
            raise TurnTooLargeError("what the turn is to go on from", COMMIT - room, COMMIT)
        limit = min(self._settings.tool_output_budget, room) // len(records)
        records = [replace(record, output_limit=limit) for record in records]
        for record in records:
            key = call_key(turn_id, record.tool_call_id)
            data = write_record(TOOL_CALL, record.to_json())
            outcome.writes.append((self._schema.calls, key, data))
        turn = TurnRecord(
            turn_id,
            message_count=position.message_count,
            message_bytes=position.message_bytes,
            usage=position.usage + result.usage,
            calls=(
                *((each.tool_call_id, each.parts) for each in position.done),
                *((record.tool_call_id, 0) for record in records),
            ),
            run_state_parts=parts,
        )
        outcome.writes.append((self._schema.turns, turn_id, turn.to_record()))
        resumed = replace(
            position,
            round=position.round + 1,
            calls=tuple(record.tool_call_id for record in records),
            run_state_parts=parts,
            run_state_bytes=state_bytes,
            run_state_format=result.run_state.format,
            usage=position.usage + result.usage,
        )
        outcome.movements = [self._movement(record) for record in records]
        outcome.movements.append(self._movements.resume_turn(resumed))
        return outcome

    def _write_run_state(self, outcome: Outcome, position: TurnPosition, body: str) -> int:
        """Write the run state over the one of the round before; return its parts."""
        size = travelling_size(body)
        if size > RUN_STATE:
            raise TurnTooLargeError("the turn's run state", size, RUN_STATE)
        name = run_state_name(position.turn_id)
        parts = list(split_text(body, PART))
        for index, part in enumerate(parts):
            record = StoredRecord(RUN_STATE_PART, part)
            outcome.writes.append((self._schema.parts, part_key(name, index), record))
        for index in range(len(parts), position.run_state_parts):
            outcome.writes.append((self._schema.parts, part_key(name, index), None))
        return len(parts)

    def _movement(self, record: ToolCallRecord) -> StepMovement[StoredRecord]:
        if record.status.is_final:
            return self._movements.announce(record)
        if record.status is ToolCallStatus.AWAITING_APPROVAL:
            return self._movements.await_approval(record)
        return self._movements.call_tool(record)


def _build_call(
    position: TurnPosition, call: DeferredToolCall, index: int, siblings: int
) -> ToolCallRecord:
    approval = call.requires_approval
    record = ToolCallRecord(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        arguments=call.arguments,
        effect=call.effect,
        turn_id=position.turn_id,
        round=position.round,
        index=index,
        siblings=siblings,
        status=ToolCallStatus.AWAITING_APPROVAL if approval else ToolCallStatus.PENDING,
        timeout=call.timeout,
        approval_timeout=call.approval_timeout,
        interrupt_id=call_key(position.turn_id, call.tool_call_id) if approval else None,
        raised_at=read_wall_clock() if approval else 0.0,
    )
    size = record_size(write_record(TOOL_CALL, record.to_json()))
    if size <= CALL_ARGUMENTS:
        return record
    text = (
        f"The tool call failed: its arguments take {size} bytes and at most {CALL_ARGUMENTS} can "
        f"be passed to a tool. Use shorter ones."
    )
    return replace(record, arguments={}, interrupt_id=None, raised_at=0.0).end(
        ToolCallStatus.FAILED, text
    )


def _require_usable_ids(position: TurnPosition, ids: Sequence[str]) -> None:
    """Refuse ids that would make two calls one, or that cannot name a record."""
    known = {summary.tool_call_id for summary in position.done}
    if not ids or len(set(ids)) != len(ids) or known.intersection(ids):
        raise AgentRunError(f"tool call ids {ids!r} are missing or not unique within the turn")
    if not all(is_usable_name(each) for each in ids):
        raise AgentRunError(
            f"tool call ids {ids!r} must be printable, contain no '/', and have at most "
            f"{IDENTIFIER_CHARACTERS} characters"
        )
    if len(known) + len(ids) > CALLS_OF_A_TURN:
        raise TurnTooManyCallsError(len(known) + len(ids), CALLS_OF_A_TURN)
