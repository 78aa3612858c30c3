"""Owns one model call of a graph: starting or resuming it, and reading where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot

from dex_agents import (
    AgentMessage,
    ModelCallEmitter,
    RunModelRequest,
    TokenUsage,
    ToolCallRecord,
    ToolCallStatus,
)
from dex_agents_checkpoint_codec import RunState
from dex_agents_langgraph.errors import LangGraphRunError
from dex_agents_langgraph.messages import (
    answer_open_calls,
    framework_message_to_langchain_message,
)
from dex_agents_langgraph.model_events import emit_part, listening
from dex_agents_langgraph.run_states import RunStateStore
from dex_agents_langgraph.tool_execution import build_config
from dex_agents_langgraph.turn_checkpointer import TurnCheckpointer
from dex_agents_langgraph_tools import (
    DeferredCall,
    DeferringRun,
    ToolBlockedError,
    ToolGuard,
    ToolResult,
    deferred_calls,
    deferring_run,
    guarding_tools,
)


@dataclass(frozen=True)
class GraphStop:
    """Where a graph stopped.

    Attributes:
        checkpointer: holds its checkpoints.
        deferred: per interrupt id its calls; empty when the graph has finished.
        messages: the message list of its state.
        usage: tokens of the model calls it made.
    """

    checkpointer: TurnCheckpointer
    deferred: Mapping[str, Sequence[DeferredCall]]
    messages: Sequence[BaseMessage]
    usage: TokenUsage


class GraphTurn:
    """Runs a graph up to its next tool calls or its end.

    Args:
        graph: as the user built it; it is copied, never changed.
        run_states: takes up what was stored.
        messages_key: the state's key of the message list.
    """

    def __init__(
        self, graph: Pregel[Any, Any, Any, Any], run_states: RunStateStore, messages_key: str
    ) -> None:
        self._graph = graph
        self._run_states = run_states
        self._messages_key = messages_key

    async def run(self, request: RunModelRequest, emitter: ModelCallEmitter) -> GraphStop:
        """Make one model call.

        Raises:
            LangGraphRunError: the graph broke a rule of durable sessions.
            DurableToolRunError: so did a tool node, or a tool was about to run inside the model
                call.
        """
        checkpointer, graph_input, expected = self._begin(request)
        graph = self._graph.copy(update={"checkpointer": checkpointer})
        config = build_config(request.config, request.session_id)
        run = DeferringRun()
        with guarding_tools() as guard, deferring_run(run), listening(emitter) as listener:
            try:
                await _stream(graph, graph_input, config, emitter)
            except Exception as error:  # the border to the user's graph
                _raise_broken_rule(guard, run, error)
                raise
            _raise_broken_rule(guard, run, None)
            stop = await graph.aget_state(config, subgraphs=True)
        lost = expected - run.delivered
        if lost:
            raise LangGraphRunError(
                f"the results of tool calls {sorted(lost)!r} did not reach the graph; has it been "
                f"changed while they ran?"
            )
        return GraphStop(
            checkpointer,
            self._deferred(stop),
            list(_messages(stop, self._messages_key)),
            listener.usage,
        )

    def _begin(self, request: RunModelRequest) -> tuple[TurnCheckpointer, Any, set[str]]:
        if request.run_state is None:
            history = [framework_message_to_langchain_message(each) for each in request.messages]
            return TurnCheckpointer(), {self._messages_key: history}, set()
        checkpointer, state = self._run_states.load(request.run_state, request.messages)
        results = {record.tool_call_id: _result(record) for record in request.tool_results}
        resume = _resume_values(state, results)
        return checkpointer, Command(resume=resume), set(results)

    def _deferred(self, stop: StateSnapshot) -> dict[str, list[DeferredCall]]:
        deferred: dict[str, list[DeferredCall]] = {}
        for interrupt in stop.interrupts:
            calls = deferred_calls(interrupt.value)
            if calls is None:
                raise LangGraphRunError(
                    "the graph raised an interrupt of its own, which a session cannot answer; use "
                    "ToolPolicy(..., requires_approval=True) instead"
                )
            deferred[interrupt.id] = calls
        if stop.next and not deferred:
            raise LangGraphRunError(
                f"the graph stopped before {list(stop.next)!r} without asking for tools; static "
                f"interrupts are not supported"
            )
        return deferred


async def _stream(
    graph: Pregel[Any, Any, Any, Any],
    graph_input: Any,
    config: RunnableConfig,
    emitter: ModelCallEmitter,
) -> None:
    modes: list[Any] = ["messages", "custom"]
    parts: Any = graph.astream(graph_input, config, stream_mode=modes, subgraphs=True)
    async with aclosing(parts):
        async for _, mode, part in parts:
            emit_part(emitter, mode, part)


def _raise_broken_rule(guard: ToolGuard, run: DeferringRun, cause: Exception | None) -> None:
    """Raise what broke a rule, whatever the graph made of it, swallowed or not."""
    if guard.blocked:
        raise ToolBlockedError(guard.blocked[0]) from cause
    if run.error is not None and run.error is not cause:
        raise run.error from cause


def _resume_values(
    state: RunState, results: Mapping[str, ToolResult]
) -> dict[str, list[ToolResult]]:
    missing = {each for calls in state.deferred_calls.values() for each in calls} - set(results)
    if missing:
        raise LangGraphRunError(
            f"the session has no results of tool calls {sorted(missing)!r}, for which its run "
            f"state waits; it belongs to another turn"
        )
    return {
        interrupt_id: [results[each] for each in calls]
        for interrupt_id, calls in state.deferred_calls.items()
    }


def _result(record: ToolCallRecord) -> ToolResult:
    completed = record.status is ToolCallStatus.COMPLETED
    content = record.output or ""
    resolution = record.resolution
    if completed and resolution is not None and resolution.arguments is not None:
        arguments = json.dumps(dict(resolution.arguments), ensure_ascii=False)
        content = f"(ran with edited arguments {arguments})\n{content}"
    return {
        "id": record.tool_call_id,
        "content": content,
        "status": "success" if completed else "error",
    }


def _messages(stop: StateSnapshot, key: str) -> Sequence[BaseMessage]:
    values: Any = stop.values
    found = values.get(key, []) if isinstance(values, Mapping) else getattr(values, key, [])
    return list(found)


def new_messages(stop: GraphStop, stored: Sequence[AgentMessage]) -> list[BaseMessage]:
    """Return the messages that the turn added: those with ids the session has not stored.

    A call that the graph never ran gets a result that says so: model providers refuse a history
    in which one is missing.
    """
    known = {framework_message_to_langchain_message(message).id for message in stored}
    added = [message for message in stop.messages if message.id not in known]
    return answer_open_calls(added)
