"""Owns how a session's RPCs are invoked: waiting for lock and Worker, and reading in pages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dex import (
    AsyncClient,
    FlowNotActiveOrNotFoundError,
    RPCInvokeOptions,
    RpcLockConflictError,
    WorkerInvocationError,
)
from grpc import StatusCode

from dex_agents.errors import SessionNotFoundError, WorkerUnavailableError
from dex_agents.messages import AgentMessage
from dex_agents.session_header import SessionHeader, SessionStatus
from dex_agents.size_limits import MIB
from dex_agents.stored_messages import (
    count_message_parts,
    message_key,
    message_part_keys,
    read_message,
)
from dex_agents.stored_record import (
    ANSWER,
    REQUEST,
    SESSION,
    StoredRecord,
    parse_record,
    read_record,
    write_record,
)

if TYPE_CHECKING:
    from dex_agents.session_flow import AgentSessionFlow

# An answer holds records within a record: text is escaped once more, which may double it.
LARGEST_ANSWER = 5 * MIB // 4
_PAGE = 8
_SMALL_HISTORY = 1 * MIB
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


@dataclass(frozen=True)
class SessionRecords:
    """What was read at one moment.

    Attributes:
        header: None until the session's first Step has run.
        status: None until then.
        records: by map and key; None where there is no such record.
    """

    header: SessionHeader | None
    status: SessionStatus | None
    records: Mapping[str, Mapping[str, StoredRecord | None]] = field(default_factory=dict)

    def find(self, map: str, key: str) -> StoredRecord | None:
        """Return a record that was asked for, or None."""
        return self.records.get(map, {}).get(key)


class SessionCalls:
    """Invokes the RPCs of one flow's sessions.

    Args:
        patience: seconds to wait for the session's lock, for its first Step, and for a Worker.
    """

    def __init__(self, client: AsyncClient, flow: AgentSessionFlow, patience: float = 30.0) -> None:
        self._client = client
        self._flow = flow
        self.patience = patience

    async def decide(
        self,
        method: Callable[..., Any],
        session_id: str,
        request: Mapping[str, Any],
        load: Mapping[str, Sequence[str]],
    ) -> dict[str, Any]:
        """Invoke an RPC that holds the session's lock; a repetition must do no harm."""
        return await self._invoke(method, session_id, request, load)

    async def read(self, session_id: str, **keys: Sequence[str]) -> SessionRecords:
        """Read records, few enough for one answer, as they are at one moment."""
        answer = await self._invoke(self._flow.read_session, session_id, {"records": keys}, keys)
        header = None
        if answer["header"] is not None:
            record = StoredRecord(*answer["header"])
            header = parse_record(SESSION, record, "the session", SessionHeader.from_json)
        records = {
            name: {
                key: None if each is None else StoredRecord(*each) for key, each in found.items()
            }
            for name, found in answer["records"].items()
        }
        status = None if answer["status"] is None else SessionStatus(answer["status"])
        return SessionRecords(header, status, records)

    async def read_many(
        self, session_id: str, map: str, keys: Sequence[str], page: int = _PAGE
    ) -> dict[str, StoredRecord]:
        """Read any number of records of one map; those that do not exist are left out."""
        records: dict[str, StoredRecord] = {}
        left = list(keys)
        while left:
            found = (await self.read(session_id, **{map: left[:page]})).records[map]
            records.update({key: each for key, each in found.items() if each is not None})
            left = left[len(found) :]
        return records

    async def read_messages(
        self, session_id: str, first: int, last: int, size: int | None = None
    ) -> list[AgentMessage]:
        """Read stored messages `first` to `last`.

        Args:
            size: bytes of the whole conversation, if known; a small one is read at once.
        """
        sequences = range(first, last + 1)
        page = max(len(sequences), 1) if size is not None and size <= _SMALL_HISTORY else _PAGE
        keys = [message_key(each) for each in sequences]
        records = await self.read_many(session_id, "messages", keys, page)
        parts = [
            key
            for each in sequences
            for key in message_part_keys(
                each, count_message_parts(each, records.get(message_key(each)))
            )
        ]
        records.update(await self.read_many(session_id, "messages", parts))
        return [read_message(each, records.get) for each in sequences]

    async def _invoke(
        self,
        method: Callable[..., Any],
        session_id: str,
        request: Mapping[str, Any],
        load: Mapping[str, Sequence[str]],
    ) -> dict[str, Any]:
        invoke: Callable[..., Awaitable[StoredRecord]] = self._client.invoke_rpc
        maps = self._flow.schema.readable
        options = RPCInvokeOptions(
            load_attribute_map_instances=tuple(
                maps[name].load(key) for name, keys in load.items() for key in keys
            )
        )
        input = write_record(REQUEST, request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    output = await invoke(method, session_id, input, options=options)
                answer = read_record(ANSWER, output, "the answer")
                if answer["outcome"] != "starting" or loop.time() >= deadline:
                    return answer
            except FlowNotActiveOrNotFoundError:
                raise SessionNotFoundError(session_id) from None
            except TimeoutError:
                raise self._unavailable() from None
            except RpcLockConflictError:
                if loop.time() >= deadline:
                    raise
            except WorkerInvocationError as error:
                if error.worker_error_type and error.worker_code is not StatusCode.CANCELLED:
                    raise
                # Nobody ran it, or the Worker that did was lost.
                if loop.time() >= deadline:
                    raise self._unavailable() from None
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _unavailable(self) -> WorkerUnavailableError:
        return WorkerUnavailableError(self._flow.get_flow_type(), self.patience)
