"""Attributes as handlers see them: snapshots, deletion, maps and what is loaded of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    AttributeMap,
    AttributeMapLoad,
    Channel,
    Context,
    IdReusePolicy,
    PersistenceSchema,
    RPCInvokeOptions,
    RPCResult,
    StartFlowOptions,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from engine_harness import FORGETFUL, SETTINGS, Bench, First, Hold, ScriptedFlow, Second, Third

color = Attribute("color", str)
count = Attribute("count", int)
is_open = Attribute("is_open", bool)
weight = Attribute("weight", float)
raw = Attribute("raw", bytes)
tags = Attribute("tags", list[str])
shelf = AttributeMap("shelf", str)
shelf_list = AttributeMap("shelf-list", str)
inbox = Channel("inbox", str)


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(
            color, count, is_open, weight, raw, tags, shelf, shelf_list, inbox
        )

    @rpc(load_attribute_maps=(shelf,))
    async def whole_map(self, context: Context, input: str) -> RPCResult[dict[str, str]]:
        keys = shelf.get_all_instance_keys(context)
        return RPCResult({key: shelf.get(context, key) for key in keys})

    @rpc(load_attribute_map_instances=(shelf.load("a"),))
    async def some_of_map(self, context: Context, input: str) -> RPCResult[str]:
        return RPCResult(shelf.get(context, input))


@pytest.fixture(params=[SETTINGS, FORGETFUL], ids=["loaded", "forgetful"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, settings=request.param) as bench:
        yield bench


async def write(bench: Bench, *changes: tuple[Any, ...]) -> None:
    """Write Attributes (attribute, value) and map entries (map, instance, value) by an RPC."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        for change in changes:
            change[0].set(context, *change[1:])
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "")


async def stored(bench: Bench) -> list[str]:
    return [entry.key for entry in (await bench.state()).attributes]


async def waits_for_message(bench: Bench) -> None:
    """Let the Flow wait for ever."""
    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
    await bench.start()
    await bench.waiting("Hold-1")


# --- values ------------------------------------------------------------------------------------


async def test_every_kind_of_value_comes_back_as_it_was(bench: Bench) -> None:
    """9.2, 17.2: from one Step to the next, and after a restart."""
    values: dict[Any, Any] = {
        color: "rot \N{HEAVY BLACK HEART} \x00",
        count: -(2**63),
        is_open: True,
        weight: 1.5,
        raw: bytes(range(256)),
        tags: ["a", "b"],
    }

    def first(context: Any, input: str) -> Any:
        for attribute, value in values.items():
            attribute.set(context, value)
        return go_to(Hold, "")

    def check(context: Any) -> bool:
        return all(attribute.get(context) == value for attribute, value in values.items())

    bench.on(First, first)
    bench.on(Hold, lambda context, input: graceful_complete(check(context)))
    bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
    await bench.start()
    await bench.waiting("Hold-1")
    await bench.restart()

    def publish(context: Any, input: str) -> RPCResult[str]:
        inbox.publish(context, "now")
        return RPCResult(str(check(context)))

    bench.on_rpc("ask", publish)
    assert await bench.call("ask", "") == "True"
    assert await bench.output(bool)


async def test_deleted_attribute_is_absent(bench: Bench) -> None:
    """9.4, 6.2.9: by delete, and by writing None."""

    def first(context: Any, input: str) -> Any:
        color.set(context, "red")
        tags.set(context, ["a"])
        count.set(context, 7)
        return go_to(Second, "")

    def second(context: Any, input: str) -> Any:
        color.delete(context)
        tags.set(context, None)  # type: ignore[arg-type]  # documented to delete
        return go_to(Hold, "")

    bench.on(First, first)
    bench.on(Second, second)
    bench.on(Hold, lambda context, _: graceful_complete([color.get(context), tags.get(context)]))
    await bench.start()
    assert await bench.output(list[Any]) == [None, None]
    assert await stored(bench) == ["count"]


