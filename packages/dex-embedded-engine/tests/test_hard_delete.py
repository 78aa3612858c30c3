"""Attributes whose deletion leaves nothing behind: no row, no page, no byte in any file."""

from __future__ import annotations

import shutil
import sqlite3
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
    FlowAlreadyStartedError,
    IdReusePolicy,
    PersistenceSchema,
    RPCResult,
    StartFlowOptions,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to,
    graceful_complete,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, First, Hold, ScriptedFlow, Second

from dex_embedded_engine import Durability
from dex_embedded_engine.storage.attributes import AttributeStore
from dex_embedded_engine.storage.connection import Connection
from dex_embedded_engine.values import NULL

key = Attribute("key", str, hard_delete_on_null=True)
blob = Attribute("blob", bytes, hard_delete_on_null=True)
keys = AttributeMap("keys", str, hard_delete_on_null=True)
plain = Attribute("plain", str)
inbox = Channel("inbox", str)
MARK = "sk-live-7a1f"
SIZES = [0, 1, 60, 900, 3000, 5000, 70_000, 3_000_000]


class Stage(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(key, blob, keys, plain, inbox)

    @rpc(load_attribute_maps=(keys,))
    async def read_map(self, context: Context, input: str) -> RPCResult[dict[str, str]]:
        names = keys.get_all_instance_keys(context)
        return RPCResult({name: keys.get(context, name) for name in names})


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Stage) as bench:
        bench.on(First, lambda *_: go_to(Hold, ""))
        bench.on(Hold, wait_for=lambda *_: Wait.until(inbox.for_one()))
        yield bench


def secret(size: int, mark: str = MARK) -> str:
    """Make a secret of about that size, in which no long piece is without the mark."""
    pieces = [mark]
    while sum(map(len, pieces)) < size:
        pieces.append(f"{len(pieces):06d}{mark}" * 1000)
    return "".join(pieces)[: max(size, len(mark))]


def traces(bench: Bench, mark: str = MARK) -> list[str]:
    """Return the files, of the engine, Workers and Clients, that hold the mark."""
    found = [
        file.relative_to(bench.folder).as_posix()
        for file in bench.folder.rglob("*")
        if file.is_file() and mark.encode() in file.read_bytes()
    ]
    return sorted(found)


async def open_flow(bench: Bench, flow_id: str = "flow") -> None:
    await bench.start(flow_id)
    await bench.waiting("Hold-1", flow_id)


async def put(bench: Bench, value: Any, flow_id: str = "flow", attribute: Any = key) -> None:
    def ask(context: Any, input: str) -> RPCResult[str]:
        attribute.set(context, value)
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "", flow_id=flow_id)


async def get(bench: Bench, flow_id: str = "flow") -> str | None:
    bench.on_rpc("ask", lambda context, input: RPCResult(key.get(context) or ""))
    return await bench.call("ask", "", flow_id=flow_id) or None


async def remove(bench: Bench, flow_id: str = "flow", attribute: Any = key) -> None:
    def ask(context: Any, input: str) -> RPCResult[str]:
        attribute.delete(context)
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "", flow_id=flow_id)


# --- no byte is left ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_deleted_value_is_in_no_file(bench: Bench, size: int) -> None:
    """D14: as soon as the deletion is answered, and after a restart."""
    await open_flow(bench)
    await put(bench, secret(size))
    assert await get(bench) == secret(size)
    assert set(traces(bench)) <= {"data/engine.sqlite3", "data/engine.sqlite3-wal"}
    assert traces(bench)
    await remove(bench)
    assert traces(bench) == []
    assert await get(bench) is None
    await bench.restart()
    assert await get(bench) is None
    await bench.stop_engine()
    assert traces(bench) == []


@pytest.mark.parametrize("size", SIZES)
async def test_overwritten_value_is_in_no_file(bench: Bench, size: int) -> None:
    """D14, 9.20: by a longer or a shorter one; only the newest is kept."""
    await open_flow(bench)
    for number, new_size in enumerate((size, 200_000, 10)):
        await put(bench, secret(new_size, f"{MARK}-{number}"))
        for old in range(number):
            assert traces(bench, f"{MARK}-{old}") == []
        assert await get(bench) == secret(new_size, f"{MARK}-{number}")


async def test_bytes_and_none_and_map_entries_are_deleted_alike(bench: Bench) -> None:
    """D14, 9.20: writing None deletes."""
    await open_flow(bench)
    await put(bench, secret(5000).encode(), attribute=blob)
    await put(bench, secret(100))
    await put(bench, None)
    await remove(bench, attribute=blob)
    assert traces(bench) == []

    def ask(context: Any, input: str) -> RPCResult[str]:
        for name in ("a", "b c"):
            keys.set(context, name, secret(100, f"{MARK}-{name}"))
        return RPCResult("")

    bench.on_rpc("ask", ask)
    await bench.call("ask", "")
    await bench.restart()
    assert sorted(await bench.call("read_map", "")) == ["a", "b c"]

    def forget(context: Any, input: str) -> RPCResult[str]:
        keys.delete(context, "a")
        return RPCResult("")

    bench.on_rpc("ask", forget)
    await bench.call("ask", "")
    assert await bench.call("read_map", "") == {"b c": secret(100, f"{MARK}-b c")}
    assert traces(bench, f"{MARK}-a") == []


