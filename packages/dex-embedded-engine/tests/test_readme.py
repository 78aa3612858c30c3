"""The README's program and command do what the README says."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def fences(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


async def test_the_complete_program_prints_what_its_comment_says(folder: Path) -> None:
    (program,) = fences("python")
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, output.decode()) == (0, "Hello, world!!!\n")


async def test_the_command_prints_its_address_and_stops_on_sigterm(folder: Path) -> None:
    (commands,) = fences("sh")
    serve = commands.splitlines()[1].split()
    assert serve[:2] == ["dex-embedded-engine", "serve"]
    serve = ["127.0.0.1:0" if word == "127.0.0.1:8801" else word for word in serve]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name(serve[0])),
        *serve[1:],
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    assert set(json.loads(line)) == {"address"}
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 0
