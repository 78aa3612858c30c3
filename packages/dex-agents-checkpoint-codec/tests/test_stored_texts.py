"""Every text that a release has ever written is read, with exactly the same result, for ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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

STORED = Path(__file__).parent / "stored"

V1 = RunState(
    namespaces=(
        NamespaceState(
            namespace="",
            checkpoint={"v": 4, "id": "1f0c7a30", "channel_values": {"turn": 3, "note": "žluť 🐎"}},
            metadata={"source": "loop", "step": -1, "parents": {}},
            writes=(
                PendingWrite("task-1", "~__pregel_pull, tools", "__interrupt__", [{"id": "i-1"}]),
                PendingWrite("task-1", "~__pregel_pull, tools", "raw", b"\x00\xff\xfe"),
                PendingWrite("task-2", "", "empty", None),
            ),
            message_channels={
                "messages": (
                    MessageRange(0, 11),
                    {"type": "ai", "content": "One moment", "id": "m-12"},
                    MessageRange(13, 13),
                ),
                "notes": (),
            },
        ),
        NamespaceState(
            namespace='tools:5e"1\\|sub',
            checkpoint=b"",
            metadata=None,
            writes=(),
            message_channels={"messages": (MessageRange(2**63 - 1, 2**63 - 1),)},
        ),
    ),
    deferred_calls={"i-2": ("call-9",), "i-1": ("call-2", "call-1"), "i-3": ()},
    fingerprint={
        "graph": {"nodes": ["model", "tools"], "edges": [], "compiled": True, "note": None},
        "numbers": [0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e300, 1.0],
        "text": "line\nbreak\u2028\x7f\x00/é",
    },
    serializer_name="toy",
)

EXPECTED = {"checkpoint_v1.json": V1}


def test_there_is_a_stored_text_for_every_version_and_nothing_else() -> None:
    assert sorted(file.name for file in STORED.iterdir()) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_stored_text_is_read_as_exactly_what_was_written(
    name: str, serializer: TypedSerializer
) -> None:
    text = (STORED / name).read_bytes().decode()
    state = decode_run_state(text, serializer, serializer_name="toy")
    assert state == EXPECTED[name]
    # Equal is not the same: 1.0 and 1 are equal, and so are 0.0 and -0.0.
    assert repr(state.fingerprint["numbers"]) == repr(EXPECTED[name].fingerprint["numbers"])


def test_newest_stored_text_is_what_is_written_today(serializer: TypedSerializer) -> None:
    text = (STORED / "checkpoint_v1.json").read_bytes().decode()
    assert encode_run_state(V1, serializer) == text
    again = decode_run_state(text, serializer, serializer_name="toy")
    assert encode_run_state(again, serializer) == text


def test_stored_text_is_what_its_description_says(v1_text: str) -> None:
    document = json.loads(v1_text)
    assert document["format"] == RUN_STATE_FORMAT == "dex-agents-langgraph.checkpoint.v1"
    assert sorted(document) == [
        "deferred_calls",
        "fingerprint",
        "format",
        "namespaces",
        "serializer",
        "sha256",
    ]
    digest = document.pop("sha256")
    content = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(content.encode("utf-8")).hexdigest() == digest


def test_text_does_not_depend_on_the_order_of_mappings(
    serializer: TypedSerializer, v1_text: str
) -> None:
    def turned(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return dict(reversed(list(mapping.items())))

    state = RunState(
        tuple(
            NamespaceState(
                each.namespace,
                each.checkpoint,
                each.metadata,
                each.writes,
                turned(each.message_channels),
            )
            for each in V1.namespaces
        ),
        turned(V1.deferred_calls),
        turned(V1.fingerprint),
        V1.serializer_name,
    )
    assert encode_run_state(state, serializer) == v1_text
