"""What users and models may get wrong in a session of a real agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException, tool
from pydantic import BaseModel

from dex_agents import (
    AgentEventType,
    AgentSessionClient,
    EmptyMessageError,
    InterruptAlreadyResolvedError,
    InterruptNotFoundError,
    InvalidArgumentsError,
    SessionAlreadyStartedError,
    SessionNotFoundError,
    ToolEffect,
    ToolPolicy,
    open_agent_host,
)
from dex_agents.testing import TestEngine
from dex_agents_langgraph import durable_middleware, langchain_agent_session_flow
from dex_agents_langgraph.testing import ScriptedChatModel


class Order(BaseModel):
    number: int


@tool
def refuse(item: str) -> str:
    """Fail on purpose."""
    raise ToolException(f"no {item}")


@tool
def validate_inside(item: str) -> str:
    """Fail at something else's validation."""
    return str(Order.model_validate({"number": item}))


@tool
def whoami(item: str, config: RunnableConfig) -> str:
    """Say who asks."""
    return str(config["configurable"]["user"])


@tool
def approved(item: str) -> str:
    """Run after approval."""
    return f"did {item}"


def script(messages: list[BaseMessage]) -> AIMessage:
    """Call the tools the user names, each with ``x``, or with nothing after ``bare``."""
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("done")
    words = str(messages[-1].content).split()
    arguments = {} if words[0] == "bare" else {"item": "x"}
    calls: Any = [{"name": each, "args": arguments, "id": each} for each in words[1:]]
    return AIMessage("", tool_calls=calls)


@pytest.fixture
async def sessions(engine: TestEngine) -> AsyncIterator[AgentSessionClient]:
    """A client of sessions whose tools are single-attempt writes."""
    flow = langchain_agent_session_flow(
        create_agent(
            ScriptedChatModel(script=script),
            [refuse, validate_inside, whoami, approved],
            middleware=durable_middleware(),
        ),
        flow_type="Agent",
        default_tool_effect=ToolEffect.SINGLE_ATTEMPT_WRITE,
        tool_policies={"approved": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True)},
    )
    async with open_agent_host([flow], server_address=engine.address) as host:
        yield host.sessions(flow)


async def test_what_a_write_reports_is_failed_and_what_it_raises_is_unknown(
    sessions: AgentSessionClient,
) -> None:
    config = {"configurable": {"user": "ann"}}
    await sessions.run_turn("s", "call refuse validate_inside made_up whoami", config=config)
    calls = {c.tool_name: c for c in (await sessions.get_agent_snapshot("s")).tool_calls}
    assert {name: call.status.value for name, call in calls.items()} == {
        "refuse": "failed",
        "validate_inside": "outcome_unknown",
        "made_up": "failed",
        "whoami": "completed",
    }
    assert calls["refuse"].output == "The tool call failed: no x"
    assert calls["made_up"].effect is ToolEffect.READ
    assert "the agent has no tool named 'made_up'" in (calls["made_up"].output or "")
    assert calls["whoami"].output == "ann"


async def test_arguments_that_do_not_match_a_writes_schema_are_failed(
    sessions: AgentSessionClient,
) -> None:
    turn = await sessions.run_turn("s", "bare refuse")
    stored = json.loads(turn.messages[2].framework_item)["data"]
    assert stored["status"] == "error"
    assert "do not match its schema: item: " in stored["content"]


async def test_empty_messages_and_unknown_and_repeated_sessions_are_refused(
    sessions: AgentSessionClient,
) -> None:
    with pytest.raises(EmptyMessageError):
        await sessions.start_session("s", " \n")
    with pytest.raises(SessionNotFoundError):
        await sessions.send_user_message("s", "call whoami")
    await sessions.start_session("s", "call refuse")
    with pytest.raises(SessionAlreadyStartedError):
        await sessions.start_session("s", "call refuse")


async def test_an_interrupt_is_answered_once_and_with_arguments_that_fit(
    sessions: AgentSessionClient,
) -> None:
    await sessions.start_session("s", "call approved")
    pending = (await wait_for_event(sessions, AgentEventType.INTERRUPT_RAISED))["interrupt_id"]
    with pytest.raises(InterruptNotFoundError):
        await sessions.resolve_interrupt("s", "made-up", approved=True)
    with pytest.raises(InvalidArgumentsError, match="do not match its schema: item: "):
        await sessions.resolve_interrupt(
            "s", pending, approved=True, edited_arguments={"item": ["y"]}
        )
    await sessions.resolve_interrupt("s", pending, approved=True)
    await sessions.resolve_interrupt("s", pending, approved=True)
    with pytest.raises(InterruptAlreadyResolvedError):
        await sessions.resolve_interrupt("s", pending, approved=False)
    await wait_for_event(sessions, AgentEventType.TURN_COMPLETED)
    assert (await sessions.get_agent_snapshot("s")).messages[2].tool_output == "did x"


async def wait_for_event(sessions: AgentSessionClient, type: AgentEventType) -> Any:
    """Return the payload of the first event of a type of session ``s``, waiting for it."""
    async with asyncio.timeout(30):
        async for event in sessions.stream_agent_events("s"):
            if event.value.type == type:
                return json.loads(event.value.payload)
