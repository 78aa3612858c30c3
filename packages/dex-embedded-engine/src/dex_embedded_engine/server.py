"""Owns a running engine: the data directory, the kernel and the gRPC server, in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import grpc
from dex.dexpb import dex_pb2_grpc

from dex_embedded_engine.address import Address, parse_address, require_free
from dex_embedded_engine.clock import Clock, SystemClock
from dex_embedded_engine.data_directory import DataDirectory, is_sendable
from dex_embedded_engine.errors import AddressError, EngineFailure, EngineUsageError
from dex_embedded_engine.failpoints import Failpoints
from dex_embedded_engine.gateway import Gateway
from dex_embedded_engine.identity import make_id
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.services.authentication import TokenInterceptor
from dex_embedded_engine.services.decoding import DecodingInterceptor
from dex_embedded_engine.services.flow_service import FlowService
from dex_embedded_engine.services.worker_task_service import WorkerTaskService
from dex_embedded_engine.settings import Durability, EngineSettings
from dex_embedded_engine.storage.connection import storage_failure
from dex_embedded_engine.storage.stores import Stores

_LOGGER = logging.getLogger(__name__)


class EmbeddedEngine:
    """A durable engine in this process, as an async context manager.

    Workers and Clients of ``dex-python-sdk`` connect to `address`. Everything acknowledged is in
    `data_dir`; start an engine on it again and it goes on.

    Args:
        data_dir: created with mode 0700 if it does not exist; one engine at a time.
        address: ``HOST:PORT`` (port 0 takes a free one) or ``unix:PATH``.
        durability: ``"strict"`` or ``"process-crash-safe"``, see `Durability`.
        token: if given, every call must carry it as bearer token. Needed beyond loopback.
        settings: the numbers it runs with.
        clock: where it takes the time from.

    Raises:
        EngineUsageError: when it cannot start as asked; nothing is left behind.
        EngineFailure: on entering, when the database is damaged.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        address: str = "127.0.0.1:0",
        durability: str | Durability = Durability.STRICT,
        token: str | None = None,
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._data_dir = Path(data_dir)
        self._wanted = parse_address(address)
        self._durability = _parse_durability(durability)
        self._token = _check_token(token)
        self._settings = settings or EngineSettings()
        self._clock = clock or SystemClock()
        self._failpoints = failpoints
        self._address = ""
        self._directory: DataDirectory | None = None
        self._stores: Stores | None = None
        self._gateway: Gateway | None = None
        self._server: grpc.aio.Server | None = None
        self._failed: asyncio.Future[EngineFailure] | None = None
        self._has_started = False

    @property
    def address(self) -> str:
        """The gRPC target that Workers and Clients connect to, once the engine has started."""
        return self._address

    async def __aenter__(self) -> EmbeddedEngine:
        if self._has_started:
            raise EngineUsageError("this engine has been started before; make a new one")
        if token_is_needed(self._wanted, self._token):
            raise AddressError(
                f"address {self._wanted.target()!r} can be reached from other machines; give a "
                f"token or bind to 127.0.0.1"
            )
        self._has_started = True
        self._failed = asyncio.get_running_loop().create_future()
        opening = asyncio.create_task(asyncio.to_thread(self._open))
        try:
            await asyncio.shield(opening)
            await self._serve()
        except BaseException as error:
            # Cancelled or not, what the thread opens has to be closed again.
            await asyncio.gather(opening, return_exceptions=True)
            await self._close()
            self._has_started = False
            if isinstance(error, sqlite3.Error):
                raise storage_failure(error) from error
            raise
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def wait_failed(self) -> EngineFailure:
        """Wait until the engine can go on no longer, for example because the disk is full."""
        if self._failed is None:
            raise EngineUsageError("the engine has not been started; use `async with`")
        return await asyncio.shield(self._failed)

    def _open(self) -> None:
        self._directory = DataDirectory.open(self._data_dir)
        require_free(self._wanted)
        self._stores = Stores.open(self._directory.database, self._durability, self._settings)

    async def _serve(self) -> None:
        assert self._stores is not None
        kernel = Kernel(
            self._stores,
            self._settings,
            lambda: make_id(self._clock.now()),
            self._failpoints,
        )
        gateway = Gateway(kernel, self._clock, self._note_failure)
        decoding = DecodingInterceptor()
        self._server = grpc.aio.server(
            interceptors=(
                (decoding,) if self._token is None else (TokenInterceptor(self._token), decoding)
            ),
            options=(
                ("grpc.max_receive_message_length", self._settings.receive_limit),
                ("grpc.so_reuseport", 0),
            ),
        )
        dex_pb2_grpc.add_FlowServiceServicer_to_server(
            FlowService(gateway, self._settings), self._server
        )
        dex_pb2_grpc.add_WorkerTaskServiceServicer_to_server(
            WorkerTaskService(gateway), self._server
        )
        port = self._bind(self._server)
        # From here on there is a thread to be stopped.
        gateway.start()
        self._gateway = gateway
        await self._server.start()
        if self._wanted.path is not None:
            self._wanted.path.chmod(0o600)
        self._address = self._wanted.target(port)

    def _bind(self, server: grpc.aio.Server) -> int:
        try:
            with _private_files() if self._wanted.path else contextlib.nullcontext():
                return server.add_insecure_port(self._wanted.target())
        except RuntimeError as error:
            raise AddressError(
                f"address {self._wanted.target()!r} cannot be bound; choose another"
            ) from error

    def _note_failure(self, failure: EngineFailure) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(failure)

    async def _close(self) -> None:
        gateway, self._gateway = self._gateway, None
        server, self._server = self._server, None
        stores, self._stores = self._stores, None
        directory, self._directory = self._directory, None
        try:
            if gateway is not None:
                await gateway.stop()
            if server is not None:
                await server.stop(self._settings.shutdown_grace)
            if stores is not None:
                failed = self._failed is not None and self._failed.done()
                await asyncio.to_thread(stores.abandon if failed else stores.close)
        finally:
            if directory is not None:
                directory.close()
            if self._wanted.path is not None and self._address:
                self._wanted.path.unlink(missing_ok=True)


def token_is_needed(address: Address, token: str | None) -> bool:
    """Tell whether binding `address` without a token would open the engine to the network."""
    return token is None and not address.is_local


def _parse_durability(durability: str | Durability) -> Durability:
    try:
        return Durability(durability)
    except ValueError as error:
        choices = ", ".join(repr(each.value) for each in Durability)
        raise EngineUsageError(f"durability {durability!r} is not one of {choices}") from error


def _check_token(token: str | None) -> str | None:
    """Return `token`; the refusal does not quote it."""
    if token is not None and not is_sendable(token):
        raise EngineUsageError(
            "the token is empty or not one line of plain ASCII; give one such as "
            "`secrets.token_hex(32)`, or None for none"
        )
    return token


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Let nobody else connect to a socket in the moment before its mode is set."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
