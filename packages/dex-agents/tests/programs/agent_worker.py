"""A Worker process: prints one JSON line when it serves, then every line its bodies note.

Arguments: the engine's address and the flow type.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from agent_programs import program_from_environment

from dex_agents import open_agent_host


async def main() -> None:
    address, flow_type = sys.argv[1:3]
    flow = program_from_environment().flow(flow_type)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with open_agent_host([flow], server_address=address):
        print(json.dumps({"ready": True}), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
