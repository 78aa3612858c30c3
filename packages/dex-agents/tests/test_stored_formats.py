"""The exact stored form of every record: a change here breaks sessions that exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agent_programs import script

from dex_agents import (
    AgentMessage,
    MessageRole,
    Resolution,
    SessionStatus,
    StoredRecord,
    StoredRecordError,
    TokenUsage,
    ToolCallRecord,
    ToolCallStatus,
    ToolEffect,
    TurnState,
)
from dex_agents import stored_record as formats
from dex_agents.session_header import CallSummary, SessionHeader, TurnPosition, TurnRecord
from dex_agents.session_schema import (
    SessionSchema,
    call_key,
    output_name,
    part_key,
    round_key,
    run_state_name,
)
from dex_agents.stored_messages import build_message_records, message_key, read_message
from dex_agents.stored_record import parse_record, read_record, write_record

USAGE = TokenUsage(1, 2, 3, 4)
USAGE_JSON = '{"cache_read_tokens":3,"input_tokens":1,"output_tokens":2,"reasoning_tokens":4}'
MESSAGE = AgentMessage(3, MessageRole.TOOL, "täxt", '{"a":1}', "out", "turn-2")
CALL = ToolCallRecord(
    tool_call_id="c",
    tool_name="refund",
    arguments={"b": 1, "a": "x"},
    effect=ToolEffect.IDEMPOTENT_WRITE,
    turn_id="turn-2",
    round=1,
    index=0,
    siblings=2,
    status=ToolCallStatus.COMPLETED,
    output="done",
    timeout=5.0,
    approval_timeout=60.0,
    interrupt_id="turn-2:c",
    raised_at=1.5,
    resolution=Resolution(True, "ok", {"a": "y"}, "ann", 2.5),
    output_parts=1,
    output_bytes=10,
    output_limit=1000,
)
HEADER = SessionHeader(
    config={"tags": ["x"]},
    turn_number=2,
    message_count=3,
    message_bytes=400,
    queue_head=1,
    queue_tail=2,
    usage=USAGE,
    last_turn_error="no",
)
TURN = TurnRecord("turn-2", TurnState.FAILED, "no", 3, 400, USAGE, (("c", 1),), 2)
SUMMARY = CallSummary("c", "refund", "completed", "done", 1, 10)
POSITION = TurnPosition(
    turn_number=2,
    message_count=3,
    message_bytes=400,
    queue_head=1,
    round=2,
    calls=("c",),
    done=(SUMMARY,),
    run_state_parts=2,
    run_state_bytes=50,
    run_state_format="f.v1",
    usage=USAGE,
    has_history=False,
)

GOLDEN = {
    "message": (
        build_message_records(MESSAGE)["000000003"],
        "dex-agents.message.v1",
        '{"framework_item":"{\\"a\\":1}","parts":0,"role":"tool","sequence":3,"text":"täxt",'
        '"tool_output":"out","turn_id":"turn-2"}',
    ),
    "tool call": (
        write_record(formats.TOOL_CALL, CALL.to_json()),
        "dex-agents.tool-call.v1",
        '{"approval_timeout":60.0,"arguments":{"a":"x","b":1},"effect":"idempotent_write",'
        '"index":0,"interrupt_id":"turn-2:c","output":"done","output_bytes":10,'
        '"output_limit":1000,"output_parts":1,"raised_at":1.5,"resolution":{"approved":true,'
        '"arguments":{"a":"y"},"reason":"ok","resolved_at":2.5,"resolved_by":"ann"},"round":1,'
        '"siblings":2,"status":"completed","timeout":5.0,"tool_call_id":"c",'
        '"tool_name":"refund","turn_id":"turn-2"}',
    ),
    "session": (
        HEADER.to_record(),
        "dex-agents.session.v1",
        '{"config":{"tags":["x"]},"last_turn_error":"no","message_bytes":400,"message_count":3,'
        f'"queue_head":1,"queue_tail":2,"turn_number":2,"usage":{USAGE_JSON}}}',
    ),
    "turn": (
        TURN.to_record(),
        "dex-agents.turn.v1",
        '{"calls":[["c",1]],"error":"no","message_bytes":400,"message_count":3,'
        f'"run_state_parts":2,"state":"failed","turn_id":"turn-2","usage":{USAGE_JSON}}}',
    ),
    "position": (
        POSITION.to_record(),
        "dex-agents.turn-position.v1",
        '{"calls":["c"],"done":[{"parts":1,"size":10,"status":"completed","text":"done",'
        '"tool_call_id":"c","tool_name":"refund"}],"has_history":false,"message_bytes":400,'
        '"message_count":3,"queue_head":1,"round":2,"run_state_bytes":50,'
        f'"run_state_format":"f.v1","run_state_parts":2,"turn_number":2,"usage":{USAGE_JSON}}}',
    ),
    "call result": (
        SUMMARY.to_record(),
        "dex-agents.call-result.v1",
        '{"parts":1,"size":10,"status":"completed","text":"done","tool_call_id":"c",'
        '"tool_name":"refund"}',
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_stored_form_is_what_it_was(name: str) -> None:
    record, format, body = GOLDEN[name]
    assert (record.format, record.body) == (format, body)


def test_stored_forms_are_read_back() -> None:
    def parse(name: str, parser: Any) -> Any:
        _, format, body = GOLDEN[name]
        return parse_record(format, StoredRecord(format, body), name, parser)

    assert parse("message", AgentMessage.from_json) == MESSAGE
    assert parse("tool call", ToolCallRecord.from_json) == CALL
    assert parse("session", SessionHeader.from_json) == HEADER
    assert parse("turn", TurnRecord.from_json) == TURN
    assert parse("position", TurnPosition.from_json) == POSITION
    assert parse("call result", CallSummary.from_json) == SUMMARY


def test_formats_are_what_they_were() -> None:
    names = {
        name: value
        for name, value in vars(formats).items()
        if isinstance(value, str) and value.startswith("dex-agents.")
    }
    assert names == {
        "SESSION": "dex-agents.session.v1",
        "TURN": "dex-agents.turn.v1",
        "MESSAGE": "dex-agents.message.v1",
        "MESSAGE_PART": "dex-agents.message-part.v1",
        "QUEUED_MESSAGE": "dex-agents.queued-message.v1",
        "SENT": "dex-agents.sent-message.v1",
        "TOOL_CALL": "dex-agents.tool-call.v1",
        "TOOL_OUTPUT_PART": "dex-agents.tool-output-part.v1",
        "RUN_STATE_PART": "dex-agents.run-state-part.v1",
        "START": "dex-agents.start.v1",
        "POSITION": "dex-agents.turn-position.v1",
        "CALL_INPUT": "dex-agents.call-input.v1",
        "CALL_RESULT": "dex-agents.call-result.v1",
        "QUEUED_INPUT": "dex-agents.queued-input.v1",
        "ANSWERED": "dex-agents.answered.v1",
        "PROGRESS": "dex-agents.progress.v1",
        "EVENT": "dex-agents.event.v1",
        "REQUEST": "dex-agents.request.v1",
        "ANSWER": "dex-agents.answer.v1",
    }


def test_places_are_what_they_were() -> None:
    schema = SessionSchema()
    definitions = (schema.status, schema.updated_at, schema.lock, schema.header, schema.results)
    assert [each.name for each in definitions] == [
        "agent_status",
        "agent_updated_at",
        "agent_lock",
        "agent_session",
        "agent_results",
    ]
    assert {name: map.name for name, map in schema.readable.items()} == {
        "messages": "agent_messages",
        "queued": "agent_queued",
        "calls": "agent_calls",
        "turns": "agent_turns",
        "parts": "agent_parts",
        "sent": "agent_sent",
    }
    assert (schema.answers.name, schema.events.name) == ("agent_answers", "agent_events")
    assert message_key(7) == "000000007"
    assert call_key("turn-2", "c") == "turn-2:c"
    assert round_key("turn-2", 3) == "turn-2:3"
    assert part_key(run_state_name("turn-2"), 1) == "run-state:turn-2#1"
    assert part_key(output_name("turn-2:c"), 0) == "output:turn-2:c#0"


def test_stored_words_are_what_they_were() -> None:
    assert [each.value for each in SessionStatus] == ["idle", "running", "closed"]
    assert [each.value for each in TurnState] == ["running", "completed", "failed", "canceled"]
    assert [each.value for each in MessageRole] == ["user", "assistant", "tool", "system"]
    assert [each.value for each in ToolCallStatus] == [
        "pending",
        "awaiting_approval",
        "running",
        "completed",
        "failed",
        "rejected",
        "canceled",
        "outcome_unknown",
    ]


async def test_whole_session_is_stored_in_these_formats_only(session: Any, agent: Any) -> None:
    calls = [["look", {"id": 1, "size": 20_000}], ["pay", {"id": 2}]]
    await session.turn(script({"calls": calls}, {"say": "", "size": 300_000}))
    records = await agent.sessions.calls.read(
        session.session_id,
        turns=["turn-1"],
        calls=["turn-1:r1c1"],
        parts=["output:turn-1:r1c1#0"],
        messages=["000000001", "000000002", "000000002#0"],
    )
    assert {
        key: None if record is None else record.format
        for map in records.records.values()
        for key, record in map.items()
    } == {
        "turn-1": formats.TURN,
        "turn-1:r1c1": formats.TOOL_CALL,
        "output:turn-1:r1c1#0": formats.TOOL_OUTPUT_PART,
        "000000001": formats.MESSAGE,
        "000000002": formats.MESSAGE,
        "000000002#0": formats.MESSAGE_PART,
    }


@pytest.mark.parametrize(
    "record",
    [
        None,
        StoredRecord("dex-agents.turn.v2", "{}"),
        StoredRecord(formats.TURN, "not json"),
        StoredRecord(formats.TURN, "[]"),
        StoredRecord(formats.TURN, "{}"),
        StoredRecord(formats.TURN, GOLDEN["turn"][2].replace('"failed"', '"unheard-of"')),
    ],
)
def test_record_that_cannot_be_read_raises(record: StoredRecord | None) -> None:
    with pytest.raises(StoredRecordError, match="turn 7"):
        parse_record(formats.TURN, record, "turn 7", TurnRecord.from_json)


def test_message_that_stands_in_the_place_of_another_is_refused() -> None:
    records = build_message_records(MESSAGE)
    with pytest.raises(StoredRecordError, match="message 4"):
        read_message(4, lambda _: records["000000003"])


def test_long_message_with_a_missing_part_is_refused() -> None:
    message = replace(MESSAGE, framework_item="x" * 600_000)
    records = build_message_records(message)
    assert len(records) > 2
    assert read_message(3, records.get) == message
    del records["000000003#1"]
    with pytest.raises(StoredRecordError, match="message 3"):
        read_message(3, records.get)


def test_record_of_what_is_not_json_is_refused() -> None:
    for data in ({"a": float("inf")}, {"a": object()}, {"a": b""}):
        with pytest.raises(StoredRecordError, match="not JSON"):
            write_record("x", data)
    assert read_record("x", write_record("x", {"é": "\ud800"}), "here") == {"é": "\ud800"}
