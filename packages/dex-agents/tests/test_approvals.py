"""Tool calls that wait for somebody's approval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_programs import script

from dex_agents import (
    AgentEventType,
    AgentUsageError,
    InterruptAlreadyResolvedError,
    InterruptNotFoundError,
    InvalidArgumentsError,
    ToolCallStatus,
)


def asks_for(*tools: str) -> str:
    return script({"calls": [[tool, {"id": index}] for index, tool in enumerate(tools)]}, {})


async def call_of(session: Any, index: int = 0) -> Any:
    return (await session.client.get_agent_snapshot(session.session_id)).tool_calls[index]


async def test_approved_call_runs_once(session: Any, ledger: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    await session.approve(resolved_by="ann")
    assert (await turn).text.startswith("completed: refund 0 done")
    assert ledger.count("refund 0") == 1
    call = await call_of(session)
    assert (call.resolution.approved, call.resolution.resolved_by) == (True, "ann")
    assert call.resolution.resolved_at >= call.raised_at > 0


async def test_rejection_with_a_reason_is_told_to_the_model(session: Any, ledger: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    await session.approve(approved=False, reason="too expensive")
    assert (await turn).text == (
        "rejected: The call of tool 'refund' was rejected and did not run. Reason: too expensive"
    )
    assert ledger.count("refund 0") == 0


async def test_rejection_without_a_reason_is_told_to_the_model(session: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    await session.approve(approved=False)
    assert (await turn).text == "rejected: The call of tool 'refund' was rejected and did not run."


async def test_approval_with_edited_arguments_runs_those(session: Any, ledger: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    await session.approve(edited_arguments={"id": 42})
    assert (await turn).text.startswith("completed: refund 42")
    assert ledger.lines()[1] == "refund 42"
    call = await call_of(session)
    assert (call.arguments, call.effective_arguments) == ({"id": 0}, {"id": 42})
    started = await session.wait_event(AgentEventType.TOOL_CALL_STARTED)
    assert started["arguments"] == {"id": 42}


async def test_edited_arguments_that_do_not_match_are_refused_and_the_call_waits_on(
    session: Any, ledger: Any
) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    with pytest.raises(InvalidArgumentsError, match="'id'"):
        await session.approve(edited_arguments={"order": 1})
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    (interrupt,) = snapshot.pending_interrupts
    await session.client.resolve_interrupt(
        session.session_id, interrupt.interrupt_id, approved=True
    )
    assert (await turn).text.startswith("completed: refund 0")


async def test_edited_arguments_need_an_approval(session: Any) -> None:
    with pytest.raises(AgentUsageError, match="approved=True"):
        await session.client.resolve_interrupt(
            session.session_id, "turn-1:r1c1", approved=False, edited_arguments={}
        )


async def test_snapshot_shows_the_pending_interrupt(session: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("offer", "look")))
    payload = await session.wait_event(AgentEventType.INTERRUPT_RAISED)
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    (interrupt,) = snapshot.pending_interrupts
    assert interrupt.interrupt_id == payload["interrupt_id"]
    assert (interrupt.tool_name, interrupt.arguments) == ("offer", {"id": 0})
    assert interrupt.expires_at == interrupt.raised_at + 1
    assert snapshot.tool_calls[0].status is ToolCallStatus.AWAITING_APPROVAL
    await session.client.resolve_interrupt(
        session.session_id, interrupt.interrupt_id, approved=True
    )
    await turn


async def test_events_of_an_approval_come_in_order(session: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    interrupt_id = await session.approve(reason="fine")
    await turn
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    assert [type for type, _ in session.events] == [
        "turn_started",
        "interrupt_raised",
        "interrupt_resolved",
        "tool_call_started",
        "tool_call_finished",
        "turn_completed",
    ]
    raised, resolved = session.events[1][1], session.events[2][1]
    assert raised["event_id"] == "interrupt_raised/turn-1/r1c1"
    assert (raised["tool_call_id"], raised["tool_name"], raised["arguments"]) == (
        "r1c1",
        "refund",
        {"id": 0},
    )
    assert resolved["event_id"] == "interrupt_resolved/turn-1/r1c1"
    assert (resolved["interrupt_id"], resolved["approved"], resolved["reason"]) == (
        interrupt_id,
        True,
        "fine",
    )


async def test_same_answer_again_is_accepted_and_another_one_refused(
    session: Any, ledger: Any
) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    interrupt_id = await session.approve(reason="ok")
    resolve = session.client.resolve_interrupt
    await resolve(session.session_id, interrupt_id, approved=True, reason="ok")
    await turn
    await resolve(session.session_id, interrupt_id, approved=True, reason="ok", resolved_by="bob")
    for other in (
        {"approved": False, "reason": "ok"},
        {"approved": True, "reason": "other"},
        {"approved": True, "reason": "ok", "edited_arguments": {"id": 0}},
    ):
        with pytest.raises(InterruptAlreadyResolvedError, match="stands"):
            await resolve(session.session_id, interrupt_id, **other)
    assert ledger.count("refund 0") == 1


async def test_two_different_answers_at_once_leave_one_standing(session: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    payload = await session.wait_event(AgentEventType.INTERRUPT_RAISED)
    answers = [
        session.client.resolve_interrupt(session.session_id, payload["interrupt_id"], approved=each)
        for each in (True, False)
    ]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    refused = [each for each in outcomes if each is not None]
    assert [type(each) for each in refused] == [InterruptAlreadyResolvedError]
    await turn
    assert (await call_of(session)).resolution.approved is (outcomes[0] is None)


async def test_unanswered_approval_expires_and_counts_as_rejected(
    session: Any, ledger: Any
) -> None:
    result = await session.turn(asks_for("offer"))
    assert result.text == (
        "rejected: The call of tool 'offer' was rejected and did not run. Reason: nobody answered "
        "in time"
    )
    assert ledger.count("offer 0") == 0
    payload = await session.wait_event(AgentEventType.INTERRUPT_RESOLVED)
    assert (payload["approved"], payload["reason"]) == (False, "nobody answered in time")
    with pytest.raises(InterruptAlreadyResolvedError):
        await session.client.resolve_interrupt(
            session.session_id, payload["interrupt_id"], approved=True
        )


async def test_sibling_runs_while_the_approval_waits(session: Any, ledger: Any) -> None:
    turn = asyncio.create_task(session.turn(asks_for("refund", "look")))
    await session.wait_event(AgentEventType.TOOL_CALL_FINISHED, tool_name="look")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert [each.status for each in snapshot.tool_calls] == [
        ToolCallStatus.AWAITING_APPROVAL,
        ToolCallStatus.COMPLETED,
    ]
    await session.client.resolve_interrupt(session.session_id, "turn-1:r1c1", approved=True)
    await turn


async def test_interrupt_that_does_not_exist_is_not_found(session: Any) -> None:
    await session.turn(script({"calls": [["look", {"id": 1}]]}, {}))
    for name in ("turn-1:r1c9", "turn-1:r1c1", "no/such", ""):
        with pytest.raises(InterruptNotFoundError):
            await session.client.resolve_interrupt(session.session_id, name, approved=True)


async def test_edited_arguments_leave_less_room_for_the_output(open_host: Any) -> None:
    session = (await open_host(tool_output_budget=50_000)).session("one")
    turn = asyncio.create_task(session.turn(asks_for("refund")))
    await session.approve(edited_arguments={"id": 1, "size": 20_000, "note": "x" * 40_000})
    assert (await turn).text.startswith("completed: The result is too long: it takes 20000 bytes")
