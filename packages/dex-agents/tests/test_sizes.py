"""Long outputs, messages, arguments, run states and histories: what fits, and what is said else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from agent_programs import ProgramRunner, contents, script

from dex_agents import (
    AgentEventType,
    AgentUsageError,
    InputTooLargeError,
    MessageDraft,
    MessageRole,
    SessionSettings,
    ToolCallStatus,
    TurnFinished,
    TurnState,
    open_agent_host,
)
from dex_agents.errors import HistoryUnavailableError
from dex_agents.size_limits import split_text, travelling_size

KIB, MIB = 1024, 1024 * 1024


async def run_calls(session: Any, *calls: list[Any], **rest: Any) -> Any:
    """Run one round of calls; return the snapshot after it."""
    await session.turn(script({"calls": list(calls), **rest}, {"say": "done"}))
    return await session.client.get_agent_snapshot(session.session_id)


@pytest.mark.parametrize("of", ["x", "é", "\U0001f600", '"', "\\", "\n", "\ud800"])
@pytest.mark.parametrize("size", [pytest.param(3_000, marks=pytest.mark.full), 100_000])
async def test_output_of_any_length_reaches_model_and_snapshot_whole(
    session: Any, program: Any, of: str, size: int
) -> None:
    seen: list[str] = []

    class Watcher(ProgramRunner):
        async def run_model(self, request: Any, emitter: Any) -> Any:
            seen.extend(each.output for each in request.tool_results)
            return await super().run_model(request, emitter)

    program.runner.__class__ = Watcher
    snapshot = await run_calls(session, ["look", {"id": 1, "size": size, "of": of}])
    assert seen == [of * size]
    assert snapshot.tool_calls[0].output == of * size


async def test_long_output_is_cut_and_marked_in_its_event(session: Any) -> None:
    await run_calls(session, ["look", {"id": 1, "size": 100_000}])
    finished = await session.wait_event(AgentEventType.TOOL_CALL_FINISHED)
    assert finished["cut"] == ["output"]
    assert finished["output"].endswith("… [cut]")


async def test_output_over_the_budget_keeps_its_status_and_becomes_a_sentence(
    open_host: Any,
) -> None:
    session = (await open_host(tool_output_budget=10_000)).session("one")
    snapshot = await run_calls(
        session, ["look", {"id": 1, "size": 5_001}], ["pay", {"id": 2, "size": 5_000}]
    )
    first, second = snapshot.tool_calls
    assert (first.status, second.status) == (ToolCallStatus.COMPLETED, ToolCallStatus.COMPLETED)
    assert first.output == (
        "The result is too long: it takes 5001 bytes, and at most 5000 fit beside those of the "
        "other calls."
    )
    assert second.output == "x" * 5_000


async def test_eight_calls_may_return_two_mebibytes_together(session: Any) -> None:
    calls = [["look", {"id": number, "size": 2 * MIB // 8}] for number in range(8)]
    snapshot = await run_calls(session, *calls)
    assert [len(each.output) for each in snapshot.tool_calls] == [2 * MIB // 8] * 8


async def test_large_run_state_leaves_less_room_for_outputs(session: Any) -> None:
    snapshot = await run_calls(
        session, ["look", {"id": 1, "size": 5 * MIB // 4}], state=15 * MIB // 8
    )
    assert snapshot.tool_calls[0].output.startswith("The result is too long")
    assert snapshot.messages[-1].text == "done"


async def test_run_state_over_the_limit_fails_the_turn_at_once(session: Any, ledger: Any) -> None:
    turn = await session.turn(script({"calls": [["look", {"id": 1}]], "state": 3 * MIB}, {}))
    assert turn.state is TurnState.FAILED
    assert "the turn's run state takes 3145732 bytes" in (turn.error or "")
    assert ledger.lines() == ["model turn-1 1"]


async def test_arguments_over_the_limit_fail_their_call_and_tell_the_model(
    session: Any, ledger: Any
) -> None:
    turn = await session.turn(
        script({"calls": [["look", {"id": 1}], ["wire", {"id": "x" * 100 * KIB}]]}, {})
    )
    first, second = turn.text.split(" | ")
    assert first.startswith("completed: look 1")
    assert second.startswith("failed: The tool call failed: its arguments take")
    assert len(ledger.lines()) == 3


async def test_long_message_is_stored_whole_and_shown_cut(session: Any, program: Any) -> None:
    texts = ["é" * 150_000, "short", '"\\' * 75_000]

    async def talk(request: Any, emitter: Any) -> TurnFinished:
        return TurnFinished(
            [
                MessageDraft(MessageRole.ASSISTANT, each, json.dumps({"text": each}))
                for each in texts
            ]
        )

    program.runner.replace_model(talk)
    result = await session.turn("hello")
    assert result.state is TurnState.COMPLETED, result.error
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    stored = snapshot.messages[1:]
    assert [json.loads(each.framework_item)["text"] for each in stored] == texts
    assert [each.text == text for each, text in zip(stored, texts, strict=True)] == [
        False,
        True,
        False,
    ]
    assert stored[0].text.endswith("… [cut]")


async def test_turn_that_adds_more_than_can_be_stored_fails_at_once(
    session: Any, ledger: Any, program: Any
) -> None:
    turn = await session.turn(script({"say": "", "size": 4 * MIB}))
    assert turn.state is TurnState.FAILED
    assert "what the turn adds to the conversation takes" in (turn.error or "")
    assert ledger.lines() == ["model turn-1 1"]
    assert (await session.turn("still there?")).text == "you said still there?"


async def test_history_over_the_budget_is_read_through_the_bound_client(
    engine_address: str, program: Any
) -> None:
    seen: list[int] = []

    class Watcher(ProgramRunner):
        async def run_model(self, request: Any, emitter: Any) -> Any:
            seen.append(len(request.messages))
            for message in request.messages[1::2]:
                assert len(json.loads(message.framework_item)["text"]) == 300 * KIB + 2
            return await super().run_model(request, emitter)

    program.runner.__class__ = Watcher
    name, settings = f"long-{time.monotonic_ns()}", SessionSettings(history_budget=2 * KIB)
    texts = [script({"say": f"{number} ", "size": 300 * KIB}) for number in range(4)]
    # Two Workers, one after the other; the second has nothing of the session in its cache.
    for some in (texts[:3], texts[3:]):
        flow = program.flow(name, settings)
        async with open_agent_host([flow], server_address=engine_address) as host:
            for text in some:
                turn = await host.sessions(flow).run_turn(name, text)
                assert turn.state is TurnState.COMPLETED, turn.error
    assert seen == [1, 3, 5, 7]


async def test_history_over_the_budget_without_a_bound_client_fails_the_turn(
    open_host: Any,
) -> None:
    agent = await open_host(history_budget=100, maximum_failures=1)
    agent.flow.bind_client(None)
    session = agent.session("one")
    turn = await session.turn("hello " * 100)
    assert turn.state is TurnState.FAILED
    assert HistoryUnavailableError.__name__ in (turn.error or "")
    assert "bind_client" in (turn.error or "")


@pytest.mark.full
async def test_snapshot_of_many_messages_comes_in_pages(open_host: Any, program: Any) -> None:
    async def talk(request: Any, emitter: Any) -> TurnFinished:
        return TurnFinished(
            [
                MessageDraft(MessageRole.ASSISTANT, f"{each} " + "x" * 40 * KIB, "{}")
                for each in range(40)
            ]
        )

    program.runner.replace_model(talk)
    session = (await open_host()).session("one")
    await session.turn("hello")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert [each.text.split()[0] for each in snapshot.messages[1:]] == [str(n) for n in range(40)]


async def test_message_of_more_than_its_limit_is_refused(session: Any) -> None:
    with pytest.raises(InputTooLargeError, match="the message takes"):
        await session.client.start_session(session.session_id, "x" * 256 * KIB)
    await session.turn("hello")
    with pytest.raises(InputTooLargeError, match="the message takes"):
        await session.client.send_user_message(session.session_id, "x" * 256 * KIB)
    large = "x" * 200 * KIB
    assert contents((await session.turn(large)).messages)[1].startswith("assistant: you said xx")


async def test_configuration_over_its_limit_or_not_json_is_refused(session: Any) -> None:
    start = session.client.start_session
    with pytest.raises(InputTooLargeError, match="the configuration"):
        await start(session.session_id, "hello", config={"tags": ["x" * 17 * KIB]})
    with pytest.raises(AgentUsageError, match="JSON"):
        await start(session.session_id, "hello", config={"client": object()})


async def test_arguments_of_an_event_are_cut_and_whole_in_the_snapshot(session: Any) -> None:
    arguments = {"id": 1, "text": "x" * 80 * KIB}
    snapshot = await run_calls(session, ["look", arguments])
    started = await session.wait_event(AgentEventType.TOOL_CALL_STARTED)
    assert started["cut"] == ["arguments"]
    assert started["arguments"].startswith('{"id": 1')
    assert snapshot.tool_calls[0].arguments == arguments


@pytest.mark.full
async def test_turn_of_hundreds_of_calls_stays_within_all_limits(session: Any) -> None:
    calls = [["look", {"id": number, "size": 2_000}] for number in range(60)]
    tools = {"calls": calls}
    assert (await session.turn(script(tools, tools, tools, {"say": "done"}))).text == "done"
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert len(snapshot.tool_calls) == 180


@pytest.mark.parametrize(
    "text", ["", "x", "é" * 1000, "\ud83d\ude00" * 500, '"' * 999, "a\n" * 700]
)
def test_split_text_loses_nothing_and_keeps_its_limit(text: str) -> None:
    pieces = list(split_text(text, 100))
    assert "".join(pieces) == text
    assert all(travelling_size(each) <= 100 for each in pieces)
