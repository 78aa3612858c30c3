"""Owns what all Steps of a session Flow share, and how a long history gets to a model call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dex import Context

from dex_agents.errors import HistoryUnavailableError, NoAgentError
from dex_agents.messages import AgentMessage
from dex_agents.runner_contract import AgentFrameworkRunner
from dex_agents.session_header import TurnPosition
from dex_agents.session_schema import SessionSchema
from dex_agents.settings import SessionSettings
from dex_agents.size_limits import LOAD, MIB, RECORD
from dex_agents.stored_messages import read_message

ReadMessages = Callable[[str, int, int], Awaitable[list[AgentMessage]]]
_CACHE_BYTES = 64 * MIB


class MessageCache:
    """Stored messages of the sessions this Worker served last.

    Messages are never changed once stored, so a run's cached begin is always right.
    """

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self._limit = limit
        self._messages: OrderedDict[tuple[str, str], tuple[AgentMessage, ...]] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}

    def get(self, session_id: str, run_id: str) -> tuple[AgentMessage, ...]:
        """Return the cached begin of the run's conversation."""
        return self._messages.get((session_id, run_id), ())

    def put(
        self, session_id: str, run_id: str, messages: tuple[AgentMessage, ...], size: int
    ) -> None:
        """Keep the run's conversation; the ones used longest ago give way."""
        key = (session_id, run_id)
        self._messages[key] = messages
        self._messages.move_to_end(key)
        self._sizes[key] = size
        while sum(self._sizes.values()) > self._limit:
            oldest, _ = self._messages.popitem(last=False)
            del self._sizes[oldest]


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
    _preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_prepared: bool = False

    def require_runner(self) -> AgentFrameworkRunner:
        """Return the runner, as it is.

        Raises:
            NoAgentError: this process only talks to sessions.
        """
        if self.runner is None:
            raise NoAgentError
        return self.runner

    async def prepared_runner(self) -> AgentFrameworkRunner:
        """Return the runner, prepared: a Worker that was not opened by the host does it here."""
        runner = self.require_runner()
        async with self._preparing:
            if not self._is_prepared:
                await runner.prepare()
                self._is_prepared = True
        return runner

    def travels(self, position: TurnPosition) -> bool:
        """Tell whether the history is short enough to travel with the Step."""
        room = LOAD - RECORD - position.required_bytes
        return position.message_bytes <= min(self.settings.history_budget, room)

    async def history(self, context: Context, position: TurnPosition) -> tuple[AgentMessage, ...]:
        """Return the conversation a model call is given."""
        count = position.message_count
        messages = self.cache.get(context.flow_id, context.run_id)[:count]
        missing = range(len(messages) + 1, count + 1)
        if not missing:
            return messages
        if position.has_history:
            schema = self.schema
            messages += tuple(
                read_message(each, lambda key: schema.find(context, schema.messages, key))
                for each in missing
            )
        elif self.read_messages is None:
            raise HistoryUnavailableError(context.flow_id)
        else:
            messages += tuple(await self.read_messages(context.flow_id, missing[0], count))
        self.cache.put(context.flow_id, context.run_id, messages, position.message_bytes)
        return messages
