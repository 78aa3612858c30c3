"""Owns how the simulation scripts a Flow: what handlers see and answer, and how runs are checked.

Handlers are functions of what the engine sends and of nothing else, as those of users should be.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dex.dexpb import dex_pb2 as pb
from engine_messages import from_value, writes

from dex_embedded_engine.runs import TIMEOUT_HANDLER, Run

WaitResult = pb.InvokeWaitForMethodResponse
StepResult = pb.InvokeExecuteMethodResponse
RpcResult = pb.InvokeWorkerRPCResponse
_COMPLETED = pb.CONDITION_STATUS_COMPLETED
_STEP_EVENTS = (pb.StepWaitForCompletedEvent, pb.StepExecuteCompletedEvent)


@dataclass
class HandlerCall:
    """What a handler sees of its run, decoded."""

    step: str
    execution_id: str
    attempt: int
    input: Any
    attributes: dict[str, Any]
    messages: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    step_locals: dict[str, Any] = field(default_factory=dict)
    results: pb.ConditionResults = field(default_factory=pb.ConditionResults)
    recovery: str = ""

    def consumed(self, name: str) -> list[Any]:
        """Return the values that the wait took from a Channel."""
        return [
            from_value(value)
            for result in self.results.channel_results
            if result.channel_name == name
            for value in result.values
        ]

    def completed(self) -> list[str]:
        """Return the ids of the conditions that were met."""
        timers, channels = self.results.timer_results, self.results.channel_results
        states = [(each.condition_id, each.condition_status) for each in timers]
        states += [(each.condition_id, each.condition_status) for each in channels]
        return [name for name, state in states if state == _COMPLETED]


@dataclass(frozen=True)
class Rpc:
    """How clients call an RPC."""

    locks: tuple[str, ...] = ()
    is_transactional: bool = False
    load_channels: tuple[str, ...] = ()


@dataclass
class Record:
    """A finished run as the database holds it. Events are (time, kind, payload).

    Attributes:
        is_clock_steady: the clock was never set back.
        is_only_run: no other run shares the Flow's id, and so its hard-deleted values.
    """

    run: Run
    events: list[tuple[float, str, Any]]
    attributes: dict[str, Any]
    is_clock_steady: bool = True
    is_only_run: bool = True

    def of_kind(self, kind: str) -> list[tuple[float, Any]]:
        """Return the events of one kind."""
        return [(at, payload) for at, name, payload in self.events if name == kind]

    def rpcs(self, name: str) -> int:
        """Count the committed calls of an RPC."""
        return sum(event.rpc_name == name for _, event in self.of_kind("rpc_execution_completed"))

    def finished(self, step: str, kind: str = "step_execute_completed") -> int:
        """Count the accepted results of a Step type."""
        return sum(event.context.step_type == step for _, event in self.of_kind(kind))

    def output(self) -> Any:
        """Return the only output of the run."""
        (result,) = self.run.outputs
        return from_value(result.completed_step_output)

    def entries(self, prefix: str) -> dict[str, Any]:
        """Return the Attributes whose key starts with `prefix`, by the rest of the key."""
        return {
            key.removeprefix(prefix): value
            for key, value in self.attributes.items()
            if key.startswith(prefix)
        }

    def published(self, name: str) -> list[Any]:
        """Return everything that was published to a Channel, in order."""
        return [
            from_value(message.value)
            for _, payload in ((at, payload) for at, _, payload in self.events)
            for message in _publications(payload)
            if message.channel_name == name
        ]


def _publications(payload: Any) -> Iterable[pb.ChannelMessage]:
    holder = payload.output if isinstance(payload, _STEP_EVENTS) else payload
    return getattr(holder, "publish_to_channel", ())


class Script:
    """One Flow type. Handlers are the methods ``wait_<step>``, ``do_<step>`` and ``rpc_<name>``.

    Attributes:
        rpcs: what clients call at random.
        finishers: what they call in the end, again and again, until the run closes.
        error_rate: how often a handler fails while the Workers are not healthy.
    """

    name: ClassVar[str]
    rpcs: ClassVar[dict[str, Rpc]] = {}
    finishers: ClassVar[tuple[str, ...]] = ()
    error_rate: ClassVar[float] = 0.15

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        """Build a start request without the ids."""
        raise NotImplementedError

    def wait_for(self, call: HandlerCall) -> WaitResult:
        """Run a wait_for handler."""
        result: WaitResult = getattr(self, f"wait_{call.step}")(call)
        return result

    def execute(self, call: HandlerCall) -> StepResult:
        """Run an execute handler."""
        step = "timeout" if call.step == TIMEOUT_HANDLER else call.step
        result: StepResult = getattr(self, f"do_{step}")(call)
        return result

    def rpc(self, name: str, call: HandlerCall) -> RpcResult:
        """Run an RPC handler."""
        result: RpcResult = getattr(self, f"rpc_{name}")(call)
        return result

    def check(self, record: Record) -> None:
        """Check a run that nobody stopped."""

    def check_always(self, record: Record) -> None:
        """Check any closed run."""


def start_with(movement: pb.StepMovement | None, **attributes: object) -> pb.StartFlowRequest:
    """Start with a Step, or without one, and with Attributes."""
    request = pb.StartFlowRequest()
    if movement is not None:
        request.start_step_type = movement.step_type
        request.step_input.CopyFrom(movement.step_input)
        request.step_options.CopyFrom(movement.step_options)
    request.flow_start_options.attributes.extend(writes(attributes))
    return request


def waits(condition: pb.WaitingCondition | None, **effects: Any) -> WaitResult:
    """Answer a wait_for call."""
    return WaitResult(waiting_condition=condition, **effects)


def decides(decision: pb.StepDecision, **effects: Any) -> StepResult:
    """Answer an execute call."""
    return StepResult(step_decision=decision, **effects)
