"""A serializer, and a second writer of the format that knows only its description."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dex_agents_checkpoint_codec import TypedSerializer

V1_TEXT = (Path(__file__).parent / "stored" / "checkpoint_v1.json").read_bytes().decode()


class ToySerializer:
    """JSON for everything but bytes; counts what it is asked to read."""

    def __init__(self) -> None:
        self.loads = 0

    def dumps_typed(self, obj: object, /) -> tuple[str, bytes]:
        if isinstance(obj, bytes):
            return "bytes", obj
        if isinstance(obj, bytearray):
            # As LangGraph's does: handed on as it is.
            return "bytearray", obj  # type: ignore[return-value]
        return "json", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes], /) -> object:
        self.loads += 1
        tag, content = data
        assert type(content) is bytes
        match tag:
            case "json":
                return json.loads(content)
            case "bytes":
                return content
            case "bytearray":
                return bytearray(content)
        raise ValueError(f"unknown tag {tag}")


def sealed_text(document: dict[str, Any]) -> str:
    """Write a document of the format with a right sum, whatever else it holds."""

    def canonical(value: dict[str, Any]) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    content = {key: value for key, value in document.items() if key != "sha256"}
    # UTF-8 cannot hold half a surrogate pair, but JSON can: escaped.
    digest = hashlib.sha256(canonical(content).encode(errors="surrogatepass")).hexdigest()
    return canonical({"sha256": digest, **document}).replace("\ud800", "\\ud800")


@pytest.fixture
def serializer() -> TypedSerializer:
    return ToySerializer()


@pytest.fixture
def toy() -> ToySerializer:
    return ToySerializer()


@pytest.fixture
def seal() -> Callable[[dict[str, Any]], str]:
    return sealed_text


@pytest.fixture
def v1_text() -> str:
    """The text of format v1 as release 0.1.0 wrote it."""
    return V1_TEXT


@pytest.fixture
def document() -> dict[str, Any]:
    """Return the document of format v1, without its sum."""
    parsed: dict[str, Any] = json.loads(V1_TEXT)
    del parsed["sha256"]
    return parsed
