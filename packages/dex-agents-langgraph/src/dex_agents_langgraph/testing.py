"""Owns a chat model whose answers are a function, for tests and examples without a model key.

It is a complete LangChain chat model: it streams, takes tools, and reports usage.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolCallChunk,
    message_chunk_to_message,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

Answer = AIMessage | Sequence[AIMessageChunk]
Script = Callable[[list[BaseMessage]], Answer | Awaitable[Answer]]


class ScriptedChatModel(BaseChatModel):
    """A chat model whose answer to a conversation is what `script` returns.

    With ``disable_streaming=True`` it does not stream.

    Attributes:
        script: a function from the messages to the answer, tool calls included: a message, which is
            streamed word by word, or the pieces to stream. A coroutine function serves ``ainvoke``
            and ``astream`` only.
    """

    script: Script

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Take tools; the script knows what it may call."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(_finished(self.script(messages)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for piece in _pieces(_finished(self.script(messages))):
            yield ChatGenerationChunk(message=piece)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(await _awaited(self.script(messages)))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in _pieces(await _awaited(self.script(messages))):
            yield ChatGenerationChunk(message=piece)


def _finished(answer: Answer | Awaitable[Answer]) -> Answer:
    if isinstance(answer, Awaitable):
        if inspect.iscoroutine(answer):
            answer.close()
        raise NotImplementedError(
            "the script is a coroutine function; call the model with ainvoke or astream"
        )
    return answer


async def _awaited(answer: Answer | Awaitable[Answer]) -> Answer:
    return await answer if isinstance(answer, Awaitable) else answer


def _result(answer: Answer) -> ChatResult:
    message: BaseMessage
    if isinstance(answer, AIMessage):
        message = answer
    else:
        first, *others = answer
        message = message_chunk_to_message(first.__add__(others))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _pieces(answer: Answer) -> Iterator[AIMessageChunk]:
    """Yield an answer as a provider streams it: words, then calls, then usage."""
    if not isinstance(answer, AIMessage):
        yield from answer
        return
    for piece in re.findall(r"\s*\S+\s*", str(answer.text)):
        yield AIMessageChunk(content=piece)
    calls = [
        ToolCallChunk(
            name=call["name"],
            args=json.dumps(call["args"]),
            id=call["id"],
            index=index,
            type="tool_call_chunk",
        )
        for index, call in enumerate(answer.tool_calls)
    ]
    yield AIMessageChunk(content="", tool_call_chunks=calls, usage_metadata=answer.usage_metadata)
