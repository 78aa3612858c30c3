"""Models and tools that fail or hang: how often they run, and what is said of them."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from agent_programs import ProviderError, contents, script

from dex_agents import AgentEventType, SessionStatus, TokenUsage, ToolCallStatus, TurnState
from dex_agents.turn_failure import retry_pause
from dex_agents.wall_clock import read_wall_clock


@pytest.mark.full
async def test_model_that_fails_twice_completes_the_turn(session: Any, ledger: Any) -> None:
    result = await session.turn(script({"fail": 2, "say": "at last"}))
    assert (result.state, result.text) == (TurnState.COMPLETED, "at last")
    assert ledger.count("model turn-1 1") == 3


async def test_model_that_fails_three_times_fails_the_turn_and_not_the_session(
    session: Any, ledger: Any
) -> None:
    result = await session.turn(script({"fail": 9}))
    error = "the model call failed 3 times, last with ProviderError: the provider is overloaded"
    assert (result.state, result.error) == (TurnState.FAILED, error)
    assert contents(result.messages)[1:] == []
    assert ledger.count("model turn-1 1") == 3
    failed = await session.wait_event(AgentEventType.TURN_FAILED)
    assert (failed["error"], failed["event_id"]) == (error, "turn_failed/turn-1")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert (snapshot.last_turn_error, snapshot.status) == (error, SessionStatus.IDLE)

    assert (await session.turn("again")).text == "you said again"
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.last_turn_error is None


@pytest.mark.full
async def test_failed_turn_leaves_a_note_of_what_its_tools_did(session: Any) -> None:
    calls = [["pay", {"id": 1}], ["look", {"id": 2, "fail": 9, "error": "failed"}]]
    result = await session.turn(script({"calls": calls}, {"fail": 9}))
    assert result.state is TurnState.FAILED
    note = result.messages[-1]
    key = f"{session.session_id}/turn-1/r1c1"
    assert (note.role, note.text.splitlines()) == (
        "user",
        [
            "The previous turn failed before it was answered. These tool calls had ended:",
            f"- pay: completed: pay 1 done with {key}",
            "- look: failed: The tool call failed: there is no such order",
            "Do not repeat calls that took effect.",
        ],
    )
    assert result.usage == TokenUsage()
    assert (await session.turn("again")).text == "you said again"


@pytest.mark.full
async def test_pause_between_model_failures_follows_retry_after(session: Any) -> None:
    result = await session.turn(script({"fail": 1, "retry_after": "3", "say": "x"}))
    assert result.text == "x"
    (call,) = [each for each in await session.history() if each.step_type == "RunModel"]
    assert call.attempts == 2
    assert call.ended_at - call.started_at >= 3


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_pause(ProviderError("7")) == 7
    assert retry_pause(ProviderError("0.2")) == 1
    assert retry_pause(ProviderError("1e9")) == 3600
    date = formatdate(read_wall_clock() + 100, usegmt=True)
    assert 90 <= (retry_pause(ProviderError(date)) or 0) <= 100
    for nonsense in (None, "", "soon", "nan", "inf"):
        assert retry_pause(ProviderError(nonsense)) is None


def test_retry_after_is_found_behind_an_exception_that_wraps_the_providers() -> None:
    wrapper = RuntimeError("the framework's own")
    wrapper.__cause__ = ProviderError("7")
    assert retry_pause(wrapper) == 7


@pytest.mark.full
async def test_model_that_hangs_counts_as_failed(open_host: Any, ledger: Any) -> None:
    agent = await open_host(model_timeout=0.2, maximum_failures=2)
    result = await agent.session("one").turn(script({"hang": 1}))
    assert result.error == (
        "the model call failed 2 times, last with TimeoutError: it ran longer than 0.2 seconds"
    )
    assert ledger.count("model turn-1 1") == 2


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "the runner returned 'NoneType'"),
        ("text", "the runner returned 'str'"),
    ],
)
async def test_runner_that_breaks_its_contract_fails_the_turn(
    open_host: Any, program: Any, result: Any, reason: str
) -> None:
    session = (await open_host(maximum_failures=1)).session("one")
    turn = await session.turn(script({"result": result}))
    assert turn.state is TurnState.FAILED
    assert reason in (turn.error or "")


@pytest.mark.parametrize("call_id", ["", " ", "a/b", "x" * 200, "\ud800", "same"])
async def test_tool_call_ids_that_cannot_name_a_call_fail_the_turn(
    open_host: Any, program: Any, call_id: str
) -> None:
    async def ask(request: Any, emitter: Any) -> Any:
        return program.runner.ask({}, ("same", "look", {}), (call_id, "look", {}))

    program.runner.replace_model(ask)
    session = (await open_host(maximum_failures=1)).session("one")
    turn = await session.turn("hello")
    assert turn.state is TurnState.FAILED
    assert "tool call ids" in (turn.error or "")


@pytest.mark.parametrize("arguments", [{"id": float("nan")}, {"id": b"bytes"}, {"id": {1, 2}}])
async def test_arguments_that_are_not_json_fail_the_turn_and_leave_nothing(
    open_host: Any, program: Any, arguments: Any
) -> None:
    async def ask(request: Any, emitter: Any) -> Any:
        return program.runner.ask({}, ("good", "look", {"id": 1}), ("bad", "look", arguments))

    program.runner.replace_model(ask)
    session = (await open_host(maximum_failures=1)).session("one")
    turn = await session.turn("hello")
    assert "is not JSON" in (turn.error or "")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls == ()


async def call_and_count(session: Any, ledger: Any, tool: str, **arguments: Any) -> Any:
    """Run one call; return its record and how often its body ran."""
    await session.turn(script({"calls": [[tool, {"id": 1, **arguments}]]}, {}))
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    return snapshot.tool_calls[0], ledger.count(f"{tool} 1")


@pytest.mark.full
async def test_read_that_fails_three_times_is_failed(session: Any, ledger: Any) -> None:
    call, runs = await call_and_count(session, ledger, "look", fail=9)
    assert (call.status, runs) == (ToolCallStatus.FAILED, 3)
    assert call.output == "The tool call failed: ValueError: secret words of the tool"


async def test_read_that_fails_once_is_completed(session: Any, ledger: Any) -> None:
    call, runs = await call_and_count(session, ledger, "look", fail=1)
    assert (call.status, runs) == (ToolCallStatus.COMPLETED, 2)


@pytest.mark.full
async def test_idempotent_write_that_fails_three_times_has_an_unknown_outcome(
    session: Any, ledger: Any
) -> None:
    call, runs = await call_and_count(session, ledger, "put", fail=9)
    assert (call.status, runs) == (ToolCallStatus.OUTCOME_UNKNOWN, 3)
    assert "outcome is unknown" in call.output


@pytest.mark.full
@pytest.mark.parametrize("tool", ["pay", "other"])
async def test_single_attempt_write_that_fails_has_an_unknown_outcome_at_once(
    session: Any, ledger: Any, tool: str
) -> None:
    call, runs = await call_and_count(session, ledger, tool, fail=9)
    assert (call.status, runs) == (ToolCallStatus.OUTCOME_UNKNOWN, 1)


@pytest.mark.parametrize("tool", [pytest.param("look", marks=pytest.mark.full), "put", "pay"])
@pytest.mark.parametrize(
    ("error", "reason"), [("invalid", "id must be a number"), ("failed", "there is no such order")]
)
async def test_call_that_says_it_failed_is_failed_at_once(
    session: Any, ledger: Any, tool: str, error: str, reason: str
) -> None:
    call, runs = await call_and_count(session, ledger, tool, fail=9, error=error)
    assert (call.status, runs) == (ToolCallStatus.FAILED, 1)
    assert call.output == f"The tool call failed: {reason}"


async def test_call_without_required_arguments_is_failed_and_never_entered(
    session: Any, ledger: Any
) -> None:
    await session.turn(script({"calls": [["pay", {}]]}, {}))
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.tool_calls[0].status is ToolCallStatus.FAILED
    assert ledger.lines() == ["model turn-1 1", "model turn-1 2"]


async def test_tool_that_ends_the_process_ends_its_call_only(session: Any, ledger: Any) -> None:
    call, runs = await call_and_count(session, ledger, "pay", fail=9, error="exit")
    assert (call.status, runs) == (ToolCallStatus.OUTCOME_UNKNOWN, 1)
    assert (await session.turn("still there?")).text == "you said still there?"


@pytest.mark.full
async def test_tool_that_hangs_longer_than_its_policy_allows_counts_as_failed(
    open_host: Any, ledger: Any
) -> None:
    session = (await open_host(maximum_failures=1)).session("one")
    call, runs = await call_and_count(session, ledger, "quick", hang=1)
    assert (call.status, runs) == (ToolCallStatus.FAILED, 1)
    assert call.output == "The tool call failed: TimeoutError: it ran longer than 1 seconds"


async def test_write_that_hangs_longer_than_the_settings_allow_has_an_unknown_outcome(
    open_host: Any, ledger: Any
) -> None:
    session = (await open_host(tool_timeout=0.2)).session("one")
    call, runs = await call_and_count(session, ledger, "pay", hang=1)
    assert (call.status, runs) == (ToolCallStatus.OUTCOME_UNKNOWN, 1)


@pytest.mark.full
async def test_one_call_that_fails_leaves_its_siblings_alone(session: Any) -> None:
    calls = [["pay", {"id": 1, "fail": 9}], ["look", {"id": 2}]]
    result = await session.turn(script({"calls": calls}, {}))
    first, second = result.text.split(" | ")
    assert first.startswith("outcome_unknown: ")
    assert second.startswith("completed: look 2")


async def test_message_that_the_agent_cannot_take_fails_its_turn_when_it_comes_first(
    session: Any,
) -> None:
    result = await session.turn("unreadable")
    assert (result.state, result.messages) == (TurnState.FAILED, ())
    assert result.error == (
        "the agent cannot take the message: ValueError: no message for this agent"
    )
    assert (await session.turn("hello")).text == "you said hello"
