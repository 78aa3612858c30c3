"""One tool call outside the graph: what the tool gets, and what comes of what it does."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from dex_agents import (
    DeferredToolCall,
    InvalidArgumentsError,
    ToolCallContext,
    ToolCallFailedError,
)
from dex_agents_langgraph import (
    LangGraphRunError,
    durable_middleware,
    get_tool_call_idempotency_key,
    tool_effect_from_metadata,
)
from dex_agents_langgraph.testing import ScriptedChatModel
from dex_agents_tool_policy import ToolEffect


class Order(BaseModel):
    number: int


@tool
def thread_name(item: str) -> str:
    """Say where it runs."""
    return threading.current_thread().name


@tool
async def describe_config(item: str, config: RunnableConfig) -> dict[str, Any]:
    """Say what it was given."""
    return {
        "key": get_tool_call_idempotency_key(config),
        "user": config["configurable"]["user"],
        "tags": config["tags"],
        "plan": config["metadata"]["plan"],
    }


@tool
def own_id(item: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Say which call it is."""
    return call_id


@tool(response_format="content_and_artifact")
def with_artifact(item: str) -> tuple[str, bytes]:
    """Return more than a model gets."""
    return "content", b"artifact"


@tool
def blocks(item: str) -> list[dict[str, str]]:
    """Return content blocks."""
    return [{"type": "text", "text": "é"}]


@tool
def refuse(item: str) -> str:
    """Fail on purpose."""
    raise ToolException(f"no {item}")


@tool
def error_message(item: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Fail with a message."""
    return ToolMessage("sold out", tool_call_id=call_id, status="error")


@tool
def validate_inside(item: str) -> str:
    """Fail at something else's validation."""
    return str(Order.model_validate({"number": item}))


@tool
def command(item: str) -> Any:
    """Return what only a graph understands."""
    return Command(update={})


TOOLS = [
    thread_name,
    describe_config,
    own_id,
    with_artifact,
    blocks,
    refuse,
    error_message,
    validate_inside,
    command,
]


@pytest.fixture
async def call_tool(converse: Any) -> Any:
    """Run a call: ``await call_tool(name, item="x")``."""
    model = ScriptedChatModel(script=lambda messages: AIMessage("hi"))
    agent = create_agent(model, TOOLS, middleware=durable_middleware())
    runner = (await converse(agent)).runner

    async def run(name: str, **arguments: Any) -> str:
        call = DeferredToolCall("call-1", name, arguments)
        config = {"configurable": {"user": "ann"}, "tags": ["vip"], "metadata": {"plan": "gold"}}
        context = ToolCallContext("session", "turn-1", call, 1, config)
        return str(await runner.execute_deferred_tool_call(context))

    return run


async def test_a_sync_body_runs_off_the_event_loop(call_tool: Any) -> None:
    assert await call_tool("thread_name", item="x") != threading.current_thread().name


async def test_a_tool_gets_the_sessions_configuration_and_its_idempotency_key(
    call_tool: Any,
) -> None:
    assert await call_tool("describe_config", item="x") == (
        '{"key": "session/turn-1/call-1", "user": "ann", "tags": ["vip"], "plan": "gold"}'
    )


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("own_id", "call-1"),
        ("with_artifact", "content"),
        ("blocks", '[{"type": "text", "text": "é"}]'),
    ],
)
async def test_the_model_gets_text(call_tool: Any, name: str, output: str) -> None:
    assert await call_tool(name, item="x") == output


@pytest.mark.parametrize(("name", "text"), [("refuse", "no x"), ("error_message", "sold out")])
async def test_a_failure_that_the_tool_reports_is_a_failed_call(
    call_tool: Any, name: str, text: str
) -> None:
    with pytest.raises(ToolCallFailedError, match=text):
        await call_tool(name, item="x")


async def test_arguments_that_do_not_match_are_refused_before_the_body(call_tool: Any) -> None:
    with pytest.raises(InvalidArgumentsError, match=r"do not match its schema: item: "):
        await call_tool("refuse", item=["x"])


async def test_a_validation_error_inside_a_body_is_no_argument_error(call_tool: Any) -> None:
    with pytest.raises(ValidationError):
        await call_tool("validate_inside", item="x")


async def test_a_command_is_an_error_of_a_body_that_has_run(call_tool: Any) -> None:
    with pytest.raises(LangGraphRunError, match="returned 'Command'"):
        await call_tool("command", item="x")


async def test_a_tool_the_agent_does_not_have_fails_by_name(call_tool: Any) -> None:
    with pytest.raises(InvalidArgumentsError, match="the agent has no tool named 'made_up'"):
        await call_tool("made_up", item="x")


def test_mcp_annotations_in_the_metadata_give_a_tools_effect() -> None:
    def read(**metadata: Any) -> ToolEffect | None:
        return tool_effect_from_metadata(
            StructuredTool.from_function(lambda x: x, name="t", description="d", metadata=metadata)
        )

    assert read(readOnlyHint=True) is ToolEffect.READ
    assert read(readOnlyHint=False, idempotentHint=True) is ToolEffect.IDEMPOTENT_WRITE
    assert read() is None
    assert tool_effect_from_metadata(refuse) is None
