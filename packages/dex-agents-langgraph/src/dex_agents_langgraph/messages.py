"""Owns messages in both forms: LangChain's objects, and what a session stores and shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)

from dex_agents import AgentMessage, MessageDraft, MessageRole


def framework_message_to_langchain_message(message: AgentMessage) -> BaseMessage:
    """Return a stored message as a LangChain message, a new object each time.

    A message stored without an id gets ``dex-message-<sequence>``, so that a graph does not take it
    for a new one.
    """
    (found,) = messages_from_dict([json.loads(message.framework_item)])
    if not found.id:
        found.id = f"dex-message-{message.sequence}"
    return found


def build_user_message(content: str | list[dict[str, Any]], message_id: str) -> MessageDraft:
    """Return what a user sent as a draft of a HumanMessage with id ``dex-user-<message id>``."""
    blocks: Any = content
    return to_draft(HumanMessage(content=blocks, id=f"dex-user-{message_id}"))


def to_draft(message: BaseMessage) -> MessageDraft:
    """Return a LangChain message as the session stores and shows it."""
    item = json.dumps(message_to_dict(message), ensure_ascii=False, sort_keys=True)
    text = str(message.text)
    if isinstance(message, ToolMessage):
        return MessageDraft(MessageRole.TOOL, "", item, tool_output=content_text(message.content))
    if isinstance(message, AIMessage):
        return MessageDraft(MessageRole.ASSISTANT, text, item)
    if isinstance(message, SystemMessage):
        return MessageDraft(MessageRole.SYSTEM, text, item)
    return MessageDraft(MessageRole.USER, text, item)


def content_text(content: object) -> str:
    """Return a tool's content as the text a model gets: as it is, or as JSON."""
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, default=str)


def is_same_message(message: BaseMessage, stored: Mapping[str, Any]) -> bool:
    """Tell whether `message` is, to the letter, the one that was stored as `stored`."""
    return bool(message_to_dict(message) == stored)
