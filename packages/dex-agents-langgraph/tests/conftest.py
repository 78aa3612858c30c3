"""Engines, Worker processes, gates, and runners that are driven without a session."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    FrameworkRunState,
    RunModelRequest,
    RunModelResult,
    TokenUsage,
    ToolCallRecord,
    ToolCallsRequested,
    ToolCallStatus,
    TurnFinished,
    open_session_client,
    session_client_flow,
)
from dex_agents.testing import TestEngine, TestProcess
from dex_agents_langgraph.runner import GraphSource, LangGraphRunner
from dex_agents_tool_policy import ToolEffect, ToolPolicy, ToolPolicyResolver

PROGRAMS = Path(__file__).with_name("programs")
sys.path.insert(0, str(PROGRAMS))

StartWorker = Callable[[str], Awaitable[TestProcess]]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file to which every body in a Worker process appends a line before anything else."""
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TestEngine]:
    """An engine in a process of its own."""
    running = TestEngine(tmp_path / "data")
    async with running:
        yield running


class Gate:
    """A closed gate at which bodies in Worker processes wait until it is opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._file.close()


@pytest.fixture
def close_gate(ledger: Path) -> Iterator[Callable[[str], Gate]]:
    """Close a gate before the turn starts: ``close_gate(name)``."""
    gates: list[Gate] = []

    def close(name: str) -> Gate:
        gates.append(Gate(ledger.with_name(name)))
        return gates[-1]

    yield close
    for gate in gates:
        gate.open()


@pytest.fixture
async def start_worker(ledger: Path) -> AsyncIterator[StartWorker]:
    """Start Worker processes; each line a body notes can be read with ``worker.read_line()``."""
    async with AsyncExitStack() as stack:

        async def start(address: str) -> TestProcess:
            command = [sys.executable, str(PROGRAMS / "langgraph_worker.py"), address]
            worker = TestProcess(command, {"TEST_LEDGER": str(ledger)})
            return await stack.enter_async_context(worker)

        yield start


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str, str], Awaitable[AgentSessionClient]]]:
    """Talk to the sessions of a flow type, as a process that cannot import the agent does."""
    async with AsyncExitStack() as stack:

        async def open_client(address: str, flow_type: str) -> AgentSessionClient:
            flow = session_client_flow(flow_type)
            return await stack.enter_async_context(
                open_session_client(flow, server_address=address)
            )

        yield open_client


class Emitter:
    """Keeps what a model call sends, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def text(self, delta: str) -> None:
        if delta:
            self.events.append(("text", delta))

    def reasoning(self, delta: str) -> None:
        if delta:
            self.events.append(("reasoning", delta))

    def model_call_started(self) -> None:
        self.events.append(("started", None))

    def model_call_finished(self, usage: TokenUsage) -> None:
        self.events.append(("finished", usage))


class Conversation:
    """A session's part in driving a runner: stores messages, runs rounds. Its tools are given."""

    def __init__(self, runner: LangGraphRunner) -> None:
        self.runner = runner
        self.messages: list[AgentMessage] = []
        self.emitter = Emitter()
        self.config: dict[str, Any] = {}
        self.turn = 0
        self.round = 0
        self.run_state: FrameworkRunState | None = None

    def say(self, text: str) -> None:
        """Begin a turn."""
        self.turn += 1
        self.round = 0
        self.run_state = None
        draft = self.runner.build_user_message(text, f"m{self.turn}")
        self.messages.append(AgentMessage.of(draft, len(self.messages) + 1, self.turn_id))

    @property
    def turn_id(self) -> str:
        return f"turn-{self.turn}"

    async def call_model(self, results: Sequence[ToolCallRecord] = ()) -> RunModelResult:
        """Make the turn's next model call."""
        self.round += 1
        request = RunModelRequest(
            "session",
            self.turn_id,
            self.round,
            list(self.messages),
            self.run_state,
            results,
            self.config,
        )
        result = await self.runner.run_model(request, self.emitter)
        if isinstance(result, TurnFinished):
            for draft in result.messages:
                sequence = len(self.messages) + 1
                self.messages.append(AgentMessage.of(draft, sequence, self.turn_id))
        else:
            self.run_state = result.run_state
        return result

    async def ask(self, text: str) -> ToolCallsRequested:
        """Begin a turn that asks for tools."""
        self.say(text)
        result = await self.call_model()
        assert isinstance(result, ToolCallsRequested)
        return result

    async def finish(
        self,
        asked: ToolCallsRequested,
        outputs: Mapping[str, str],
        status: ToolCallStatus = ToolCallStatus.COMPLETED,
    ) -> RunModelResult:
        """Make the next model call with the outputs of the calls, by id."""
        return await self.call_model(
            [
                ToolCallRecord(
                    call.tool_call_id,
                    call.tool_name,
                    call.arguments,
                    call.effect,
                    self.turn_id,
                    self.round,
                    index,
                    len(asked.calls),
                    status,
                    outputs[call.tool_call_id],
                )
                for index, call in enumerate(asked.calls)
            ]
        )

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """Role and text of the stored messages."""
        return [(m.role.value, m.text or m.tool_output or "") for m in self.messages]


@pytest.fixture
def converse() -> Callable[..., Awaitable[Conversation]]:
    """Build and prepare a runner of a graph: ``await converse(graph, ...)``."""

    async def start(graph: GraphSource, **options: Any) -> Conversation:
        policies: Mapping[str, ToolPolicy] = options.pop("policies", {})
        runner = LangGraphRunner(
            graph,
            ToolPolicyResolver(policies, ToolEffect.READ),
            tools=options.pop("tools", ()),
            messages_key=options.pop("messages_key", "messages"),
            serializer=options.pop("serializer", JsonPlusSerializer()),
        )
        await runner.prepare()
        return Conversation(runner)

    return start
