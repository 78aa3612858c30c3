"""Values that do not fit into one message, and many that do not fit together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    Attribute,
    AttributeMap,
    Channel,
    Context,
    DexServiceError,
    FlowErrorType,
    PersistenceSchema,
    RPCResult,
    StartFlowOptions,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow, Second, guard

bulk = Attribute("bulk", str)
raw = Attribute("raw", bytes)
secret = Attribute("secret", str, hard_delete_on_null=True)
other_secret = Attribute("other_secret", str, hard_delete_on_null=True)
shelf = AttributeMap("shelf", str)
inbox = Channel("inbox", str)
MEGA = 1024 * 1024


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(bulk, raw, secret, other_secret, shelf, inbox)

    @rpc(load_attribute_maps=(shelf,))
    async def count_shelf(self, context: Context, input: str) -> RPCResult[int]:
        texts = [shelf.get(context, key) for key in shelf.get_all_instance_keys(context)]
        return RPCResult(sum(map(len, texts)))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        yield bench


def text_of(size: int, seed: int = 0) -> str:
    """Make text that differs by seed."""
    line = f"{seed:08d} "
    return (line * (size // len(line) + 1))[:size]


async def test_three_megabytes_go_everywhere(bench: Bench) -> None:
    """10.1: input, Attribute, message, RPC input and output, result; text and bytes."""
    text = text_of(3 * MEGA)

    def first(context: Any, input: str) -> Any:
        bulk.set(context, input)
        raw.set(context, input.encode())
        return go_to(Hold, input)

    def hold(context: Any, input: str) -> Any:
        assert inbox.results(context)[0] == input == bulk.get(context)
        assert raw.get(context) == input.encode()
        return graceful_complete(input)

    def ask(context: Any, input: str) -> RPCResult[str]:
        inbox.publish(context, input)
        return RPCResult(input)

    bench.on(First, first)
    bench.on(Hold, hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
    bench.on_rpc("ask", ask)
    await bench.start(input=text)
    await bench.waiting("Hold-1")
    assert await bench.call("ask", text) == text
    assert await bench.output(str) == text


async def test_value_that_no_worker_could_load_is_refused(bench: Bench) -> None:
    """1.2, 10.1: at the start, and as an invalid result of a Step or an RPC."""
    text = text_of(4 * MEGA)
    with pytest.raises(DexServiceError, match="input of Step 'First' has 4194309 bytes") as refusal:
        await bench.start(input=text)
    assert refusal.value.code is grpc.StatusCode.INVALID_ARGUMENT
    bench.on(First, lambda *_: go_to(Second, text))
    await bench.start()
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "input of Step 'Second' has 4194309 bytes" in (result.error_message or "")
    bench.on_rpc("ask", lambda *_: RPCResult(text))
    with pytest.raises(WorkerInvocationError, match="invalid result"):
        await bench.call("ask", "")


async def test_many_values_arrive_whole(bench: Bench) -> None:
    """1.2, 10.5, 12.37: more than fit into one frame; what is over the budget is referred to."""

    def first(context: Any, input: str) -> Any:
        for number in range(50):
            shelf.set(context, str(number), text_of(100_000, number))
        return go_to(Second, "")

    def second(context: Any, input: str) -> Any:
        keys = shelf.get_all_instance_keys(context)
        return graceful_complete(
            [shelf.get(context, key) == text_of(100_000, int(key)) for key in keys]
        )

    bench.on(First, first)
    bench.on(Second, second, options=StepOptions(execute_load_attribute_maps=(shelf,)))
    await bench.start()
    assert await bench.output(list[Any]) == [True] * 50
    assert await bench.call("count_shelf", "") == 5_000_000


async def test_very_many_small_values_arrive_whole(bench: Bench) -> None:
    """1.2, 12.37: six megabytes of values that are each small enough to stand inline."""

    def fill(context: Any, input: str) -> Any:
        for number in range(1500):
            shelf.set(context, f"{input}{number}", text_of(1000, ord(input) * 1500 + number))
        return RPCResult("")

    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
    bench.on_rpc("ask", fill)
    await bench.start()
    for name in "abcd":
        await bench.call("ask", name)
    assert await bench.call("count_shelf", "") == 6_000_000


async def test_very_many_messages_arrive_whole(bench: Bench) -> None:
    """1.2, 12.37: loaded, and as results of a wait."""
    bench.on(First, lambda *_: go_to(Hold, ""))

    def hold(context: Any, input: str) -> Any:
        texts = inbox.results(context)
        return graceful_complete([len(texts), sum(map(len, texts)), list(texts) == sorted(texts)])

    def fill(context: Any, input: str) -> Any:
        for number in range(1500):
            inbox.publish(context, text_of(1000, int(input) * 1500 + number))
        return RPCResult("")

    bench.on(Hold, hold, wait_for=lambda *_: Wait.until(inbox.at_least(6000)))
    bench.on_rpc("ask", fill)
    await bench.start()
    for name in "0123":
        await bench.call("ask", name)
    assert await bench.output(list[Any]) == [6000, 6_000_000, True]


async def test_results_that_do_not_fit_into_one_answer_arrive_whole(bench: Bench) -> None:
    """1.2, 10.1: three of two megabytes each."""
    bench.on(First, lambda *_: go_to_many(*(StepMovement.of(Second, str(n)) for n in range(3))))
    bench.on(Second, lambda context, input: graceful_complete(text_of(MEGA * 5 // 4, int(input))))
    await bench.start()
    completions = (await bench.result()).completions
    found = sorted(each.decode(str) for each in completions)
    assert found == [text_of(MEGA * 5 // 4, number) for number in range(3)]


async def test_same_value_is_stored_once(bench: Bench) -> None:
    """D6, 10.9: however often it is written, sent and journalled."""
    text = text_of(MEGA)

    def first(context: Any, input: str) -> Any:
        bulk.set(context, input)
        inbox.publish(context, input)
        return go_to(Second, input)

    bench.on(First, first)
    await bench.start(input=text)
    assert await bench.output(str) == text
    await bench.stop_engine()
    assert sum(map(len, bench.files().values())) < 1.5 * MEGA


async def test_reference_names_the_content_and_nothing_else(bench: Bench) -> None:
    """10.3, 10.4, 10.6: for the SDK's cache, which outlives the engine; closed Flows too."""
    ids = []
    for flow_id, seed in (("a", 1), ("b", 2), ("c", 1)):
        await bench.start(flow_id, text_of(2 * MEGA, seed))
        assert await bench.output(str, flow_id) == text_of(2 * MEGA, seed)
        start = (await bench.history(flow_id))[0].flow_started_or_continued.initial_start
        ids.append(start.step_input.internal_blob_id_for_string_value)
    assert ids[0] == ids[2] != ids[1]
    await bench.restart()
    reference = pb.Value(internal_blob_id_for_string_value=ids[1])
    known = pb.LoadBlobRequestEntry(flow_id="b", blob_value=reference)
    answer = await guard(bench.service.LoadBlobs(pb.LoadBlobsRequest(entries=[known])))
    assert answer.values[ids[1]].string_value == text_of(2 * MEGA, 2)
    strange = pb.LoadBlobRequestEntry(flow_id="a", blob_value=reference)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await guard(bench.service.LoadBlobs(pb.LoadBlobsRequest(entries=[known, strange])))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_big_secret_travels_beside_big_values(bench: Bench) -> None:
    """9.21, 1.2: a secret is always inline, so what else there is must make room for it."""
    options = StartFlowOptions().with_attribute(secret, text_of(3 * MEGA, 1))
    options = options.with_attribute(bulk, text_of(MEGA, 2)).with_attribute(raw, b"x" * MEGA)

    def first(context: Any, input: str) -> Any:
        assert secret.get(context) == text_of(3 * MEGA, 1)
        assert bulk.get(context) == text_of(MEGA, 2)
        return graceful_complete(len(raw.get(context)))

    bench.on(First, first)
    await bench.start(options=options)
    assert await bench.output(int) == MEGA


async def test_secrets_that_fill_a_whole_message_fail_the_step_with_a_reason(bench: Bench) -> None:
    """9.21, 1.2: a frame that breaks the Worker's stream is never sent; the Flow can be stopped."""
    options = StartFlowOptions().with_attribute(secret, text_of(3 * MEGA))
    await bench.start(options=options.with_attribute(other_secret, text_of(2 * MEGA)))
    result = await bench.result()
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "keep less in hard-delete Attributes" in (result.error_message or "")
    with pytest.raises(DexServiceError, match="'ask' needs") as refusal:
        await bench.call("ask", "")
    assert refusal.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await bench.start("other", "still served")
    assert await bench.output(str, "other") == "still served"
