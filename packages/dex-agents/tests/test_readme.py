"""The README's program prints what the README says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from dex_agents import AgentEventType, SessionStatus, ToolCallStatus

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


async def test_the_complete_program_prints_what_stands_below_it(tmp_path: Path) -> None:
    ((program, output),) = re.findall(
        r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    )
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, printed.decode(), errors.decode()) == (0, output, "")


def test_tables_name_every_status_and_every_event() -> None:
    named = set(re.findall(r"`([a-z_]+)`", README))
    values = [*AgentEventType, *SessionStatus, *ToolCallStatus]
    assert [each.value for each in values if each.value not in named] == [
        AgentEventType.TURN_CANCELED
    ]
