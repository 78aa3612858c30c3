"""Owns every exception this package raises, and the shape of an error on the wire.

Two families below one root: `EngineUsageError` is the caller's mistake and is raised before
anything starts; `EngineFailure` happens while an engine runs. `ServiceError` is what a gRPC
caller gets; how it is packed for the SDK is `services.status`'s business.
"""

from __future__ import annotations

import grpc
from dex.dexpb import dex_pb2 as pb


class EngineError(Exception):
    """Root of every exception raised by `dex_embedded_engine`."""


class EngineUsageError(EngineError):
    """The engine cannot start as asked: a path, an address, a token or a setting is wrong."""


class DataDirectoryInUseError(EngineUsageError):
    """Another engine holds the data directory.

    Attributes:
        holder: what the lock file says about the other engine, for example ``"pid 41"``.
    """

    def __init__(self, data_dir: str, holder: str) -> None:
        super().__init__(
            f"data directory {data_dir!r} is in use by {holder}; stop that engine or choose "
            f"another directory"
        )
        self.holder = holder


class DataDirectoryError(EngineUsageError):
    """The data directory cannot be used: permissions, or it is not a directory."""


class SchemaTooNewError(EngineUsageError):
    """The data directory was written by a newer release of this package."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path!r} has schema version {found}, this release knows up to {known}; "
            f"install the newer dex-embedded-engine that wrote it"
        )
        self.found = found
        self.known = known


class AddressError(EngineUsageError):
    """The address is malformed, taken, or reachable from other machines without a token."""


class TokenFileError(EngineUsageError):
    """The token file is missing, empty, or readable by other users."""


class EngineFailure(EngineError):
    """The engine stopped while it ran; what it acknowledged before is on disk."""


class ServiceError(EngineError):
    """A request was refused. Becomes a gRPC status the SDK can parse.

    Attributes:
        code: the gRPC status code.
        sub_status: one of ``pb.ERROR_SUB_STATUS_*``; decides the SDK's exception class.
        worker_error: what a Worker reported, when the request failed there.
        dispatch_reason: one of ``pb.DISPATCH_TASK_ERROR_REASON_*``.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        detail: str,
        sub_status: pb.ErrorSubStatus = pb.ERROR_SUB_STATUS_UNCATEGORIZED,
        *,
        worker_error: pb.WorkerErrorResponse | None = None,
        dispatch_reason: pb.DispatchTaskErrorReason = pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.sub_status = sub_status
        self.worker_error = worker_error
        self.dispatch_reason = dispatch_reason


def invalid_argument(detail: str) -> ServiceError:
    """Build the refusal of a malformed request."""
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, detail)


def flow_not_exists(flow_id: str, problem: str) -> ServiceError:
    """Build the refusal of a request whose Flow is missing or not active."""
    return ServiceError(
        grpc.StatusCode.NOT_FOUND,
        f"Flow {flow_id!r} {problem}",
        pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS,
    )


def worker_failure(
    detail: str,
    *,
    worker_error: pb.WorkerErrorResponse | None = None,
    reason: pb.DispatchTaskErrorReason = pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED,
) -> ServiceError:
    """Build the refusal of an RPC whose handler failed or was never reached."""
    return ServiceError(
        grpc.StatusCode.FAILED_PRECONDITION,
        detail,
        pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
        worker_error=worker_error,
        dispatch_reason=reason,
    )


def lock_conflict(key: str) -> ServiceError:
    """Build the refusal of an RPC that found one of its Attribute locks held."""
    return ServiceError(
        grpc.StatusCode.ABORTED,
        f"Attribute lock {key!r} is held by another call; retry",
        pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
    )


def unimplemented(what: str) -> ServiceError:
    """Build the refusal of something the embedded engine does not do."""
    return ServiceError(grpc.StatusCode.UNIMPLEMENTED, what)
