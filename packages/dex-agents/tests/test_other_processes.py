"""Processes that only talk to sessions, processes that come and go, and the longhand."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    PullWorkerOptions,
    Registry,
    WorkerOptions,
    open_blob_cache,
)

from dex_agents import AgentSessionClient, open_agent_host, open_session_client, session_client_flow

TALK = """
import asyncio, sys
from dex_agents import open_session_client, session_client_flow

async def main(address, flow_type, session_id):
    flow = session_client_flow(flow_type)
    async with open_session_client(flow, server_address=address) as client:
        print((await client.run_turn(session_id, "hello")).text)
        print((await client.run_turn(session_id, "again")).text)
        snapshot = await client.get_agent_snapshot(session_id)
        print(len(snapshot.messages))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_process_without_the_agent_talks_to_a_session(agent: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TALK,
        agent.address,
        agent.flow.get_flow_type(),
        "foreign",
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert output.decode().splitlines() == ["you said hello", "you said again", "4"]


async def test_session_goes_on_in_another_host(engine_address: str, program: Any) -> None:
    name = f"moving-{time.monotonic_ns()}"
    for number in (1, 2, 3):
        flow = program.flow(name)
        async with open_agent_host([flow], server_address=engine_address) as host:
            result = await host.sessions(flow).run_turn(name, f"message {number}")
            assert result.turn_id == f"turn-{number}"
    assert program.runner.prepared == 3


async def test_session_started_before_any_worker_is_served_by_the_first(
    engine_address: str, program: Any
) -> None:
    name = f"early-{time.monotonic_ns()}"
    client_flow = session_client_flow(name)
    async with open_session_client(client_flow, server_address=engine_address) as client:
        await client.start_session(name, "hello")
        flow = program.flow(name)
        async with open_agent_host([flow], server_address=engine_address):
            turn = client.run_turn(name, "again")
            assert (await asyncio.wait_for(turn, 60)).turn_id == "turn-2"


async def test_closed_host_leaves_an_event_loop_that_can_run_threads(
    engine_address: str, program: Any
) -> None:
    flow = program.flow(f"closed-{time.monotonic_ns()}")
    async with open_agent_host([flow], server_address=engine_address):
        assert await asyncio.to_thread(lambda: 1) == 1
    assert await asyncio.to_thread(lambda: 2) == 2


async def test_sync_bodies_find_as_many_threads_as_there_are_slots(
    engine_address: str, program: Any
) -> None:
    flow = program.flow(f"threads-{time.monotonic_ns()}")
    async with open_agent_host([flow], server_address=engine_address, max_concurrent_tasks=40):
        meeting = threading.Barrier(40)
        await asyncio.gather(*(asyncio.to_thread(meeting.wait, 30) for _ in range(40)))


async def test_longhand_worker_prepares_the_agent_when_it_is_first_needed(
    engine_address: str, program: Any, tmp_path: Path
) -> None:
    flow = program.flow(f"longhand-{time.monotonic_ns()}")
    registry: Any = Registry([flow], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(tmp_path / "cache"), 64 * 1024 * 1024))
    pull = PullWorkerOptions(max_concurrent_tasks=8)
    options = WorkerOptions(server_address=engine_address, pull=pull)
    worker = AsyncWorker(registry, cache, options)
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(timeout=30)
    client = AsyncClient(
        registry,
        cache,
        ClientOptions(server_address=engine_address, worker_target=worker.worker_target),
    )
    result = await AgentSessionClient(client, flow).run_turn(f"{tmp_path.name}-one", "hello")
    assert result.text == "you said hello"
    assert program.runner.prepared == 1
    await worker.stop()
    await serving
    await client.close()
    cache.close()
