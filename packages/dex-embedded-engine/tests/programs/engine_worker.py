"""A Worker process: prints one JSON line when every queue is registered, stops on SIGTERM.

Arguments: sync|async, the engine's address, the folder of the blob cache, the number of tasks
it runs at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import Any

import engine_async_flows as async_flows
import engine_flows as flows
from dex import (
    AsyncWorker,
    BlobCache,
    BlobCacheConfig,
    PullWorkerOptions,
    Registry,
    Worker,
    WorkerOptions,
    open_blob_cache,
)

READY_TIMEOUT = 30


def main() -> None:
    mode, address, folder, slots = sys.argv[1:5]
    cache = open_blob_cache(BlobCacheConfig(folder, 64 * 1024 * 1024))
    options = WorkerOptions(
        server_address=address, pull=PullWorkerOptions(max_concurrent_tasks=int(slots))
    )
    if mode == "async":
        asyncio.run(serve_async(cache, options))
    else:
        serve_sync(cache, options)


def serve_sync(cache: BlobCache, options: WorkerOptions) -> None:
    registry: Any = Registry(flows.make_flows())
    worker = Worker(registry, cache, options)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=worker.stop).start())
    ready = threading.Thread(target=announce, args=(worker,), daemon=True)
    ready.start()
    worker.start()


def announce(worker: Worker) -> None:
    worker.wait_pull_registered(READY_TIMEOUT)
    print(json.dumps({"ready": True}), flush=True)


async def serve_async(cache: BlobCache, options: WorkerOptions) -> None:
    registry: Any = Registry(async_flows.make_flows(), allow_async_handlers=True)
    worker = AsyncWorker(registry, cache, options)
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(READY_TIMEOUT)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(json.dumps({"ready": True}), flush=True)
    await stopped.wait()
    await worker.stop()
    await serving


if __name__ == "__main__":
    main()
