"""Owns the key by which a tool can recognise a repeated attempt of one call."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig

CONFIG_KEY = "dex_tool_call_idempotency_key"


def get_tool_call_idempotency_key(config: RunnableConfig) -> str | None:
    """Return the key of the call a tool runs for, or None outside a session.

    The key, ``<session>/<turn>/<tool call>``, is the same on every attempt; pass it to systems that
    deduplicate requests.
    """
    key = config.get("configurable", {}).get(CONFIG_KEY)
    return key if isinstance(key, str) else None
