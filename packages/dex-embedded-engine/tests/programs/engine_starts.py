"""Owns starting engines in tests of starts: one that must serve, and one that must be refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine_wire import Wire
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine import EmbeddedEngine, EngineUsageError

FAST = "process-crash-safe"


async def is_served(address: str) -> None:
    """Have an engine at `address` answer."""
    async with Wire(address) as wire:
        await wire.flows.HealthCheck(Empty())


async def starts(data_dir: Path, **options: Any) -> None:
    """Start an engine and see it serve."""
    async with EmbeddedEngine(data_dir, durability=FAST, **options) as engine:
        await is_served(engine.address)


async def refusal_of_start(data_dir: Path | str, **options: Any) -> str:
    """Start an engine that must be refused, and return the message."""
    try:
        async with EmbeddedEngine(data_dir, durability=FAST, **options):
            pass
    except EngineUsageError as error:
        return str(error)
    raise AssertionError("the start was not refused")


def open_files(folder: Path) -> set[str]:
    """Return what this process has open in `folder`."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except FileNotFoundError:
            continue  # the handle with which the folder was listed
    return {each for each in found if each.startswith(str(folder))}