async def test_values_among_many_others_are_deleted_without_a_trace(bench: Bench) -> None:
    """D14: trees that grow, shrink and are rebalanced copy no byte of a secret."""
    flow_ids = [f"flow {number}" for number in range(40)]
    for number, flow_id in enumerate(flow_ids):
        await bench.start(flow_id)
        await put(bench, secret(50 + 97 * number, f"{MARK}-{number}-"), flow_id)
        await put(bench, "x" * (31 * number), flow_id, plain)
    gone = [number for number in range(40) if number % 3]
    for number in gone:
        await remove(bench, flow_ids[number])
        await put(bench, "y" * 500, flow_ids[number], plain)
        assert traces(bench, f"{MARK}-{number}-") == []
    for number in range(0, 40, 3):
        assert await get(bench, flow_ids[number]) == secret(50 + 97 * number, f"{MARK}-{number}-")
    await bench.stop_engine()
    for number in gone:
        assert traces(bench, f"{MARK}-{number}-") == []


async def test_deletion_by_a_step_leaves_no_trace_either(bench: Bench) -> None:
    """D14: set by one Step, used by the next, deleted by it."""

    def first(context: Any, input: str) -> Any:
        key.set(context, secret(40_000))
        return go_to(Second, "")

    def second(context: Any, input: str) -> Any:
        length = len(key.get(context))
        key.delete(context)
        return graceful_complete(length)

    bench.on(First, first)
    bench.on(Second, second)
    await bench.start()
    assert await bench.output(int) == 40_000
    assert traces(bench) == []


@pytest.mark.parametrize("size", [100, 300_000])
async def test_secret_that_came_as_the_input_of_an_rpc_leaves_no_trace(
    bench: Bench, size: int
) -> None:
    """D14: the journal does not keep the input of an RPC that wrote one."""

    def ask(context: Any, input: str) -> RPCResult[str]:
        key.set(context, input)
        return RPCResult("thanks")

    await open_flow(bench)
    bench.on_rpc("ask", ask)
    assert await bench.call("ask", secret(size)) == "thanks"
    event = (await bench.history())[-1].rpc_execution_completed
    assert event.input.WhichOneof("kind") == "null_value"
    assert event.output.string_value == "thanks"
    assert await get(bench) == secret(size)
    await remove(bench)
    assert traces(bench) == []


