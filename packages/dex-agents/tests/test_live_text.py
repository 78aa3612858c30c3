"""How the text of a model call leaves: the first piece at once, later ones together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_programs import finish, script

from dex_agents import AgentEventType, TokenUsage


def texts(session: Any, type: str = "text_delta") -> list[str]:
    return [payload["text"] for found, payload in session.events if found == type]


async def run_with(session: Any, program: Any, model: Any) -> None:
    program.runner.replace_model(model)
    await session.turn("hello")
    await session.wait_event(AgentEventType.TURN_COMPLETED)


async def test_first_piece_leaves_at_once_and_the_next_ones_together(
    session: Any, program: Any
) -> None:
    async def talk(request: Any, emitter: Any) -> Any:
        for piece in ("one ", "two ", "three ", "four"):
            emitter.text(piece)
        return finish("done")

    await run_with(session, program, talk)
    assert texts(session) == ["one ", "two three four"]


async def test_first_piece_is_readable_while_the_model_still_talks(
    session: Any, close_gate: Any
) -> None:
    gate = close_gate("talking")
    turn = asyncio.create_task(
        session.turn(script({"emit": ["first"], "gate": "talking", "say": "x"}))
    )
    payload = await session.wait_event(AgentEventType.TEXT_DELTA)
    assert payload["text"] == "first"
    assert not turn.done()
    gate.open()
    await turn


async def test_collected_pieces_leave_after_the_pause_or_when_they_are_many(
    open_host: Any, program: Any
) -> None:
    session = (await open_host(text_interval=3600.0, text_bytes=10)).session("one")

    async def talk(request: Any, emitter: Any) -> Any:
        for _ in range(8):
            emitter.text("xxxx")
        return finish("done")

    await run_with(session, program, talk)
    assert texts(session) == ["xxxx", "x" * 12, "x" * 12, "xxxx"]


async def test_pause_lets_collected_pieces_go(open_host: Any, program: Any) -> None:
    session = (await open_host(text_interval=0.01)).session("one")
    seen = asyncio.Event()

    async def talk(request: Any, emitter: Any) -> Any:
        emitter.text("a")
        emitter.text("b")
        await asyncio.wait_for(seen.wait(), 30)
        return finish("done")

    program.runner.replace_model(talk)
    turn = asyncio.create_task(session.turn("hello"))
    await session.wait_event(AgentEventType.TEXT_DELTA, text="b")
    seen.set()
    await turn


async def test_text_reasoning_and_model_calls_keep_their_order(session: Any, program: Any) -> None:
    async def talk(request: Any, emitter: Any) -> Any:
        emitter.model_call_started()
        emitter.reasoning("hm ")
        emitter.reasoning("hm")
        emitter.text("so ")
        emitter.text("")
        emitter.text("so")
        emitter.model_call_finished(TokenUsage(5, 6))
        return finish("done")

    await run_with(session, program, talk)
    assert [type for type, _ in session.events] == [
        "turn_started",
        "model_call_started",
        "reasoning_delta",
        "reasoning_delta",
        "text_delta",
        "text_delta",
        "model_call_finished",
        "turn_completed",
    ]
    assert texts(session, "reasoning_delta") == ["hm ", "hm"]
    assert texts(session) == ["so ", "so"]
    assert session.events[-2][1]["usage"]["input_tokens"] == 5
    assert session.events[4][1]["event_id"] == "text_delta/RunModel-1/1/4"


async def test_very_long_piece_is_split_and_not_cut(session: Any, program: Any) -> None:
    text = "é\U0001f600" * 20_000

    async def talk(request: Any, emitter: Any) -> Any:
        emitter.text(text)
        return finish("done")

    await run_with(session, program, talk)
    assert "".join(texts(session)) == text


@pytest.mark.full
async def test_repeated_model_call_streams_anew_under_other_ids(session: Any) -> None:
    await session.turn(script({"emit": ["hello"], "fail": 1, "say": "hello"}))
    await session.wait_event(AgentEventType.TURN_COMPLETED)
    ids = [payload["event_id"] for type, payload in session.events if type == "text_delta"]
    assert ids == ["text_delta/RunModel-1/1/1", "text_delta/RunModel-1/2/1"]


async def test_stream_yields_each_event_once(session: Any) -> None:
    await session.turn(script({"emit": ["hello"], "fail": 1, "say": "hello"}))
    types = []
    async with asyncio.timeout(30):
        async for event in session.client.stream_agent_events(session.session_id):
            types.append(event.value.type)
            if event.value.type == AgentEventType.TURN_COMPLETED:
                break
    assert types == ["turn_started", "text_delta", "text_delta", "turn_completed"]


async def test_pieces_that_come_after_the_model_call_are_dropped(
    session: Any, program: Any
) -> None:
    emitters: list[Any] = []

    async def talk(request: Any, emitter: Any) -> Any:
        emitters.append(emitter)
        return finish("done")

    await run_with(session, program, talk)
    emitters[0].text("late")
    emitters[0].model_call_started()
    await session.turn("more")
    await session.wait_event(AgentEventType.TURN_COMPLETED, turn_id="turn-2")
    assert texts(session) == []
