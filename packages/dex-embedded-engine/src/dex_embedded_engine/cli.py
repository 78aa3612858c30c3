"""Owns the command ``dex-embedded-engine``: arguments in, an engine until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dex_embedded_engine.data_directory import read_token_file
from dex_embedded_engine.errors import EngineError
from dex_embedded_engine.failpoints import Failpoints
from dex_embedded_engine.server import EmbeddedEngine
from dex_embedded_engine.settings import Durability

FAILPOINT_VARIABLE = "DEX_EMBEDDED_ENGINE_FAILPOINT"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        arguments: without the program name; None takes the process's own.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        return asyncio.run(_serve(options))
    except EngineError as error:
        print(f"dex-embedded-engine: {error}", file=sys.stderr)
        return 1


async def _serve(options: argparse.Namespace) -> int:
    token = None if options.token_file is None else read_token_file(options.token_file)
    engine = EmbeddedEngine(
        options.data_dir,
        address=options.address,
        durability=options.durability,
        token=token,
        failpoints=Failpoints(os.environ.get(FAILPOINT_VARIABLE, "")),
    )
    async with engine:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        print(json.dumps({"address": engine.address}), flush=True)
        failed = asyncio.create_task(engine.wait_failed())
        waiting = asyncio.create_task(stopped.wait())
        done, _ = await asyncio.wait((failed, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if failed in done:
            raise failed.result()
        failed.cancel()
    return 0


def _parser() -> argparse.ArgumentParser:
    # No abbreviations: `--token SECRET` must not pass for `--token-file`.
    parser = argparse.ArgumentParser(
        prog="dex-embedded-engine",
        description="A durable engine for one machine, on SQLite.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run an engine until SIGTERM", allow_abbrev=False)
    serve.add_argument(
        "--data-dir", type=Path, required=True, help="where everything is stored; mode 0700"
    )
    serve.add_argument(
        "--address",
        default="127.0.0.1:0",
        help="HOST:PORT or unix:PATH; port 0 takes a free one (default: %(default)s)",
    )
    serve.add_argument(
        "--durability",
        choices=[each.value for each in Durability],
        default=Durability.STRICT.value,
        help="strict syncs every commit to the disk (default: %(default)s)",
    )
    serve.add_argument(
        "--token-file",
        type=Path,
        help="a file only its owner can read; every call must carry its content as bearer token",
    )
    return parser
