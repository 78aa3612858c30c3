"""Owns what tests of agents need: engines, Worker processes, a scripted runner, the Step history.

Nothing here is a mock: engines and Workers are real processes that can be killed, and the scripted
runner is a complete implementation of the runner contract.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_agents.errors import AgentRunError, InvalidArgumentsError
from dex_agents.messages import MessageDraft, MessageRole
from dex_agents.runner_contract import (
    FrameworkRunState,
    ModelCallEmitter,
    RunModelRequest,
    RunModelResult,
    ToolCallsRequested,
    TurnFinished,
)
from dex_agents.tool_calls import DeferredToolCall, ToolCallContext
from dex_agents_tool_policy import ToolEffect, ToolPolicy

_READY_TIMEOUT = 60.0
_END_TIMEOUT = 30.0
READ_POLICY = ToolPolicy(ToolEffect.READ)
RUN_STATE_FORMAT = "dex-agents.scripted-runner.v1"

ToolBody = Callable[[Mapping[str, Any], ToolCallContext], Awaitable[str]]
ModelScript = Callable[[RunModelRequest, ModelCallEmitter], Awaitable[RunModelResult]]


@dataclass(frozen=True)
class ScriptedTool:
    """A tool of a `ScriptedRunner`.

    Attributes:
        body: gets the arguments and the call's context, returns the text the model gets.
        policy: how the session treats its calls.
        required: argument names without which a call is invalid.
    """

    body: ToolBody
    policy: ToolPolicy = READ_POLICY
    required: frozenset[str] = frozenset()


class ScriptedRunner:
    """An agent whose model is a function. Implements `AgentFrameworkRunner`.

    Args:
        model: makes one model call.
        tools: by name.
    """

    def __init__(self, model: ModelScript, tools: Mapping[str, ScriptedTool] | None = None) -> None:
        self._model = model
        self._tools = dict(tools or {})
        self.prepared = 0

    async def prepare(self) -> None:
        """Count that it was called."""
        self.prepared += 1

    async def run_model(
        self, request: RunModelRequest, emitter: ModelCallEmitter
    ) -> RunModelResult:
        """Call the script."""
        return await self._model(request, emitter)

    async def execute_deferred_tool_call(self, context: ToolCallContext) -> str:
        """Check the arguments, then call the tool's body."""
        self.validate_arguments(context.call.tool_name, context.call.arguments)
        return await self._tools[context.call.tool_name].body(context.call.arguments, context)

    def resolve_tool_policy(self, tool_name: str) -> ToolPolicy:
        """Return the tool's policy."""
        return self._tools[tool_name].policy

    def validate_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> None:
        """Require the tool and its required arguments."""
        tool = self._tools.get(tool_name)
        if tool is None:
            raise InvalidArgumentsError(f"the agent has no tool named {tool_name!r}")
        missing = sorted(tool.required - set(arguments))
        if missing:
            raise InvalidArgumentsError(f"arguments {missing!r} of tool {tool_name!r} are missing")

    def build_user_message(
        self, content: str | list[dict[str, Any]], message_id: str
    ) -> MessageDraft:
        """Keep the content as it is."""
        item = json.dumps({"id": message_id, "content": content}, ensure_ascii=False)
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return MessageDraft(MessageRole.USER, text, item)

    def ask(self, state: object, *calls: tuple[str, str, Mapping[str, Any]]) -> ToolCallsRequested:
        """Build the result of a model call that asks for tools.

        Args:
            state: JSON data handed back with the results.
            calls: (tool call id, tool name, arguments).
        """
        deferred = [self._defer(*call) for call in calls]
        return ToolCallsRequested(deferred, FrameworkRunState(RUN_STATE_FORMAT, json.dumps(state)))

    def _defer(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> DeferredToolCall:
        policy = self.resolve_tool_policy(name)
        return DeferredToolCall(
            tool_call_id=call_id,
            tool_name=name,
            arguments=arguments,
            effect=policy.effect,
            requires_approval=policy.requires_approval,
            timeout=None if policy.timeout is None else policy.timeout.total_seconds(),
            approval_timeout=(
                None if policy.approval_timeout is None else policy.approval_timeout.total_seconds()
            ),
        )


def say(text: str) -> TurnFinished:
    """Build the result of a model call that answers with `text`."""
    return TurnFinished([MessageDraft(MessageRole.ASSISTANT, text, json.dumps({"text": text}))])


@dataclass(frozen=True)
class StepCall:
    """One finished handler call in the engine's history.

    Attributes:
        step: the Step execution's id.
        method: ``wait_for`` or ``execute``.
        attempts: how many it took.
        started_at: start of the first attempt, unix seconds.
        ended_at: when its result was committed, unix seconds.
        failed: all its attempts failed.
    """

    step: str
    method: str
    attempts: int
    started_at: float
    ended_at: float
    failed: bool = False

    @property
    def step_type(self) -> str:
        """The Step's type."""
        return self.step.rpartition("-")[0]


async def read_step_history(address: str, session_id: str) -> list[StepCall]:
    """Return the finished handler calls of a session, in the order of their commits.

    This is the engine's own journal; nothing of the session's is in it.
    """
    calls: list[StepCall] = []
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        token = b""
        while True:
            page = await stub.GetHistoryEvents(
                pb.GetHistoryEventsRequest(flow_id=session_id, next_page_token=token)
            )
            for event in page.events:
                call = _step_call(event)
                if call is not None:
                    calls.append(call)
            token = page.next_page_token
            if not token:
                return calls


def _step_call(event: pb.FlowHistoryEvent) -> StepCall | None:
    kind = event.WhichOneof("payload") or ""
    if not kind.startswith("step_"):
        return None
    context = getattr(event, kind).context
    started = context.started_time.ToNanoseconds() / 1e9
    return StepCall(
        step=context.step_execution_id,
        method="wait_for" if kind.startswith("step_wait_for") else "execute",
        attempts=context.final_attempt,
        started_at=started,
        ended_at=started + context.duration.ToNanoseconds() / 1e9,
        failed=kind.endswith("failed"),
    )


class TestProcess:
    """A program that prints one line of JSON when it is ready, and can be killed.

    Args:
        command: the program and its arguments.
        environment: added to this process's environment.
    """

    __test__ = False

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment or {})
        self._process: Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._early: deque[str] = deque()
        self.ready: dict[str, Any] = {}

    async def start(self) -> dict[str, Any]:
        """Start the program; return what it printed when it was ready.

        Raises:
            AgentRunError: it ended before.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=PIPE, env={**os.environ, **self._environment}
        )
        self._lines = asyncio.Queue()
        self._output = asyncio.create_task(self._read_output(self._process))
        early = []
        while not (line := await self.read_line(_READY_TIMEOUT)).startswith("{"):
            early.append(line)
            if not line:
                raise AgentRunError(f"program {self._command!r} ended before it was ready")
        self._early.extend(early)
        self.ready = json.loads(line)
        return self.ready

    async def read_line(self, seconds: float = 30.0) -> str:
        """Return the next line the program prints; empty once it has ended."""
        if self._early:
            return self._early.popleft()
        return await asyncio.wait_for(self._lines.get(), seconds)

    async def kill(self) -> None:
        """End the program with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End the program with SIGTERM."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(number)
        await asyncio.wait_for(process.wait(), _END_TIMEOUT)
        if self._output is not None:
            await self._output

    async def _read_output(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._lines.put_nowait(line.decode().rstrip("\n"))
        self._lines.put_nowait("")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()


class TestEngine(TestProcess):
    """A private engine: the embedded one, or ``dexcli dev`` when DEXCLI names it.

    Args:
        folder: where it keeps its data; start another one there after a kill.
    """

    __test__ = False

    def __init__(self, folder: Path) -> None:
        dexcli = os.environ.get("DEXCLI")
        if dexcli:
            command = [dexcli, "dev", "--data-dir", str(folder)]
        else:
            socket = f"unix:{folder}.socket"
            serve = ["serve", "--data-dir", str(folder), "--address", socket]
            command = [sys.executable, "-m", "dex_embedded_engine", *serve]
        super().__init__(command)

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self.ready["address"])