@pytest.mark.parametrize("size", SIZES)
def test_engine_that_was_killed_before_it_emptied_its_log_does_so_when_it_starts(
    tmp_path: Path, size: int
) -> None:
    """D14: the deletion was committed, and will not be asked for again."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    killed = Connection(first / "database", Durability.STRICT)
    secrets = AttributeStore(killed)
    for value in (pb.Value(string_value=secret(size)), NULL):
        killed.begin(synced=True)
        write = pb.AttributeWrite(key="key", value=value, is_hard_delete_on_null=True)
        secrets.write_hard("flow", [write])
        killed.commit()
    shutil.copytree(first, second)
    killed.abandon()
    found = [file for file in second.iterdir() if MARK.encode() in file.read_bytes()]
    assert found == [second / "database-wal"] or size > 500_000
    Connection(second / "database", Durability.STRICT).abandon()
    assert [file for file in second.iterdir() if MARK.encode() in file.read_bytes()] == []


def test_pages_that_a_deletion_changes_are_not_copied_to_temporary_files(tmp_path: Path) -> None:
    """D14: SQLite would put the copies for savepoints there, when they are big."""
    connection = Connection(tmp_path / "database", Durability.STRICT)
    pragmas = {"temp_store": 2, "secure_delete": 1}
    found = {name: connection.run(f"PRAGMA {name}").fetchone()[0] for name in pragmas}
    connection.close()
    assert found == pragmas


# --- where it is, while it is ------------------------------------------------------------------


def tables_with(file: Path, mark: str) -> set[str]:
    """Return the tables in which a value or a blob holds the mark."""
    with sqlite3.connect(file) as database:
        names = [
            row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type='table'")
        ]
        found = {
            name
            for name in names
            for row in database.execute(f"SELECT * FROM {name}")
            if any(_bytes_of(value).find(mark.encode()) >= 0 for value in row)
        }
    database.close()
    return found


def _bytes_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def test_value_stands_in_one_place_only(bench: Bench) -> None:
    """D14, 9.20: not in the start request, the journal, a hand-out or the Attributes."""

    def first(context: Any, input: str) -> Any:
        assert key.get(context) == secret(2000)
        key.set(context, secret(2000, f"{MARK}-new"))
        keys.set(context, "a", secret(100))
        return go_to(Hold, "")

    bench.on(First, first)
    await bench.start(options=StartFlowOptions().with_attribute(key, secret(2000)))
    await bench.waiting("Hold-1")
    await bench.stop_engine()
    assert tables_with(bench.data_dir / "engine.sqlite3", MARK) == {"hard_values"}


async def test_state_and_journal_do_not_show_it(bench: Bench) -> None:
    """D14, 9.20: neither the value that was given at the start nor later ones."""
    await bench.start(options=StartFlowOptions().with_attribute(key, secret(100)))
    await bench.waiting("Hold-1")
    await put(bench, secret(2000))
    events = await bench.history()
    assert MARK.encode() not in b"".join(event.SerializeToString() for event in events)
    assert MARK.encode() not in (await bench.state()).SerializeToString()
    assert await get(bench) == secret(2000)


async def test_value_reaches_handlers_inline(bench: Bench) -> None:
    """9.21: never by reference, which the SDK would cache on the disk; however big it is."""
    await open_flow(bench)
    await put(bench, secret(500_000))
    await put(bench, "x" * 3_000_000, attribute=plain)
    assert await get(bench) == secret(500_000)
    assert set(traces(bench)) <= {"data/engine.sqlite3", "data/engine.sqlite3-wal"}
    await remove(bench)
    assert traces(bench) == []


# --- shared and overwritten --------------------------------------------------------------------


async def test_refused_start_overwrites_the_value_all_the_same(bench: Bench) -> None:
    """3.11, 9.20: and a None deletes it; nothing else of the start counts."""
    await open_flow(bench)
    await put(bench, secret(100))
    options = StartFlowOptions().with_attribute(plain, "ignored")
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=options.with_attribute(key, "new"))
    assert await get(bench) == "new"
    assert traces(bench) == []
    nothing: Any = None
    with pytest.raises(FlowAlreadyStartedError):
        await bench.start(options=options.with_attribute(key, nothing))
    assert await get(bench) is None
    assert not (await bench.state()).attributes


async def test_runs_of_one_flow_id_share_the_value(bench: Bench) -> None:
    """9.20: an ordinary Attribute begins anew, this one does not; closed Flows can be read."""
    await open_flow(bench)
    await put(bench, secret(100))
    await put(bench, "of the first run", attribute=plain)
    await bench.client.stop_flow("flow")
    assert await get(bench) == secret(100)
    policy = IdReusePolicy.ALLOW_IF_NOT_RUNNING
    await bench.start(options=StartFlowOptions(id_reuse_policy=policy))
    await bench.waiting("Hold-1")
    assert await get(bench) == secret(100)
    bench.on_rpc("ask", lambda context, input: RPCResult(plain.get(context) or "nothing"))
    assert await bench.call("ask", "") == "nothing"
    await bench.start("other")
    assert await get(bench, "other") is None


async def test_value_of_an_attempt_that_failed_is_written_all_the_same(bench: Bench) -> None:
    """9.20, 7.12: a result that cannot be applied, say."""

    def second(context: Any, input: str) -> Any:
        key.set(context, secret(100))
        plain.set(context, "lost")
        return go_to(Hold, "x" * 5_000_000)

    bench.on(Second, second, options=StepOptions().on_execute_failure_proceed_to(Hold))
    await open_flow(bench)
    bench.on_rpc("ask", lambda *_: RPCResult("", (StepMovement.of(Second, ""),)))
    await bench.call("ask", "")
    await bench.waiting("Hold-2")
    assert await get(bench) == secret(100)
    assert not (await bench.state()).attributes


async def test_value_is_read_as_it_is_now_by_every_attempt(bench: Bench) -> None:
    """9.20, 6.3.5: there is no old version of it that a snapshot could show."""

    def second(context: Any, input: str) -> Any:
        bench.script.note(f"{key.get(context)} {plain.get(context)}")
        if context.attempt == 1:
            raise LookupError("no")
        return dead_end()

    await open_flow(bench)
    await put(bench, "old")
    await put(bench, "old", attribute=plain)
    bench.on(Second, second)
    bench.on_rpc("ask", lambda *_: RPCResult("", (StepMovement.of(Second, ""),)))
    await bench.call("ask", "")
    await bench.failed("Second-1")
    await put(bench, "new", attribute=plain)
    await remove(bench)
    bench.clock.advance(1)
    await bench.script.noted("None old")
    assert bench.script.notes == ["old old", "None old"]


async def test_numbers_and_indexes_are_refused(bench: Bench) -> None:
    """9.20."""
    good = pb.AttributeWrite(
        key="key", value=pb.Value(string_value="a"), is_hard_delete_on_null=True
    )
    for change in (
        pb.AttributeWrite(value=pb.Value(int_value=1)),
        pb.AttributeWrite(value=pb.Value(bool_value=True)),
        pb.AttributeWrite(value=pb.Value(double_value=1.5)),
        pb.AttributeWrite(index_config=pb.IndexConfig(enable=True)),
        pb.AttributeWrite(sync_config=pb.AttributeSyncConfig(enabled=True)),
    ):
        write = pb.AttributeWrite()
        write.CopyFrom(good)
        if change.HasField("value"):
            write.ClearField("value")
        write.MergeFrom(change)
        request = pb.StartFlowRequest(flow_id="flow", flow_type="Stage", request_id="r")
        request.flow_start_options.attributes.append(write)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await bench.service.StartFlow(request)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
