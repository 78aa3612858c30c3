"""An order that is charged once and shipped, whatever is killed in between.

Starts an embedded engine on a folder, and a Worker and a Client in the same process. Kill the
program while it runs (``kill -9``) and start it again with the same folder: the order goes on with
the Step it was at.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    Attribute,
    BlobCacheConfig,
    ClientOptions,
    Context,
    Flow,
    PersistenceSchema,
    PullWorkerOptions,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    WorkerOptions,
    go_to,
    graceful_complete,
    open_blob_cache,
)

from dex_embedded_engine import EmbeddedEngine

receipt = Attribute("receipt", str)


class Charge(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        print(f"charging order {input}")
        receipt.set(context, f"receipt of order {input}")
        return go_to(Pack, input)


class Pack(Step[str]):
    """Waits a second; it could as well be a day."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=1)))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        print(f"packing order {input}")
        return go_to(Ship, input)


class Ship(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        print(f"shipping order {input}")
        return graceful_complete(f"order {input} shipped, {receipt.get(context)} enclosed")


class Order(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Charge()).other_steps(Pack(), Ship())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(receipt)


async def run_order(folder: Path, number: str) -> None:
    order = Order()
    registry: Any = Registry([order], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(folder / "cache"), 64 * 1024 * 1024))
    async with EmbeddedEngine(folder / "engine") as engine:
        options = WorkerOptions(server_address=engine.address, pull=PullWorkerOptions())
        worker = AsyncWorker(registry, cache, options)
        serving = asyncio.create_task(worker.start())
        await worker.wait_pull_registered(timeout=30)
        client_options = ClientOptions(
            server_address=engine.address, worker_target=worker.worker_target
        )
        async with AsyncClient(registry, cache, client_options) as client:
            start = StartFlowOptions(request_id=f"order-{number}", ignore_already_started=True)
            await client.start_flow(order, f"order-{number}", number, start)
            result = await client.wait_for_flow(f"order-{number}")
            print(result.single_output(str))
        await worker.stop()
        await serving
    cache.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", nargs="?", default="7", help="number of the order")
    parser.add_argument("--folder", type=Path, default=Path(".dex"), help="where it is kept")
    options = parser.parse_args()
    options.folder.mkdir(mode=0o700, exist_ok=True)
    asyncio.run(run_order(options.folder, options.number))


if __name__ == "__main__":
    main()
