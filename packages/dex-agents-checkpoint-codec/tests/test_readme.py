"""The README's programs print what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = PROGRAM.findall(README.read_text(encoding="utf-8"))


def test_every_program_is_followed_by_its_output() -> None:
    assert README.read_text(encoding="utf-8").count("```python\n") == len(PROGRAMS) > 0


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_program_prints_what_stands_below_it(program: str, output: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
