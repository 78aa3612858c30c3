"""Owns a running engine: the data directory, the kernel and the gRPC server, in the right order."""

from __future__ import annotations

import asyncio
import logging
import uuid
from pathlib import Path
from types import TracebackType

import grpc
from dex.dexpb import dex_pb2_grpc

from dex_embedded_engine.address import Address, parse_address, require_free
from dex_embedded_engine.clock import Clock, SystemClock
from dex_embedded_engine.data_directory import DataDirectory
from dex_embedded_engine.errors import AddressError, EngineFailure, EngineUsageError
from dex_embedded_engine.failpoints import Failpoints
from dex_embedded_engine.gateway import Gateway
from dex_embedded_engine.kernel.core import Kernel
from dex_embedded_engine.services.authentication import TokenInterceptor
from dex_embedded_engine.services.flow_service import FlowService
from dex_embedded_engine.services.worker_task_service import WorkerTaskService
from dex_embedded_engine.settings import Durability, EngineSettings
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
        EngineUsageError: on entering, when it cannot start as asked; nothing is left behind.
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
        self._token = token
        self._settings = settings or EngineSettings()
        self._clock = clock or SystemClock()
        self._failpoints = failpoints
        self._address = ""
        self._directory: DataDirectory | None = None
        self._stores: Stores | None = None
        self._gateway: Gateway | None = None
        self._server: grpc.aio.Server | None = None
        self._failed: asyncio.Future[EngineFailure] | None = None

    @property
    def address(self) -> str:
        """The gRPC target that Workers and Clients connect to, once the engine has started."""
        return self._address

    async def __aenter__(self) -> EmbeddedEngine:
        if self._server is not None:
            raise EngineUsageError("this engine has been started before; make a new one")
        if token_is_needed(self._wanted, self._token):
            raise AddressError(
                f"address {self._wanted.target()!r} can be reached from other machines; give a "
                f"token or bind to 127.0.0.1"
            )
        self._failed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.to_thread(self._open)
            await self._serve()
        except BaseException:
            await self._close()
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
        kernel = Kernel(self._stores, self._settings, lambda: str(uuid.uuid4()), self._failpoints)
        self._gateway = Gateway(kernel, self._clock, self._note_failure)
        limit = self._settings.receive_limit
        self._server = grpc.aio.server(
            interceptors=() if self._token is None else (TokenInterceptor(self._token),),
            options=(
                ("grpc.max_receive_message_length", limit),
                ("grpc.so_reuseport", 0),
            ),
        )
        dex_pb2_grpc.add_FlowServiceServicer_to_server(
            FlowService(self._gateway, self._settings), self._server
        )
        dex_pb2_grpc.add_WorkerTaskServiceServicer_to_server(
            WorkerTaskService(self._gateway), self._server
        )
        try:
            port = self._server.add_insecure_port(self._wanted.target())
        except RuntimeError as error:
            raise AddressError(
                f"address {self._wanted.target()!r} cannot be bound; choose another"
            ) from error
        self._gateway.start()
        await self._server.start()
        if self._wanted.path is not None:
            self._wanted.path.chmod(0o600)
        self._address = self._wanted.target(port)

    def _note_failure(self, failure: EngineFailure) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(failure)

    async def _close(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.stop()
        if self._server is not None:
            await self._server.stop(self._settings.shutdown_grace)
        stores, self._stores = self._stores, None
        if stores is not None:
            failed = self._failed is not None and self._failed.done()
            await asyncio.to_thread(stores.abandon if failed else stores.close)
        directory, self._directory = self._directory, None
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
