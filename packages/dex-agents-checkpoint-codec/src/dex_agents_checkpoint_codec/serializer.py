"""Owns the border to the serializer: what is asked of one, and what becomes of its failures.

Never looks at what a type tag means, and never decodes anything itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dex_agents_checkpoint_codec._json_text import is_unicode
from dex_agents_checkpoint_codec.errors import (
    RunStateUsageError,
    SerializerFailedError,
    ValuePlace,
)


class TypedSerializer(Protocol):
    """What the codec needs of a serializer; LangGraph's `SerializerProtocol` has it.

    Both methods may be called from any thread that encodes or decodes.
    """

    def dumps_typed(self, obj: object, /) -> tuple[str, bytes]:
        """Return a type tag and the bytes of `obj`."""
        ...

    def loads_typed(self, data: tuple[str, bytes], /) -> object:
        """Return the object of a type tag and bytes that `dumps_typed` returned."""
        ...


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value as its serializer wrote it.

    Attributes:
        tag: the type tag.
        data: the bytes.
    """

    tag: str
    data: bytes = field(repr=False)


def check_is_serializer(serializer: object) -> None:
    """Refuse an object without the two methods.

    Raises:
        RunStateUsageError: a method is missing.
    """
    for method in ("dumps_typed", "loads_typed"):
        if not callable(getattr(serializer, method, None)):
            raise RunStateUsageError(
                f"the serializer of type {type(serializer).__name__!r} has no method `{method}`",
                "pass one like LangGraph's `JsonPlusSerializer`",
            )


def dump_value(serializer: TypedSerializer, place: ValuePlace, value: object) -> TypedValue:
    """Return `value` as the serializer writes it.

    Raises:
        SerializerFailedError: the serializer raised, or did not return a tag and bytes.
    """
    typed: object = None
    failure = ""
    try:
        typed = serializer.dumps_typed(value)
    except Exception as error:  # border to the serializer, which may be anybody's
        failure = f"raised `{type(error).__name__}`"
    # Raised outside the handler, so that nothing the serializer said is kept in the context.
    if failure:
        raise SerializerFailedError("dumps_typed", place, failure)
    match typed:
        # LangGraph's serializer hands the bytearray it was given on as it is.
        case (str(tag), bytes() | bytearray() as data) if isinstance(typed, tuple):
            if is_unicode(tag):
                return TypedValue(tag, bytes(data))
    raise SerializerFailedError("dumps_typed", place, "did not return a pair of `str` and `bytes`")


def load_value(serializer: TypedSerializer, place: ValuePlace, typed: TypedValue) -> object:
    """Return the object that the serializer reads.

    Raises:
        SerializerFailedError: the serializer raised.
    """
    try:
        return serializer.loads_typed((typed.tag, typed.data))
    except Exception as error:  # border to the serializer, which may be anybody's
        failure = f"raised `{type(error).__name__}`"
    raise SerializerFailedError("loads_typed", place, failure)
