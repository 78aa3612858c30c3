"""Malformed requests on every method that is served: refused clearly, and nothing is stored."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_messages import force_complete, to_value
from engine_wire import (
    UNCATEGORIZED,
    HandWorker,
    Wire,
    everything_stored,
    good_start,
    refusal_of,
    spoil,
)
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine import EmbeddedEngine, EngineSettings

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
NOT_EXISTS = pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS
NOTHING = pb.Value()
NAN = pb.Value(double_value=math.nan)
INFINITE = pb.Value(double_value=-math.inf)
CODED = pb.Value(obj_value=pb.EncodedObject(encoding="pickle", payload=b"x"))
BLOB = pb.Value(internal_blob_id_for_string_value="0123")
OBJECT_BLOB = pb.Value(internal_blob_id_for_obj_value="0123")
UNKNOWN_ENUM = 99


@dataclass(frozen=True)
class Bad:
    """One thing that is wrong with a request: what stands in which field, and the refusal."""

    path: str
    content: Any
    phrase: str
    code: grpc.StatusCode = INVALID
    sub_status: pb.ErrorSubStatus = UNCATEGORIZED


def bad_values(path: str, where: str) -> list[Bad]:
    """Spoil the Value at `path`."""
    return [
        Bad(path, None, f"{where} has no value; send null_value"),
        Bad(path, NOTHING, f"{where} has no value; send null_value"),
        Bad(path, NAN, f"{where} is nan, which is not a finite number"),
        Bad(path, INFINITE, f"{where} is -inf, which is not a finite number"),
        Bad(path, CODED, f"{where} has encoding 'pickle'; use 'json' or 'raw'"),
        Bad(path, BLOB, f"{where} is a blob reference; only the engine may send those"),
        Bad(path, OBJECT_BLOB, f"{where} is a blob reference; only the engine may send those"),
    ]


def bad_targets(method: str, *, has_run: bool = True) -> list[Bad]:
    """Name a Flow or run that is not there."""
    targets = [
        Bad("flow_id", "", f"{method} needs a flow_id"),
        Bad("flow_id", "stranger", "Flow 'stranger' does not exist", NOT_FOUND, NOT_EXISTS),
    ]
    if has_run:
        targets.append(Bad("run_id", "stranger", "'open' ", NOT_FOUND, NOT_EXISTS))
    return targets


def write(key: str, value: pb.Value, **fields: Any) -> list[pb.AttributeWrite]:
    return [pb.AttributeWrite(key=key, value=value, **fields)]


def fallback(**options: Any) -> pb.StepOptions:
    return pb.StepOptions(
        execute_failure_policy=pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP,
        **options,
    )


def deep_fallback(levels: int) -> pb.StepOptions:
    options = pb.StepOptions()
    for _ in range(levels):
        options = fallback(
            execute_failure_proceed_step_type="S", execute_failure_proceed_step_options=options
        )
    return options


OPTIONS = "flow_start_options"
CONFIG = "flow_start_options.flow_config_override"
HANDLER = "flow_start_options.timeout_handler_options"
ATTRIBUTES = "flow_start_options.attributes"
STEP = "the options of Step 'S'"
GONE = "Attribute 'a' is deleted for good; "
HARD = {"is_hard_delete_on_null": True}
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED

BAD_START = [
    Bad("flow_id", "", "StartFlow needs a flow_id"),
    Bad("flow_type", "", "StartFlow needs a flow_type"),
    Bad("request_id", "", "StartFlow needs a request_id"),
    Bad("flow_timeout_seconds", -1, "StartFlow has a negative timeout"),
    Bad("flow_timeout_policy", UNKNOWN_ENUM, "unknown flow_timeout_policy 99"),
    *bad_values("step_input", "StartFlow: the input of Step 'S'"),
    Bad("start_step_type", "", "there is an input but no starting Step"),
    Bad("step_options.wait_for_timeout_seconds", -1, f"{STEP} have a method timeout of -1 second"),
    Bad("step_options.execute_timeout_seconds", -9, f"{STEP} have a method timeout of -9 second"),
    Bad(
        "step_options.heartbeat_timeout_seconds", 5, f"{STEP} have a heartbeat timeout of 5 second"
    ),
    Bad("step_options.heartbeat_timeout_seconds", 9, "seconds; use at least 10"),
    Bad("step_options.heartbeat_timeout_seconds", -1, f"{STEP} have a heartbeat timeout of -1"),
    Bad("step_options.wait_for_failure_policy", UNKNOWN_ENUM, "unknown wait_for failure policy 99"),
    Bad("step_options.execute_failure_policy", UNKNOWN_ENUM, "unknown execute failure policy 99"),
    Bad("step_options.wait_for_durability_override", UNKNOWN_ENUM, "unknown durability 99"),
    Bad("step_options.execute_durability_override", UNKNOWN_ENUM, "unknown durability 99"),
    Bad("step_options.execute_retry_policy.maximum_attempts", -1, "policy with the number -1"),
    Bad("step_options.wait_for_retry_policy.total_duration_seconds", -1, "with the number -1"),
    Bad("step_options.execute_retry_policy.backoff_coefficient", math.nan, "coefficient of nan"),
    Bad("step_options.execute_retry_policy.backoff_coefficient", -2.0, "coefficient of -2"),
    Bad("step_options.execute_lock_attribute_keys", ["a", ""], "empty Attribute lock key"),
    Bad("step_options.wait_for_lock_attribute_keys", [""], "empty Attribute lock key"),
    Bad("step_options", fallback(), f"{STEP} proceed on failure to no Step; name one"),
    Bad("step_options", deep_fallback(17), f"{STEP} are 16 levels deep"),
    Bad(f"{OPTIONS}.flow_start_delay_seconds", -1, "StartFlow has a negative timeout or delay"),
    Bad(f"{OPTIONS}.id_reuse_policy", UNKNOWN_ENUM, "unknown id_reuse_policy 99"),
    Bad(f"{OPTIONS}.retry_policy.maximum_attempts", 3, "flow retry policies", UNIMPLEMENTED),
    Bad(f"{CONFIG}.worker_target.address", "localhost:1", "listening Worker", UNIMPLEMENTED),
    Bad(f"{CONFIG}.step_durability", UNKNOWN_ENUM, "unknown step durability 99"),
    Bad(f"{CONFIG}.active_step_search_mode", UNKNOWN_ENUM, "unknown active step search mode 99"),
    Bad(f"{CONFIG}.continue_as_new_threshold", -1, "has a negative number"),
    Bad(f"{HANDLER}.method_timeout_seconds", -1, "handler options have a method timeout of -1"),
    Bad(f"{HANDLER}.heartbeat_timeout_seconds", 5, "handler options have a heartbeat timeout of 5"),
    Bad(f"{HANDLER}.retry_policy.initial_interval_seconds", -1, "with the number -1"),
    Bad(f"{HANDLER}.failure_policy", UNKNOWN_ENUM, "unknown execute failure policy 99"),
    Bad(f"{HANDLER}.failure_policy", 2, "timeout handler options proceed on failure to no Step"),
    Bad(f"{HANDLER}.durability_override", UNKNOWN_ENUM, "unknown durability 99"),
    Bad(f"{HANDLER}.lock_attribute_keys", [""], "empty Attribute lock key"),
    Bad(ATTRIBUTES, write("", to_value(1)), "an Attribute write has no key"),
    Bad(ATTRIBUTES, write("a", NOTHING), "Attribute 'a' has no value; send null_value"),
    Bad(ATTRIBUTES, write("a", NAN), "Attribute 'a' is nan, which is not a finite number"),
    Bad(ATTRIBUTES, write("a", CODED), "Attribute 'a' has encoding 'pickle'"),
    Bad(ATTRIBUTES, write("a", BLOB), "Attribute 'a' is a blob reference"),
    Bad(ATTRIBUTES, write("a", to_value(1), **HARD), f"{GONE}such a value can only be text"),
    Bad(ATTRIBUTES, write("a", to_value(True), **HARD), f"{GONE}such a value can only be text"),
    Bad(ATTRIBUTES, write("a", pb.Value(double_value=1.5), **HARD), f"{GONE}such a value can"),
    Bad(
        ATTRIBUTES,
        write("a", to_value("b"), index_config=pb.IndexConfig(enable=True), **HARD),
        f"{GONE}it cannot be indexed",
    ),
    Bad(
        ATTRIBUTES,
        write("a", to_value("b"), sync_config=pb.AttributeSyncConfig(enabled=True), **HARD),
        f"{GONE}it cannot be indexed or projected",
    ),
    Bad(
        ATTRIBUTES,
        write("a", to_value("b"), index_config={"enable": True, "type": UNKNOWN_ENUM}),
        "Attribute 'a' has unknown index type 99",
    ),
    Bad(
        "flow_id",
        "open",
        "Flow 'open' is running, and the id reuse policy",
        grpc.StatusCode.ALREADY_EXISTS,
        pb.ERROR_SUB_STATUS_FLOW_ALREADY_STARTED,
    ),
]
BAD_STOP = [
    *bad_targets("StopFlow"),
    Bad("stop_type", 0, "unknown stop_type 0; use cancel, terminate or fail"),
    Bad("stop_type", UNKNOWN_ENUM, "unknown stop_type 99; use cancel, terminate or fail"),
    Bad("flow_id", "closed", "Flow 'closed' is not active", NOT_FOUND, NOT_EXISTS),
]
BAD_HISTORY = [
    *bad_targets("GetHistoryEvents"),
    Bad("start_internal_event_id", -1, "a negative start"),
    Bad("estimate_page_size", -1, "a negative start, page size"),
    Bad("run_attempt", -1, "a negative start, page size or run attempt"),
    Bad("next_page_token", b"garbage", "next_page_token b'garbage' was not given out"),
    Bad("next_page_token", b"\xff\x00", "was not given out for this run; start without one"),
    Bad("next_page_token", b"0", "next_page_token b'0' was not given out"),
    Bad("next_page_token", b"7", "next_page_token b'7' was not given out"),
    Bad("next_page_token", b"9" * 30, "was not given out for this run; start without one"),
    Bad("next_page_token", b"9" * 5000, "was not given out for this run; start without one"),
]
ENTRY = pb.LoadBlobRequestEntry
BAD_LOAD = [
    Bad("entries", [ENTRY(blob_value=BLOB)], "LoadBlobs needs a flow_id and a blob reference"),
    Bad("entries", [ENTRY(flow_id="open")], "LoadBlobs needs a flow_id and a blob reference"),
    Bad("entries", [ENTRY(flow_id="open", blob_value=to_value("x"))], "a blob reference in each"),
    Bad("entries", [ENTRY(flow_id="open", blob_value=BLOB)], "has no blob '0123'", NOT_FOUND),
    Bad("entries", [ENTRY(flow_id="stranger", blob_value=BLOB)], "Flow 'stranger'", NOT_FOUND),
]
BAD_RPC = [
    *bad_targets("InvokeRPC"),
    *bad_values("input", "the RPC input"),
    Bad("rpc_name", "", "InvokeRPC needs an rpc_name"),
    Bad("timeout_seconds", -1, "InvokeRPC has a negative timeout_seconds; use 0"),
    Bad("lock_attribute_keys", ["a", ""], "RPC 'ask' have an empty Attribute lock key"),
]
BAD_WAIT = [
    *bad_targets("WaitForFlow"),
    Bad("wait_time_seconds", -1, "WaitForFlow has a negative wait_time_seconds"),
]


def bad_stream_address(method: str) -> list[Bad]:
    phrase = f"{method} needs a flow_id, a flow_type and a stream_name"
    return [Bad(field, "", phrase) for field in ("flow_id", "flow_type", "stream_name")]


BAD_WRITE = [
    *bad_stream_address("WriteStream"),
    *bad_values("value", "the Stream message"),
    Bad("source", "", "WriteStream needs a source"),
    Bad("stream_capacity_bytes", 0, "needs a positive stream_capacity_bytes"),
    Bad("stream_capacity_bytes", -(2**63), "needs a positive stream_capacity_bytes"),
    Bad("value", to_value("x" * 2000), "bytes; the limit is 1000"),
    Bad(
        "stream_capacity_bytes",
        50,
        "does not fit Stream 's' of 50 bytes; raise its stream_capacity_bytes",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
]
GARBAGE_TOKENS = ["garbage", "-1", "1.5", "\u0663", "999999", "9" * 30, "9" * 5000, " 1", "\0"]
BAD_READ = [
    *bad_stream_address("ReadStream"),
    *(Bad("resume_token", token, "was not given out by this engine") for token in GARBAGE_TOKENS),
    Bad("wait_time_seconds", -1, "ReadStream has a negative wait_time_seconds"),
]
BAD_LIST = [
    *bad_stream_address("ListStreamMessages"),
    *(Bad("before_page_token", token, "was not given out by this e") for token in GARBAGE_TOKENS),
    Bad("page_size", 0, "needs a page_size of at least 1"),
    Bad("page_size", -1, "needs a page_size of at least 1"),
]
BAD_INDEXES = [
    Bad("attribute_indexes", {"": pb.INDEX_TYPE_INT}, "empty index key; name the index"),
    Bad("attribute_indexes", {"a": 0}, "Attribute index 'a' has unknown type 0"),
    Bad("attribute_indexes", {"a": UNKNOWN_ENUM}, "Attribute index 'a' has unknown type 99"),
    Bad(
        "attribute_indexes",
        {"other": pb.INDEX_TYPE_INT, "known": pb.INDEX_TYPE_TEXT},
        "'known' is registered as INDEX_TYPE_KEYWORD, not as INDEX_TYPE_TEXT; use another",
        grpc.StatusCode.FAILED_PRECONDITION,
    ),
]
STREAM: dict[str, Any] = {"flow_id": "open", "flow_type": "Hand", "stream_name": "s"}
METHODS: dict[str, tuple[Any, list[Bad]]] = {
    "SyncAttributeIndexes": (pb.SyncAttributeIndexRequest(), BAD_INDEXES),
    "StartFlow": (good_start("new"), BAD_START),
    "StopFlow": (pb.StopFlowRequest(flow_id="open", stop_type=pb.STOP_TYPE_CANCEL), BAD_STOP),
    "GetFlowSummary": (pb.GetFlowSummaryRequest(flow_id="open"), bad_targets("GetFlowSummary")),
    "GetFlowState": (pb.GetFlowStateRequest(flow_id="open"), bad_targets("GetFlowState")),
    "GetHistoryEvents": (pb.GetHistoryEventsRequest(flow_id="open"), BAD_HISTORY),
    "LoadBlobs": (pb.LoadBlobsRequest(), BAD_LOAD),
    "InvokeRPC": (
        pb.InvokeRPCRequest(flow_id="open", rpc_name="ask", input=to_value(1), request_id="r"),
        BAD_RPC,
    ),
    "WaitForFlow": (pb.WaitForFlowRequest(flow_id="open", wait_time_seconds=1), BAD_WAIT),
    "WriteStream": (
        pb.WriteStreamRequest(
            value=to_value("x"), source="me", stream_capacity_bytes=10_000, **STREAM
        ),
        BAD_WRITE,
    ),
    "ReadStream": (pb.ReadStreamRequest(**STREAM), BAD_READ),
    "ListStreamMessages": (pb.ListStreamMessagesRequest(page_size=1, **STREAM), BAD_LIST),
}
CASES = [
    pytest.param(method, bad, id=f"{method}-{bad.path.rpartition('.')[2]}-{number}")
    for method, (_, table) in METHODS.items()
    for number, bad in enumerate(table)
]


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def wire(data_dir: Path) -> AsyncIterator[Wire]:
    """An engine with an open Flow, a closed Flow, a registered index and a Stream message."""
    settings = EngineSettings(stream_message_limit=1000)
    async with (
        EmbeddedEngine(data_dir, durability="process-crash-safe", settings=settings) as engine,
        Wire(engine.address) as wire,
    ):
        await wire.start("open")
        await wire.start("closed")
        closing = pb.StopFlowRequest(flow_id="closed", stop_type=pb.STOP_TYPE_CANCEL)
        await wire.flows.StopFlow(closing)
        known = {"known": pb.INDEX_TYPE_KEYWORD}
        await wire.flows.SyncAttributeIndexes(pb.SyncAttributeIndexRequest(attribute_indexes=known))
        await wire.flows.WriteStream(METHODS["WriteStream"][0])
        yield wire


async def send_bad(wire: Wire, method: str, bad: Bad) -> None:
    request = type(METHODS[method][0])()
    request.CopyFrom(METHODS[method][0])
    spoil(request, bad.path, bad.content)
    refusal = await refusal_of(getattr(wire.flows, method)(request))
    assert (refusal.code, refusal.sub_status) == (bad.code, bad.sub_status)
    assert bad.phrase in refusal.detail


@pytest.mark.parametrize(("method", "bad"), CASES)
async def test_a_malformed_request_is_refused_and_nothing_is_stored(
    method: str, bad: Bad, wire: Wire, data_dir: Path
) -> None:
    before = everything_stored(data_dir)
    await send_bad(wire, method, bad)
    assert everything_stored(data_dir) == before


async def test_what_the_tables_spoil_is_good_and_is_served_after_all_malformed_requests(
    wire: Wire,
) -> None:
    for method, (_, table) in METHODS.items():
        for bad in table:
            await send_bad(wire, method, bad)
    async with HandWorker(wire) as worker:
        await worker.task()
        await worker.execute(step_decision=force_complete("done"))
        for method, (request, _) in METHODS.items():
            if method not in ("StopFlow", "InvokeRPC"):
                await getattr(wire.flows, method)(request)
        await worker.task()
        await worker.execute(step_decision=force_complete("done"))
        for flow_id in ("open", "new"):
            assert (await wire.result(flow_id)).flow_status == pb.FLOW_STATUS_COMPLETED
    await wire.flows.HealthCheck(Empty())
    assert (await wire.flows.GetServerInfo(Empty())).current_protocol_version > 0


@pytest.mark.parametrize("field", ["lock_attribute_keys", "is_transactional"])
async def test_an_rpc_with_locks_or_a_transaction_needs_an_active_flow(
    field: str, wire: Wire
) -> None:
    request = pb.InvokeRPCRequest(flow_id="closed", rpc_name="ask", input=to_value(1))
    spoil(request, field, ["a"] if field == "lock_attribute_keys" else True)
    refusal = await refusal_of(wire.flows.InvokeRPC(request))
    assert (refusal.code, refusal.sub_status) == (NOT_FOUND, NOT_EXISTS)
    assert refusal.detail == "Flow 'closed' is not active"
