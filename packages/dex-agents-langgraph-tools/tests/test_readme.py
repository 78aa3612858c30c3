"""The README's program prints what the README says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def fences(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


async def test_the_complete_program_prints_what_the_readme_says(tmp_path: Path) -> None:
    (program,) = fences("python")
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert output.decode() == fences("text")[0]
