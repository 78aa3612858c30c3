"""Owns messages: what the user sends, what is stored, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dex_agents.errors import EmptyMessageError

Content = str | Sequence[Mapping[str, Any]]


class MessageRole(StrEnum):
    """Who says a message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


@dataclass(frozen=True)
class MessageDraft:
    """A message before the session gives it its sequence.

    Attributes:
        role: who says it.
        text: what is shown of it.
        tool_output: for role ``tool``: what the tool returned.
        framework_item: the message in the framework's own form, JSON text.
    """

    role: MessageRole
    text: str
    framework_item: str
    tool_output: str | None = None


@dataclass(frozen=True)
class AgentMessage:
    """A stored message.

    Attributes:
        sequence: its place in the conversation, from 1 without gaps.
        role: who says it.
        text: what is shown of it.
        framework_item: the message in the framework's own form, JSON text.
        tool_output: for role ``tool``: what the tool returned.
        turn_id: the turn that added it.

    Of a message of more than 256 KiB `text` and `tool_output` are cut; `framework_item` is whole.
    """

    sequence: int
    role: MessageRole
    text: str
    framework_item: str
    tool_output: str | None = None
    turn_id: str = ""

    @classmethod
    def of(cls, draft: MessageDraft, sequence: int, turn_id: str) -> AgentMessage:
        """Give a draft its place."""
        return cls(
            sequence, draft.role, draft.text, draft.framework_item, draft.tool_output, turn_id
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, ``dex-agents.message.v1``."""
        return {
            "sequence": self.sequence,
            "role": self.role.value,
            "text": self.text,
            "framework_item": self.framework_item,
            "tool_output": self.tool_output,
            "turn_id": self.turn_id,
            "parts": 0,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentMessage:
        """Read the stored form."""
        return cls(
            sequence=data["sequence"],
            role=MessageRole(data["role"]),
            text=data["text"],
            framework_item=data["framework_item"],
            tool_output=data["tool_output"],
            turn_id=data["turn_id"],
        )


def require_content(content: Content) -> str | list[dict[str, Any]]:
    """Return `content` as plain JSON data.

    Raises:
        EmptyMessageError: no text but white space, and no blocks.
    """
    if isinstance(content, str):
        if not content.strip():
            raise EmptyMessageError
        return content
    blocks = [dict(block) for block in content]
    if not blocks or all(
        block.get("type") == "text" and not str(block.get("text", "")).strip() for block in blocks
    ):
        raise EmptyMessageError
    return blocks
