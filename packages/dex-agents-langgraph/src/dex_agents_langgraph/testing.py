"""Owns a chat model whose answers are a function, for tests and examples without a model key.

It is a complete LangChain chat model: it streams, takes tools, and reports usage.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

Script = Callable[[list[BaseMessage]], Awaitable[AIMessage]]


class ScriptedChatModel(BaseChatModel):
    """A chat model whose answer to a conversation is what `script` returns.

    Attributes:
        script: an async function from the messages to the answer, tool calls included.
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
        raise NotImplementedError("use ainvoke or astream: the script is a coroutine function")

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        raise NotImplementedError("use astream: the script is a coroutine function")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = await self.script(messages)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        answer = await self.script(messages)
        for piece in re.findall(r"\S+\s*", str(answer.text)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
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
        last = AIMessageChunk(
            content="", tool_call_chunks=calls, usage_metadata=answer.usage_metadata
        )
        yield ChatGenerationChunk(message=last)