async def test_last_write_wins(bench: Bench) -> None:
    """9.4: in the order of commits; set after delete too."""
    await waits_for_message(bench)
    await write(bench, (color, "red"))
    await write(bench, (color, "blue"))

    def ask(context: Any, input: str) -> RPCResult[str]:
        seen = color.get(context)
        color.delete(context)
        color.set(context, "green")
        return RPCResult(seen)

    bench.on_rpc("ask", ask)
    assert await bench.call("ask", "") == "blue"
    assert await bench.call("ask", "") == "green"


async def test_attributes_belong_to_the_run(bench: Bench) -> None:
    """9.1: a new run of the same Flow id starts empty."""
    bench.on(First, lambda context, input: graceful_complete([color.get(context)]))
    options = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)
    await bench.start(options=options.with_attribute(color, "red"))
    assert await bench.output(list[Any]) == ["red"]
    await bench.start(options=options)
    assert await bench.output(list[Any]) == [None]


async def test_failed_attempt_writes_nothing(bench: Bench) -> None:
    """6.2.3."""

    def first(context: Any, input: str) -> Any:
        assert color.get(context) is None
        color.set(context, "red")
        inbox.publish(context, "message")
        if context.attempt == 1:
            raise LookupError("no")
        color.delete(context)
        return graceful_complete(inbox.size(context))

    bench.on(First, first)
    await bench.start()
    await bench.failed("First-1")
    state = await bench.state()
    assert not state.attributes
    assert not state.pending_channel_messages
    bench.clock.advance(1)
    assert await bench.output(int) == 1


# --- snapshots ---------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
async def test_all_attempts_see_the_snapshot_of_the_first(bench: Bench, restarted: bool) -> None:
    """6.3.5: Attributes, map entries, Channel sizes and messages; the next call sees what is."""

    def view(context: Any) -> list[Any]:
        return [
            color.get(context),
            count.get(context),
            tags.get(context),
            {key: shelf.get(context, key) for key in shelf.get_all_instance_keys(context)},
            [message.value for message in inbox.pending_messages(context)],
            inbox.size(context),
        ]

    def hold(context: Any, input: str) -> Any:
        if context.attempt < 3:
            bench.script.note(str(view(context)))
            raise LookupError("no")
        color.set(context, "by the Step")
        return Wait.skip_immediately() if input == "wait" else go_to(Second, str(view(context)))

    options = StepOptions(
        wait_for_load_attribute_maps=(shelf,),
        wait_for_load_channels=(inbox,),
        execute_load_attribute_maps=(shelf,),
        execute_load_channels=(inbox,),
    )
    bench.on(First, lambda *_: go_to(Hold, "wait"))
    bench.on(Hold, lambda context, input: go_to(Second, str(view(context))), wait_for=hold)
    bench.on(Hold, options=options)
    bench.on(Second, lambda context, input: graceful_complete([input, str(view(context))]))
    bench.on(Second, options=options)
    start = StartFlowOptions().with_attribute(color, "old").with_attribute(tags, ["old"])
    start = start.with_attribute(shelf, "a", "old").with_attribute(shelf, "b", "old")
    await bench.start(options=start)
    await bench.failed("Hold-1")

    def change(context: Any, input: str) -> RPCResult[str]:
        color.set(context, "new")
        count.set(context, 9)
        tags.delete(context)
        shelf.set(context, "a", "new")
        shelf.delete(context, "b")
        shelf.set(context, "c", "new")
        inbox.publish(context, "new")
        return RPCResult("")

    bench.on_rpc("ask", change)
    await bench.call("ask", "")
    if restarted:
        await bench.restart()
    await bench.retried("Hold-1", 1, 1)
    await bench.retried("Hold-1", 2, 2)
    old = ["old", 0, ["old"], {"a": "old", "b": "old"}, [], 0]
    new = ["by the Step", 9, None, {"a": "new", "c": "new"}, ["new"], 1]
    assert await bench.output(list[Any]) == [str(new), str(new)]
    assert bench.script.notes == [str(old)] * 2


