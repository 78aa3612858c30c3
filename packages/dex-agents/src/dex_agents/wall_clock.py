"""Owns the reading of the machine's clock, for times that are stored and shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def read_wall_clock() -> float:
    """Return unix seconds."""
    return time.time()


def read_wall_datetime() -> datetime:
    """Return the time with its zone, UTC."""
    return datetime.now(UTC)
