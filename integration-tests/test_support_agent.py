"""The support agent as a user runs it: a real process, its input a pipe, killed with SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

MAIN = Path(__file__).parents[1] / "examples" / "support_agent" / "main.py"
GUARD = 60


class Program:
    """Runs the support agent on one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._processes: list[Process] = []

    async def start(self, *arguments: str) -> Process:
        """Start it with a pipe as input."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(MAIN),
            "--data",
            str(self.data),
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            # Compiled modules are kept: each test starts the program several times.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        self._processes.append(process)
        return process

    async def run(self, *arguments: str, lines: str = "", code: int = 0) -> str:
        """Run it to its end with `lines` as input; return what it printed."""
        process = await self.start(*arguments)
        output, _ = await asyncio.wait_for(process.communicate(lines.encode()), GUARD)
        assert process.returncode == code, output.decode()
        return output.decode()

    def refunds(self) -> list[str]:
        """Return the refunded orders, once for each refund that was made."""
        ledger = self.data / "refunds.jsonl"
        if not ledger.exists():
            return []
        return sorted(
            json.loads(line)["order"] for line in ledger.read_text(encoding="utf-8").splitlines()
        )

    async def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[Program]:
    running = Program(tmp_path / "data")
    yield running
    await running.close()


async def read_until(process: Process, text: str) -> str:
    """Read the program's output up to `text`."""
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(GUARD):
        while text not in seen:
            piece = await process.stdout.read(1024)
            assert piece, f"the program ended: {seen}"
            seen += piece.decode()
    return seen


async def test_an_approved_refund_is_made_and_said(program: Program) -> None:
    output = await program.run("--approve", "Please refund order 7")
    assert "order 7 was refunded" in output
    assert program.refunds() == ["7"]


async def test_it_asks_before_it_refunds_and_prints_the_stored_conversation(
    program: Program,
) -> None:
    output = await program.run("Please refund order 7", lines="maybe\ny\n")
    assert output.count("refund_order(order_id='7') — approve? y/n") == 2
    stored = output.partition("stored conversation:")[2].split("\n")
    assert [line.strip() for line in stored if line.strip()] == [
        "1 user: Please refund order 7",
        "2 assistant: Let me see to that.",
        "3 tool: order 7 was refunded",
        "4 assistant: Done: order 7 was refunded.",
    ]
    assert program.refunds() == ["7"]


async def test_a_rejection_is_explained_to_the_model_and_nothing_is_refunded(
    program: Program,
) -> None:
    output = await program.run("refund order 8", lines="n\nthe parcel came\n")
    assert "Reason: the parcel came" in output
    assert program.refunds() == []
    again = await program.run("--reject", "not today", "refund order 8")
    assert "Reason: not today" in again
    assert program.refunds() == []


async def test_the_model_reads_what_is_asked(program: Program) -> None:
    orders = await program.run("what did I order?")
    assert "order 7 is delivered, order 8 is processing" in orders
    both = await program.run("refund orders 7 and 8", lines="y\ny\n")
    assert both.count("approve? y/n") == 2
    assert program.refunds() == ["7", "8"]
    unknown = await program.run("--approve", "refund order 99")
    assert "order 99 does not exist" in unknown
    assert program.refunds() == ["7", "8"]


async def test_lines_of_a_pipe_are_messages_and_answers_in_order(program: Program) -> None:
    output = await program.run(lines="hello\nrefund order 7\ny\nwhat did I order?\n")
    assert output.index("Which order is it about?") < output.index("was refunded")
    assert output.index("was refunded") < output.index("order 8 is processing")


async def test_at_the_end_of_input_the_approval_stays_open_and_it_says_how_to_go_on(
    program: Program,
) -> None:
    output = await program.run("--session", "tom", "refund order 7")
    assert "the approval is left open" in output
    assert "--session tom" in output
    output = await program.run("--session", "tom", lines="y\n")
    assert "order 7 was refunded" in output
    assert program.refunds() == ["7"]


async def test_killed_while_the_approval_waits_it_asks_again_and_refunds_once(
    program: Program,
) -> None:
    """Engine, Worker and Client are one process here: SIGKILL takes all of them."""
    first = await program.start("--session", "ann", "Please refund order 7")
    await read_until(first, "approve? y/n")
    first.send_signal(signal.SIGKILL)
    await first.wait()
    assert program.refunds() == []
    second = await program.start("--session", "ann")
    await read_until(second, "approve? y/n")
    assert second.stdin is not None
    second.stdin.write(b"y\n")
    await read_until(second, "Done: order 7 was refunded.")
    second.stdin.close()
    await read_until(second, "stored conversation:")
    await asyncio.wait_for(second.wait(), GUARD)
    assert program.refunds() == ["7"]
    third = await program.run("--session", "ann", "what did I order?")
    assert "1 user: Please refund order 7" in third
    assert program.refunds() == ["7"]


async def test_an_earlier_conversation_goes_on(program: Program) -> None:
    await program.run("--session", "sue", "hello")
    output = await program.run("--session", "sue", "what did I order?")
    assert "1 user: hello" in output
    assert "3 user: what did I order?" in output


async def test_mistakes_are_answered_with_one_sentence(program: Program) -> None:
    unreachable = await program.run("--server", "127.0.0.1:1", "hello", code=1)
    assert unreachable.startswith("support_agent: no Dex server answered at '127.0.0.1:1'")
    empty = await program.run("   ", code=1)
    assert "the message is empty" in empty
    assert "Traceback" not in unreachable + empty
