"""Owns messages in both forms: LangChain's objects, and what a session stores and shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
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
from pydantic import BaseModel

from dex_agents import AgentMessage, MessageDraft, MessageRole
from dex_agents_langgraph.errors import LangGraphRunError


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
    """Return a LangChain message as the session stores and shows it.

    Raises:
        LangGraphRunError: it holds a value that is no JSON data.
    """
    item = _dump(message)
    text = str(message.text)
    if isinstance(message, ToolMessage):
        return MessageDraft(MessageRole.TOOL, "", item, tool_output=content_text(message.content))
    if isinstance(message, AIMessage):
        return MessageDraft(MessageRole.ASSISTANT, text, item)
    if isinstance(message, SystemMessage):
        return MessageDraft(MessageRole.SYSTEM, text, item)
    return MessageDraft(MessageRole.USER, text, item)


def _dump(message: BaseMessage) -> str:
    problem = ""
    try:
        return json.dumps(
            message_to_dict(message), ensure_ascii=False, sort_keys=True, default=_plain
        )
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise LangGraphRunError(
        f"message {message.id!r} of type {message.type!r} cannot be stored as JSON: {problem}"
    )


def _plain(value: object) -> Any:
    """Turn structured data into JSON data; some providers put a parsed answer into a message."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, datetime | date):
        return value.isoformat()
    raise TypeError(f"a value of type {type(value).__name__!r} is no JSON data")


def answer_open_calls(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return `messages` with a result behind every tool call that has none."""
    answered = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    complete: list[BaseMessage] = []
    for message in messages:
        complete.append(message)
        if isinstance(message, AIMessage):
            complete.extend(
                ToolMessage(
                    content="The tool was not called: the turn ended before.",
                    name=call["name"],
                    tool_call_id=call["id"] or "",
                    status="error",
                    id=f"{message.id}-unanswered-{index}",
                )
                for index, call in enumerate(message.tool_calls)
                if call["id"] not in answered
            )
    return complete


def content_text(content: object) -> str:
    """Return a tool's content as the text a model gets: as it is, or as JSON."""
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, default=str)


def is_same_message(message: BaseMessage, stored: Mapping[str, Any]) -> bool:
    """Tell whether `message` is, to the letter, the one that was stored as `stored`."""
    return bool(message_to_dict(message) == stored)
