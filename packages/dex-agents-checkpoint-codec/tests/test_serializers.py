"""A serializer that fails is named with the place of the value, and nothing of the value leaks."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from dex_agents_checkpoint_codec import (
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
    RunStateSerializerError,
    RunStateUsageError,
    TypedSerializer,
    decode_run_state,
    encode_run_state,
)
from dex_agents_checkpoint_codec.errors import SerializerFailedError, SerializerNameError

SECRET = "card 4111 1111 1111 1111"

PLACES = {
    "the checkpoint in namespace 'sub|1'": (None, "the checkpoint"),
    "the metadata in namespace 'sub|1'": (None, "the metadata"),
    "pending write 1 of channel 'answers' in namespace 'sub|1'": ("answers", "pending write 1"),
    "message 1 of channel 'messages' in namespace 'sub|1'": ("messages", "message 1"),
}


class PickySerializer:
    """Fails at the one value it does not like, and says why with all it knows."""

    def __init__(self, *, writes: bool = True) -> None:
        self.writes = writes

    def dumps_typed(self, obj: object, /) -> tuple[str, bytes]:
        if obj == SECRET and not self.writes:
            raise ValueError(f"cannot write {obj}")
        return "text", str(obj).encode()

    def loads_typed(self, data: tuple[str, bytes], /) -> object:
        text = data[1].decode()
        if text == SECRET:
            raise KeyError(f"cannot read {text}")
        return text


def state_with_secret(place: str) -> RunState:
    def value(of: str) -> str:
        return SECRET if of == place else "fine"

    checkpoint, metadata, write, message = map(value, PLACES)
    writes = (PendingWrite("t", "", "answers", "fine"), PendingWrite("t", "", "answers", write))
    channels = {"messages": (MessageRange(0, 3), message)}
    spoiled = NamespaceState("sub|1", checkpoint, metadata, writes, channels)
    return RunState((NamespaceState("", "fine", "fine"), spoiled), {}, {}, "picky")


def leaks(error: BaseException) -> bool:
    chain = [error.__cause__, error.__context__]
    return any(chain) or SECRET in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("place", PLACES)
def test_value_that_cannot_be_written_is_named_by_its_place_alone(place: str) -> None:
    with pytest.raises(SerializerFailedError) as caught:
        encode_run_state(state_with_secret(place), PickySerializer(writes=False))
    error = caught.value
    assert f"`dumps_typed` of the serializer raised `ValueError` for {place};" in str(error)
    assert (error.place.channel, error.place.what) == PLACES[place]
    assert (error.method, error.place.namespace) == ("dumps_typed", "sub|1")
    assert not leaks(error)


@pytest.mark.parametrize("place", PLACES)
def test_value_that_cannot_be_read_is_named_by_its_place_alone(place: str) -> None:
    serializer = PickySerializer()
    text = encode_run_state(state_with_secret(place), serializer)
    with pytest.raises(SerializerFailedError) as caught:
        decode_run_state(text, serializer, serializer_name="picky")
    error = caught.value
    assert f"`loads_typed` of the serializer raised `KeyError` for {place};" in str(error)
    assert (error.place.channel, error.place.what) == PLACES[place]
    assert (error.method, error.place.namespace) == ("loads_typed", "sub|1")
    assert not leaks(error)


def test_what_is_no_error_passes_through(v1_text: str) -> None:
    class Interrupted(PickySerializer):
        def loads_typed(self, data: tuple[str, bytes], /) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_run_state(v1_text, Interrupted(), serializer_name="toy")


@pytest.mark.parametrize(
    "result",
    [
        None,
        b"bytes",
        "ab",
        ("tag",),
        ("tag", b"bytes", b"more"),
        ["tag", b"bytes"],
        (b"tag", b"bytes"),
        ("tag", "text"),
        ("tag", memoryview(b"bytes")),
        ("tag", None),
        (None, b"bytes"),
        ("\ud800", b"bytes"),
    ],
)
def test_serializer_that_returns_no_tag_and_bytes_is_refused(result: object) -> None:
    class Odd(PickySerializer):
        def dumps_typed(self, obj: object, /) -> Any:
            return result

    state = RunState((NamespaceState("", 1, 2),), {}, {}, "odd")
    with pytest.raises(SerializerFailedError, match="did not return a pair of `str` and `bytes`"):
        encode_run_state(state, Odd())


def test_run_state_of_another_serializer_is_refused_before_a_value_is_read(
    v1_text: str, toy: Any
) -> None:
    with pytest.raises(SerializerNameError) as caught:
        decode_run_state(v1_text, toy, serializer_name="toy+aes")
    assert "written with the serializer 'toy' and cannot be read with 'toy+aes'" in str(
        caught.value
    )
    assert "every Worker must use the same serializer" in str(caught.value)
    assert (caught.value.written, caught.value.given) == ("toy", "toy+aes")
    assert isinstance(caught.value, RunStateSerializerError)
    assert toy.loads == 0


@pytest.mark.parametrize("method", ["dumps_typed", "loads_typed"])
def test_object_without_a_serializers_methods_is_the_callers_mistake(
    method: str, v1_text: str
) -> None:
    class Half:
        pass

    half: Any = Half()
    other = {"dumps_typed": "loads_typed", "loads_typed": "dumps_typed"}[method]
    setattr(half, other, lambda value: value)
    with pytest.raises(RunStateUsageError, match=f"'Half' has no method `{method}`"):
        decode_run_state(v1_text, half, serializer_name="toy")
    with pytest.raises(RunStateUsageError, match=f"'Half' has no method `{method}`"):
        encode_run_state(RunState((), {}, {}, "half"), half)


def test_bytearray_of_a_serializer_is_kept(serializer: TypedSerializer) -> None:
    state = RunState((NamespaceState("", bytearray(b"a"), b"b"),), {}, {}, "toy")
    decoded = decode_run_state(
        encode_run_state(state, serializer), serializer, serializer_name="toy"
    )
    assert type(decoded.namespaces[0].checkpoint) is bytearray
    assert decoded == state
