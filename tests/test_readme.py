"""The README's commands and program do what the README says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def fences(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_second_command_is_the_one_that_checks_everything() -> None:
    assert [fence.strip() for fence in fences("sh")][1:] == ["./ci.sh"]


def test_the_program_defines_a_session_flow() -> None:
    (program,) = fences("python")
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    from dex_agents import AgentSessionFlow

    flow = names["mail_agent"]
    assert isinstance(flow, AgentSessionFlow)
    assert flow.get_flow_type() == "MailAgent"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_first_command_sets_up_and_refunds_order_7_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-c", fences("sh")[0]],
            cwd=clone,
            capture_output=True,
            encoding="utf-8",
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert "order 7 was refunded" in done.stdout
