"""No character of a stored text can change unnoticed, and no value is read from a changed one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dex_agents_checkpoint_codec import RunStateFormatError, decode_run_state, encode_run_state
from dex_agents_checkpoint_codec.errors import DamagedRunStateError

# Digits, letters, structure, white space, base64, and what is not ASCII.
PUT_THERE = '0aA"\\,:]}[{ \n\t=+/-.\u00e9\ud800'


def refuses(text: str, toy: Any) -> None:
    with pytest.raises(RunStateFormatError):
        decode_run_state(text, toy, serializer_name="toy")
    assert toy.loads == 0


def one_change(text: str) -> Iterator[str]:
    for position, character in enumerate(text):
        before, after = text[:position], text[position + 1 :]
        yield before
        yield before + after
        yield before + " " + character + after
        yield before + chr(ord(character) ^ 1) + after
        yield before + f"\\u{ord(character):04x}" + after
        yield before + after[:1] + character + after[1:]


def test_text_with_one_character_changed_anywhere_is_refused(v1_text: str, toy: Any) -> None:
    changed = {each for each in one_change(v1_text) if each != v1_text}
    assert len(changed) > 5 * len(v1_text)
    for text in changed:
        refuses(text, toy)


@pytest.mark.full
@pytest.mark.parametrize("other", PUT_THERE)
def test_text_with_any_character_put_anywhere_is_refused(
    other: str, v1_text: str, toy: Any
) -> None:
    for position, character in enumerate(v1_text):
        before, after = v1_text[:position], v1_text[position + 1 :]
        refuses(before + other + character + after, toy)
        if other != character:
            refuses(before + other + after, toy)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: "\ufeff" + text,
        lambda text: text + text,
        lambda text: text + "\0",
        lambda text: json.dumps(json.loads(text)),
        lambda text: json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True),
        lambda text: json.dumps(
            dict(reversed(json.loads(text).items())), ensure_ascii=False, separators=(",", ":")
        ),
        lambda text: text.replace('{"deferred_calls"', '{ "deferred_calls"'),
        lambda text: text.replace("1e+300", "1e300"),
        lambda text: text.replace("1e+300", "1E+300"),
        lambda text: text.replace(",1.0]", ",1.00]"),
        lambda text: text.replace("/é", "\\/é"),
    ],
)
def test_same_document_written_in_another_way_is_refused(
    change: Callable[[str], str], v1_text: str, toy: Any
) -> None:
    assert change(v1_text) != v1_text
    refuses(change(v1_text), toy)


def test_changed_content_is_reported_as_damage(v1_text: str, toy: Any) -> None:
    with pytest.raises(DamagedRunStateError, match="SHA-256 that stands in it; restore the text"):
        decode_run_state(v1_text.replace("call-9", "call-8"), toy, serializer_name="toy")
    assert toy.loads == 0


def test_sum_of_another_run_state_does_not_fit(
    v1_text: str, document: dict[str, Any], seal: Callable[[dict[str, Any]], str], toy: Any
) -> None:
    other = json.loads(seal({**document, "fingerprint": {}}))["sha256"]
    refuses(v1_text.replace(json.loads(v1_text)["sha256"], other), toy)


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "F" * 64, "g" * 64, "é" * 64, "٣" * 64, 0, None, ["0" * 64]]
)
def test_sum_that_is_no_hexadecimal_sha256_is_refused(
    digest: object, document: dict[str, Any], seal: Callable[[dict[str, Any]], str], toy: Any
) -> None:
    text = seal({**document, "sha256": digest})
    with pytest.raises(RunStateFormatError, match="sha256 is no hexadecimal SHA-256"):
        decode_run_state(text, toy, serializer_name="toy")
    assert toy.loads == 0


def test_untouched_text_is_read(v1_text: str, toy: Any) -> None:
    state = decode_run_state(v1_text, toy, serializer_name="toy")
    assert toy.loads == 8
    assert encode_run_state(state, toy) == v1_text
