"""Owns the four effects a tool call can have. Knows nothing of retries beyond "more than once"."""

from __future__ import annotations

from enum import StrEnum


class ToolEffect(StrEnum):
    """What calling a tool does to the world outside the agent.

    The values are stored and sent: they never change. `ToolEffect("read")` turns a stored value
    back into the member.
    """

    READ = "read"
    """Changes nothing."""

    IDEMPOTENT_WRITE = "idempotent_write"
    """Changes something; the same call made twice leaves what one call leaves."""

    SINGLE_ATTEMPT_WRITE = "single_attempt_write"
    """Changes something, and a second call would change it again."""

    UNCLASSIFIED = "unclassified"
    """Nobody has said; treated like `SINGLE_ATTEMPT_WRITE`."""

    @property
    def is_single_attempt(self) -> bool:
        """Whether a call must never be made a second time by itself."""
        return self in {ToolEffect.SINGLE_ATTEMPT_WRITE, ToolEffect.UNCLASSIFIED}

    @property
    def is_write(self) -> bool:
        """Whether a call that was cut short may have changed something."""
        return self is not ToolEffect.READ
