"""Owns what goes into the kernel and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import Message

from dex_embedded_engine.errors import ServiceError

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel


@dataclass(frozen=True)
class Call:
    """A request of a client.

    Attributes:
        kind: name of the operation, also of its commit point.
        operation: returns the answer, or None when it will come later by `call_id`.
    """

    call_id: int
    kind: str
    operation: Callable[[Kernel, int], Message | None]


@dataclass(frozen=True)
class StreamOpened:
    """A Worker opened a pull stream and said who it is."""

    stream_id: int
    register: pb.PollWorkerTaskRegister


@dataclass(frozen=True)
class StreamFrame:
    """A Worker sent a frame."""

    stream_id: int
    frame: pb.PollWorkerTaskRequest


@dataclass(frozen=True)
class StreamEnded:
    """A pull stream is gone.

    Attributes:
        orderly: the Worker half-closed it and was seen alive afterwards, so a task that it never
            answered was never started.
    """

    stream_id: int
    orderly: bool


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Call | StreamOpened | StreamFrame | StreamEnded | Tick


@dataclass(frozen=True)
class Reply:
    """The answer to a call."""

    call_id: int
    answer: Message


@dataclass(frozen=True)
class Refusal:
    """A call that was refused."""

    call_id: int
    error: ServiceError


@dataclass(frozen=True)
class ToStream:
    """A frame for a Worker."""

    stream_id: int
    frame: pb.PollWorkerTaskResponse


@dataclass(frozen=True)
class Wake:
    """Whoever waits on `topic` should look again."""

    topic: tuple[str, ...]


Output = Reply | Refusal | ToStream | Wake


def flow_topic(flow_id: str) -> tuple[str, ...]:
    """Name what changes when a run of the Flow closes."""
    return ("flow", flow_id)


def stream_topic(flow_type: str, stream_name: str, flow_id: str) -> tuple[str, ...]:
    """Name what changes when a message is appended to a Flow's Stream."""
    return ("stream", flow_type, stream_name, flow_id)
