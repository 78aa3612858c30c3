"""The support agent: a LangChain agent that lists orders and refunds them, and its session Flow."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException, tool
from scripted_model import build_scripted_model

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents_langgraph import (
    durable_middleware,
    get_tool_call_idempotency_key,
    langchain_agent_session_flow,
)

ORDERS = {"7": "delivered", "8": "processing"}
POLICIES = {
    "search_orders": ToolPolicy(ToolEffect.READ),
    "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
}


class RefundLedger:
    """The shop's book of refunds: a file with one line for each, found again by its key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def refund(self, key: str, order_id: str) -> None:
        """Write a refund, once for each key."""
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if all(json.loads(line)["key"] != key for line in file):
                file.write(json.dumps({"key": key, "order": order_id}) + "\n")


def build_tools(ledger: RefundLedger) -> list[BaseTool]:
    @tool
    def search_orders(customer_id: str) -> str:
        """List the customer's orders and their status."""
        return ", ".join(f"order {number} is {status}" for number, status in ORDERS.items())

    @tool
    def refund_order(order_id: str, config: RunnableConfig) -> str:
        """Refund one order."""
        if order_id not in ORDERS:
            raise ToolException(f"order {order_id} does not exist")
        ledger.refund(get_tool_call_idempotency_key(config) or order_id, order_id)
        return f"order {order_id} was refunded"

    return [search_orders, refund_order]


def build_agent_factory(model: str | None, ledger: RefundLedger) -> Callable[[], Any]:
    """Return a factory: only a Worker builds the agent and needs the model's key."""

    def build() -> Any:
        return create_agent(
            build_scripted_model() if model is None else init_chat_model(model),
            tools=build_tools(ledger),
            system_prompt="You help customers with their orders. Their customer id is 'me'.",
            middleware=durable_middleware(),
        )

    return build


def build_flow(model: str | None, ledger: RefundLedger) -> AgentSessionFlow:
    return langchain_agent_session_flow(
        build_agent_factory(model, ledger), flow_type="SupportAgent", tool_policies=POLICIES
    )
