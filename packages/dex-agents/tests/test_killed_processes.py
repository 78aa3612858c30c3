"""Engine and Worker processes that are killed: what runs again, and what must not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_programs import script

from dex_agents import AgentEventType, ToolCallStatus


@pytest.mark.full
async def test_approval_survives_the_death_of_engine_and_worker(killable: Any, ledger: Any) -> None:
    session = killable.session
    await session.client.start_session(
        session.session_id, script({"calls": [["wire", {"id": 7}]]}, {})
    )
    await session.wait_event(AgentEventType.INTERRUPT_RAISED)
    await killable.worker.kill()
    await killable.engine.kill()

    await killable.engine.start()
    await killable.start_worker()
    await killable.connect()
    session = killable.session
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    (interrupt,) = snapshot.pending_interrupts
    assert (interrupt.tool_name, interrupt.arguments) == ("wire", {"id": 7})
    await session.client.resolve_interrupt(
        session.session_id, interrupt.interrupt_id, approved=True
    )
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.messages[-1].text.startswith("completed: wire 7 done")
    assert ledger.count("wire 7") == 1


async def test_worker_killed_in_a_model_call_repeats_only_that_call(
    killable: Any, ledger: Any, close_gate: Any
) -> None:
    gate = close_gate("second")
    session = killable.session
    turn = asyncio.create_task(
        session.turn(script({"calls": [["pay", {"id": 1}]]}, {"gate": "second"}))
    )
    await killable.wait_line("model turn-1 2")
    await killable.worker.kill()
    gate.open()
    await killable.start_worker()
    assert (await turn).text.startswith("completed: pay 1 done")
    assert ledger.lines() == ["model turn-1 1", "pay 1", "model turn-1 2", "model turn-1 2"]


async def test_worker_killed_in_a_read_repeats_that_tool_and_not_its_sibling(
    killable: Any, ledger: Any, close_gate: Any
) -> None:
    gate = close_gate("reading")
    session = killable.session
    tools = [["look", {"id": 1, "gate": "reading"}], ["look", {"id": 2}]]
    turn = asyncio.create_task(session.turn(script({"calls": tools}, {})))
    await killable.wait_line("look 1")
    await session.wait_event(AgentEventType.TOOL_CALL_FINISHED, tool_call_id="r1c2")
    await killable.worker.kill()
    assert ledger.count("look 1") == 1
    gate.open()
    await killable.start_worker()
    result = await turn
    first, second = result.text.split(" | ")
    assert first.startswith("completed: look 1 done")
    assert second.startswith("completed: look 2 done")
    counts = {line: ledger.count(line) for line in set(ledger.lines())}
    assert counts == {"model turn-1 1": 1, "model turn-1 2": 1, "look 1": 2, "look 2": 1}


async def test_worker_killed_in_a_single_attempt_write_does_not_repeat_it(
    killable: Any, ledger: Any, close_gate: Any
) -> None:
    close_gate("paying")
    session = killable.session
    turn = asyncio.create_task(
        session.turn(script({"calls": [["pay", {"id": 1, "gate": "paying"}]]}, {}))
    )
    await killable.wait_line("pay 1")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls[0].status is ToolCallStatus.RUNNING
    await killable.worker.kill()
    await killable.start_worker()
    result = await turn
    assert result.text.startswith("outcome_unknown: The outcome is unknown: the call of tool 'pay'")
    assert ledger.lines() == ["model turn-1 1", "pay 1", "model turn-1 2"]
    calls = await session.history()
    assert "RecoverToolCall" in {each.step_type for each in calls}


@pytest.mark.full
async def test_worker_killed_in_an_idempotent_write_repeats_it_with_the_same_key(
    killable: Any, ledger: Any, close_gate: Any
) -> None:
    gate = close_gate("putting")
    session = killable.session
    turn = asyncio.create_task(
        session.turn(script({"calls": [["put", {"id": 1, "gate": "putting"}]]}, {}))
    )
    await killable.wait_line("put 1")
    await killable.worker.kill()
    gate.open()
    await killable.start_worker()
    assert (await turn).text == "completed: put 1 done with killable/turn-1/r1c1"
    assert ledger.count("put 1") == 2


@pytest.mark.full
async def test_engine_killed_in_a_turn_finishes_it_after_its_return(
    killable: Any, ledger: Any, close_gate: Any
) -> None:
    gate = close_gate("reading")
    session = killable.session
    await session.client.start_session(
        session.session_id, script({"calls": [["look", {"id": 1, "gate": "reading"}]]}, {})
    )
    await killable.wait_line("look 1")
    await killable.engine.kill()
    await killable.engine.start()
    gate.open()
    await killable.connect()
    session = killable.session
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.messages[-1].text.startswith("completed: look 1 done")
    assert ledger.count("model turn-1 1") == ledger.count("model turn-1 2") == 1


@pytest.mark.full
async def test_message_sent_without_a_worker_is_taken_by_the_next_one(killable: Any) -> None:
    session = killable.session
    await session.turn("one")
    await killable.worker.kill()
    sending = asyncio.create_task(
        session.client.send_user_message(session.session_id, "two", message_id="m2")
    )
    await killable.start_worker()
    receipt = await sending
    assert (receipt.turn_id, receipt.sequence) == ("turn-2", 3)
    assert (await session.turn("two", message_id="m2")).text == "you said two"
