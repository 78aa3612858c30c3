"""Owns ids: UUIDs of version 7 (RFC 9562), which sort by the time they were made at."""

from __future__ import annotations

import os
import uuid

_VERSION = 0x7
_VARIANT = 0b10


def make_id(now: float) -> str:
    """Return a new id.

    Args:
        now: unix seconds.
    """
    milliseconds = int(now * 1000) & (2**48 - 1)
    noise = int.from_bytes(os.urandom(10), "big")
    high, low = noise >> 68, noise & (2**62 - 1)
    return str(
        uuid.UUID(int=milliseconds << 80 | _VERSION << 76 | high << 64 | _VARIANT << 62 | low)
    )
