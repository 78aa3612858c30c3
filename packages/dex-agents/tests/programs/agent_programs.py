"""A scripted agent whose user messages say what its model and its tools do.

A user message is the JSON text of a list of rounds, see `script`. Every model call and every tool
body appends a line to the file AGENT_LEDGER before anything else.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex_agents import (
    AgentSessionFlow,
    InvalidArgumentsError,
    MessageDraft,
    MessageRole,
    ModelCallEmitter,
    RunModelRequest,
    RunModelResult,
    SessionSettings,
    TokenUsage,
    ToolCallContext,
    ToolCallFailedError,
    ToolEffect,
    ToolPolicy,
    TurnFinished,
)
from dex_agents.testing import ModelScript, ScriptedRunner, ScriptedTool

CALL_USAGE = TokenUsage(10, 2, 1, 0)


def script(*rounds: Mapping[str, Any]) -> str:
    """Return a user message.

    A round may hold, in the order in which they are obeyed: ``emit`` (texts), ``gate`` (name),
    ``fail`` (how many times it raises), ``retry_after`` (seconds, with ``fail``), ``hang``,
    ``lost`` (its Worker), ``attempts`` (each ``fail`` or ``lost``), ``result`` (what it returns
    instead, as it is), ``calls`` ([tool, arguments] pairs, with ``state``, a size), ``say`` (text),
    ``size`` (of what is said).
    """
    return json.dumps(rounds)


class ProviderError(Exception):
    """What a model provider's client raises."""

    def __init__(self, seconds: str | None) -> None:
        super().__init__("the provider is overloaded")
        if seconds is not None:
            self.response = ProviderResponse({"retry-after": seconds})


class ProviderResponse:
    """An HTTP answer with its headers."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers


class Ledger:
    """The file in which what really ran is counted."""

    def __init__(self, path: Path, *, echo: bool = False) -> None:
        self._path = path
        self._echo = echo

    def note(self, line: str) -> None:
        """Append a line; with `echo` print it too."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self._echo:
            print(line, flush=True)

    def lines(self) -> list[str]:
        """Return all lines."""
        return self._path.read_text(encoding="utf-8").splitlines()

    def count(self, line: str) -> int:
        """Return how often a line was noted."""
        return self.lines().count(line)

    async def pass_gate(self, name: str) -> None:
        """Wait until the test opens the gate of that name; see the fixture `close_gate`."""
        await asyncio.to_thread(self._pass_gate, name)

    def _pass_gate(self, name: str) -> None:
        with self._path.with_name(name).open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)


class AgentProgram:
    """The agent: its model, its tools, and the flow that serves it.

    Attributes:
        barrier: where tool bodies meet, if set.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        write, once = ToolEffect.IDEMPOTENT_WRITE, ToolEffect.SINGLE_ATTEMPT_WRITE
        policies = {
            "look": ToolPolicy(ToolEffect.READ),
            "put": ToolPolicy(write),
            "pay": ToolPolicy(once),
            "other": ToolPolicy(ToolEffect.UNCLASSIFIED),
            "refund": ToolPolicy(write, requires_approval=True),
            "wire": ToolPolicy(once, requires_approval=True),
            "quick": ToolPolicy(ToolEffect.READ, timeout=timedelta(seconds=1)),
            "offer": ToolPolicy(
                once, requires_approval=True, approval_timeout=timedelta(seconds=1)
            ),
        }
        required = frozenset({"id"})
        self.barrier: asyncio.Barrier | None = None
        self.runner = ProgramRunner(
            self.call_model,
            {
                name: ScriptedTool(self.run_tool, policy, required)
                for name, policy in policies.items()
            },
        )

    async def call_model(
        self, request: RunModelRequest, emitter: ModelCallEmitter
    ) -> RunModelResult | Any:
        name = f"model {request.turn_id} {request.round}"
        self.ledger.note(name)
        text = next(
            message.text
            for message in reversed(request.messages)
            if message.role is MessageRole.USER
        )
        if not text.startswith("[{"):
            return finish(f"you said {text}")
        step: dict[str, Any] = json.loads(text)[request.round - 1]
        for piece in step.get("emit", ()):
            emitter.text(piece)
        if "gate" in step:
            await self.ledger.pass_gate(step["gate"])
        if self.ledger.count(name) <= step.get("fail", 0):
            raise ProviderError(step.get("retry_after"))
        if "hang" in step:
            await asyncio.Event().wait()
        if "lost" in step:
            raise asyncio.CancelledError
        if "attempts" in step:
            if step["attempts"][self.ledger.count(name) - 1] == "lost":
                raise asyncio.CancelledError
            raise ProviderError(None)
        if "result" in step:
            return step["result"]
        if "calls" in step:
            calls = [
                (f"r{request.round}c{index}", tool, arguments)
                for index, (tool, arguments) in enumerate(step["calls"], start=1)
            ]
            return self.runner.ask("s" * step.get("state", 0), *calls)
        if "say" in step:
            return finish(step["say"] + "x" * step.get("size", 0))
        results = [f"{each.status}: {each.output}" for each in request.tool_results]
        return finish(" | ".join(results))

    async def run_tool(self, arguments: Mapping[str, Any], context: ToolCallContext) -> str:
        name = f"{context.call.tool_name} {arguments['id']}"
        self.ledger.note(name)
        if self.barrier is not None:
            await asyncio.wait_for(self.barrier.wait(), 30)
        if "gate" in arguments:
            await self.ledger.pass_gate(arguments["gate"])
        if "progress" in arguments:
            context.report_progress(arguments["progress"])
        if self.ledger.count(name) <= arguments.get("fail", 0):
            self.fail(arguments.get("error", "error"))
        if "hang" in arguments:
            await asyncio.Event().wait()
        if "size" in arguments:
            return str(arguments.get("of", "x")) * int(arguments["size"])
        return f"{name} done with {context.idempotency_key}"

    def fail(self, kind: str) -> None:
        if kind == "invalid":
            raise InvalidArgumentsError("id must be a number")
        if kind == "failed":
            raise ToolCallFailedError("there is no such order")
        if kind == "lost":
            # The SDK reports a handler that ends like this as one of a Worker that stops.
            raise asyncio.CancelledError
        if kind == "exit":
            sys.exit("the tool wants to end the process")
        raise ValueError("secret words of the tool")

    def flow(self, flow_type: str, settings: SessionSettings | None = None) -> AgentSessionFlow:
        """Return a flow that serves the agent."""
        return AgentSessionFlow(flow_type, self.runner, settings)


class ProgramRunner(ScriptedRunner):
    """Refuses a message that asks for it; its model can be replaced."""

    def replace_model(self, model: ModelScript) -> None:
        """Let another function be the model."""
        self._model = model

    def build_user_message(
        self, content: str | list[dict[str, Any]], message_id: str
    ) -> MessageDraft:
        if content == "unreadable":
            raise ValueError("no message for this agent")
        return super().build_user_message(content, message_id)


def finish(text: str) -> TurnFinished:
    """Return the result of a model call that ends the turn."""
    item = json.dumps({"text": text})
    return TurnFinished([MessageDraft(MessageRole.ASSISTANT, text, item)], CALL_USAGE)


def program_from_environment() -> AgentProgram:
    """Return the program of a Worker process."""
    return AgentProgram(Ledger(Path(os.environ["AGENT_LEDGER"]), echo=True))


def contents(messages: Sequence[Any]) -> list[str]:
    """Return what messages say, roles before texts."""
    return [f"{each.role.value}: {each.text}" for each in messages]