async def test_consumed_message_stays_in_the_snapshot_of_a_running_call(bench: Bench) -> None:
    """6.3.5: until the call has ended."""

    def first(context: Any, input: str) -> Any:
        inbox.publish(context, "a")
        return go_to_many(StepMovement.of(Second, ""), StepMovement.of(Hold, ""))

    def second(context: Any, input: str) -> Any:
        texts = [message.value for message in inbox.pending_messages(context)]
        bench.script.note(f"{texts} {inbox.size(context)}")
        if context.attempt == 1:
            raise LookupError("no")
        return go_to(Third, "")

    def publish(context: Any, input: str) -> RPCResult[str]:
        inbox.publish(context, "b")
        return RPCResult("")

    bench.on(First, first)
    bench.on(Second, second, options=StepOptions(execute_load_channels=(inbox,)))
    bench.on(Third, lambda context, input: graceful_complete(inbox.size(context)))
    bench.on(Hold, lambda *_: dead_end(), wait_for=lambda *_: Wait.until(inbox.at_least(2)))
    await bench.start()
    await bench.failed("Second-1")
    await bench.waiting("Hold-1")
    bench.on_rpc("ask", publish)
    await bench.call("ask", "")
    await bench.reach(lambda state: not state.pending_channel_messages)
    bench.clock.advance(1)
    assert await bench.output(int) == 0
    assert bench.script.notes == ["['a'] 1", "['a'] 1"]


# --- maps --------------------------------------------------------------------------------------


async def test_map_is_loaded_whole_or_by_instance_or_not_at_all(bench: Bench) -> None:
    """6.3.1, 6.3.3, 6.3.4: what was not loaded cannot be read, and another map is not touched."""
    await waits_for_message(bench)
    await write(
        bench,
        (shelf, "a", "apple"),
        (shelf, "b & c", "both"),
        (shelf, "ä%2F", "umlaut"),
        (shelf_list, "a", "other map"),
        (color, "red"),
    )
    assert await bench.call("whole_map", "") == {"a": "apple", "b & c": "both", "ä%2F": "umlaut"}
    assert await bench.call("some_of_map", "a") == "apple"
    with pytest.raises(WorkerInvocationError, match="was not loaded"):
        await bench.call("some_of_map", "b & c")
    bench.on_rpc("ask", lambda context, input: RPCResult(shelf.get(context, "a")))
    with pytest.raises(WorkerInvocationError) as error:
        await bench.call("ask", "")
    assert error.value.worker_error_type == "dex.runtime_errors.AttributeMapNotLoadedError"


async def test_caller_of_an_rpc_may_load_more_instances(bench: Bench) -> None:
    """6.3.1, 11.2.1."""
    await waits_for_message(bench)
    await write(bench, (shelf, "a", "apple"), (shelf, "b c", "pear"))
    options = RPCInvokeOptions(load_attribute_map_instances=(AttributeMapLoad(shelf, "b c"),))
    assert await bench.call("some_of_map", "b c", options=options) == "pear"
    assert await bench.call("some_of_map", "a", options=options) == "apple"


async def test_methods_of_a_step_load_each_for_itself(bench: Bench) -> None:
    """6.3.1: wait_for one instance, execute the whole map; a missing instance is absent."""

    def wait_for(context: Any, input: str) -> Wait:
        bench.script.note(f"{shelf.get(context, 'a')} {shelf.get(context, 'nothing')}")
        return Wait.skip_immediately()

    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(
        Hold,
        lambda context, input: graceful_complete(list(shelf.get_all_instance_keys(context))),
        wait_for=wait_for,
        options=StepOptions(
            wait_for_load_attribute_map_instances=(shelf.load("a"), shelf.load("nothing")),
            execute_load_attribute_maps=(shelf,),
        ),
    )
    start = StartFlowOptions().with_attribute(shelf, "a", "apple").with_attribute(shelf, "b", "x")
    await bench.start(options=start)
    assert await bench.output(list[Any]) == ["a", "b"]
    assert bench.script.notes == ["apple None"]


async def test_map_entries_are_deleted_one_by_one(bench: Bench) -> None:
    """9.4."""
    await waits_for_message(bench)
    await write(bench, (shelf, "a", "apple"), (shelf, "b", "pear"))

    def ask(context: Any, input: str) -> RPCResult[str]:
        shelf.delete(context, input)
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "a")
    await bench.call("ask", "nothing")
    assert await bench.call("whole_map", "") == {"b": "pear"}
