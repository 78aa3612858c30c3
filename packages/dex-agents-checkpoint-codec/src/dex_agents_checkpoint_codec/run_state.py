"""Owns the values of a run state and the rules that hold whatever format they are stored in.

Knows neither JSON text nor serializers, and nothing about the graph a run state belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dex_agents_checkpoint_codec._json_text import JsonValue, copy_json_object, is_unicode
from dex_agents_checkpoint_codec.errors import RunStateUsageError, quoted
from dex_agents_checkpoint_codec.limits import MAX_INTEGER

MessageItem: TypeAlias = "MessageRange | object"


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Messages that the session has stored already, named instead of repeated.

    Ranges are kept as they are: neighbours are not merged, and overlaps are not looked for.

    Attributes:
        first: the sequence of the first message, 0 or more.
        last: the sequence of the last message, which belongs to the range.

    Raises:
        RunStateUsageError: a bound is no integer or out of range, or `last` is before `first`.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        for name, bound in (("first", self.first), ("last", self.last)):
            if type(bound) is not int or not 0 <= bound <= MAX_INTEGER:
                raise RunStateUsageError(
                    f"`{name}` of a message range is {_shown(bound)}",
                    f"pass a stored sequence, an integer from 0 to {MAX_INTEGER}",
                )
        if self.last < self.first:
            raise RunStateUsageError(
                f"the message range from {self.first} to {self.last} is reversed",
                "pass `first` before `last`",
            )


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """One write of a task that has run since the checkpoint.

    Attributes:
        task_id: the task that wrote.
        task_path: the task's path in the graph, which gives the order of writes; may be empty.
        channel: the channel written to.
        value: any object that the serializer takes.

    Raises:
        RunStateUsageError: a name is not a string.
    """

    task_id: str
    task_path: str
    channel: str
    value: object = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("task_id", "task_path", "channel"):
            _check_text(f"`{name}` of a pending write", getattr(self, name))


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """What one checkpoint namespace of a graph stood at.

    Attributes:
        namespace: its name; the root graph's is empty.
        checkpoint: the last checkpoint, without the channels in `message_channels`.
        metadata: the checkpoint's metadata.
        writes: the pending writes, in their order.
        message_channels: for each channel that holds messages its items in order, each a
            `MessageRange` or a message object that the serializer takes. Copied.

    Raises:
        RunStateUsageError: an attribute has a wrong type.
    """

    namespace: str
    checkpoint: object = field(repr=False)
    metadata: object = field(repr=False)
    writes: tuple[PendingWrite, ...] = ()
    message_channels: Mapping[str, tuple[MessageItem, ...]] = field(
        default_factory=dict[str, tuple[MessageItem, ...]], repr=False
    )

    def __post_init__(self) -> None:
        _check_text("a namespace", self.namespace)
        _check_items("`writes`", self.writes, PendingWrite)
        _check_mapping("`message_channels`", self.message_channels)
        for channel, items in self.message_channels.items():
            _check_text("the name of a message channel", channel)
            _check_items(f"message channel {quoted(channel)}", items, object)
        object.__setattr__(self, "message_channels", dict(self.message_channels))


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything a Worker needs to go on with an interrupted run of a graph.

    Attributes:
        namespaces: one state per checkpoint namespace, in their order.
        deferred_calls: for each interrupt id the ids of the tool calls it deferred, in their
            order. Every call id occurs once. Copied.
        fingerprint: the adapter's description of the graph: JSON values, at most 32 levels deep,
            with finite floats and integers of at most 64 bits. Copied.
        serializer_name: names the serializer of all values, the same on every Worker.

    Raises:
        RunStateUsageError: an attribute has a wrong type, a namespace or a call id occurs twice,
            or the fingerprint is no JSON.
    """

    namespaces: tuple[NamespaceState, ...]
    deferred_calls: Mapping[str, tuple[str, ...]]
    fingerprint: Mapping[str, JsonValue]
    serializer_name: str

    def __post_init__(self) -> None:
        _check_items("`namespaces`", self.namespaces, NamespaceState)
        _check_unique("namespace", [state.namespace for state in self.namespaces])
        _check_mapping("`deferred_calls`", self.deferred_calls)
        for interrupt_id, call_ids in self.deferred_calls.items():
            _check_text("an interrupt id", interrupt_id, empty=False)
            _check_items(f"the calls of interrupt {quoted(interrupt_id)}", call_ids, str)
            for call_id in call_ids:
                _check_text("a tool call id", call_id, empty=False)
        call_ids = tuple(call for calls in self.deferred_calls.values() for call in calls)
        _check_unique("tool call id", call_ids)
        _check_text("`serializer_name`", self.serializer_name, empty=False)
        object.__setattr__(self, "deferred_calls", dict(self.deferred_calls))
        object.__setattr__(self, "fingerprint", copy_json_object("fingerprint", self.fingerprint))


def _shown(value: object) -> str:
    # The type only: a wrong argument may well be a user's value.
    return str(value) if type(value) is int else f"of type {type(value).__name__!r}"


def _check_text(what: str, value: object, *, empty: bool = True) -> None:
    if not isinstance(value, str):
        raise RunStateUsageError(f"{what} is {_shown(value)}", "pass a string")
    if not value and not empty:
        raise RunStateUsageError(f"{what} is empty", "pass a string that is not")
    if not is_unicode(value):
        raise RunStateUsageError(f"{what} holds half of a surrogate pair", "pass valid Unicode")


def _check_mapping(what: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise RunStateUsageError(f"{what} is {_shown(value)}", "pass a mapping")


def _check_items(what: str, value: object, kind: type) -> None:
    if not isinstance(value, tuple):
        raise RunStateUsageError(f"{what} is {_shown(value)}", "pass a tuple")
    for index, item in enumerate(value):
        if not isinstance(item, kind):
            raise RunStateUsageError(
                f"item {index} of {what} is {_shown(item)}", f"pass a `{kind.__name__}`"
            )


def _check_unique(what: str, names: list[str] | tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RunStateUsageError(
                f"the {what} {quoted(name)} occurs twice", "pass each of them once"
            )
        seen.add(name)
