"""Streams: who writes and reads, tokens, capacity, and what survives."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    DexServiceError,
    LongPollTimeoutError,
    PersistenceSchema,
    Stream,
    StreamMessage,
    dead_end,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, ScriptedFlow, guard

lines = Stream("lines", str, 10_000_000)
small = Stream("small", str, 10_000)
other_lines = Stream("lines", str, 10_000_000)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(lines, small)


class OtherStage(ScriptedFlow):
    """Has a Stream of the same name."""

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(other_lines)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, OtherStage) as bench:
        yield bench


async def write(
    bench: Bench, *texts: str, flow_id: str = "flow", stream: Stream[str] = lines
) -> None:
    for text in texts:
        await guard(bench.client.write_stream(flow_id, stream, "test", text))


async def read(
    bench: Bench, token: str = "", flow_id: str = "flow", stream: Stream[str] = lines
) -> StreamMessage[str]:
    return await guard(bench.client.read_stream(flow_id, stream, token))


async def everything(
    bench: Bench, flow_id: str = "flow", stream: Stream[str] = lines, page: int = 1000
) -> list[str]:
    """List a Stream page by page; return its values, oldest first."""
    found: list[str] = []
    token = ""
    while True:
        answer = await guard(bench.client.list_stream_messages(flow_id, stream, page, token))
        assert len(answer.messages) <= page
        found += [message.value for message in answer.messages]
        token = answer.next_page_token
        if not token:
            return found[::-1]


# --- writing and reading -----------------------------------------------------------------------


async def test_messages_are_read_one_after_the_other(bench: Bench) -> None:
    """14.1, 14.2, 14.7: of a Flow that never existed; equal messages are all kept."""
    await write(bench, "a", "b", "b")
    first = await read(bench)
    assert (first.value, first.source) == ("a", "test")
    assert first.created_time == datetime.fromtimestamp(bench.clock.now(), UTC)
    second = await read(bench, first.resume_token)
    third = await read(bench, second.resume_token)
    assert [second.value, third.value] == ["b", "b"]
    assert (await read(bench, first.resume_token)).value == "b"


async def test_streams_of_other_flows_types_and_names_are_other_streams(bench: Bench) -> None:
    """14.1: the key is Flow type, name and Flow id."""
    await write(bench, "mine")
    await write(bench, "of another Flow", flow_id="other")
    await write(bench, "of another name", stream=small)
    await write(bench, "of another type", stream=other_lines)
    assert await everything(bench) == ["mine"]
    assert await everything(bench, "other") == ["of another Flow"]
    assert await everything(bench, stream=small) == ["of another name"]
    assert await everything(bench, stream=other_lines) == ["of another type"]


async def test_reader_is_woken_by_the_next_message(bench: Bench) -> None:
    """14.7: without time passing; every reader gets it."""
    await write(bench, "a")
    token = (await read(bench)).resume_token
    reading = [asyncio.create_task(read(bench, token)) for _ in range(3)]
    await bench.clock.alarm(60, times=3)
    await write(bench, "b")
    assert [message.value for message in await asyncio.gather(*reading)] == ["b"] * 3


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=7), timedelta(hours=1)])
async def test_reader_gives_up_after_its_time(bench: Bench, timeout: timedelta | None) -> None:
    """14.7: sixty seconds at most."""
    seconds = 7.0 if timeout == timedelta(seconds=7) else 60.0
    reading = asyncio.create_task(bench.client.read_stream("flow", lines, "", timeout))
    await bench.clock.alarm(seconds)
    bench.clock.advance(seconds)
    with pytest.raises(LongPollTimeoutError):
        await guard(reading)


@pytest.mark.parametrize("token", ["garbage", "-1", "1.5", "999999999", "٣"])
async def test_token_that_was_never_given_out_is_refused(bench: Bench, token: str) -> None:
    """14.7, 14.9."""
    await write(bench, "a")
    for work in (
        bench.client.read_stream("flow", lines, token),
        bench.client.list_stream_messages("flow", lines, 1, token),
    ):
        with pytest.raises(DexServiceError) as error:
            await guard(work)
        assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT


# --- Steps -------------------------------------------------------------------------------------


async def test_messages_of_a_step_can_be_read_while_it_runs(bench: Bench) -> None:
    """14.3: at once, with the Step execution as source."""

    async def first(context: Any, input: str) -> Any:
        lines.write(context, "a")
        await bench.script.gate("first")
        lines.write(context, "b")
        return graceful_complete()

    bench.on(First, first)
    await bench.start()
    first_message = await read(bench)
    assert (first_message.value, first_message.source) == ("a", "#First-1")
    bench.script.open("first")
    assert (await read(bench, first_message.resume_token)).value == "b"


async def test_all_messages_are_there_when_the_flow_has_completed(bench: Bench) -> None:
    """14.4: in the order they were written."""

    async def first(context: Any, input: str) -> Any:
        for number in range(200):
            lines.write(context, str(number))
        return graceful_complete()

    bench.on(First, first)
    for flow_id in ("a", "b", "c"):
        await bench.start(flow_id)
        await bench.result(flow_id)
        assert await everything(bench, flow_id) == [str(number) for number in range(200)]


async def test_messages_of_a_failed_attempt_are_kept(bench: Bench) -> None:
    """14.3, 6.2.3."""

    async def first(context: Any, input: str) -> Any:
        lines.write(context, f"attempt {context.attempt}")
        if context.attempt == 1:
            raise LookupError("no")
        return graceful_complete()

    bench.on(First, first)
    await bench.start()
    await bench.retried("First-1", 1, 1)
    await bench.result()
    assert await everything(bench) == ["attempt 1", "attempt 2"]


async def test_message_that_is_too_long_is_refused_or_dropped(bench: Bench) -> None:
    """14.6: a hundred KiB; the Step goes on."""

    async def first(context: Any, input: str) -> Any:
        lines.write(context, "x" * (100 * 1024 + 1))
        lines.write(context, "short")
        return graceful_complete()

    bench.on(First, first)
    await bench.start()
    await bench.result()
    assert await everything(bench) == ["short"]
    await write(bench, "x" * (100 * 1024 - 8))
    with pytest.raises(DexServiceError) as error:
        await write(bench, "x" * (100 * 1024 + 1))
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(await everything(bench)) == 2


# --- capacity ----------------------------------------------------------------------------------


async def test_oldest_messages_of_all_flows_make_room(bench: Bench) -> None:
    """14.5: one budget per Flow type and name; another Stream has its own."""
    await write(bench, "bystander")
    text = "x" * 900
    for number in range(5):
        for flow_id in ("a", "b"):
            await write(bench, f"{number} {text}", flow_id=flow_id, stream=small)
    left = {flow_id: await everything(bench, flow_id, small) for flow_id in ("a", "b")}
    numbers = {flow_id: [int(value.split()[0]) for value in left[flow_id]] for flow_id in left}
    assert numbers["a"] == list(range(numbers["a"][0], 5))
    assert numbers["b"] == list(range(numbers["b"][0], 5))
    assert abs(numbers["a"][0] - numbers["b"][0]) <= 1
    kept = sum(len(value) for values in left.values() for value in values)
    assert 5_000 < kept < small.stream_capacity_bytes
    assert await everything(bench) == ["bystander"]


async def test_capacity_holds_across_a_restart(bench: Bench) -> None:
    """14.5, 14.8."""
    text = "x" * 900
    for _ in range(3):
        for number in range(20):
            await write(bench, f"{number} {text}", stream=small)
        await bench.restart()
        assert sum(map(len, await everything(bench, stream=small))) < 10_000


async def test_message_larger_than_the_stream_is_refused(bench: Bench) -> None:
    """14.5: and trims nothing."""
    await write(bench, "kept", stream=small)
    with pytest.raises(DexServiceError) as error:
        await write(bench, "x" * 10_000, stream=small)
    assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await everything(bench, stream=small) == ["kept"]


async def test_token_of_a_trimmed_message_leads_to_the_oldest_kept_one(bench: Bench) -> None:
    """14.7, 14.8."""
    text = "x" * 900
    await write(bench, f"0 {text}", stream=small)
    token = (await read(bench, stream=small)).resume_token
    for number in range(1, 30):
        await write(bench, f"{number} {text}", stream=small)
    oldest = (await everything(bench, stream=small))[0]
    assert not oldest.startswith("0 ")
    assert (await read(bench, token, stream=small)).value == oldest
    assert (await read(bench, stream=small)).value == oldest


# --- listing -----------------------------------------------------------------------------------


async def test_pages_go_from_the_newest_to_the_oldest(bench: Bench) -> None:
    """14.9: without waiting; the last page has no token."""
    assert await everything(bench) == []
    await write(bench, *map(str, range(10)))
    await write(bench, "in between", flow_id="other")
    page = await bench.client.list_stream_messages("flow", lines, 4)
    assert [message.value for message in page.messages] == ["9", "8", "7", "6"]
    for size in (1, 3, 10, 1000, 100_000):
        assert await everything(bench, page=size) == list(map(str, range(10)))
    exact = await bench.client.list_stream_messages("flow", lines, 10)
    assert exact.next_page_token == ""


async def test_listed_message_has_the_token_to_read_on(bench: Bench) -> None:
    """14.9, 14.8."""
    await write(bench, "a", "b", "c")
    page = await bench.client.list_stream_messages("flow", lines, 2)
    assert (await read(bench, page.messages[1].resume_token)).value == "c"


async def test_new_messages_do_not_enter_a_listing_that_has_begun(bench: Bench) -> None:
    """14.9."""
    await write(bench, *"abcd")
    page = await bench.client.list_stream_messages("flow", lines, 2)
    await write(bench, "e")
    rest = await bench.client.list_stream_messages("flow", lines, 9, page.next_page_token)
    assert [message.value for message in rest.messages] == ["b", "a"]
    assert rest.next_page_token == ""


async def test_listing_ends_where_its_anchor_was_trimmed(bench: Bench) -> None:
    """14.9: an empty page without a token."""
    text = "x" * 900
    for number in range(4):
        await write(bench, f"{number} {text}", stream=small)
    page = await bench.client.list_stream_messages("flow", small, 2)
    for number in range(30):
        await write(bench, f"{number} {text}", stream=small)
    rest = await bench.client.list_stream_messages("flow", small, 9, page.next_page_token)
    assert (rest.messages, rest.next_page_token) == ([], "")


async def test_page_of_long_messages_fits_into_an_answer(bench: Bench) -> None:
    """14.9, 1.2: fewer messages than asked for."""
    texts = [f"{number} " + "x" * 100_000 for number in range(60)]
    await write(bench, *texts)
    page = await bench.client.list_stream_messages("flow", lines, 1000)
    assert 0 < len(page.messages) < 60
    assert await everything(bench) == texts


# --- surviving ---------------------------------------------------------------------------------


async def test_tokens_and_messages_survive_a_restart(bench: Bench) -> None:
    """14.8."""

    async def first(context: Any, input: str) -> Any:
        lines.write(context, "of the Step")
        return dead_end()

    bench.on(First, first)
    await bench.start()
    token = (await read(bench)).resume_token
    for text in ("b", "c"):
        await bench.restart()
        await write(bench, text)
        message = await read(bench, token)
        assert message.value == text
        token = message.resume_token
    assert await everything(bench) == ["of the Step", "b", "c"]


async def test_reader_gets_what_is_written_after_a_power_loss(bench: Bench) -> None:
    """14.8, 14.10: the loss may take messages of Steps, but never gives their tokens to others."""

    async def first(context: Any, input: str) -> Any:
        lines.write(context, "synced")
        await bench.script.gate("first")
        for number in range(3):
            lines.write(context, f"lost {number}")
        bench.script.note("written")
        await bench.script.gate("second")
        return dead_end()

    bench.on(First, first)
    await bench.start()
    token = (await read(bench)).resume_token
    # What was written with a sync is what a power loss leaves.
    await write(bench, "of the client")
    token = (await read(bench, token)).resume_token
    saved = bench.folder / "saved"
    shutil.copytree(bench.data_dir, saved)
    bench.script.open("first")
    for number in range(3):
        message = await read(bench, token)
        assert message.value == f"lost {number}"
        token = message.resume_token
    await bench.stop_engine()
    shutil.rmtree(bench.data_dir)
    saved.rename(bench.data_dir)
    await bench.start_engine()
    await write(bench, "new")
    assert (await read(bench, token)).value == "new"
    assert (await everything(bench))[:2] == ["synced", "of the client"]


async def test_source_is_needed(bench: Bench) -> None:
    """14.2."""
    request = pb.WriteStreamRequest(
        flow_id="flow",
        flow_type="Stage",
        stream_name="lines",
        stream_capacity_bytes=1000,
        value=pb.Value(string_value="a"),
    )
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await bench.service.WriteStream(request)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
