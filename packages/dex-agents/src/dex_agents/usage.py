"""Owns token counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one model call, one turn, or one session.

    Attributes:
        input_tokens: sent to the model.
        output_tokens: made by the model.
        cache_read_tokens: of the input, read from the provider's cache.
        reasoning_tokens: of the output, spent on reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def to_json(self) -> dict[str, int]:
        """Return the stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> TokenUsage:
        """Read the stored form."""
        return cls(**data)
