"""Calls that lose more Workers than they may: they end, and nothing waits for ever."""

from __future__ import annotations

from typing import Any

import pytest
from agent_programs import script

from dex_agents import ToolCallStatus, TurnState


@pytest.fixture
async def session(open_host: Any) -> Any:
    """A session whose calls may lose one Worker and fail once."""
    return (await open_host(maximum_lost_workers=1, maximum_failures=1)).session("one")


async def test_model_call_that_loses_too_many_workers_fails_its_turn_with_a_note(
    session: Any, ledger: Any
) -> None:
    result = await session.turn(script({"calls": [["pay", {"id": 1}]]}, {"lost": 1}))
    assert (result.state, result.error) == (
        TurnState.FAILED,
        "the model call lost too many Workers, or did not end in time",
    )
    assert "- pay: completed: pay 1 done" in result.messages[-1].text
    assert ledger.lines() == ["model turn-1 1", "pay 1", "model turn-1 2", "model turn-1 2"]
    assert (await session.turn("still there?")).text == "you said still there?"
    await session.at_rest()
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls == ()


@pytest.mark.parametrize(
    ("tool", "runs", "status"),
    [
        ("look", 2, ToolCallStatus.FAILED),
        pytest.param("put", 2, ToolCallStatus.OUTCOME_UNKNOWN, marks=pytest.mark.full),
        ("pay", 1, ToolCallStatus.OUTCOME_UNKNOWN),
    ],
)
async def test_tool_call_that_loses_too_many_workers_ends_by_its_effect(
    session: Any, ledger: Any, tool: str, runs: int, status: ToolCallStatus
) -> None:
    call = [tool, {"id": 1, "fail": 9, "error": "lost"}]
    await session.turn(script({"calls": [call]}, {}))
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls[0].status is status
    assert ledger.count(f"{tool} 1") == runs
    text = snapshot.tool_calls[0].output
    assert ("Worker that ran it was lost" in text) is (status is ToolCallStatus.FAILED)
    assert ("outcome is unknown" in text) is (status is ToolCallStatus.OUTCOME_UNKNOWN)


@pytest.mark.full
async def test_failures_are_counted_across_lost_workers(open_host: Any, ledger: Any) -> None:
    session = (await open_host(maximum_lost_workers=3, maximum_failures=2)).session("one")
    result = await session.turn(script({"attempts": ["fail", "lost", "fail"]}))
    assert result.error == (
        "the model call failed 2 times, last with ProviderError: the provider is overloaded"
    )
    assert ledger.count("model turn-1 1") == 3
