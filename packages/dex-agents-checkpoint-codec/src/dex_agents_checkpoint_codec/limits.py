"""Owns the numbers that a run state must stay within, when it is written and when it is read."""

from __future__ import annotations

MAX_RUN_STATE_BYTES = 64 * 1024 * 1024
"""The longest text, in bytes of UTF-8: far above what a session stores at once."""

MAX_INTEGER = 2**63 - 1
"""The largest integer, the same in every process: Python's own limit on digits can be changed."""

MAX_JSON_DEPTH = 32
"""How deep lists and objects may be nested in the fingerprint."""
