"""Owns the bearer token: every method of every service asks for it, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from dex_embedded_engine.errors import ServiceError
from dex_embedded_engine.services.status import refusals_as_status

_REFUSAL = "the bearer token is missing or wrong; give the client the engine's token"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls that do not carry the token.

    Args:
        token: what ``authorization: Bearer <token>`` must carry.
    """

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Pass the call on, or answer UNAUTHENTICATED in its place."""
        handler = await continuation(handler_call_details)
        if handler is None or self._is_allowed(handler_call_details):
            return handler
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        return grpc.unary_unary_rpc_method_handler(_refuse)

    def _is_allowed(self, details: grpc.HandlerCallDetails) -> bool:
        for key, value in details.invocation_metadata:
            if key == "authorization":
                sent = value.encode() if isinstance(value, str) else value
                return hmac.compare_digest(sent, self._expected)
        return False


async def _refuse(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    async with refusals_as_status(context):
        raise ServiceError(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
