"""Engines, Worker processes and hosted agents for the tests of this package."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dex_agents import (
    AgentEventType,
    AgentHost,
    AgentSessionClient,
    AgentSessionFlow,
    SessionEvent,
    SessionSettings,
    TurnResult,
    open_agent_host,
    open_session_client,
    session_client_flow,
)
from dex_agents.testing import StepCall, TestEngine, TestProcess, read_step_history

PROGRAMS = Path(__file__).with_name("programs")
sys.path.insert(0, str(PROGRAMS))

from agent_programs import AgentProgram, Ledger  # noqa: E402  # found by the line above

FLOW_TYPE = "KillableAgent"
GUARD = 60.0


@pytest.fixture(scope="session")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine process that all tests use which do not kill theirs."""
    folder = tmp_path_factory.mktemp("engine")
    command = [sys.executable, "-m", "dex_embedded_engine", "serve"]
    options = ["--data-dir", str(folder / "data"), "--address", "127.0.0.1:0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The file to which every model call and tool body appends a line before anything else."""
    path = tmp_path / "ledger"
    path.touch()
    return Ledger(path)


@pytest.fixture
def program(ledger: Ledger) -> AgentProgram:
    """The scripted agent."""
    return AgentProgram(ledger)


class Gate:
    """A closed gate at which bodies wait until it is opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._file.close()


@pytest.fixture
def close_gate(tmp_path: Path) -> Iterator[Callable[[str], Gate]]:
    """Close a gate before the turn starts: ``close_gate(name)``."""
    gates: list[Gate] = []

    def close(name: str) -> Gate:
        gates.append(Gate(tmp_path / name))
        return gates[-1]

    yield close
    for gate in gates:
        gate.open()


class SessionProbe:
    """One session of a client, with its events, as a test uses it."""

    def __init__(self, client: AgentSessionClient, session_id: str, address: str) -> None:
        self.client = client
        self.session_id = session_id
        self.address = address
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._token = ""

    async def turn(self, content: str, **options: Any) -> TurnResult:
        """Run a whole turn."""
        run = self.client.run_turn(self.session_id, content, **options)
        return await asyncio.wait_for(run, GUARD)

    async def next_event(self) -> tuple[str, dict[str, Any]]:
        """Return the next event."""
        read = self.client.read_agent_event(self.session_id, self._token)
        message: SessionEvent = await asyncio.wait_for(read, GUARD)
        self._token = message.resume_token
        self.events.append((message.value.type, json.loads(message.value.payload)))
        return self.events[-1]

    async def wait_event(self, type: AgentEventType, **fields: Any) -> dict[str, Any]:
        """Read on until an event of this type with these fields; return its payload."""
        while True:
            found, payload = await self.next_event()
            if found == type and fields.items() <= payload.items():
                return payload

    async def approve(self, **options: Any) -> str:
        """Wait for the next interrupt and approve it; return its id."""
        payload = await self.wait_event(AgentEventType.INTERRUPT_RAISED)
        interrupt_id: str = payload["interrupt_id"]
        await self.client.resolve_interrupt(
            self.session_id, interrupt_id, **{"approved": True, **options}
        )
        return interrupt_id

    async def until(self, is_so: Callable[[Any], bool]) -> Any:
        """Read the snapshot until something is so; return it."""
        async with asyncio.timeout(GUARD):
            while True:
                snapshot = await self.client.get_agent_snapshot(self.session_id)
                if is_so(snapshot):
                    return snapshot

    async def history(self) -> list[StepCall]:
        """Return the engine's history, once the session is at rest."""
        await self.until(lambda snapshot: snapshot.status == "idle")
        await self.at_rest()
        return await read_step_history(self.address, self.session_id)

    async def at_rest(self) -> None:
        """Wait until FinishTurn has committed: it alone takes the usage into the header."""
        async with asyncio.timeout(GUARD):
            while True:
                calls = await read_step_history(self.address, self.session_id)
                started = sum(each.step_type == "RunModel" for each in calls)
                if calls and calls[-1].step_type == "FinishTurn" and started:
                    return


class OpenAgent:
    """A hosted agent."""

    def __init__(self, host: AgentHost, flow: AgentSessionFlow, address: str) -> None:
        self.host = host
        self.flow = flow
        self.sessions = host.sessions(flow)
        self.address = address

    def session(self, session_id: str) -> SessionProbe:
        """Return a probe of a session; ids are made unique by the flow type."""
        return SessionProbe(
            self.sessions, f"{self.flow.get_flow_type()}.{session_id}", self.address
        )


OpenHost = Callable[..., Awaitable[OpenAgent]]


@pytest.fixture
async def open_host(
    request: pytest.FixtureRequest, engine_address: str, program: AgentProgram
) -> AsyncIterator[OpenHost]:
    """Host the agent in this process: ``await open_host(model_timeout=1.0)``."""
    async with AsyncExitStack() as stack:

        async def open_one(flow: AgentSessionFlow | None = None, **settings: Any) -> OpenAgent:
            name = f"{request.node.originalname}-{time.monotonic_ns()}"
            flow = flow or program.flow(name, SessionSettings(**settings))
            host = open_agent_host([flow], server_address=engine_address)
            return OpenAgent(await stack.enter_async_context(host), flow, engine_address)

        yield open_one


@pytest.fixture
async def agent(open_host: OpenHost) -> OpenAgent:
    """The agent, hosted in this process."""
    return await open_host()


@pytest.fixture
async def session(agent: OpenAgent) -> SessionProbe:
    """A session of the agent that is not started yet."""
    return agent.session("one")


class KillableAgent:
    """An engine process and a Worker process, which can be killed, and a client of both."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.ledger = ledger
        self.engine = TestEngine(folder / "data")
        self._folder = folder
        self._stack = AsyncExitStack()
        self.worker: TestProcess
        self.session: SessionProbe

    async def start(self) -> None:
        """Start the engine and the Worker, and connect."""
        await self.engine.start()
        await self.start_worker()
        await self.connect()

    async def start_worker(self) -> None:
        """Start a Worker process."""
        self.worker = TestProcess(
            [sys.executable, str(PROGRAMS / "agent_worker.py"), self.engine.address, FLOW_TYPE],
            {"AGENT_LEDGER": str(self._folder / "ledger")},
        )
        await self.worker.start()

    async def connect(self) -> None:
        """Talk to the session from this process, which has no agent."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        flow = session_client_flow(FLOW_TYPE)
        opened = open_session_client(flow, server_address=self.engine.address)
        client = await self._stack.enter_async_context(opened)
        self.session = SessionProbe(client, "killable", self.engine.address)

    async def wait_line(self, line: str) -> None:
        """Wait until a body in the Worker process notes `line`."""
        while await self.worker.read_line(GUARD) != line:
            pass

    async def close(self) -> None:
        """End everything."""
        await self._stack.aclose()
        await self.worker.kill()
        await self.engine.kill()


@pytest.fixture
async def killable(tmp_path: Path, ledger: Ledger) -> AsyncIterator[KillableAgent]:
    """An agent in processes of its own."""
    agent = KillableAgent(tmp_path, ledger)
    await agent.start()
    yield agent
    await agent.close()
