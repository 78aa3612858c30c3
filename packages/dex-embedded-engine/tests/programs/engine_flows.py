"""The Flows that test Workers serve. Every body appends a line to a file before anything else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    StepOutput,
    Stream,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    heartbeat,
    rpc,
)

LEDGER = Path(os.environ.get("TEST_LEDGER", os.devnull))
ECHO = bool(os.environ.get("TEST_ECHO"))


def note(line: str) -> None:
    """Append a line to the ledger in one write, and print it for a test that waits for it."""
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
    if ECHO:
        print(line, flush=True)


def gate(name: str) -> None:
    """Block until the test opens the gate of that name; see the fixture `close_gate`."""
    with LEDGER.with_name(name).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


# --- sequential Steps -------------------------------------------------------------------------

total = Attribute("total", int)


class Count(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        note(f"count {context.flow_id} {input} {context.attempt}")
        total.set(context, (total.get(context) or 0) + input)
        if input == 0:
            return graceful_complete(total.get(context))
        return go_to(Count, input - 1)


class Sequence(Flow[int]):
    """Adds input + (input - 1) + ... + 0, one Step each."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Count())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total)


# --- parallel Steps that join on a Channel -----------------------------------------------------

arrivals = Channel("arrivals", int)


class Fan(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        note(f"fan {context.flow_id}")
        return go_to_many(
            *(StepMovement.of(Branch, number) for number in range(input)),
            StepMovement.of(Join, input),
        )


class Branch(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        note(f"branch {context.flow_id} {input}")
        arrivals.publish(context, input * 10)
        return dead_end()


class Join(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(arrivals.at_least(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        values = arrivals.results(context)
        note(f"join {context.flow_id} {sorted(values)}")
        return graceful_complete(sum(values))


class Parallel(Flow[int]):
    """Fans out to `input` branches and completes with the sum of what they publish."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Fan()).other_steps(Branch(), Join())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(arrivals)


# --- RPCs, locks, maps, hard deletes -----------------------------------------------------------

counter = Attribute("counter", int)
secret = Attribute("secret", str, hard_delete_on_null=True)
notes = AttributeMap("notes", str)
inbox = Channel("inbox", str)
topics = ChannelMap("topics", str)


class Record(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        note(f"record {context.flow_id} {input}")
        notes.set(context, input, f"recorded {input}")
        return graceful_complete(input)


class Desk(Flow[None]):
    """Has no starting Step: everything happens by RPC."""

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Record())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(counter, secret, notes, inbox, topics)

    @rpc
    def increment(self, context: Context) -> RPCResult[int]:
        value = (counter.get(context) or 0) + 1
        counter.set(context, value)
        return RPCResult(value)

    @rpc(lock_attributes=(counter.lock(),))
    def increment_locked(self, context: Context) -> RPCResult[int]:
        value = (counter.get(context) or 0) + 1
        counter.set(context, value)
        return RPCResult(value)

    @rpc(load_attribute_maps=(notes,))
    def mark(self, context: Context, input: str) -> RPCResult[None]:
        notes.set(context, input, f"{notes.get(context, input) or ''}x")
        return RPCResult(None)

    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(counter.get(context) or 0)

    @rpc
    def record(self, context: Context, input: str) -> RPCResult[None]:
        return RPCResult(None, (StepMovement.of(Record, input),))

    @rpc(load_attribute_maps=(notes,))
    def read_notes(self, context: Context) -> RPCResult[dict[str, str]]:
        return RPCResult(
            {key: notes.get(context, key) for key in notes.get_all_instance_keys(context)}
        )

    @rpc
    def echo(self, context: Context, input: str) -> RPCResult[str]:
        return RPCResult(input)

    @rpc
    def keep_secret(self, context: Context, input: str) -> None:
        secret.set(context, input)

    @rpc
    def read_secret(self, context: Context) -> RPCResult[str]:
        return RPCResult(secret.get(context) or "")

    @rpc
    def forget_secret(self, context: Context) -> None:
        secret.delete(context)

    @rpc
    def fail(self, context: Context) -> None:
        raise LookupError("the shelf is empty")


# --- timers ------------------------------------------------------------------------------------


class Doze(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        note(f"woke {context.flow_id}")
        return graceful_complete("awake")


class Nap(Flow[int]):
    """Completes after `input` seconds."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Doze())


# --- streams and heartbeats --------------------------------------------------------------------

lines = Stream("lines", str, 1_000_000)


class Speak(Step[int]):
    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        note(f"speak {context.flow_id} {context.attempt}")
        for number in range(input):
            yield lines.write(context, f"line {number}")
            if number == 0:
                gate("listened")
        return graceful_complete(input)


class Talk(Flow[int]):
    """Writes `input` lines to a Stream; after the first it waits at the gate ``listened``."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Speak())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(lines)


# --- big values --------------------------------------------------------------------------------

bulk = Attribute("bulk", str)


class Store(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        bulk.set(context, input)
        return go_to(Weigh, 0)


class Weigh(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(bulk.get(context))


class Haul(Flow[str]):
    """Takes a big value as input, keeps it as an Attribute, and completes with it."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Store()).other_steps(Weigh())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(bulk)


# --- Workers that die --------------------------------------------------------------------------


beats = Stream("beats", int, 1_000_000)


class Work(Step[str]):
    """Sends a heartbeat, then waits at the gate that its input names."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=3))

    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        note(f"work {context.flow_id} {context.attempt}")
        beaten = context.get_last_heartbeat_value(int) or 0
        yield heartbeat(beaten + 1)
        yield beats.write(context, beaten + 1)
        gate(input)
        return graceful_complete([context.attempt, beaten])


class Once(Step[str]):
    """A single attempt that fails over to a recovery Step."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_retry=RetryPolicy(maximum_attempts=1)
        ).on_execute_failure_proceed_to(Recover)

    def execute(self, context: Context, input: str) -> StepDecision:
        note(f"once {context.flow_id} {context.attempt}")
        gate(input)
        return graceful_complete("done")


class Recover(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        error = context.recovery_error
        note(f"recover {context.flow_id}")
        return graceful_complete([input, "" if error is None else error.error_type])


class Job(Flow[str]):
    """One long Step with three attempts."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Work())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(beats)


class SingleAttempt(Flow[str]):
    """One long Step with a single attempt and a recovery Step."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Once()).other_steps(Recover())


class Stumble(Step[str]):
    """Fails on its first attempt."""

    def execute(self, context: Context, input: str) -> StepDecision:
        note(f"stumble {context.flow_id} {context.attempt}")
        if context.attempt == 1:
            raise LookupError("not yet")
        return graceful_complete(context.attempt)


class Flaky(Flow[str]):
    """Needs two attempts."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Stumble())


def make_flows() -> list[Flow[Any]]:
    """Make one instance of every Flow."""
    return [
        Sequence(),
        Parallel(),
        Desk(),
        Nap(),
        Talk(),
        Haul(),
        Job(),
        SingleAttempt(),
        Flaky(),
    ]
