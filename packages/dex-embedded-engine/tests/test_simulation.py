"""Whole engines below gRPC, with Workers, clients, time and crashes drawn from a seed.

A seed that fails is run again with
``python tests/programs/engine_simulation.py --seeds 1 --start SEED --trace 80``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_simulation import Simulation

BATCH = 10
QUICK = range(0, 150, BATCH)
MORE = range(1_000, 1_600, BATCH)


def simulate(first: int, folder: Path) -> None:
    for seed in range(first, first + BATCH):
        simulation = Simulation(seed, folder)
        try:
            simulation.run()
        except Exception as problem:
            problem.add_note(f"seed {seed}; the end of its trace:")
            problem.add_note("\n".join(simulation.trace[-20:]))
            raise
        finally:
            simulation.close()


@pytest.mark.parametrize("first", QUICK)
def test_nothing_is_lost_and_nothing_happens_twice(first: int, tmp_path: Path) -> None:
    simulate(first, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("first", MORE)
def test_nothing_is_lost_and_nothing_happens_twice_with_more_seeds(
    first: int, tmp_path: Path
) -> None:
    simulate(first, tmp_path)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_decides_everything(seed: int, tmp_path: Path) -> None:
    digests = set()
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        simulation = Simulation(seed, folder)
        digests.add(simulation.run())
        assert len(simulation.trace) > 50
        simulation.close()
    assert len(digests) == 1
