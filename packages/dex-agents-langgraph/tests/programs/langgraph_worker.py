"""A Worker process: prints one JSON line, serves, stops on SIGTERM.

The line comes first, so that no line of a body gets lost before it.

Arguments: the engine's address.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import langgraph_programs

from dex_agents import open_agent_host


async def main(address: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    flows = list(langgraph_programs.make_flows().values())
    print(json.dumps({"ready": True}), flush=True)
    async with open_agent_host(flows, server_address=address):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
