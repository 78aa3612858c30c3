"""Owns requests on Streams. They are independent of runs: a Flow id need not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine.errors import ServiceError, invalid_argument
from dex_embedded_engine.kernel.messages import stream_topic
from dex_embedded_engine.storage.streams import StoredMessage
from dex_embedded_engine.transitions.events import timestamp
from dex_embedded_engine.values import InvalidMessageError, check_value

if TYPE_CHECKING:
    from dex_embedded_engine.kernel.core import Kernel

_LARGEST_PAGE = 1000
_PAGE_BYTES = 3 * 1024 * 1024
_PAGE_CHUNK = 100


def write_stream(kernel: Kernel, request: pb.WriteStreamRequest) -> Empty:
    """Append one message."""
    _require_address(request.flow_id, request.flow_type, request.stream_name, "WriteStream")
    if not request.source:
        raise invalid_argument("WriteStream needs a source")
    if request.stream_capacity_bytes <= 0:
        raise invalid_argument("WriteStream needs a positive stream_capacity_bytes")
    try:
        check_value(request.value, "the Stream message")
    except InvalidMessageError as problem:
        raise invalid_argument(str(problem)) from problem
    settings = kernel.settings
    size = request.value.ByteSize()
    if size > settings.stream_message_limit:
        raise invalid_argument(
            f"the Stream message has {size} bytes; the limit is {settings.stream_message_limit}"
        )
    capacity = request.stream_capacity_bytes
    appended = kernel.stores.streams.append(
        (request.flow_type, request.stream_name),
        request.flow_id,
        StoredMessage(0, kernel.now, request.source, request.value),
        (capacity * settings.stream_trim_trigger, capacity * settings.stream_trim_target),
    )
    if not appended:
        raise ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"the message does not fit Stream {request.stream_name!r} of {capacity} bytes; "
            f"raise its stream_capacity_bytes",
        )
    kernel.wake(stream_topic(request.flow_type, request.stream_name, request.flow_id))
    return Empty()


def read_stream(kernel: Kernel, request: pb.ReadStreamRequest) -> pb.ReadStreamResponse:
    """Return the next message, or an empty answer when there is none yet."""
    _require_address(request.flow_id, request.flow_type, request.stream_name, "ReadStream")
    if request.wait_time_seconds < 0:
        raise invalid_argument("ReadStream has a negative wait_time_seconds")
    position = _position(kernel, request.resume_token, "resume_token", 0)
    found = kernel.stores.streams.next_after(
        (request.flow_type, request.stream_name), request.flow_id, position
    )
    if found is None:
        return pb.ReadStreamResponse()
    return pb.ReadStreamResponse(message=_message(found))


def list_stream_messages(
    kernel: Kernel, request: pb.ListStreamMessagesRequest
) -> pb.ListStreamMessagesResponse:
    """Return a page of kept messages, newest first, below the size of one answer."""
    _require_address(request.flow_id, request.flow_type, request.stream_name, "ListStreamMessages")
    if request.page_size < 1:
        raise invalid_argument("ListStreamMessages needs a page_size of at least 1")
    key = (request.flow_type, request.stream_name)
    streams = kernel.stores.streams
    end = streams.last_position + 1
    before = _position(kernel, request.before_page_token, "before_page_token", end)
    answer = pb.ListStreamMessagesResponse()
    if request.before_page_token and not streams.is_kept(key, request.flow_id, before):
        return answer
    wanted, size = min(request.page_size, _LARGEST_PAGE), 0
    while wanted > 0:
        chunk = streams.page_before(key, request.flow_id, before, min(wanted, _PAGE_CHUNK))
        for message in chunk:
            if answer.messages and size + message.size > _PAGE_BYTES:
                answer.next_page_token = str(before)
                return answer
            answer.messages.append(_message(message))
            size += message.size
            before = message.position
            wanted -= 1
        if not chunk:
            return answer
    if streams.page_before(key, request.flow_id, before, 1):
        answer.next_page_token = str(before)
    return answer


def _message(stored: StoredMessage) -> pb.StreamMessage:
    return pb.StreamMessage(
        value=stored.value,
        resume_token=str(stored.position),
        created_time=timestamp(stored.at),
        source=stored.source,
    )


def _position(kernel: Kernel, token: str, name: str, default: int) -> int:
    if not token:
        return default
    plain = token.isascii() and token.isdigit() and len(token) < 19
    if not plain or int(token) > kernel.stores.streams.last_position:
        raise invalid_argument(f"{name} {token!r} was not given out by this engine")
    return int(token)


def _require_address(flow_id: str, flow_type: str, name: str, operation: str) -> None:
    if not flow_id or not flow_type or not name:
        raise invalid_argument(f"{operation} needs a flow_id, a flow_type and a stream_name")
