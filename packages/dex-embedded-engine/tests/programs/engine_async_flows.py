"""The same Flows with coroutine handlers, where a generator could not run on an AsyncWorker."""

from __future__ import annotations

import asyncio
from typing import Any

import engine_flows as flows
from dex import (
    AsyncContext,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    go_to,
    graceful_complete,
)


async def gate(name: str) -> None:
    """Wait until the test opens the gate of that name."""
    await asyncio.to_thread(flows.gate, name)


class Count(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:  # type: ignore[override]
        await asyncio.sleep(0)
        flows.note(f"count {context.flow_id} {input} {context.attempt}")
        flows.total.set(context, (flows.total.get(context) or 0) + input)
        if input == 0:
            return graceful_complete(flows.total.get(context))
        return go_to(Count, input - 1)


class Sequence(flows.Sequence):
    def get_flow_type(self) -> str:
        return "Sequence"

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Count())


class Speak(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:  # type: ignore[override]
        flows.note(f"speak {context.flow_id} {context.attempt}")
        for number in range(input):
            flows.lines.write(context, f"line {number}")
            if number == 0:
                await gate("listened")
        return graceful_complete(input)


class Talk(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Speak())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(flows.lines)


class Work(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=3))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        flows.note(f"work {context.flow_id} {context.attempt}")
        beaten = context.get_last_heartbeat_value(int) or 0
        await context.heartbeat(beaten + 1)
        flows.beats.write(context, beaten + 1)
        await gate(input)
        return graceful_complete([context.attempt, beaten])


class Job(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Work())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(flows.beats)


class Once(flows.Once):
    def get_step_type(self) -> str:
        return "Once"

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        flows.note(f"once {context.flow_id} {context.attempt}")
        await gate(input)
        return graceful_complete("done")


class SingleAttempt(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Once()).other_steps(flows.Recover())


def make_flows() -> list[Flow[Any]]:
    """Make one instance of every Flow."""
    return [
        Sequence(),
        flows.Parallel(),
        flows.Desk(),
        flows.Nap(),
        Talk(),
        flows.Haul(),
        Job(),
        SingleAttempt(),
        flows.Flaky(),
    ]
