"""Owns the walk over the values of a run state, the only parts of it that a serializer sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dex_agents_checkpoint_codec.errors import ValuePlace
from dex_agents_checkpoint_codec.run_state import (
    MessageItem,
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
)

ChangeValue = Callable[[ValuePlace, object], object]


def with_values(state: RunState, change: ChangeValue) -> RunState:
    """Return the run state with every value replaced by what `change` makes of it."""
    return RunState(
        tuple(_changed_namespace(each, change) for each in state.namespaces),
        state.deferred_calls,
        state.fingerprint,
        state.serializer_name,
    )


def _changed_namespace(state: NamespaceState, change: ChangeValue) -> NamespaceState:
    name = state.namespace
    return NamespaceState(
        name,
        change(ValuePlace(name, "the checkpoint"), state.checkpoint),
        change(ValuePlace(name, "the metadata"), state.metadata),
        tuple(_changed_writes(state, change)),
        _changed_messages(state, change),
    )


def _changed_writes(state: NamespaceState, change: ChangeValue) -> list[PendingWrite]:
    writes = []
    for index, write in enumerate(state.writes):
        place = ValuePlace(state.namespace, f"pending write {index}", write.channel)
        value = change(place, write.value)
        writes.append(PendingWrite(write.task_id, write.task_path, write.channel, value))
    return writes


def _changed_messages(
    state: NamespaceState, change: ChangeValue
) -> Mapping[str, tuple[MessageItem, ...]]:
    channels: dict[str, tuple[MessageItem, ...]] = {}
    for channel, items in state.message_channels.items():
        changed: list[MessageItem] = []
        for index, item in enumerate(items):
            if not isinstance(item, MessageRange):
                item = change(ValuePlace(state.namespace, f"message {index}", channel), item)
            changed.append(item)
        channels[channel] = tuple(changed)
    return channels
