"""Requests that concern no Flow: server information, health, Attribute indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import pytest
from dex import Attribute, AttributeIndex, AttributeMap, IndexType, PersistenceSchema
from dex.dexpb import dex_pb2 as pb
from engine_harness import Bench, ScriptedFlow
from google.protobuf.empty_pb2 import Empty

color = Attribute("color", str, AttributeIndex(IndexType.KEYWORD))
sizes = AttributeMap("sizes", int, AttributeIndex(IndexType.INT, "size"))


class Indexed(ScriptedFlow):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(color, sizes)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, Indexed, has_worker=False) as bench:
        yield bench


async def sync(bench: Bench, indexes: Mapping[str, pb.IndexType]) -> None:
    request = pb.SyncAttributeIndexRequest(attribute_indexes=indexes)
    assert await bench.service.SyncAttributeIndexes(request) == pb.SyncAttributeIndexResponse()


async def is_refused(bench: Bench, indexes: Mapping[str, pb.IndexType]) -> bool:
    try:
        await sync(bench, indexes)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        return True
    return False


async def test_server_information_offers_protocols_one_to_three(bench: Bench) -> None:
    """1.4."""
    info = await bench.service.GetServerInfo(Empty())
    assert info.minimum_supported_protocol_version == 1
    assert info.current_protocol_version == 3
    assert info.server_version.startswith("dex-embedded-engine ")


async def test_health_check_is_answered(bench: Bench) -> None:
    """1.9."""
    assert await bench.client.health_check()


async def test_indexes_of_all_workers_are_united(bench: Bench) -> None:
    """1.8: idempotent; a type cannot be changed, also after a restart."""
    await sync(bench, {})
    await sync(bench, {"color": pb.INDEX_TYPE_KEYWORD})
    await sync(bench, {"color": pb.INDEX_TYPE_KEYWORD, "weight": pb.INDEX_TYPE_DOUBLE})
    for _ in range(2):
        assert await is_refused(bench, {"color": pb.INDEX_TYPE_TEXT})
        assert await is_refused(bench, {"weight": pb.INDEX_TYPE_INT})
        assert not await is_refused(bench, {"weight": pb.INDEX_TYPE_DOUBLE})
        await bench.restart()


async def test_refused_indexes_leave_nothing_behind(bench: Bench) -> None:
    """1.8: the whole map is taken or none of it."""
    await sync(bench, {"color": pb.INDEX_TYPE_KEYWORD})
    assert await is_refused(bench, {"aaa": pb.INDEX_TYPE_INT, "color": pb.INDEX_TYPE_TEXT})
    assert not await is_refused(bench, {"aaa": pb.INDEX_TYPE_BOOL})


async def test_worker_registers_the_indexes_of_its_flows(bench: Bench) -> None:
    """1.7: Attributes under their name, maps under their index key."""
    await bench.add_worker()
    assert await is_refused(bench, {"color": pb.INDEX_TYPE_TEXT})
    assert await is_refused(bench, {"size": pb.INDEX_TYPE_KEYWORD})
    assert not await is_refused(bench, {"sizes": pb.INDEX_TYPE_KEYWORD})
