"""What the engine's own history says of a turn: which Steps ran, and how many handler calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_programs import script

from dex_agents.testing import StepCall


def names(calls: list[StepCall]) -> list[str]:
    return [f"{each.step} {each.method}" for each in calls]


async def test_first_plain_turn_is_a_start_a_model_call_and_an_end(session: Any) -> None:
    await session.turn("hello")
    assert names(await session.history()) == [
        "StartAgentSession-1 execute",
        "RunModel-1 execute",
        "FinishTurn-1 execute",
    ]


async def test_later_plain_turn_takes_two_handler_calls(session: Any) -> None:
    await session.turn("one")
    before = await session.history()
    await session.turn("two")
    assert names((await session.history())[len(before) :]) == [
        "RunModel-2 execute",
        "FinishTurn-2 execute",
    ]


async def test_tool_turn_is_one_step_for_each_model_call_and_tool_call(session: Any) -> None:
    await session.turn(script({"calls": [["look", {"id": 1}]]}, {}))
    calls = names((await session.history())[1:])
    assert sorted(calls) == sorted(
        [
            "RunModel-1 execute",
            "CallTool-1 wait_for",
            "CallTool-1 execute",
            "AnnounceToolResult-1 execute",
            "ResumeTurn-1 wait_for",
            "ResumeTurn-1 execute",
            "RunModel-2 execute",
            "FinishTurn-1 execute",
        ]
    )
    assert calls[0] == "RunModel-1 execute"
    assert calls[-3:] == ["ResumeTurn-1 execute", "RunModel-2 execute", "FinishTurn-1 execute"]


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_turn_with_n_parallel_tools_takes_5_and_3_n_handler_calls(
    session: Any, count: int
) -> None:
    tools = [["pay" if number % 2 else "look", {"id": number}] for number in range(count)]
    await session.turn(script({"calls": tools}, {}))
    assert len((await session.history())[1:]) == 5 + 3 * count


async def test_approval_adds_two_handler_calls(session: Any) -> None:
    turn = asyncio.create_task(session.turn(script({"calls": [["refund", {"id": 1}]]}, {})))
    await session.approve()
    await turn
    calls = names((await session.history())[1:])
    assert len(calls) == 5 + 3 + 2
    first, *rest = [each for each in calls if not each.startswith("ResumeTurn-1 wait_for")]
    assert [first, *rest] == [
        "RunModel-1 execute",
        "AwaitToolApproval-1 wait_for",
        "AwaitToolApproval-1 execute",
        "CallTool-1 wait_for",
        "CallTool-1 execute",
        "AnnounceToolResult-1 execute",
        "ResumeTurn-1 execute",
        "RunModel-2 execute",
        "FinishTurn-1 execute",
    ]


async def test_rejected_call_never_becomes_a_tool_step(session: Any) -> None:
    turn = asyncio.create_task(session.turn(script({"calls": [["wire", {"id": 1}]]}, {})))
    await session.approve(approved=False)
    await turn
    types = {each.step_type for each in await session.history()}
    assert types == {
        "StartAgentSession",
        "RunModel",
        "AwaitToolApproval",
        "AnnounceToolResult",
        "ResumeTurn",
        "FinishTurn",
    }


async def test_effect_decides_which_step_runs_a_call(session: Any) -> None:
    tools = [[name, {"id": name}] for name in ("look", "put", "pay", "other")]
    await session.turn(script({"calls": tools}, {}))
    types = [each.step_type for each in await session.history() if each.method == "wait_for"]
    assert sorted(types) == [
        "CallSingleAttemptTool",
        "CallSingleAttemptTool",
        "CallTool",
        "CallTool",
        "ResumeTurn",
    ]


async def test_two_calls_of_one_model_message_overlap_in_time(session: Any, program: Any) -> None:
    program.barrier = asyncio.Barrier(2)
    tools = [["look", {"id": 1}], ["pay", {"id": 2}]]
    await session.turn(script({"calls": tools}, {}))
    ran = {each.step: each for each in await session.history() if each.method == "execute"}
    first, second = ran["CallTool-1"], ran["CallSingleAttemptTool-1"]
    assert first.started_at < second.ended_at
    assert second.started_at < first.ended_at
