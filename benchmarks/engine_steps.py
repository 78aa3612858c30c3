"""How fast the embedded engine runs Steps, beside what a Step cannot be faster than.

Engine, Worker and Client are three processes; every hand-out and every result is durable before
the next frame leaves. Run: ``python benchmarks/engine_steps.py [--steps 300] [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Flow,
    PullWorkerOptions,
    Registry,
    Step,
    StepDecision,
    StepList,
    WorkerOptions,
    WorkerTarget,
    go_to,
    graceful_complete,
    open_blob_cache,
)
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine.testing import EngineProcess, ProgramProcess

FLOWS = (1, 8, 32)
BASELINE_CALLS = 500
starts: dict[str, list[float]] = {}


class Hop(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:  # type: ignore[override]
        starts.setdefault(context.flow_id, []).append(time.monotonic())
        if input > 1:
            return go_to(Hop, input - 1)
        return graceful_complete(starts.pop(context.flow_id))


class Relay(Flow[int]):
    """Runs `input` Steps one after the other; completes with the moments they started at."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Hop())


async def serve_worker(address: str, folder: str) -> None:
    cache = open_blob_cache(BlobCacheConfig(folder, 1 << 20))
    registry: Any = Registry([Relay()], allow_async_handlers=True)
    pull = PullWorkerOptions(max_concurrent_tasks=64)
    worker = AsyncWorker(registry, cache, WorkerOptions(server_address=address, pull=pull))
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(30)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(json.dumps({"ready": True}), flush=True)
    await stopped.wait()
    await worker.stop()
    await serving
    cache.close()


def measure_synced_commits(folder: Path) -> list[float]:
    connection = sqlite3.connect(folder / "baseline.sqlite3", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
    taken = []
    for _ in range(BASELINE_CALLS):
        begin = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (v) VALUES (?)", (b"x" * 500,))
        connection.execute("COMMIT")
        taken.append(time.perf_counter() - begin)
    connection.close()
    return taken


async def measure_empty_calls(address: str) -> list[float]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        taken = []
        for _ in range(BASELINE_CALLS):
            begin = time.perf_counter()
            await stub.HealthCheck(Empty())
            taken.append(time.perf_counter() - begin)
        return taken


async def run_flows(
    client: AsyncClient, flow: Relay, prefix: str, flows: int, steps: int
) -> tuple[float, list[float]]:
    """Return the Steps per second, and the seconds from each Step's start to the next one's."""
    begin = time.perf_counter()
    ids = [f"{prefix}-{number}" for number in range(flows)]
    await asyncio.gather(*(client.start_flow(flow, each, steps) for each in ids))
    results = await asyncio.gather(*(client.wait_for_flow(each) for each in ids))
    rate = flows * steps / (time.perf_counter() - begin)
    gaps: list[float] = []
    for result in results:
        moments = result.single_output(list[float])
        gaps.extend(after - before for before, after in itertools.pairwise(moments))
    return rate, gaps


def describe(name: str, taken: list[float]) -> str:
    cuts = statistics.quantiles(taken, n=100)
    return f"{name:32} p50 {cuts[49] * 1000:7.3f} ms   p95 {cuts[94] * 1000:7.3f} ms"


async def measure(steps: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commits = measure_synced_commits(folder)
        engine = EngineProcess(folder / "data", address="127.0.0.1:0")
        async with engine:
            calls = await measure_empty_calls(engine.address)
            script = [__file__, "--worker", engine.address, str(folder / "cache")]
            async with ProgramProcess(script):
                print(f"Python {platform.python_version()}, {os.cpu_count()} cores")
                print(describe("synced SQLite commit", commits))
                print(describe("empty loopback gRPC call", calls))
                await measure_steps(engine.address, folder, steps, rounds)


async def measure_steps(address: str, folder: Path, steps: int, rounds: int) -> None:
    cache = open_blob_cache(BlobCacheConfig(str(folder / "client"), 1 << 20))
    flow = Relay()
    registry: Any = Registry([flow], allow_async_handlers=True)
    options = ClientOptions(server_address=address, worker_target=WorkerTarget(pull=True))
    async with AsyncClient(registry, cache, options) as client:
        await run_flows(client, flow, "warm-up", 1, steps)
        for flows in FLOWS:
            rates, gaps = [], []
            for number in range(rounds):
                rate, taken = await run_flows(
                    client, flow, f"{flows}-{number}", flows, max(20, steps // flows)
                )
                rates.append(rate)
                gaps.extend(taken)
            print(
                describe(f"Step to next Step, {flows} Flows", gaps)
                + f"   {statistics.median(rates):6.0f} Steps/s"
            )
    cache.close()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(serve_worker(*sys.argv[2:4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="Steps of one Flow")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(measure(options.steps, options.rounds))


if __name__ == "__main__":
    main()
