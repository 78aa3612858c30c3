"""Owns requests that are not even messages: they are the caller's mistake, and answered as such.

gRPC itself would report them as a failure of the engine. Streams catch theirs where they read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

from dex_embedded_engine.errors import ServiceError, invalid_argument
from dex_embedded_engine.services.status import refusals_as_status

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to a unary request that cannot be decoded."""

    def __init__(self) -> None:
        self._handlers: dict[str, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Put a decoder that does not raise in front of the method."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method
        known = self._handlers.get(method)
        if known is None:
            known = self._handlers[method] = _guard(handler, method)
        return known


def undecodable(what: str) -> ServiceError:
    """Build the refusal of bytes that are no message of the protocol."""
    return invalid_argument(f"{what} cannot be decoded; send the message that Dex's protocol names")


def _guard(handler: _Handler, method: str) -> _Handler:
    decode = cast(Callable[[bytes], Any], handler.request_deserializer)
    answer = cast(Callable[[Any, _Context], Awaitable[Any]], handler.unary_unary)
    name = method.rpartition("/")[2]

    def decode_or_none(body: bytes) -> Any:
        try:
            return decode(body)
        except DecodeError:
            return None

    async def answer_or_refuse(request: Any, context: _Context) -> Any:
        if request is not None:
            return await answer(request, context)
        async with refusals_as_status(context):
            raise undecodable(f"the request of {name}")

    return grpc.unary_unary_rpc_method_handler(
        answer_or_refuse,
        request_deserializer=decode_or_none,
        response_serializer=handler.response_serializer,
    )
