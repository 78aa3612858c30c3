"""A turn whose every model call is made in another process, the later ones with an older clock."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentMessage, ToolCallRecord, ToolCallStatus
from dex_agents_langgraph import build_user_message
from dex_agents_tool_policy import ToolEffect

PROGRAM = Path(__file__).with_name("programs") / "langgraph_model_call.py"


async def make_call(kind: str, behind: int, request: Any) -> Any:
    """Make one model call in a process of its own; it must not say anything beside its answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        kind,
        str(behind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, complaints = await asyncio.wait_for(
        process.communicate(json.dumps(request).encode()), 60
    )
    assert (process.returncode, complaints.decode()) == (0, "")
    return json.loads(output)


@pytest.mark.parametrize("kind", ["agent", pytest.param("graph", marks=pytest.mark.full)])
async def test_a_turn_goes_on_in_processes_whose_clocks_run_behind(kind: str) -> None:
    user = AgentMessage.of(build_user_message("each a b", "m1"), 1, "turn-1")
    request: dict[str, Any] = {
        "round": 1,
        "messages": [user.to_json()],
        "run_state": None,
        "results": [],
    }
    for behind, item in ((0, "a"), (3600, "b")):
        asked = await make_call(kind, behind, request)
        assert asked["calls"] == [[f"lookup-{item}", {"item": item}]]
        result = ToolCallRecord(
            f"lookup-{item}",
            "lookup",
            {"item": item},
            ToolEffect.READ,
            "turn-1",
            request["round"],
            0,
            1,
            ToolCallStatus.COMPLETED,
            f"found {item}",
        )
        request["round"] += 1
        request["run_state"] = asked["run_state"]
        request["results"] = [result.to_json()]
    finished = await make_call(kind, 7200, request)
    assert finished["texts"][-1] == "Done: found a | found b"
    assert len(finished["texts"]) == 5
