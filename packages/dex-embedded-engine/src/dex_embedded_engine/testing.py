"""Owns real processes for tests: an engine, or any program, that can be killed and started again.

Not a fake in sight: `EngineProcess` is the command ``dex-embedded-engine serve``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dex_embedded_engine.cli import FAILPOINT_VARIABLE
from dex_embedded_engine.errors import EngineFailure

_READY_TIMEOUT = 30.0
_END_TIMEOUT = 30.0


class ProgramProcess:
    """A Python program that prints one JSON object on a line of its own when it is ready.

    Args:
        arguments: after ``python``: a script or ``-m module``, and its arguments.
        environment: added to this process's environment.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._process: Process | None = None
        self._errors: list[str] = []
        self._reader: asyncio.Task[None] | None = None
        self._early: deque[str] = deque()
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        if self._process is None:
            raise EngineFailure(f"program {self._arguments!r} is not running; start it first")
        return self._process.pid

    @property
    def errors(self) -> str:
        """What the program has written to its standard error."""
        return "".join(self._errors)

    async def start(self) -> dict[str, Any]:
        """Start the program and return what it printed when ready.

        Raises:
            EngineFailure: it ended, or took more than 30 seconds, before it was ready.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, **self._environment},
        )
        assert self._process.stderr is not None
        self._reader = asyncio.create_task(self._read_errors(self._process.stderr))
        early = []
        while not (line := await self._read_output()).startswith("{"):
            early.append(line)
            if not line:
                code = await self.wait()
                raise EngineFailure(
                    f"program {self._arguments!r} ended with code {code} before it was ready: "
                    f"{self.errors}"
                )
        self._early.extend(early)
        self.ready = json.loads(line)
        return self.ready

    async def read_line(self) -> str:
        """Return the next line of output but the ready one, without its end; empty at the end."""
        return self._early.popleft() if self._early else await self._read_output()

    async def _read_output(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), _READY_TIMEOUT)
        return line.decode().rstrip("\n")

    async def kill(self) -> None:
        """End the program with SIGKILL."""
        self.send(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """End the program with SIGTERM and return its exit code."""
        self.send(signal.SIGTERM)
        return await self.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait_ended(self) -> int:
        """Wait, without limit, until the program has ended; return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def wait(self) -> int:
        """Wait until the program has ended and return its exit code, at most 30 seconds."""
        code = await asyncio.wait_for(self.wait_ended(), _END_TIMEOUT)
        if self._reader is not None:
            await self._reader
        return code

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self._errors.append(line.decode(errors="replace"))


class EngineProcess(ProgramProcess):
    """An engine in a process of its own, on a fixed address once it has been started.

    Args:
        data_dir: its data directory.
        address: where it listens; by default a Unix socket in the data directory's parent, so
            that it can be started again at the same place.
        failpoint: where it kills itself: ``before/<commit point>`` or ``after/<commit point>``,
            with ``:n`` for the n-th time.
        arguments: further arguments of ``serve``.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        address: str | None = None,
        failpoint: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        address = address or f"unix:{data_dir}.socket"
        super().__init__(
            (
                "-m",
                "dex_embedded_engine",
                "serve",
                "--data-dir",
                str(data_dir),
                "--address",
                address,
                *arguments,
            ),
            {FAILPOINT_VARIABLE: failpoint},
        )

    @property
    def address(self) -> str:
        """The gRPC target of the engine."""
        return str(self.ready["address"])

    def arm(self, failpoint: str) -> None:
        """Set the failpoint of the next start; empty for none."""
        self._environment[FAILPOINT_VARIABLE] = failpoint
