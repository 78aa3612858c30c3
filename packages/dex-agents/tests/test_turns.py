"""A turn through the client: what it returns, what it stores, which events it sends."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_programs import CALL_USAGE, contents, script

from dex_agents import AgentEventType, AgentSnapshot, SessionStatus, ToolCallStatus, TurnState

ENVELOPE = {"event_id", "turn_id", "step_execution_id", "attempt"}


def own(payload: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in payload.items() if name not in ENVELOPE}


async def test_plain_turn_stores_question_and_answer(session: Any) -> None:
    result = await session.turn("hello")
    assert (result.turn_id, result.state, result.error) == ("turn-1", TurnState.COMPLETED, None)
    assert contents(result.messages) == ["user: hello", "assistant: you said hello"]
    assert (result.text, result.usage) == ("you said hello", CALL_USAGE)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert contents(snapshot.messages) == ["user: hello", "assistant: you said hello"]
    assert [each.sequence for each in snapshot.messages] == [1, 2]
    assert (snapshot.status, snapshot.turn_id) == (SessionStatus.IDLE, "turn-1")
    assert (snapshot.message_count, snapshot.usage) == (2, CALL_USAGE)
    assert (snapshot.tool_calls, snapshot.queued_messages, snapshot.pending_interrupts) == (
        (),
        (),
        (),
    )


async def test_plain_turn_sends_its_events_in_order(session: Any) -> None:
    await session.turn(script({"emit": ["hel", "lo"], "say": "hello"}))
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    types = [type for type, _ in session.events]
    assert types == ["turn_started", "text_delta", "text_delta", "turn_completed"]
    assert [own(payload) for _, payload in session.events] == [
        {},
        {"text": "hel"},
        {"text": "lo"},
        {"usage": CALL_USAGE.to_json()},
    ]
    assert all(payload.keys() >= ENVELOPE for _, payload in session.events)
    assert [payload["event_id"] for _, payload in session.events] == [
        "turn_started/turn-1",
        "text_delta/RunModel-1/1/1",
        "text_delta/RunModel-1/1/2",
        "turn_completed/turn-1",
    ]


async def test_next_turn_continues_the_conversation(session: Any, ledger: Any) -> None:
    await session.turn("one")
    await session.turn("two")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert contents(snapshot.messages) == [
        "user: one",
        "assistant: you said one",
        "user: two",
        "assistant: you said two",
    ]
    assert {each.turn_id for each in snapshot.messages[2:]} == {"turn-2"}
    later = await session.client.get_agent_snapshot(session.session_id, after_sequence=3)
    assert contents(later.messages) == ["assistant: you said two"]
    some = await session.client.get_agent_snapshot(session.session_id, after_sequence=1, limit=2)
    assert contents(some.messages) == ["assistant: you said one", "user: two"]


async def test_tool_turn_hands_the_result_to_the_next_model_call(session: Any) -> None:
    result = await session.turn(script({"calls": [["look", {"id": 7}]]}, {}))
    key = f"{session.session_id}/turn-1/r1c1"
    assert result.text == f"completed: look 7 done with {key}"
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    (call,) = snapshot.tool_calls
    assert (call.tool_call_id, call.tool_name, call.arguments) == ("r1c1", "look", {"id": 7})
    assert (call.status, call.output) == (ToolCallStatus.COMPLETED, f"look 7 done with {key}")


async def test_tool_turn_sends_its_events_in_order(session: Any) -> None:
    await session.turn(script({"calls": [["look", {"id": 7, "progress": {"at": 1}}]]}, {}))
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    output = f"look 7 done with {session.session_id}/turn-1/r1c1"
    call = {"tool_call_id": "r1c1", "tool_name": "look"}
    assert [(type, own(payload)) for type, payload in session.events] == [
        ("turn_started", {}),
        ("tool_call_started", {**call, "arguments": {"id": 7, "progress": {"at": 1}}}),
        ("tool_call_progress", {"tool_call_id": "r1c1", "data": {"at": 1}}),
        ("tool_call_finished", {**call, "status": "completed", "output": output}),
        ("turn_completed", {"usage": (CALL_USAGE).to_json()}),
    ]
    assert session.events[1][1]["event_id"] == "tool_call_started/turn-1/r1c1"
    assert session.events[3][1]["event_id"] == "tool_call_finished/turn-1/r1c1"


async def test_parallel_turn_gives_the_results_in_the_order_of_the_model(session: Any) -> None:
    calls = [["look", {"id": number}] for number in (1, 2, 3)]
    result = await session.turn(script({"calls": calls}, {}))
    assert [part.split(" done")[0] for part in result.text.split(" | ")] == [
        "completed: look 1",
        "completed: look 2",
        "completed: look 3",
    ]


async def test_model_that_asks_for_tools_twice_gets_both_rounds(session: Any) -> None:
    look = {"calls": [["look", {"id": 1}]]}
    result = await session.turn(script(look, {"calls": [["put", {"id": 2}]]}, {}))
    assert result.text.startswith("completed: put 2")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert [(each.round, each.tool_name) for each in snapshot.tool_calls] == [
        (1, "look"),
        (2, "put"),
    ]


async def test_tool_calls_of_a_turn_stay_readable_during_the_next_one_only(session: Any) -> None:
    await session.turn(script({"calls": [["look", {"id": 1}]]}, {}))
    await session.turn(script({"calls": [["look", {"id": 2}]]}, {}))
    await session.at_rest()
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert [each.turn_id for each in snapshot.tool_calls] == ["turn-2"]
    await session.turn("three")
    await session.at_rest()
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls == ()


async def test_snapshot_at_the_moment_of_turn_completed_holds_the_final_message(
    session: Any,
) -> None:
    await session.client.start_session(session.session_id, "hello")
    for number in range(1, 11):
        await session.wait_event(AgentEventType.TURN_COMPLETED)
        snapshot: AgentSnapshot = await session.client.get_agent_snapshot(session.session_id)
        assert len(snapshot.messages) == snapshot.message_count == 2 * number
        assert contents(snapshot.messages)[-1].startswith("assistant: you said")
        assert snapshot.usage.input_tokens == 10 * number
        assert snapshot.status is SessionStatus.IDLE
        await session.client.send_user_message(session.session_id, f"message {number}")


async def test_configuration_reaches_model_and_tools(open_host: Any, program: Any) -> None:
    seen: list[dict[str, Any]] = []

    class Watcher(type(program.runner)):  # type: ignore[misc]
        async def run_model(self, request: Any, emitter: Any) -> Any:
            seen.append(dict(request.config))
            return await super().run_model(request, emitter)

        async def execute_deferred_tool_call(self, context: Any) -> str:
            seen.append(dict(context.config))
            output: str = await super().execute_deferred_tool_call(context)
            return output

    program.runner.__class__ = Watcher
    session = (await open_host()).session("configured")
    config = {"configurable": {"user": "ann"}, "tags": ["x"]}
    await session.turn(script({"calls": [["look", {"id": 1}]]}, {}), config=config)
    assert seen == [config, config, config]


async def test_two_sessions_run_beside_each_other(agent: Any) -> None:
    sessions = [agent.session(f"s{number}") for number in range(5)]
    results = await asyncio.gather(*(each.turn(f"hello {each.session_id}") for each in sessions))
    assert [result.text for result in results] == [
        f"you said hello {each.session_id}" for each in sessions
    ]
