"""Talk to a support agent whose every model call and tool call survives ``kill -9``.

    main.py "Please refund order 7"          asks before it refunds
    main.py --approve "Refund orders 7 and 8"
    main.py --session NAME                   goes on with an earlier conversation
    main.py                                  talks until the input ends

Without --server it runs an engine of its own on the folder of --data.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from agent import RefundLedger, build_flow
from conversation import Answering, Conversation, LeftOpenError, read_line

from dex_agents import AgentError, open_agent_host
from dex_embedded_engine import EmbeddedEngine, EngineError


async def run(options: argparse.Namespace) -> None:
    options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    flow = build_flow(options.model, RefundLedger(options.data / "refunds.jsonl"))
    session_id = options.session or f"support-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        address = options.server
        if address is None:
            engine = EmbeddedEngine(options.data / "engine")
            address = (await stack.enter_async_context(engine)).address
        host = await stack.enter_async_context(open_agent_host([flow], server_address=address))
        print(f"session {session_id}")
        conversation = Conversation(
            host.sessions(flow), session_id, Answering(options.approve, options.reject)
        )
        try:
            await talk(conversation, options)
        except LeftOpenError:
            print(
                f"\nthe approval is left open; answer it with: {sys.argv[0]} --session {session_id}"
            )
            return
        await conversation.print_stored()


async def talk(conversation: Conversation, options: argparse.Namespace) -> None:
    if options.session is not None:
        await conversation.go_on()
    if options.text:
        await conversation.say(" ".join(options.text))
        return
    if options.session is not None and not sys.stdin.isatty():
        # Continued from a pipe: what is left of it after the open approvals are more messages.
        await talk_until_end(conversation, "")
        return
    await talk_until_end(conversation, "you> ")


async def talk_until_end(conversation: Conversation, prompt: str) -> None:
    while True:
        try:
            line = await read_line(prompt)
        except LeftOpenError:
            return
        if line.strip():
            await conversation.say(line.strip())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="*", help="what to say; without it, lines are read")
    parser.add_argument("--session", help="name of the conversation; a new one without it")
    parser.add_argument("--server", metavar="ADDRESS", help="an engine or Dex Server")
    parser.add_argument("--data", type=Path, default=Path(".dex"), help="folder (.dex)")
    parser.add_argument("--model", help="for example openai:gpt-5-mini; a scripted one without it")
    answers = parser.add_mutually_exclusive_group()
    answers.add_argument("--approve", action="store_true", help="approve without asking")
    answers.add_argument("--reject", metavar="REASON", help="reject without asking")
    options = parser.parse_args()
    try:
        asyncio.run(run(options))
    except (AgentError, EngineError) as error:
        print(f"support_agent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
