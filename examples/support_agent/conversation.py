"""Talking to a session on a terminal or a pipe: what is printed, and what is asked."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

from dex_agents import (
    AgentEventType,
    AgentSessionClient,
    InterruptAlreadyResolvedError,
    SessionEvent,
    SessionNotFoundError,
    SessionStatus,
)

ENDS = {AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED, AgentEventType.TURN_CANCELED}


@dataclass(frozen=True)
class Answering:
    """How approvals are answered: by asking, or always in the same way."""

    approve: bool = False
    reject: str | None = None


class LeftOpenError(Exception):
    """The input ended before an approval was answered."""


class Conversation:
    """One session on this terminal."""

    def __init__(self, sessions: AgentSessionClient, session_id: str, answering: Answering) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._answering = answering
        self._asked: set[str] = set()
        self._token = ""

    async def go_on(self) -> None:
        """Take up a turn that was running, or waiting for an approval, when the program ended."""
        try:
            snapshot = await self._sessions.get_agent_snapshot(self._session_id)
        except SessionNotFoundError:
            return
        if snapshot.status is not SessionStatus.RUNNING:
            await self._skip_old_events()
            return
        print("(going on with the turn that was interrupted)")
        await self._follow(snapshot.turn_id, from_begin=True)

    async def say(self, text: str) -> None:
        """Send a message and follow its turn to the end."""
        try:
            receipt = await self._sessions.send_user_message(self._session_id, text)
            turn_id = receipt.turn_id
        except SessionNotFoundError:
            await self._sessions.start_session(self._session_id, text)
            turn_id = "turn-1"
        await self._follow(turn_id)

    async def print_stored(self) -> None:
        """Print the conversation as it is stored."""
        snapshot = await self._sessions.get_agent_snapshot(self._session_id)
        print("\nstored conversation:")
        for message in snapshot.messages:
            print(f"{message.sequence:>3} {message.role}: {message.text or message.tool_output}")

    async def _skip_old_events(self) -> None:
        snapshot = await self._sessions.get_agent_snapshot(self._session_id)
        async for event in self._sessions.stream_agent_events(self._session_id):
            self._token = event.resume_token
            payload = json.loads(event.value.payload)
            if event.value.type in ENDS and payload["turn_id"] == snapshot.turn_id:
                return

    async def _follow(self, turn_id: str | None, *, from_begin: bool = False) -> None:
        attempt: tuple[str, int] | None = None
        async for event in self._sessions.stream_agent_events(self._session_id, self._token):
            payload = json.loads(event.value.payload)
            if from_begin and payload["turn_id"] != turn_id:
                continue
            if event.value.type == AgentEventType.TEXT_DELTA:
                source = (payload["step_execution_id"], payload["attempt"])
                if attempt is not None and source[0] == attempt[0] and source != attempt:
                    print("\n(the model call was repeated)")
                attempt = source
            await self._show(event, payload)
            self._token = event.resume_token
            if event.value.type in ENDS and payload["turn_id"] == (turn_id or payload["turn_id"]):
                return

    async def _show(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        kind = event.value.type
        if kind == AgentEventType.TEXT_DELTA:
            print(payload["text"], end="", flush=True)
        elif kind == AgentEventType.INTERRUPT_RAISED:
            await self._answer(payload)
        elif kind == AgentEventType.TOOL_CALL_FINISHED:
            print(f"\n[{payload['tool_name']}: {payload['status']}]")
        elif kind == AgentEventType.TURN_COMPLETED:
            print()
        elif kind == AgentEventType.TURN_FAILED:
            print(f"\nthe turn failed: {payload['error']}")

    async def _answer(self, payload: dict[str, Any]) -> None:
        interrupt_id = payload["interrupt_id"]
        snapshot = await self._sessions.get_agent_snapshot(self._session_id)
        if interrupt_id not in {each.interrupt_id for each in snapshot.pending_interrupts}:
            return
        approved, reason = await self._decide(payload)
        try:
            await self._sessions.resolve_interrupt(
                self._session_id, interrupt_id, approved=approved, reason=reason
            )
        except InterruptAlreadyResolvedError:
            print("(somebody else has answered)")

    async def _decide(self, payload: dict[str, Any]) -> tuple[bool, str | None]:
        arguments = ", ".join(f"{key}={value!r}" for key, value in payload["arguments"].items())
        question = f"\n{payload['tool_name']}({arguments})"
        if self._answering.approve:
            print(f"{question} approved")
            return True, None
        if self._answering.reject is not None:
            print(f"{question} rejected: {self._answering.reject}")
            return False, self._answering.reject
        while True:
            line = (await read_line(f"{question} — approve? y/n ")).strip().lower()
            if line in ("y", "yes"):
                return True, None
            if line in ("n", "no"):
                return False, (await read_line("why not? ")).strip() or None


async def read_line(prompt: str) -> str:
    """Read a line from the terminal or a pipe.

    Raises:
        LeftOpenError: there is no more input.
    """
    print(prompt, end="", flush=True)
    line: str = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise LeftOpenError
    if not sys.stdin.isatty():
        print()
    return line
