"""Owns what is stored of a graph between two model calls, and taking it up again.

The messages the session has stored already are named by their sequence, not repeated: a run state
grows with its turn, not with its session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from dex_agents import AgentMessage, FrameworkRunState
from dex_agents_checkpoint_codec import (
    RUN_STATE_FORMAT,
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
    TypedSerializer,
    decode_run_state,
    encode_run_state,
)
from dex_agents_langgraph.errors import LangGraphRunError
from dex_agents_langgraph.messages import framework_message_to_langchain_message, is_same_message
from dex_agents_langgraph.turn_checkpointer import (
    StoredCheckpoint,
    StoredWrite,
    TurnCheckpointer,
)


class RunStateStore:
    """Turns a turn's checkpoints into a run state and back.

    Args:
        serializer: writes and reads everything that is not a stored message.
        messages_key: the state's key of the message list.
    """

    def __init__(self, serializer: TypedSerializer, messages_key: str) -> None:
        self._serializer = serializer
        self._name = f"{type(serializer).__module__}.{type(serializer).__qualname__}"
        self._messages_key = messages_key

    def save(
        self,
        checkpointer: TurnCheckpointer,
        deferred: Mapping[str, tuple[str, ...]],
        stored: Sequence[AgentMessage],
        fingerprint: Mapping[str, Any],
    ) -> FrameworkRunState:
        """Return the run state of a graph that waits for `deferred` calls.

        Args:
            deferred: per interrupt id the ids of its calls.
            stored: the conversation as the session has stored it.
            fingerprint: describes the graph.
        """
        known = _StoredMessages(stored)
        namespaces = tuple(
            self._namespace(namespace, last, known)
            for namespace, last in checkpointer.last_checkpoints().items()
        )
        state = RunState(namespaces, deferred, fingerprint, self._name)
        return FrameworkRunState(RUN_STATE_FORMAT, encode_run_state(state, self._serializer))

    def load(
        self, run_state: FrameworkRunState, stored: Sequence[AgentMessage]
    ) -> tuple[TurnCheckpointer, RunState]:
        """Return the checkpoints of a run state, its messages being objects of their own.

        Raises:
            CheckpointCodecError: it was damaged, or written with another serializer.
            LangGraphRunError: it was written in a format this release does not read.
        """
        if run_state.format != RUN_STATE_FORMAT:
            raise LangGraphRunError(
                f"the stored run state has format {run_state.format!r}, this release reads "
                f"{RUN_STATE_FORMAT!r}; run the release that wrote it"
            )
        state = decode_run_state(run_state.body, self._serializer, serializer_name=self._name)
        checkpointer = TurnCheckpointer()
        for namespace in state.namespaces:
            checkpointer.restore(namespace.namespace, self._checkpoint(namespace, stored))
        return checkpointer, state

    def _namespace(
        self, namespace: str, last: StoredCheckpoint, known: _StoredMessages
    ) -> NamespaceState:
        values = dict(last.checkpoint["channel_values"])
        messages = values.get(self._messages_key)
        channels: dict[str, tuple[object, ...]] = {}
        if isinstance(messages, list):
            del values[self._messages_key]
            channels[self._messages_key] = known.shorten(messages)
        return NamespaceState(
            namespace=namespace,
            checkpoint={**last.checkpoint, "channel_values": values},
            metadata={"metadata": dict(last.metadata), "parent_id": last.parent_id},
            writes=tuple(
                PendingWrite(
                    write.task_id, write.task_path, json.dumps([index, write.channel]), write.value
                )
                for (_, index), write in last.writes.items()
            ),
            message_channels=channels,
        )

    def _checkpoint(
        self, state: NamespaceState, stored: Sequence[AgentMessage]
    ) -> StoredCheckpoint:
        checkpoint: Any = state.checkpoint
        metadata: Any = state.metadata
        values = dict(checkpoint["channel_values"])
        for channel, items in state.message_channels.items():
            values[channel] = _expand(items, stored)
        restored_checkpoint: Any = {**checkpoint, "channel_values": values}
        restored = StoredCheckpoint(
            restored_checkpoint, metadata["metadata"], metadata["parent_id"]
        )
        for write in state.writes:
            index, channel = json.loads(write.channel)
            restored.writes[write.task_id, index] = StoredWrite(
                write.task_id, write.task_path, channel, write.value
            )
        return restored


class _StoredMessages:
    """The conversation, to find which messages of a graph are stored to the letter."""

    def __init__(self, stored: Sequence[AgentMessage]) -> None:
        self._items = {message.sequence: json.loads(message.framework_item) for message in stored}
        self._sequences = {
            item["data"].get("id") or f"dex-message-{sequence}": sequence
            for sequence, item in self._items.items()
        }

    def shorten(self, messages: Sequence[BaseMessage]) -> tuple[object, ...]:
        """Return `messages` with runs of stored ones replaced by ranges."""
        result: list[object] = []
        for message in messages:
            sequence = self._sequence_of(message)
            if sequence is None:
                result.append(message)
            elif result and _continues(result[-1], sequence):
                last = result.pop()
                assert isinstance(last, MessageRange)
                result.append(MessageRange(last.first, sequence))
            else:
                result.append(MessageRange(sequence, sequence))
        return tuple(result)

    def _sequence_of(self, message: BaseMessage) -> int | None:
        sequence = self._sequences.get(message.id or "")
        if sequence is None:
            return None
        item = self._items[sequence]
        if not item["data"].get("id"):
            item = {**item, "data": {**item["data"], "id": message.id}}
        return sequence if is_same_message(message, item) else None


def _continues(item: object, sequence: int) -> bool:
    return isinstance(item, MessageRange) and item.last + 1 == sequence


def _expand(items: Sequence[object], stored: Sequence[AgentMessage]) -> list[object]:
    result: list[object] = []
    for item in items:
        if not isinstance(item, MessageRange):
            result.append(item)
            continue
        if item.first < 1 or item.last > len(stored):
            raise LangGraphRunError(
                f"the run state names messages {item.first} to {item.last}, the session has "
                f"{len(stored)}; it belongs to another session"
            )
        result.extend(
            framework_message_to_langchain_message(message)
            for message in stored[item.first - 1 : item.last]
        )
    return result
