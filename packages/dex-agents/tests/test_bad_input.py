"""What users may get wrong, and what they are told."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from agent_programs import script

from dex_agents import (
    AgentUsageError,
    EmptyMessageError,
    MessageRefusedError,
    ServerUnreachableError,
    SessionAlreadyStartedError,
    SessionNotFoundError,
    SessionSettings,
    WorkerUnavailableError,
    open_agent_host,
    open_session_client,
    session_client_flow,
)

EMPTY = ["", "   \n\t", [], [{"type": "text", "text": " "}]]


async def test_unknown_session_is_not_found(agent: Any) -> None:
    client = agent.sessions
    for name in ("nobody", "", "  "):
        with pytest.raises(SessionNotFoundError, match="start it with start_session"):
            await client.send_user_message(name, "hello")
        with pytest.raises(SessionNotFoundError):
            await client.get_agent_snapshot(name)
        with pytest.raises(SessionNotFoundError):
            await client.resolve_interrupt(name, "turn-1:c", approved=True)
        with pytest.raises(SessionNotFoundError):
            await anext(client.stream_agent_events(name))


@pytest.mark.parametrize("content", EMPTY)
async def test_empty_message_is_refused(session: Any, content: Any) -> None:
    with pytest.raises(EmptyMessageError):
        await session.client.start_session(session.session_id, content)
    with pytest.raises(EmptyMessageError):
        await session.client.run_turn(session.session_id, content)
    await session.turn("hello")
    with pytest.raises(EmptyMessageError):
        await session.client.send_user_message(session.session_id, content)


async def test_content_blocks_are_a_message(session: Any) -> None:
    blocks = [{"type": "text", "text": "what is this?"}, {"type": "image", "url": "http://x"}]
    result = await session.turn(blocks)
    assert result.messages[0].role == "user"
    assert "http://x" in result.messages[0].framework_item


async def test_message_the_agent_cannot_take_is_refused_and_leaves_nothing(session: Any) -> None:
    await session.turn("hello")
    with pytest.raises(MessageRefusedError, match="no message for this agent"):
        await session.client.send_user_message(session.session_id, "unreadable")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert (snapshot.message_count, snapshot.turn_id) == (2, "turn-1")


async def test_second_start_of_a_session_is_refused(session: Any) -> None:
    await session.client.start_session(session.session_id, "hello")
    for request_id in (None, "another"):
        with pytest.raises(SessionAlreadyStartedError, match="send_user_message"):
            await session.client.start_session(session.session_id, "hi", request_id=request_id)
    assert (await session.turn("more")).turn_id == "turn-2"


async def test_session_id_must_not_be_empty(session: Any) -> None:
    with pytest.raises(AgentUsageError, match="session_id"):
        await session.client.start_session(" ", "hello")


@pytest.mark.parametrize("message_id", ["", " ", "a/b", "x" * 129])
async def test_message_id_must_be_usable(session: Any, message_id: str) -> None:
    with pytest.raises(AgentUsageError, match="message id"):
        await session.client.send_user_message(session.session_id, "hello", message_id=message_id)


async def test_stopped_session_is_not_found_by_those_who_send(agent: Any) -> None:
    session = agent.session("one")
    await session.turn("hello")
    await agent.host.client.stop_flow(session.session_id)
    with pytest.raises(SessionNotFoundError, match="closed"):
        await session.client.send_user_message(session.session_id, "more")
    with pytest.raises(SessionNotFoundError, match="closed"):
        await session.turn("more")
    snapshot = await session.client.get_agent_snapshot(session.session_id)
    assert snapshot.message_count == 2


async def test_address_where_nothing_listens_is_an_error_within_seconds(program: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServerUnreachableError, match="dex-embedded-engine serve"):
        async with open_agent_host(
            [program.flow("Nowhere")], server_address=address, connect_timeout=0.5
        ):
            pass
    with pytest.raises(ServerUnreachableError, match=address):
        async with open_session_client(
            session_client_flow("Nowhere"), server_address=address, connect_timeout=0.5
        ):
            pass


async def test_session_without_a_worker_says_that_one_is_missing(engine_address: str) -> None:
    flow = session_client_flow("NobodyServesThis")
    async with open_session_client(flow, server_address=engine_address, patience=0.5) as client:
        await client.start_session("lonely", "hello")
        with pytest.raises(WorkerUnavailableError, match="NobodyServesThis"):
            await client.get_agent_snapshot("lonely")


@pytest.mark.parametrize(("slots", "reserved"), [(1, 0), (1, 1), (2, 0), (2, 2), (0, 0), (4, -1)])
async def test_host_with_too_few_slots_is_refused(program: Any, slots: int, reserved: int) -> None:
    with pytest.raises(AgentUsageError, match="slots"):
        async with open_agent_host(
            [program.flow("Few")], max_concurrent_tasks=slots, reserved_rpc_tasks=reserved
        ):
            pass


async def test_host_without_flows_or_of_another_mode_is_refused(program: Any) -> None:
    with pytest.raises(AgentUsageError, match="at least one flow"):
        async with open_agent_host([]):
            pass
    with pytest.raises(AgentUsageError, match="'push'"):
        async with open_agent_host([program.flow("Push")], mode="push"):
            pass


async def test_flow_without_an_agent_cannot_be_hosted(engine_address: str) -> None:
    with pytest.raises(AgentUsageError, match="no agent"):
        async with open_agent_host([session_client_flow("Empty")], server_address=engine_address):
            pass


@pytest.mark.parametrize("name", ["", "a/b"])
def test_flow_type_must_be_usable(name: str) -> None:
    with pytest.raises(AgentUsageError, match="flow_type"):
        session_client_flow(name)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_timeout": 0},
        {"tool_timeout": -1},
        {"maximum_failures": 0},
        {"heartbeat_interval": 30},
        {"history_budget": 3 * 1024 * 1024},
        {"model_timeout": float("nan")},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(AgentUsageError, match=f"SessionSettings.{next(iter(settings))}"):
        SessionSettings(**settings)


async def test_negative_page_of_the_snapshot_is_refused(session: Any) -> None:
    await session.turn("hello")
    for page in ({"after_sequence": -1}, {"limit": -1}):
        with pytest.raises(AgentUsageError, match="negative"):
            await session.client.get_agent_snapshot(session.session_id, **page)
    empty = await session.client.get_agent_snapshot(session.session_id, after_sequence=99)
    assert (empty.messages, empty.message_count) == ((), 2)


async def test_answer_to_an_interrupt_of_an_ended_turn_is_refused(session: Any) -> None:
    await session.turn(script({"calls": [["look", {"id": 1}]]}, {}))
    await session.turn("next")
    await session.turn("next")
    await session.at_rest()
    with pytest.raises(AgentUsageError, match="no interrupt 'turn-1:r1c1'"):
        await session.client.resolve_interrupt(session.session_id, "turn-1:r1c1", approved=True)
