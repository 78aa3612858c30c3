"""Messages sent while a turn runs or ends: each starts exactly one turn, in order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from agent_programs import contents, script
from dex import Context, RPCResult, rpc

from dex_agents import (
    AgentEventType,
    AgentSessionFlow,
    SessionStatus,
    StoredRecord,
    TurnState,
)
from dex_agents.session_schema import SessionSchema


class LockingFlow(AgentSessionFlow):
    """Has an RPC that holds the session's lock until it is let go."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_held = asyncio.Event()
        self.let_go = asyncio.Event()

    @rpc(lock_attributes=(SessionSchema.lock.lock(),))
    async def hold_lock(self, context: Context, input: StoredRecord) -> RPCResult[StoredRecord]:
        self.is_held.set()
        await self.let_go.wait()
        return RPCResult(input)


async def rest(session: Any, turns: int) -> Any:
    """Wait until so many turns have ended and nothing waits; return the snapshot."""
    snapshot = await session.until(
        lambda each: each.status is SessionStatus.IDLE and each.message_count == 2 * turns
    )
    await session.at_rest()
    types = [each.step_type for each in await session.history()]
    assert types.count("FinishTurn") == types.count("RunModel") == turns
    assert snapshot.queued_messages == ()
    assert snapshot.turn_id == f"turn-{turns}"
    return snapshot


async def test_message_sent_between_last_text_and_end_of_the_model_call_gets_its_own_turn(
    session: Any, close_gate: Any
) -> None:
    gate = close_gate("last-text")
    await session.client.start_session(
        session.session_id, script({"emit": ["bye"], "gate": "last-text", "say": "bye"})
    )
    await session.wait_event(AgentEventType.TEXT_DELTA)
    receipt = await session.client.send_user_message(session.session_id, "more")
    assert (receipt.turn_id, receipt.sequence) == (None, None)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert [each.content for each in snapshot.queued_messages] == ["more"]
    queued = await session.wait_event(AgentEventType.MESSAGE_QUEUED)
    assert queued["message_id"] == receipt.message_id
    assert queued["event_id"] == f"message_queued/{receipt.message_id}"
    gate.open()
    snapshot = await rest(session, 2)
    assert contents(snapshot.messages)[2:] == ["user: more", "assistant: you said more"]


@pytest.mark.parametrize("sent_before_outcome", [True, False])
async def test_message_sent_between_the_outcome_and_the_end_of_the_turn_gets_its_own_turn(
    open_host: Any, program: Any, close_gate: Any, sent_before_outcome: bool
) -> None:
    gate = close_gate("model")
    flow = LockingFlow(f"locking-{time.monotonic_ns()}", program.runner)
    agent = await open_host(flow)
    session = agent.session("one")
    await session.client.start_session(session.session_id, script({"gate": "model", "say": "x"}))
    await session.wait_event(AgentEventType.TURN_STARTED)
    holding = asyncio.create_task(
        agent.host.client.invoke_rpc(flow.hold_lock, session.session_id, StoredRecord("x", "{}"))
    )
    await asyncio.wait_for(flow.is_held.wait(), 30)
    send = session.client.send_user_message
    sending = None
    if sent_before_outcome:
        sending = asyncio.create_task(send(session.session_id, "more"))
    gate.open()
    # The outcome is committed and FinishTurn waits for the lock.
    snapshot = await session.until(lambda each: each.message_count == 2)
    assert snapshot.messages[-1].text == "x"
    sending = sending or asyncio.create_task(send(session.session_id, "more"))
    await session.client.get_agent_snapshot(session.session_id)
    assert not sending.done()
    flow.let_go.set()
    await holding
    await sending
    snapshot = await rest(session, 2)
    assert contents(snapshot.messages)[2:] == ["user: more", "assistant: you said more"]


async def test_message_sent_at_the_moment_of_turn_completed_gets_its_own_turn(
    session: Any,
) -> None:
    await session.client.start_session(session.session_id, "0")
    for number in range(1, 6):
        await session.wait_event(AgentEventType.TURN_COMPLETED)
        await session.client.send_user_message(session.session_id, str(number))
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    snapshot = await rest(session, 6)
    assert contents(snapshot.messages)[::2] == [f"user: {number}" for number in range(6)]


async def test_four_messages_sent_at_once_give_four_turns_one_after_the_other(
    session: Any, close_gate: Any
) -> None:
    gate = close_gate("first")
    await session.client.start_session(
        session.session_id, script({"gate": "first", "say": "hello"})
    )
    sends = [
        session.client.send_user_message(session.session_id, f"message {number}")
        for number in range(4)
    ]
    await asyncio.gather(*sends)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    waiting = [each.content for each in snapshot.queued_messages]
    assert sorted(waiting) == [f"message {number}" for number in range(4)]
    gate.open()
    snapshot = await rest(session, 5)
    assert contents(snapshot.messages)[2::2] == [f"user: {each}" for each in waiting]
    assert contents(snapshot.messages)[3::2] == [f"assistant: you said {each}" for each in waiting]


async def test_four_messages_sent_to_an_idle_session_at_once_give_four_turns(
    session: Any,
) -> None:
    await session.turn("hello")
    results = await asyncio.gather(*(session.turn(f"message {number}") for number in range(4)))
    assert {result.turn_id for result in results} == {f"turn-{number}" for number in range(2, 6)}
    for number, result in enumerate(results):
        assert contents(result.messages) == [
            f"user: message {number}",
            f"assistant: you said message {number}",
        ]
    await rest(session, 5)


async def test_same_message_id_again_is_one_message(session: Any, ledger: Any) -> None:
    await session.turn("hello")
    send = session.client.send_user_message
    receipts = [await send(session.session_id, "more", message_id="m") for _ in range(3)]
    assert {(each.message_id, each.turn_id, each.sequence) for each in receipts} == {
        ("m", "turn-2", 3)
    }
    assert (await session.turn("more", message_id="m")).turn_id == "turn-2"
    await rest(session, 2)
    assert ledger.lines() == ["model turn-1 1", "model turn-2 1"]


async def test_same_message_id_again_while_it_waits_is_one_message(
    session: Any, close_gate: Any
) -> None:
    gate = close_gate("first")
    await session.client.start_session(session.session_id, script({"gate": "first", "say": "x"}))
    for _ in range(2):
        await session.client.send_user_message(session.session_id, "more", message_id="m")
    gate.open()
    assert (await session.turn("more", message_id="m")).turn_id == "turn-2"
    await rest(session, 2)


async def test_message_sent_right_after_the_start_gets_the_second_turn(agent: Any) -> None:
    for number in range(5):
        session = agent.session(f"s{number}")
        await session.client.start_session(session.session_id, "first")
        await session.client.send_user_message(session.session_id, "second")
        snapshot = await rest(session, 2)
        assert contents(snapshot.messages)[::2] == ["user: first", "user: second"]


async def test_repeated_start_with_the_same_request_id_is_one_start(session: Any) -> None:
    for _ in range(2):
        await session.client.start_session(session.session_id, "hello", request_id="r")
    result = await session.turn("hello", message_id="r")
    assert (result.turn_id, result.state) == ("turn-1", TurnState.COMPLETED)
    await rest(session, 1)


async def test_two_turns_that_both_find_no_session_start_it_once(session: Any) -> None:
    results = await asyncio.gather(session.turn("a"), session.turn("b"))
    assert {result.turn_id for result in results} == {"turn-1", "turn-2"}
    await rest(session, 2)
