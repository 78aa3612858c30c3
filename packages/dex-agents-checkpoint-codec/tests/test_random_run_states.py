"""Any run state comes back as it was; any change of its text is found before a value is read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dex_agents_checkpoint_codec import (
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
    RunStateFormatError,
    RunStateUsageError,
    TypedSerializer,
    decode_run_state,
    encode_run_state,
)

# Everything UTF-8 can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXTS.filter(bool)
SEQUENCES = st.integers(0, 2**63 - 1)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
VALUES = JSON | st.binary(max_size=40) | st.binary(max_size=9).map(bytearray)
RANGES = st.tuples(SEQUENCES, SEQUENCES).map(lambda bounds: MessageRange(*sorted(bounds)))


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


NAMESPACES = st.builds(
    NamespaceState,
    namespace=TEXTS,
    checkpoint=VALUES,
    metadata=VALUES,
    writes=tuples(st.builds(PendingWrite, TEXTS, TEXTS, TEXTS, VALUES)),
    message_channels=st.dictionaries(TEXTS, tuples(RANGES | VALUES), max_size=3),
)


@st.composite
def run_states(draw: st.DrawFn) -> RunState:
    call_ids = draw(st.lists(NAMES, unique=True, max_size=6))
    deferred: dict[str, tuple[str, ...]] = {}
    for interrupt_id in draw(st.lists(NAMES, unique=True, max_size=4)):
        count = draw(st.integers(0, len(call_ids)))
        deferred[interrupt_id], call_ids = tuple(call_ids[:count]), call_ids[count:]
    return RunState(
        draw(st.lists(NAMESPACES, unique_by=lambda each: each.namespace, max_size=3).map(tuple)),
        deferred,
        draw(st.dictionaries(TEXTS, JSON, max_size=4)),
        draw(NAMES),
    )


@given(state=run_states())
def test_run_state_comes_back_as_it_was_and_is_written_alike_again(
    state: RunState, serializer: TypedSerializer
) -> None:
    text = encode_run_state(state, serializer)
    decoded = decode_run_state(text, serializer, serializer_name=state.serializer_name)
    assert decoded == state
    assert encode_run_state(decoded, serializer) == text


@given(state=run_states(), data=st.data())
@settings(max_examples=40)
def test_text_with_any_one_change_is_refused_before_a_value_is_read(
    state: RunState, data: st.DataObject, toy: Any
) -> None:
    text = encode_run_state(state, toy)
    toy.loads = 0
    changes = st.tuples(
        st.integers(0, len(text)), st.integers(0, 2), st.text(max_size=2) | st.sampled_from(text)
    )
    for position, removed, added in data.draw(st.lists(changes, min_size=10, max_size=10)):
        changed = text[:position] + added + text[position + removed :]
        if changed != text:
            with pytest.raises(RunStateFormatError):
                decode_run_state(changed, toy, serializer_name=state.serializer_name)
    assert toy.loads == 0


@given(text=st.text() | JSON.map(repr), name=NAMES)
def test_text_of_anything_else_is_refused(text: str, name: str, toy: Any) -> None:
    toy.loads = 0
    with pytest.raises(RunStateFormatError):
        decode_run_state(text, toy, serializer_name=name)
    assert toy.loads == 0


@given(value=st.floats() | st.integers() | st.text())
def test_fingerprint_takes_exactly_the_scalars_that_can_be_written(
    value: float | str, serializer: TypedSerializer
) -> None:
    finite = not isinstance(value, float) or math.isfinite(value)
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    whole = not isinstance(value, str) or value == value.encode(errors="ignore").decode()
    try:
        state = RunState((), {}, {"value": value}, "toy")
    except RunStateUsageError:
        assert not (finite and fits and whole)
    else:
        assert finite and fits and whole
        text = encode_run_state(state, serializer)
        assert decode_run_state(text, serializer, serializer_name="toy") == state
