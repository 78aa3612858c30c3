"""Attribute locks: who waits, who is refused, and when they are free again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dex import (
    Attribute,
    AttributeLock,
    AttributeMap,
    AttributeMapNotLoadedError,
    Channel,
    Context,
    PersistenceSchema,
    RPCInvokeOptions,
    RpcLockConflictError,
    RPCResult,
    StartFlowOptions,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from engine_harness import (
    FORGETFUL,
    GUARD,
    SETTINGS,
    Bench,
    First,
    Hold,
    ScriptedFlow,
    Second,
    Third,
)

total = Attribute("total", int)
color = Attribute("color", str)
shelf = AttributeMap("shelf", str)
inbox = Channel("inbox", str)
LOCKING = StepOptions(execute_lock_attributes=(total.lock(),))


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total, color, shelf, inbox)

    @rpc(lock_attributes=(total.lock(),))
    async def locked(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("locked", context, input)

    @rpc(lock_attributes=(total.lock(), color.lock()))
    async def locked_twice(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("locked_twice", context, input)


@pytest.fixture(params=[SETTINGS, FORGETFUL], ids=["loaded", "forgetful"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage, settings=request.param) as bench:
        yield bench


def holding(bench: Bench, gate: str = "step") -> Any:
    """Make a handler that adds one to the total, waiting at a gate between reading and writing."""

    async def execute(context: Any, input: str) -> Any:
        bench.script.note(f"holding {input}")
        seen = total.get(context)
        await bench.script.gate(gate)
        total.set(context, seen + 1)
        return graceful_complete(seen)

    return execute


def add(context: Any, input: str) -> RPCResult[str]:
    total.set(context, total.get(context) + 1)
    return RPCResult(str(total.get(context)))


async def test_step_with_the_lock_keeps_others_out(bench: Bench) -> None:
    """9.9, 9.10, 9.12: a Step waits for the lock, an RPC is refused at once."""
    bench.on(First, lambda *_: go_to_many(*(StepMovement.of(Second, text) for text in "abc")))
    bench.on(Second, holding(bench), options=LOCKING)
    await bench.start()
    await bench.script.noted("holding a")
    with pytest.raises(RpcLockConflictError) as refusal:
        await bench.call("locked", "")
    assert "'total'" in refusal.value.detail
    assert len((await bench.state()).queued_steps) == 2
    bench.script.open("step")
    completions = (await bench.result()).completions
    assert [each.decode(int) for each in completions] == [0, 1, 2]
    assert bench.script.notes == ["holding a", "holding b", "holding c"]


async def test_locks_are_taken_together_or_not_at_all(bench: Bench) -> None:
    """9.9, 9.8: a call that found one of its keys held has not taken the other."""
    bench.on(First, holding(bench), options=LOCKING)
    await bench.start()
    await bench.script.noted("holding ")
    with pytest.raises(RpcLockConflictError):
        await bench.call("locked_twice", "")
    other = StepOptions(execute_lock_attributes=(color.lock(),))
    bench.on(Second, lambda *_: graceful_complete(7), options=other)
    bench.on_rpc("ask", lambda *_: RPCResult("", (StepMovement.of(Second, ""),)))
    await bench.call("ask", "")
    await bench.reach(lambda state: len(state.completed_steps) == 1)
    bench.script.open("step")
    completions = (await bench.result()).completions
    assert [each.step_type for each in completions] == ["Second", "First"]


async def test_locks_of_other_flows_and_keys_do_not_matter(bench: Bench) -> None:
    """9.9: one holder per key per Flow."""
    bench.on(First, holding(bench), options=LOCKING)
    await bench.start("one")
    await bench.start("two", "2")
    await bench.script.noted("holding ")
    await bench.script.noted("holding 2")
    bench.script.open("step")
    assert await bench.output(int, "one") == await bench.output(int, "two") == 0


async def test_rpc_with_the_lock_keeps_steps_waiting(bench: Bench) -> None:
    """9.10, 9.12: the Step's snapshot is taken when it gets the lock."""

    async def locked(context: Any, input: str) -> RPCResult[str]:
        bench.script.note("locked")
        await bench.script.gate("rpc")
        return add(context, input)

    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()), options=LOCKING)
    bench.on(Hold, lambda context, input: graceful_complete(total.get(context)))
    bench.on_rpc("locked", locked)
    bench.on_rpc("ask", publish)
    await bench.start()
    await bench.waiting("Hold-1")
    calling = asyncio.create_task(bench.call("locked", ""))
    await bench.script.noted("locked")
    await bench.call("ask", "message")
    with pytest.raises(RpcLockConflictError):
        await bench.call("locked", "")
    assert len((await bench.state()).queued_steps) == 1
    bench.script.open("rpc")
    assert await calling == "1"
    assert await bench.output(int) == 1


def publish(context: Any, input: str) -> RPCResult[str]:
    inbox.publish(context, input)
    return RPCResult("")


async def test_step_between_attempts_holds_no_lock(bench: Bench) -> None:
    """D13, 9.11, 9.12: and its next attempt sees what others wrote meanwhile."""

    def execute(context: Any, input: str) -> Any:
        seen = total.get(context)
        if context.attempt == 1:
            raise LookupError("no")
        total.set(context, seen + 10)
        return graceful_complete(seen)

    bench.on(First, execute, options=LOCKING)
    bench.on_rpc("locked", add)
    await bench.start()
    await bench.failed("First-1")
    assert await bench.call("locked", "") == "1"
    bench.clock.advance(1)
    assert await bench.output(int) == 1
    assert (await bench.state()).attributes[0].value.int_value == 11


