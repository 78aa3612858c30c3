"""A document that is not exactly of the format is refused, however right its sum is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dex_agents_checkpoint_codec import RunStateFormatError, RunStateUsageError, decode_run_state
from dex_agents_checkpoint_codec import limits as codec_limits
from dex_agents_checkpoint_codec.errors import UnknownFormatError

Seal = Callable[[dict[str, Any]], str]


def refused(text: str, toy: Any) -> str:
    with pytest.raises(RunStateFormatError) as caught:
        decode_run_state(text, toy, serializer_name="toy")
    assert toy.loads == 0
    assert str(caught.value).startswith("the run state cannot be read: ")
    # Nothing of the text may hang on to the error.
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return caught.value.problem


def put(document: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split("/")
    target: Any = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    target[int(last) if isinstance(target, list) else last] = value


MESSAGES = "namespaces/0/message_channels/messages"
WRONG: list[tuple[str, object, str]] = [
    ("serializer", None, "serializer is no string"),
    ("serializer", "", "`serializer_name` is empty"),
    ("serializer", "\ud800", "serializer holds half of a surrogate pair"),
    ("extra", 1, "the document has the unknown key 'extra'"),
    ("namespaces", {}, "namespaces is no array"),
    ("namespaces/0", [], "namespaces[0] is no object"),
    ("namespaces/0/extra", 1, "namespaces[0] has the unknown key 'extra'"),
    ("namespaces/0/namespace", 1, "namespaces[0].namespace is no string"),
    ("namespaces/0/namespace", 'tools:5e"1\\|sub', "the namespace 'tools:5e\"1\\\\|sub' occurs"),
    ("namespaces/0/checkpoint", None, "namespaces[0].checkpoint is no array"),
    ("namespaces/0/checkpoint", ["json"], "namespaces[0].checkpoint has 1 items instead of 2"),
    ("namespaces/0/checkpoint", ["json", "", ""], "namespaces[0].checkpoint has 3 items"),
    ("namespaces/0/checkpoint/0", 1, "namespaces[0].checkpoint[0] is no string"),
    ("namespaces/0/checkpoint/0", "\ud800", "namespaces[0].checkpoint[0] holds half of a surr"),
    ("namespaces/0/checkpoint/1", 1, "namespaces[0].checkpoint[1] is no string"),
    ("namespaces/0/metadata", "json", "namespaces[0].metadata is no array"),
    ("namespaces/0/writes", {}, "namespaces[0].writes is no array"),
    ("namespaces/0/writes/1", None, "namespaces[0].writes[1] is no object"),
    ("namespaces/0/writes/1/extra", 1, "namespaces[0].writes[1] has the unknown key 'extra'"),
    ("namespaces/0/writes/1/task_id", 1, "namespaces[0].writes[1].task_id is no string"),
    ("namespaces/0/writes/1/task_path", None, "namespaces[0].writes[1].task_path is no string"),
    ("namespaces/0/writes/1/channel", [], "namespaces[0].writes[1].channel is no string"),
    ("namespaces/0/writes/1/value", [], "namespaces[0].writes[1].value has 0 items"),
    ("namespaces/0/message_channels", [], "namespaces[0].message_channels is no object"),
    (MESSAGES, {}, "namespaces[0].message_channels['messages'] is no array"),
    (f"{MESSAGES}/0", [0, 1], "namespaces[0].message_channels['messages'][0] is no object"),
    (f"{MESSAGES}/0", {}, "namespaces[0].message_channels['messages'][0] has no key 'value'"),
    (f"{MESSAGES}/0/value", ["json", ""], "message_channels['messages'][0] has the unknown key"),
    (f"{MESSAGES}/1/extra", 1, "message_channels['messages'][1] has the unknown key 'extra'"),
    (f"{MESSAGES}/0/range", {}, "namespaces[0].message_channels['messages'][0].range is no array"),
    (f"{MESSAGES}/0/range", [1, 2, 3], "messages'][0].range has 3 items instead of 2"),
    (f"{MESSAGES}/0/range", [-1, 2], "`first` of a message range is -1"),
    (f"{MESSAGES}/0/range", [3, 2], "the message range from 3 to 2 is reversed"),
    (f"{MESSAGES}/0/range", [0, 2**63], "`last` of a message range is 9223372036854775808"),
    (f"{MESSAGES}/0/range", [0.0, 2], "`first` of a message range is of type 'float'"),
    (f"{MESSAGES}/0/range", [False, True], "`first` of a message range is of type 'bool'"),
    (f"{MESSAGES}/0/range", ["0", "2"], "`first` of a message range is of type 'str'"),
    (f"{MESSAGES}/0/range", [None, 2], "`first` of a message range is of type 'NoneType'"),
    ("deferred_calls", [], "deferred_calls is no object"),
    ("deferred_calls/i-1", "call-1", "deferred_calls['i-1'] is no array"),
    ("deferred_calls/i-1", [1], "deferred_calls['i-1'] is no string"),
    ("deferred_calls/i-1", [""], "a tool call id is empty"),
    ("deferred_calls/", [], "an interrupt id is empty"),
    ("deferred_calls/i-1", ["call-1", "call-1"], "the tool call id 'call-1' occurs twice"),
    ("deferred_calls/i-1", ["call-9"], "the tool call id 'call-9' occurs twice"),
    ("fingerprint", [], "fingerprint is no object"),
    ("fingerprint/graph", 2**63, "fingerprint['graph'] is of type 'int' or out of range"),
    ("fingerprint/graph", "\ud800", "fingerprint['graph'] is of type 'str' or out of range"),
    ("fingerprint/\ud800", 1, "a key of fingerprint is no string of valid Unicode"),
    ("fingerprint/graph", float("nan"), "NaN is no number of JSON"),
    ("fingerprint/graph", float("-inf"), "-Infinity is no number of JSON"),
]


@pytest.mark.parametrize(("path", "value", "problem"), WRONG)
def test_wrong_part_is_named(
    path: str, value: object, problem: str, document: dict[str, Any], seal: Seal, toy: Any
) -> None:
    put(document, path, value)
    assert problem in refused(seal(document), toy)


KEYS = [
    "deferred_calls",
    "fingerprint",
    "namespaces",
    "serializer",
    "namespaces/0/checkpoint",
    "namespaces/0/message_channels",
    "namespaces/0/metadata",
    "namespaces/0/namespace",
    "namespaces/0/writes",
    "namespaces/0/writes/0/channel",
    "namespaces/0/writes/0/task_id",
    "namespaces/0/writes/0/task_path",
    "namespaces/0/writes/0/value",
]


@pytest.mark.parametrize("path", KEYS)
def test_missing_key_is_named(path: str, document: dict[str, Any], seal: Seal, toy: Any) -> None:
    *parents, last = path.split("/")
    target: Any = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    del target[last]
    assert refused(seal(document), toy).endswith(f"has no key {last!r}")


def test_text_without_a_sum_is_refused(document: dict[str, Any], toy: Any) -> None:
    assert "has no key 'sha256'" in refused(json.dumps(document), toy)


@pytest.mark.parametrize(
    "encoded",
    ["AAA", "AA=A", "AA==\n", " AA==", "AB==", "AA=", "A", "AA===", "AA==AA==", "_-==", "é"],
)
def test_base64_that_no_encoder_writes_is_refused(
    encoded: str, document: dict[str, Any], seal: Seal, toy: Any
) -> None:
    document["namespaces"][0]["checkpoint"] = ["bytes", encoded]
    assert refused(seal(document), toy) == "namespaces[0].checkpoint[1] is no base64"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"serializer":"toy"', '"serializer":"toy","serializer":"toy"'),
        ('"i-2":["call-9"]', '"i-2":["call-9"],"i-2":["call-9"]'),
        ('"note":null', '"note":1,"note":null'),
        ('"notes":[]', '"notes":[],"notes":[]'),
        ('{"range":[0,11]}', '{"range":[0,11],"range":[0,12]}'),
    ],
)
def test_repeated_key_is_refused(old: str, new: str, v1_text: str, toy: Any) -> None:
    assert old in v1_text
    assert refused(v1_text.replace(old, new), toy).endswith("occurs twice in one object")


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ("1e999", "a number is too large"),
        ("-1e999", "a number is too large"),
        ("9" * 21, "an integer is too long"),
        ("9" * 100_000, "an integer is too long"),
        ("Infinity", "Infinity is no number of JSON"),
    ],
)
def test_number_that_cannot_be_kept_is_refused(
    number: str, problem: str, v1_text: str, toy: Any
) -> None:
    assert refused(v1_text.replace("1e+300", number), toy) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the text is no JSON at character 0"),
        ("{", "the text is no JSON at character 1"),
        ("null", "the text is no JSON object"),
        ("[]", "the text is no JSON object"),
        ("{}", "the document has no key 'format'"),
        ('{"format":1}', "format is no string"),
        ("\ud800", "the text holds half of a surrogate pair"),
        ("[" * 1_000_000, "the text is nested too deeply"),
        ('{"a":' * 1_000_000, "the text is nested too deeply"),
    ],
)
def test_text_that_is_no_run_state_is_refused(text: str, problem: str, toy: Any) -> None:
    assert refused(text, toy) == problem


def test_fingerprint_may_be_nested_as_deeply_as_the_limit_says_and_no_deeper(
    document: dict[str, Any], seal: Seal, toy: Any
) -> None:
    nested: object = 1
    for _ in range(codec_limits.MAX_JSON_DEPTH - 2):
        nested = [nested]
    document["fingerprint"] = {"nested": nested}
    decode_run_state(seal(document), toy, serializer_name="toy")
    toy.loads = 0
    document["fingerprint"] = {"nested": [nested]}
    assert "is nested more than 32 levels deep" in refused(seal(document), toy)


def test_text_over_the_size_limit_is_refused(v1_text: str, toy: Any) -> None:
    padding = "é" * (codec_limits.MAX_RUN_STATE_BYTES // 2)
    assert "is longer than 67108864 bytes" in refused(v1_text + padding, toy)


@pytest.mark.parametrize(
    "found", ["dex-agents-langgraph.checkpoint.v2", "dex-agents-langgraph.checkpoint.v1 "]
)
def test_unknown_version_says_which_release_reads_it(found: str, toy: Any) -> None:
    """The format comes before everything else: a later version may look different all over."""
    with pytest.raises(UnknownFormatError) as caught:
        decode_run_state(json.dumps({"format": found, "parts": 1}), toy, serializer_name="toy")
    assert caught.value.found == found
    assert str(caught.value) == (
        f"the run state cannot be read: it has the format {found!r}, and release 0.1.0 of "
        "`dex-agents-checkpoint-codec` reads 'dex-agents-langgraph.checkpoint.v1' (releases since "
        "0.1.0); a release newer than 0.1.0 wrote it: install that one or a later one of "
        "`dex-agents-checkpoint-codec` on every Worker"
    )
    assert toy.loads == 0


def test_format_of_something_else_is_named_and_cut(toy: Any) -> None:
    problem = refused(json.dumps({"format": "x" * 1000}), toy)
    assert f"it has the format {'x' * 80 + '...'!r}" in problem


def test_argument_of_a_wrong_type_is_the_callers_mistake(v1_text: str, toy: Any) -> None:
    anything: Any = v1_text.encode()
    with pytest.raises(RunStateUsageError, match="`text` is of type 'bytes'; pass a string"):
        decode_run_state(anything, toy, serializer_name="toy")
    anything = None
    with pytest.raises(RunStateUsageError, match="`serializer_name` is of type 'NoneType'"):
        decode_run_state(v1_text, toy, serializer_name=anything)
