"""Steps whose first attempt is lost after it has begun: they decide in a new execution."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from agent_programs import contents, script

from dex_agents import AgentEventType, AgentRunError
from dex_agents.steps import await_tool_approval, call_tool, finish_turn, start_agent_session


class LostAttemptError(AgentRunError):
    """Stands for a Worker that is lost."""


def lose_first_call(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, count: int = 1
) -> None:
    """Let the first calls of a function that a Step uses fail."""
    original: Callable[..., Any] = getattr(module, name)
    calls: list[object] = []

    def lose(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) <= count:
            raise LostAttemptError("the attempt is lost")
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, lose)


async def steps(session: Any, step_type: str) -> list[tuple[str, int]]:
    history = await session.history()
    return [
        (each.step, each.attempts)
        for each in history
        if each.step_type == step_type and each.method == "execute"
    ]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def test_start_that_is_lost_begins_the_first_turn_once(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_first_call(start_agent_session, "begin_turn", monkeypatch)
    result = await session.turn("hello")
    assert result.turn_id == "turn-1"
    assert await steps(session, "StartAgentSession") == [
        ("StartAgentSession-1", 2),
        ("StartAgentSession-2", 1),
    ]
    assert len(await steps(session, "RunModel")) == 1


async def test_end_of_a_turn_that_is_lost_sees_a_message_that_came_meanwhile(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_first_call(finish_turn, "write_header", monkeypatch)
    await session.client.start_session(session.session_id, "hello")
    # Announced by the attempt that is lost; the lock is free until the next one.
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    receipt = await session.client.send_user_message(session.session_id, "more")
    snapshot = await session.until(lambda each: each.message_count == 4)
    assert receipt.turn_id in {None, "turn-2"}
    assert contents(snapshot.messages)[2:] == ["user: more", "assistant: you said more"]
    assert (await steps(session, "FinishTurn"))[:2] == [("FinishTurn-1", 2), ("FinishTurn-2", 1)]
    assert len(await steps(session, "RunModel")) == 2


async def test_approval_that_is_lost_runs_the_call_once(
    session: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_first_call(await_tool_approval, "write_call", monkeypatch)
    turn = asyncio.create_task(session.turn(script({"calls": [["wire", {"id": 1}]]}, {})))
    await session.approve()
    assert (await turn).text.startswith("completed: wire 1")
    assert ledger.count("wire 1") == 1
    assert await steps(session, "AwaitToolApproval") == [
        ("AwaitToolApproval-1", 2),
        ("AwaitToolApproval-2", 1),
    ]


async def test_call_that_cannot_be_started_is_failed_and_its_body_never_entered(
    open_host: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await open_host(maximum_lost_workers=1, maximum_failures=1)).session("one")
    lose_first_call(call_tool, "write_call", monkeypatch, count=2)
    result = await session.turn(script({"calls": [["pay", {"id": 1}]]}, {}))
    assert result.text == "failed: The tool call failed: it could not be started"
    assert ledger.count("pay 1") == 0
