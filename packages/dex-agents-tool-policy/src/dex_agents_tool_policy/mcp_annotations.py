"""Owns what the hints of an MCP server say about a tool's effect. Knows no MCP or LangChain type.

The hints are the server's own word: a server that lies about them gets its writes repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

from dex_agents_tool_policy.effects import ToolEffect
from dex_agents_tool_policy.errors import InvalidMetadataError

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint")


def tool_effect_from_annotations(metadata: Mapping[str, object] | None) -> ToolEffect | None:
    """Return the effect that the MCP annotations in a tool's metadata give, or None.

    The hints stand at the top of the metadata, where `langchain-mcp-adapters` puts them, or else
    in a mapping below the key ``annotations``. Only the boolean True counts as a hint's yes.

    Args:
        metadata: the metadata of a converted tool; None for a tool without any.

    Returns:
        `ToolEffect.READ` for ``readOnlyHint``, otherwise `ToolEffect.IDEMPOTENT_WRITE` for
        ``idempotentHint``, otherwise None. None as well for a tool that calls itself read-only
        and destructive at once: nothing it says about itself can be relied on.

    Raises:
        InvalidMetadataError: `metadata` is neither a mapping nor None.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise InvalidMetadataError(metadata)
    hints = _find_hints(metadata)
    if hints.get("readOnlyHint") is True:
        return None if hints.get("destructiveHint") is True else ToolEffect.READ
    if hints.get("idempotentHint") is True:
        return ToolEffect.IDEMPOTENT_WRITE
    return None


def _find_hints(metadata: Mapping[str, object]) -> Mapping[str, object]:
    # One place or the other, never both: a hint here must not hide a contradicting one there.
    # A hint that the server left out arrives as None.
    if any(metadata.get(hint) is not None for hint in _HINTS):
        return metadata
    nested = metadata.get("annotations")
    return nested if isinstance(nested, Mapping) else {}
