"""How much the engine keeps on the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    Channel,
    PersistenceSchema,
    RPCResult,
    Stream,
    Wait,
    WorkerInvocationError,
    go_to,
    graceful_complete,
)
from engine_harness import Bench, First, Hold, ScriptedFlow

inbox = Channel("inbox", str)
turns = Attribute("turns", int)
bulk = Attribute("bulk", str)
lines = Stream("lines", str, 1_000_000)
DATABASE, LOG = "engine.sqlite3", "engine.sqlite3-wal"


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(inbox, turns, bulk, lines)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        bench.on(First, lambda *_: go_to(Hold, ""))
        bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
        yield bench


def sizes(bench: Bench) -> dict[str, int]:
    return {name: len(content) for name, content in bench.files().items()}


async def test_log_is_short_after_a_burst_of_big_values(bench: Bench) -> None:
    """D6: under a megabyte whenever the engine is idle."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        bulk.set(context, input * 400_000)
        return RPCResult("")

    await bench.start()
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", ask)
    for text in "abcdefghij":
        await bench.call("ask", text)
        await bench.state()
        assert sizes(bench)[LOG] < 1_000_000
    await bench.stop_engine()
    assert sizes(bench).get(LOG, 0) == 0


async def test_rpcs_without_effects_leave_nothing(bench: Bench) -> None:
    """D6: however big their inputs and outputs are, and if they fail."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        if input.startswith("x"):
            raise LookupError("no")
        return RPCResult(input[::-1])

    await bench.start()
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", ask)
    for number in range(10):
        text = f"{number}" * 300_000
        assert await bench.call("ask", text) == text
        with pytest.raises(WorkerInvocationError):
            await bench.call("ask", f"x{text}")
    await bench.stop_engine()
    assert sizes(bench)[DATABASE] < 200_000


async def test_two_hundred_tiny_flows_stay_small(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """D6: one Step each, one after the other."""
    bench.on(First, lambda context, input: graceful_complete(input))
    for number in range(200):
        await bench.start(f"flow-{number}", "hello")
        await bench.result(f"flow-{number}")
    await bench.stop_engine()
    size = sizes(bench)[DATABASE]
    with capsys.disabled():
        print(f"\n200 tiny Flows: {size} bytes")
    assert size < 500_000


async def test_two_hundred_tiny_turns_stay_small(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """D6: a message in, a few lines out, an Attribute, and waiting again."""

    async def hold(context: Any, input: str) -> Any:
        for number in range(3):
            lines.write(context, f"line {number} of an answer")
        turns.set(context, turns.get(context) + 1)
        return go_to(Hold, "")

    def ask(context: Any, input: str) -> RPCResult[str]:
        inbox.publish(context, input)
        return RPCResult("")

    bench.on(Hold, hold)
    bench.on_rpc("ask", ask)
    await bench.start()
    for number in range(1, 201):
        await bench.waiting(f"Hold-{number}")
        await bench.call("ask", "a message of some words")
    await bench.waiting("Hold-201")
    assert sizes(bench)[LOG] < 1_000_000
    await bench.stop_engine()
    size = sizes(bench)[DATABASE]
    with capsys.disabled():
        print(f"\n200 tiny turns: {size} bytes")
    assert size < 3_000_000
