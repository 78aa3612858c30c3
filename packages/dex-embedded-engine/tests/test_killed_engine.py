"""An engine killed at each commit point, and at random moments under load."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from dex import FlowStatus
from engine_errands import Errands, Supervisor

from dex_embedded_engine import EngineFailure
from dex_embedded_engine.failpoints import COMMIT_POINTS, FAILPOINTS
from dex_embedded_engine.testing import EngineProcess

QUICK = {"before/execute_result", "after/hand_out"}
RESTART_POINTS = {"before/recovery", "after/recovery"}


async def run_errands(errands: Errands) -> None:
    """Ask for everything that passes a commit point, and check what came of it."""
    await errands.start("Desk", "desk", None)
    await errands.start("Sequence", "sum", 10)
    await errands.start("Parallel", "fan", 6)
    await errands.start("Flaky", "flaky", "x")
    await errands.start("Job", "job", "open")
    await errands.start("Nap", "short", 1)
    await errands.start("Nap", "long", 1000)
    for number in range(4):
        await errands.mark("desk", f"mark-{number}")
        await errands.write("desk", f"message {number}")
    await errands.insist(lambda each: each.call("keep_secret", "desk", "first secret"))
    await errands.insist(lambda each: each.call("keep_secret", "desk", "second secret"))
    await errands.insist(lambda each: each.call("forget_secret", "desk"))
    await errands.stop("long")


async def check_errands(errands: Errands, ledger: Path) -> None:
    """Nothing acknowledged is lost, no result was applied twice, no Flow is stuck."""
    assert await errands.result("sum", int) == 55
    assert await errands.result("fan", int) == 150
    assert await errands.result("flaky", int) >= 2
    assert (await errands.result("job", list[int]))[0] >= 1
    assert await errands.result("short", str) == "awake"
    info = await errands.insist(lambda each: each.client.describe_flow("long"))
    assert info.status is FlowStatus.CANCELED
    assert await errands.insist(lambda each: each.call("read_secret", "desk")) == ""
    notes = await errands.insist(lambda each: each.call("read_notes", "desk"))
    assert set(notes) == set(errands.marks)
    for name, asked in errands.marks.items():
        assert 1 <= len(notes[name]) <= asked
    heard = await errands.messages("desk")
    assert list(dict.fromkeys(heard)) == errands.sent
    entered = [
        line for line in ledger.read_text(encoding="utf-8").splitlines() if line.startswith("count")
    ]
    assert {line.split()[2] for line in entered} == {str(number) for number in range(11)}


@pytest.mark.parametrize(
    "failpoint",
    [
        each if each in QUICK else pytest.param(each, marks=pytest.mark.full)
        for each in FAILPOINTS
        if each not in RESTART_POINTS
    ],
)
async def test_an_engine_killed_at_a_commit_point_loses_nothing_and_repeats_nothing(
    failpoint: str, folder: Path, start_worker: Any, connect: Any, ledger: Path
) -> None:
    """Two slots of which one is for RPCs: Steps are declined, so `hand_back` is passed too."""
    engine = EngineProcess(folder / "data", failpoint=failpoint)
    async with asyncio.timeout(90), Supervisor(engine) as supervisor:
        if failpoint.endswith("sync_indexes"):
            with pytest.raises(EngineFailure, match="before it was ready"):
                await start_worker(engine.address, slots=2)
            await supervisor.wait_reachable()
        await start_worker(engine.address, slots=2)
        errands = Errands(connect, supervisor)
        await run_errands(errands)
        await check_errands(errands, ledger)
        assert supervisor.restarts == 1


@pytest.mark.full
@pytest.mark.parametrize("failpoint", sorted(RESTART_POINTS))
async def test_an_engine_killed_while_it_recovers_recovers_at_the_next_start(
    failpoint: str, folder: Path, start_worker: Any, connect: Any, close_gate: Any
) -> None:
    gate = close_gate("work")
    engine = EngineProcess(folder / "data")
    await engine.start()
    worker = await start_worker(engine.address, echo=True)
    await connect(engine.address).start("Job", "job", "work")
    assert await worker.read_line() == "work job 1"
    await engine.kill()
    engine.arm(failpoint)
    async with asyncio.timeout(60), Supervisor(engine) as supervisor:
        errands = Errands(connect, supervisor)
        gate.open()
        assert (await errands.result("job", list[int]))[0] == 2
        assert supervisor.restarts == 1


def test_every_commit_point_has_a_failpoint_before_and_after_it() -> None:
    assert len(FAILPOINTS) == 2 * len(COMMIT_POINTS)


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_an_engine_killed_at_random_moments_under_load_loses_nothing(
    folder: Path, start_worker: Any, connect: Any, ledger: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = 20
    engine = EngineProcess(folder / "data")
    async with asyncio.timeout(280), Supervisor(engine) as supervisor:
        for mode in ("sync", "async"):
            await start_worker(engine.address, mode)
        errands = Errands(connect, supervisor)
        await errands.start("Desk", "desk", None)
        rounds = 0
        while supervisor.restarts < kills:
            number, rounds = rounds, rounds + 1
            batch = [f"sum-{number}-{each}" for each in range(4)]
            await asyncio.gather(*(errands.start("Sequence", each, 15) for each in batch))
            marks = [errands.mark("desk", f"{number}-{each}") for each in range(6)]
            moment = chance.uniform(0, 0.15)
            asyncio.get_running_loop().call_later(moment, engine.send, signal.SIGKILL)
            await asyncio.gather(*marks)
            await errands.write("desk", f"round {number}")
            for each in batch[:1]:
                assert await errands.result(each, int) == 120
        for name in [f"sum-{number}-{each}" for number in range(rounds) for each in range(4)]:
            assert await errands.result(name, int) == 120
        notes = await errands.insist(lambda each: each.call("read_notes", "desk"))
        assert set(notes) == set(errands.marks)
        assert all(1 <= len(notes[name]) <= asked for name, asked in errands.marks.items())
        assert list(dict.fromkeys(await errands.messages("desk"))) == errands.sent
        assert supervisor.restarts >= kills
