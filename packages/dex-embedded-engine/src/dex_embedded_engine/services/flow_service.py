"""Owns `dex.FlowService`: which request goes to which operation, and the two long polls."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeAlias, TypeVar

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from dex_embedded_engine.errors import invalid_argument, unimplemented
from dex_embedded_engine.gateway import Gateway
from dex_embedded_engine.kernel import flows, reads, streams
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.kernel.messages import flow_topic, stream_topic
from dex_embedded_engine.services.status import refusals_as_status
from dex_embedded_engine.settings import EngineSettings

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)
_MINIMUM_PROTOCOL = 1
_CURRENT_PROTOCOL = 3


class FlowService(dex_pb2_grpc.FlowServiceServicer):
    """The requests of Clients, and of Workers that start or load blobs."""

    def __init__(self, gateway: Gateway, settings: EngineSettings) -> None:
        self._gateway = gateway
        self._settings = settings

    async def GetServerInfo(self, request: Empty, context: _Context) -> pb.ServerInfo:
        """Say which protocol versions are served."""
        return pb.ServerInfo(
            server_version=f"dex-embedded-engine {version('dex-embedded-engine')}",
            minimum_supported_protocol_version=_MINIMUM_PROTOCOL,
            current_protocol_version=_CURRENT_PROTOCOL,
        )

    async def HealthCheck(self, request: Empty, context: _Context) -> pb.HealthInfo:
        """Say that the engine is there."""
        return pb.HealthInfo(condition="SERVING", hostname=platform.node())

    async def SyncAttributeIndexes(
        self, request: pb.SyncAttributeIndexRequest, context: _Context
    ) -> pb.SyncAttributeIndexResponse:
        """Register Attribute indexes."""
        return await self._do("sync_indexes", flows.sync_attribute_indexes, request, context)

    async def StartFlow(
        self, request: pb.StartFlowRequest, context: _Context
    ) -> pb.StartFlowResponse:
        """Start a run."""

        def start(kernel: Kernel, call_id: int) -> pb.StartFlowResponse | None:
            return flows.start_flow(kernel, request, call_id)

        async with refusals_as_status(context):
            return await self._gateway.call("start_flow", start)
        raise AssertionError

    async def StopFlow(self, request: pb.StopFlowRequest, context: _Context) -> Empty:
        """Stop an active run."""
        return await self._do("stop_flow", flows.stop_flow, request, context)

    async def GetFlowSummary(
        self, request: pb.GetFlowSummaryRequest, context: _Context
    ) -> pb.GetFlowSummaryResponse:
        """Describe a run in short."""
        return await self._do("read", flows.get_flow_summary, request, context)

    async def GetFlowState(
        self, request: pb.GetFlowStateRequest, context: _Context
    ) -> pb.GetFlowStateResponse:
        """Describe everything a run holds."""
        return await self._do("read", reads.get_flow_state, request, context)

    async def GetHistoryEvents(
        self, request: pb.GetHistoryEventsRequest, context: _Context
    ) -> pb.GetHistoryEventsResponse:
        """Return a page of a run's journal."""
        return await self._do("read", reads.get_history_events, request, context)

    async def LoadBlobs(
        self, request: pb.LoadBlobsRequest, context: _Context
    ) -> pb.LoadBlobsResponse:
        """Return values behind references."""
        return await self._do("read", reads.load_blobs, request, context)

    async def InvokeRPC(
        self, request: pb.InvokeRPCRequest, context: _Context
    ) -> pb.InvokeRPCResponse:
        """Run an RPC handler on a Worker."""

        def invoke(kernel: Kernel, call_id: int) -> pb.InvokeRPCResponse | None:
            kernel.workers.rpcs.invoke(request, call_id)
            return None

        async with refusals_as_status(context):
            return await self._gateway.call("invoke_rpc", invoke)
        raise AssertionError

    async def WaitForFlow(self, request: pb.WaitForFlowRequest, context: _Context) -> pb.FlowResult:
        """Wait until a run closes."""

        async def look() -> pb.FlowResult | None:
            result = await self._gateway.call("read", _plain(flows.flow_result, request))
            return None if result.flow_status == pb.FLOW_STATUS_RUNNING else result

        async with refusals_as_status(context):
            if request.wait_time_seconds < 0:
                raise invalid_argument("WaitForFlow has a negative wait_time_seconds")
            seconds = request.wait_time_seconds or self._settings.long_poll_wait
            return await self._gateway.poll(flow_topic(request.flow_id), look, seconds)
        raise AssertionError

    async def WriteStream(self, request: pb.WriteStreamRequest, context: _Context) -> Empty:
        """Append a Stream message."""
        return await self._do("write_stream", streams.write_stream, request, context)

    async def ReadStream(
        self, request: pb.ReadStreamRequest, context: _Context
    ) -> pb.ReadStreamResponse:
        """Return the next Stream message, waiting for it."""

        async def look() -> pb.ReadStreamResponse | None:
            found = await self._gateway.call("read", _plain(streams.read_stream, request))
            return found if found.HasField("message") else None

        async with refusals_as_status(context):
            limit = self._settings.long_poll_wait
            seconds = min(request.wait_time_seconds or limit, limit)
            topic = stream_topic(request.flow_type, request.stream_name, request.flow_id)
            return await self._gateway.poll(topic, look, seconds)
        raise AssertionError

    async def ListStreamMessages(
        self, request: pb.ListStreamMessagesRequest, context: _Context
    ) -> pb.ListStreamMessagesResponse:
        """Return a page of Stream messages, newest first."""
        return await self._do("read", streams.list_stream_messages, request, context)

    async def _do(
        self,
        kind: str,
        operation: Callable[[Kernel, RequestT], AnswerT],
        request: RequestT,
        context: _Context,
    ) -> AnswerT:
        async with refusals_as_status(context):
            return await self._gateway.call(kind, _plain(operation, request))
        raise AssertionError


def _plain(
    operation: Callable[[Kernel, RequestT], AnswerT], request: RequestT
) -> Callable[[Kernel, int], AnswerT]:
    return lambda kernel, _: operation(kernel, request)


def _unserved(method: str) -> Callable[[FlowService, Message, _Context], Awaitable[None]]:
    async def refuse(self: FlowService, request: Message, context: _Context) -> None:
        async with refusals_as_status(context):
            raise unimplemented(
                f"{method} is not served by the embedded engine; use a Dex Server for it"
            )

    return refuse


# The generated base class would answer with a failure of the engine, and log a traceback.
for _method in pb.DESCRIPTOR.services_by_name["FlowService"].methods:
    if _method.name not in vars(FlowService):
        setattr(FlowService, _method.name, _unserved(_method.name))
