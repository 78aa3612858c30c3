"""The README's first command does in a copy of this tree what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def fences() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_second_command_is_the_one_that_checks_everything() -> None:
    assert [fence.strip() for fence in fences()][1:] == ["./ci.sh"]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_first_command_sets_up_and_runs_the_main_job_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    command = fences()[0].replace("python3", sys.executable, 1)
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-c", command], cwd=clone, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "order 7 shipped, receipt of order 7 enclosed"
