"""Workers and engines that are killed in the middle of a turn; the ledger says what ran."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentEventType, AgentSessionClient, ToolCallStatus
from dex_agents.testing import TestEngine

BOTH = pytest.mark.parametrize(
    "flow_type", ["Agent", pytest.param("Graph", marks=pytest.mark.full)]
)


def entries(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text(encoding="utf-8").splitlines())


@BOTH
@pytest.mark.full
async def test_a_worker_killed_during_a_model_call_repeats_that_call_only(
    engine: TestEngine,
    start_worker: Any,
    connect: Any,
    close_gate: Any,
    ledger: Path,
    flow_type: str,
) -> None:
    first = await start_worker(engine.address)
    sessions = await connect(engine.address, flow_type)
    # The second model call of the turn, which goes on from the stored run state.
    tool_gate = close_gate("lookup-a")
    turn = asyncio.create_task(sessions.run_turn("s", "lookup a"))
    assert [await first.read_line(), await first.read_line()] == ["model lookup a", "lookup a"]
    model_gate = close_gate("model-lookup")
    tool_gate.open()
    assert await first.read_line() == "model lookup a"
    await first.kill()
    second = await start_worker(engine.address)
    assert await second.read_line() == "model lookup a"
    model_gate.open()
    assert (await turn).text == "Done: found a"
    assert entries(ledger) == {"model lookup a": 3, "lookup a": 1}


@BOTH
@pytest.mark.full
async def test_a_worker_killed_during_a_read_repeats_it_but_not_its_finished_sibling(
    engine: TestEngine,
    start_worker: Any,
    connect: Any,
    close_gate: Any,
    ledger: Path,
    flow_type: str,
) -> None:
    gate = close_gate("lookup-b")
    first = await start_worker(engine.address)
    sessions = await connect(engine.address, flow_type)
    await sessions.start_session("s", "lookup a b")
    await wait_for_event(sessions, AgentEventType.TOOL_CALL_FINISHED)
    while await first.read_line() != "lookup b":
        pass
    await first.kill()
    second = await start_worker(engine.address)
    assert await second.read_line() == "lookup b"
    gate.open()
    await wait_for_event(sessions, AgentEventType.TURN_COMPLETED)
    answer = (await sessions.get_agent_snapshot("s")).messages[-1].text
    assert answer == "Done: found a | found b"
    assert entries(ledger) == {"model lookup a b": 2, "lookup a": 1, "lookup b": 2}


@BOTH
async def test_a_worker_killed_during_a_single_attempt_write_leaves_its_outcome_unknown(
    engine: TestEngine,
    start_worker: Any,
    connect: Any,
    close_gate: Any,
    ledger: Path,
    flow_type: str,
) -> None:
    close_gate("pay-a")
    first = await start_worker(engine.address)
    sessions = await connect(engine.address, flow_type)
    turn = asyncio.create_task(sessions.run_turn("s", "pay a"))
    while await first.read_line() != "pay a":
        pass
    await first.kill()
    await start_worker(engine.address)
    assert "outcome is unknown" in (await turn).text
    (call,) = (await sessions.get_agent_snapshot("s")).tool_calls
    assert call.status is ToolCallStatus.OUTCOME_UNKNOWN
    assert entries(ledger) == {"model pay a": 2, "pay a": 1}


@BOTH
async def test_an_approval_survives_the_kill_of_engine_and_worker_and_the_call_runs_once(
    tmp_path: Path, start_worker: Any, connect: Any, ledger: Path, flow_type: str
) -> None:
    engine = TestEngine(tmp_path / "data")
    async with engine:
        worker = await start_worker(engine.address)
        sessions = await connect(engine.address, flow_type)
        await sessions.start_session("s", "refund 7")
        raised = await wait_for_event(sessions, AgentEventType.INTERRUPT_RAISED)
        await worker.kill()
        await engine.kill()
    async with engine:
        await start_worker(engine.address)
        sessions = await connect(engine.address, flow_type)
        (pending,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
        assert pending.interrupt_id == raised["interrupt_id"]
        assert (pending.tool_name, pending.arguments) == ("refund", {"item": "7"})
        await sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        await wait_for_event(sessions, AgentEventType.TURN_COMPLETED)
        answer = (await sessions.get_agent_snapshot("s")).messages[-1].text
    assert answer == "Done: refunded 7 with s/turn-1/refund-7"
    assert entries(ledger) == {"model refund 7": 2, "refund 7": 1}


async def wait_for_event(sessions: AgentSessionClient, type: AgentEventType) -> Any:
    """Return the payload of the first event of a type of session ``s``, waiting for it."""
    async with asyncio.timeout(30):
        async for event in sessions.stream_agent_events("s"):
            if event.value.type == type:
                return json.loads(event.value.payload)
