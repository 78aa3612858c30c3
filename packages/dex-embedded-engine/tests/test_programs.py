"""Programs on the unmodified SDK, Workers in other processes, sync and async."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import engine_flows
import pytest
from dex import RpcLockConflictError

from dex_embedded_engine import EmbeddedEngine

pytestmark = pytest.mark.parametrize("mode", ["sync", "async"])


async def test_sequential_steps_run_once_each_and_carry_their_state(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any, ledger: Path
) -> None:
    await start_worker(engine.address, mode)
    await flow_client.start("Sequence", "sum", 20)
    assert await flow_client.result("sum", int) == 210
    assert ledger.read_text(encoding="utf-8").splitlines() == [
        f"count sum {n} 1" for n in range(20, -1, -1)
    ]


async def test_parallel_steps_join_on_a_channel(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any, ledger: Path
) -> None:
    await start_worker(engine.address, mode)
    await flow_client.start("Parallel", "fan", 8)
    assert await flow_client.result("fan", int) == sum(range(8)) * 10
    lines = ledger.read_text(encoding="utf-8").splitlines()
    assert sorted(lines[:-1]) == sorted(["fan fan", *(f"branch fan {n}" for n in range(8))])
    assert lines[-1].startswith("join fan")


async def test_an_rpc_starts_a_step(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any
) -> None:
    await start_worker(engine.address, mode)
    await flow_client.start("Desk", "desk", None)
    await flow_client.call("record", "desk", "first")
    assert await flow_client.result("desk", str) == "first"
    assert await flow_client.call("read_notes", "desk") == {"first": "recorded first"}


async def test_a_timer_fires_when_its_time_has_come(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any
) -> None:
    await start_worker(engine.address, mode)
    await flow_client.start("Nap", "nap", 1)
    assert await flow_client.result("nap", str) == "awake"


async def test_a_stream_is_read_while_the_step_still_writes_it(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any, close_gate: Any
) -> None:
    listened = close_gate("listened")
    await start_worker(engine.address, mode)
    stream = engine_flows.lines
    await flow_client.start("Talk", "talk", 3)
    first = await flow_client.client.read_stream("talk", stream, "")
    assert (first.value, first.source) == ("line 0", "#Speak-1")
    listened.open()
    second = await flow_client.client.read_stream("talk", stream, first.resume_token)
    third = await flow_client.client.read_stream("talk", stream, second.resume_token)
    assert (second.value, third.value) == ("line 1", "line 2")
    assert await flow_client.result("talk", int) == 3


async def test_a_value_of_three_megabytes_goes_through_input_attribute_and_result(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any
) -> None:
    await start_worker(engine.address, mode)
    value = "0123456789" * 300_000
    await flow_client.start("Haul", "haul", value)
    assert await flow_client.result("haul", str) == value


async def test_a_locked_rpc_called_by_a_hundred_callers_counts_its_successes(
    mode: str, engine: EmbeddedEngine, start_worker: Any, flow_client: Any
) -> None:
    await start_worker(engine.address, mode)
    await flow_client.start("Desk", "desk", None)

    async def increment() -> bool:
        try:
            await flow_client.call("increment_locked", "desk")
        except RpcLockConflictError:
            return False
        return True

    outcomes = await asyncio.gather(*(increment() for _ in range(100)))
    assert sum(outcomes) >= 1
    assert await flow_client.call("read", "desk") == sum(outcomes)
