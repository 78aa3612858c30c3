"""Makes one model call in a process of its own, whose clock may run behind.

Arguments: agent|graph, by how many seconds the clock is behind. Reads the request from standard
input as JSON and writes to standard output what came of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import warnings
from typing import Any

import langgraph_programs as programs
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from dex_agents import (
    AgentMessage,
    FrameworkRunState,
    RunModelRequest,
    TokenUsage,
    ToolCallRecord,
    TurnFinished,
)
from dex_agents_langgraph.runner import LangGraphRunner
from dex_agents_tool_policy import ToolPolicyResolver


class Silent:
    """Drops what a model says."""

    def text(self, delta: str) -> None: ...

    def reasoning(self, delta: str) -> None: ...

    def model_call_started(self) -> None: ...

    def model_call_finished(self, usage: TokenUsage) -> None: ...


async def make_call(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    runner = LangGraphRunner(
        programs.build_agent if kind == "agent" else programs.build_graph,
        ToolPolicyResolver(programs.POLICIES),
        tools=(),
        messages_key="messages",
        serializer=JsonPlusSerializer(),
    )
    await runner.prepare()
    state = data["run_state"]
    request = RunModelRequest(
        "session",
        "turn-1",
        data["round"],
        [AgentMessage.from_json(each) for each in data["messages"]],
        None if state is None else FrameworkRunState(*state),
        [ToolCallRecord.from_json(each) for each in data["results"]],
    )
    result = await runner.run_model(request, Silent())
    if isinstance(result, TurnFinished):
        return {"texts": [each.text or each.tool_output for each in result.messages]}
    return {
        "run_state": [result.run_state.format, result.run_state.body],
        "calls": [[c.tool_call_id, dict(c.arguments)] for c in result.calls],
    }


def main() -> None:
    # Whatever is loaded has to be loaded without a warning of any kind.
    warnings.simplefilter("error")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    kind, behind = sys.argv[1:]
    read_clock = time.time_ns
    time.time_ns = lambda: read_clock() - int(behind) * 10**9
    print(json.dumps(asyncio.run(make_call(kind, json.load(sys.stdin)))))


if __name__ == "__main__":
    main()
