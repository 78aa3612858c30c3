"""Owns how much may be stored and moved at once. Sizes are bytes as they travel.

A gRPC message of the engine's protocol holds at most 4 MiB. The SDK writes every record as JSON
text in ASCII, so a record's size is that of its escaped form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

KIB = 1024
MIB = 1024 * KIB

RECORD = 256 * KIB
LOAD = 3 * MIB
COMMIT = 3 * MIB
PART = 240 * KIB
RUN_STATE = 2 * MIB
EVENT = 64 * KIB
EVENT_TEXT = 12 * KIB
INLINE_OUTPUT = 16 * KIB
CALL_ARGUMENTS = 96 * KIB
CONFIG = 16 * KIB
REASON = 8 * KIB
FAILURE_NOTE = 64 * KIB
SUMMARY_CHARACTERS = 500
DISPLAY_CHARACTERS = 4000
IDENTIFIER_CHARACTERS = 128
CALLS_OF_A_TURN = 1000

CUT_MARK = "… [cut]"


def travelling_size(text: str) -> int:
    """Return the bytes that `text` takes when it travels inside a record."""
    return len(json.dumps(text)) - 2


def split_text(text: str, limit: int) -> Iterator[str]:
    """Yield `text` in pieces that take at most `limit` bytes each when they travel."""
    if travelling_size(text) <= limit or len(text) == 1:
        yield text
        return
    middle = len(text) // 2
    yield from split_text(text[:middle], limit)
    yield from split_text(text[middle:], limit)


def cut_text(text: str, limit: int) -> str:
    """Return the begin of `text`, marked, if it takes more than `limit` bytes when it travels."""
    if travelling_size(text) <= limit:
        return text
    return next(split_text(text, limit)) + CUT_MARK


def cut_characters(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text`, marked if there are more."""
    return text if len(text) <= limit else text[:limit] + CUT_MARK
