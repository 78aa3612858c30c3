"""Turns of real sessions, with create_agent and with a StateGraph: what runs, and how often."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import langgraph_programs
import pytest

from dex_agents import (
    AgentEventType,
    AgentSessionClient,
    MessageRole,
    ToolCallStatus,
    TurnState,
    open_agent_host,
)
from dex_agents.testing import StepCall, TestEngine, read_step_history

BOTH = pytest.mark.parametrize("flow_type", ["Agent", "Graph"])
BOTH_IN_FULL = pytest.mark.parametrize(
    "flow_type", ["Agent", pytest.param("Graph", marks=pytest.mark.full)]
)


@pytest.fixture
async def sessions(engine: TestEngine, flow_type: str) -> AsyncIterator[AgentSessionClient]:
    """A client of the sessions of one flow type, which this process serves."""
    flow = langgraph_programs.make_flows()[flow_type]
    async with open_agent_host([flow], server_address=engine.address) as host:
        yield host.sessions(flow)


async def run_answered_turn(sessions: AgentSessionClient, text: str, **answer: Any) -> list[Any]:
    """Start session ``s``, answer its interrupt when it is raised; return its stored messages.

    They are read at the moment the turn's end is announced.
    """
    await sessions.start_session("s", text)
    async with asyncio.timeout(30):
        async for event in sessions.stream_agent_events("s"):
            if event.value.type == AgentEventType.INTERRUPT_RAISED:
                interrupt_id = json.loads(event.value.payload)["interrupt_id"]
                await sessions.resolve_interrupt("s", interrupt_id, **answer)
            if event.value.type == AgentEventType.TURN_COMPLETED:
                break
    return list((await sessions.get_agent_snapshot("s")).messages)


async def read_turn(engine: TestEngine, session_id: str) -> list[str]:
    """Return the handler calls of a session without its start, sorted."""
    history = await read_step_history(engine.address, session_id)
    calls = [f"{call.step_type}.{call.method}" for call in history]
    assert calls[0] == "StartAgentSession.execute"
    return sorted(calls[1:])


@BOTH
async def test_a_plain_turn_is_two_handler_calls(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    turn = await sessions.run_turn("s", "hello")
    assert (turn.state, turn.text) == (TurnState.COMPLETED, "Hello there friend")
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (10, 5)
    assert await read_turn(engine, "s") == ["FinishTurn.execute", "RunModel.execute"]


@BOTH
async def test_a_tool_turn_runs_its_call_in_one_step_between_two_model_calls(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    turn = await sessions.run_turn("s", "lookup a")
    assert turn.text == "Done: found a"
    assert turn.usage.input_tokens == 20
    assert [(m.role, m.tool_output) for m in turn.messages] == [
        (MessageRole.USER, None),
        (MessageRole.ASSISTANT, None),
        (MessageRole.TOOL, "found a"),
        (MessageRole.ASSISTANT, None),
    ]
    assert await read_turn(engine, "s") == [
        "AnnounceToolResult.execute",
        "CallTool.execute",
        "CallTool.wait_for",
        "FinishTurn.execute",
        "ResumeTurn.execute",
        "ResumeTurn.wait_for",
        "RunModel.execute",
        "RunModel.execute",
    ]


@BOTH_IN_FULL
async def test_a_parallel_turn_costs_three_handler_calls_for_each_call(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    turn = await sessions.run_turn("s", "lookup a b c")
    assert turn.text == "Done: found a | found b | found c"
    assert Counter(await read_turn(engine, "s")) == {
        "AnnounceToolResult.execute": 3,
        "CallTool.execute": 3,
        "CallTool.wait_for": 3,
        "FinishTurn.execute": 1,
        "ResumeTurn.execute": 1,
        "ResumeTurn.wait_for": 1,
        "RunModel.execute": 2,
    }


@BOTH
async def test_an_approval_adds_two_handler_calls_and_the_tool_gets_its_key(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    messages = await run_answered_turn(sessions, "refund 7", approved=True)
    assert messages[-1].text == "Done: refunded 7 with s/turn-1/refund-7"
    assert await read_turn(engine, "s") == [
        "AnnounceToolResult.execute",
        "AwaitToolApproval.execute",
        "AwaitToolApproval.wait_for",
        "CallTool.execute",
        "CallTool.wait_for",
        "FinishTurn.execute",
        "ResumeTurn.execute",
        "ResumeTurn.wait_for",
        "RunModel.execute",
        "RunModel.execute",
    ]


@BOTH_IN_FULL
async def test_a_rejection_reaches_the_model_with_its_reason(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    messages = await run_answered_turn(sessions, "refund 7", approved=False, reason="too late")
    stored = json.loads(messages[2].framework_item)["data"]
    assert stored["status"] == "error"
    assert "too late" in stored["content"]
    assert not any(step.startswith("CallTool") for step in await read_turn(engine, "s"))


@BOTH_IN_FULL
async def test_edited_arguments_are_what_runs_and_the_model_is_told(
    engine: TestEngine, sessions: AgentSessionClient, flow_type: str
) -> None:
    edited = {"item": "8"}
    messages = await run_answered_turn(sessions, "refund 7", approved=True, edited_arguments=edited)
    told = '(ran with edited arguments {"item": "8"})\nrefunded 8 with s/turn-1/refund-7'
    assert messages[-1].text == f"Done: {told}"


@BOTH_IN_FULL
async def test_two_calls_of_one_model_message_overlap_in_time(
    engine: TestEngine, start_worker: Any, connect: Any, close_gate: Any, flow_type: str
) -> None:
    gates = [close_gate("lookup-a"), close_gate("lookup-b")]
    worker = await start_worker(engine.address)
    sessions = await connect(engine.address, flow_type)
    turn = asyncio.create_task(sessions.run_turn("s", "lookup a b"))
    assert await worker.read_line() == "model lookup a b"
    # Both bodies have been entered, and none has returned.
    assert {await worker.read_line(), await worker.read_line()} == {"lookup a", "lookup b"}
    for gate in gates:
        gate.open()
    assert (await turn).text == "Done: found a | found b"
    history = await read_step_history(engine.address, "s")
    first, second = [c for c in history if (c.step_type, c.method) == ("CallTool", "execute")]
    assert first.step != second.step
    assert overlap(first, second)


def overlap(first: StepCall, second: StepCall) -> bool:
    return first.started_at < second.ended_at and second.started_at < first.ended_at


@BOTH
@pytest.mark.full
async def test_a_failed_turn_tells_the_next_one_what_had_run(
    engine: TestEngine, start_worker: Any, connect: Any, ledger: Path, flow_type: str
) -> None:
    await start_worker(engine.address)
    sessions = await connect(engine.address, flow_type)
    turn = await sessions.run_turn("s", "pay a fail")
    assert turn.state is TurnState.FAILED
    assert "the model is out of order" in (turn.error or "")
    snapshot = await sessions.get_agent_snapshot("s")
    assert [call.status for call in snapshot.tool_calls] == [ToolCallStatus.COMPLETED]
    note = json.loads(snapshot.messages[-1].framework_item)
    assert note["type"] == "human"
    assert note["data"]["id"].startswith("dex-user-")
    assert "paid a" in note["data"]["content"]
    assert (await sessions.run_turn("s", "hello")).text == "Hello there friend"
    assert ledger.read_text(encoding="utf-8").splitlines() == [
        "model pay a fail",
        "pay a",
        *["model pay a fail"] * 3,
        "model hello",
    ]
