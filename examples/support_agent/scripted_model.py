"""A model for the support agent that needs no key: it reads the text and asks for tools."""

from __future__ import annotations

import re

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call

from dex_agents_langgraph.testing import ScriptedChatModel

GREETING = "I can tell you what you ordered, and refund an order. Which order is it about?"


def build_scripted_model() -> ScriptedChatModel:
    return ScriptedChatModel(script=answer)


async def answer(messages: list[BaseMessage]) -> AIMessage:
    results = results_of_last_calls(messages)
    if results:
        return say(" ".join(describe(result) for result in results), messages)
    last = messages[-1]
    text = str(last.text).lower() if isinstance(last, HumanMessage) else ""
    numbers = list(dict.fromkeys(re.findall(r"\d+", text)))
    calls = []
    if "refund" in text and numbers:
        calls = [("refund_order", {"order_id": number}) for number in numbers]
    elif "order" in text:
        calls = [("search_orders", {"customer_id": "me"})]
    if not calls:
        return say(GREETING, messages)
    return AIMessage(
        "Let me see to that. ",
        tool_calls=[
            tool_call(name=name, args=arguments, id=f"call-{len(messages)}-{index}")
            for index, (name, arguments) in enumerate(calls)
        ],
        usage_metadata=count(messages, "tools"),
    )


def results_of_last_calls(messages: list[BaseMessage]) -> list[ToolMessage]:
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            break
        results.insert(0, message)
    return results


def describe(result: ToolMessage) -> str:
    content = str(result.content)
    if result.status == "error":
        return f"That did not work out: {content}"
    if result.name == "search_orders":
        return f"These are your orders: {content}."
    return f"Done: {content}."


def say(text: str, messages: list[BaseMessage]) -> AIMessage:
    return AIMessage(text, usage_metadata=count(messages, text))


def count(messages: list[BaseMessage], text: str) -> UsageMetadata:
    """Count words where a provider counts tokens."""
    read = sum(len(str(message.text).split()) for message in messages)
    written = len(text.split())
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
