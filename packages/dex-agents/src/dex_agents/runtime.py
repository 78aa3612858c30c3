"""Owns what all Steps of a session Flow share, and how a long history gets to a model call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dex import Context

from dex_agents.errors import HistoryUnavailableError
from dex_agents.messages import AgentMessage
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.session_header import TurnPosition
from dex_agents.session_schema import SessionSchema, message_key
from dex_agents.settings import SessionSettings
from dex_agents.stored_record import MESSAGE, StoredRecord, read_record

ReadMessages = Callable[[str, int, int], Awaitable[list[StoredRecord]]]
_CACHED_SESSIONS = 64


class MessageCache:
    """Stored messages of the sessions this Worker served last.

    Messages are never changed once stored, so a run's cached begin is always right.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, str], list[StoredRecord]] = OrderedDict()

    def of_run(self, session_id: str, run_id: str) -> list[StoredRecord]:
        """Return the cached begin of the run's conversation; it may be extended in place."""
        key = (session_id, run_id)
        records = self._records.setdefault(key, [])
        self._records.move_to_end(key)
        while len(self._records) > _CACHED_SESSIONS:
            self._records.popitem(last=False)
        return records


@dataclass
class SessionRuntime:
    """What the Steps of one session Flow share.

    Attributes:
        runner: the adapter; None in a process that only talks to sessions.
        read_messages: reads (session, first, last) from the engine; bound by the host.
    """

    schema: SessionSchema
    settings: SessionSettings
    runner: AgentFrameworkRunner | None = None
    read_messages: ReadMessages | None = None
    cache: MessageCache = field(default_factory=MessageCache)

    def require_runner(self) -> AgentFrameworkRunner:
        """Return the runner; only Workers run Steps, and they have one."""
        assert self.runner is not None
        return self.runner

    def travels(self, position: TurnPosition) -> bool:
        """Tell whether the history is short enough to travel with the Step."""
        return position.message_bytes <= self.settings.history_budget

    async def history(self, context: Context, position: TurnPosition) -> list[AgentMessage]:
        """Return the conversation a model call is given, as objects of its own."""
        records = self.cache.of_run(context.flow_id, context.run_id)
        del records[position.message_count :]
        missing = range(len(records) + 1, position.message_count + 1)
        if missing and self.travels(position):
            records.extend(
                self.schema.messages.get(context, message_key(sequence)) for sequence in missing
            )
        elif missing:
            if self.read_messages is None:
                raise HistoryUnavailableError(context.flow_id)
            records.extend(
                await self.read_messages(context.flow_id, missing[0], position.message_count)
            )
        return [
            AgentMessage.from_json(read_record(MESSAGE, record, f"message {number}"))
            for number, record in enumerate(records, start=1)
        ]