async def test_step_that_finds_no_room_holds_no_lock(tmp_path: Path) -> None:
    """D13: it is taken when a Worker has a free slot, and given back when the Worker declines."""
    async with Bench(tmp_path, Stage, tasks=2) as bench:
        bench.on(First, holding(bench), options=LOCKING)
        bench.on_rpc("locked", add)
        await bench.start("busy")
        await bench.script.noted("holding ")
        await bench.start("flow", "queued")
        for number in (1, 2, 3):
            assert await add_locked(bench) == str(number)
        bench.script.open("step")
        assert await bench.output(int) == 3


async def add_locked(bench: Bench) -> Any:
    """Call the RPC again until the lock is free."""
    async with asyncio.timeout(GUARD):
        while True:
            try:
                return await bench.call("locked", "")
            except RpcLockConflictError:
                continue


async def test_wait_for_gives_its_lock_back_before_the_step_waits(bench: Bench) -> None:
    """9.11: and each method locks for itself."""

    async def wait_for(context: Any, input: str) -> Wait:
        bench.script.note("wait_for")
        await bench.script.gate("wait_for")
        return Wait.until(inbox.for_one())

    options = StepOptions(wait_for_lock_attributes=(total.lock(),))
    bench.on(First, lambda *_: go_to(Hold, ""))
    bench.on(Hold, holding(bench), wait_for=wait_for, options=options)
    bench.on_rpc("ask", publish)
    await bench.start()
    await bench.script.noted("wait_for")
    with pytest.raises(RpcLockConflictError):
        await bench.call("locked", "")
    bench.script.open("wait_for")
    await bench.waiting("Hold-1")
    assert await bench.call("locked", "a") == "a"
    await bench.call("ask", "message")
    await bench.script.noted("holding ")
    assert await bench.call("locked", "b") == "b"
    bench.script.open("step")
    assert await bench.output(int) == 0


async def test_lock_is_free_after_a_failed_rpc(bench: Bench) -> None:
    """9.14, 11.2.6."""
    bench.on(First, lambda *_: dead_end())
    await bench.start()

    def locked(context: Any, input: str) -> RPCResult[str]:
        raise LookupError("no")

    bench.on_rpc("locked", locked)
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            await bench.call("locked", "")
    bench.on_rpc("locked", add)
    assert await bench.call("locked", "") == "1"


async def test_lock_is_free_after_a_restart(bench: Bench) -> None:
    """9.14: locks are not durable."""
    bench.on(First, holding(bench), options=LOCKING)
    await bench.start()
    await bench.script.noted("holding ")
    await bench.restart()
    await bench.failed("First-1")
    assert await bench.call("locked", "free") == "free"


async def test_lock_of_one_map_instance_leaves_the_others_free(bench: Bench) -> None:
    """9.8, 9.13: the lock of an instance does not load it."""

    async def execute(context: Any, input: str) -> Any:
        try:
            shelf.get(context, "a b")
        except AttributeMapNotLoadedError:
            bench.script.note("holding")
        await bench.script.gate("step")
        return graceful_complete()

    options = StepOptions(execute_lock_attributes=(AttributeLock(shelf, "a b"),))
    bench.on(First, execute, options=options)
    await bench.start()
    await bench.script.noted("holding")

    def lock(instance: str) -> RPCInvokeOptions:
        return RPCInvokeOptions(lock_attribute_map_instances=(shelf.lock(instance),))

    with pytest.raises(RpcLockConflictError):
        await bench.call("ask", "", options=lock("a b"))
    assert await bench.call("ask", "other", options=lock("a")) == "other"
    assert await bench.call("locked", "no map") == "no map"


async def test_writers_without_the_lock_are_not_held_up(bench: Bench) -> None:
    """9.12: locks isolate those who use them."""
    bench.on(First, holding(bench), options=LOCKING)
    bench.on_rpc("ask", add)
    await bench.start(options=StartFlowOptions().with_attribute(total, 5))
    await bench.script.noted("holding ")
    assert await bench.call("ask", "") == "6"
    bench.script.open("step")
    assert await bench.output(int) == 5
    assert (await bench.state()).attributes[0].value.int_value == 6


async def test_many_locking_steps_and_rpcs_lose_no_update(bench: Bench) -> None:
    """9.12, 18.9."""
    bench.on(First, lambda *_: go_to_many(*(StepMovement.of(Third, "") for _ in range(20))))

    async def third(context: Any, input: str) -> Any:
        seen = total.get(context)
        await asyncio.sleep(0)
        total.set(context, seen + 1)
        return dead_end()

    async def locked(context: Any, input: str) -> RPCResult[str]:
        seen = total.get(context)
        await asyncio.sleep(0)
        total.set(context, seen + 1)
        return RPCResult("")

    async def count_success() -> int:
        try:
            await bench.call("locked", "")
        except RpcLockConflictError:
            return 0
        return 1

    bench.on(Third, third, options=LOCKING)
    bench.on_rpc("locked", locked)
    await bench.start()
    successes = sum(await asyncio.gather(*(count_success() for _ in range(30))))
    state = await bench.reach(lambda state: not state.active_step_executions)
    assert state.attributes[0].value.int_value == 20 + successes
