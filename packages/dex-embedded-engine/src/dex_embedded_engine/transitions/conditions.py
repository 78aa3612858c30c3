"""Owns when a wait is satisfied, what it then consumes, and what execute is told.

Planning is separate from consuming: `plan` looks, `settle_waits` takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import Execution, Message, Phase, Run
from dex_embedded_engine.transitions.change import Change

_UNBOUNDED = 2**31 - 1


@dataclass
class Plan:
    """A satisfied wait: the messages each winning channel condition takes, by its index."""

    taken: dict[int, list[Message]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    timers: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()


def settle_waits(change: Change) -> None:
    """Let every wait that is now satisfied consume its messages, oldest execution first.

    One pass is enough: consuming only shortens queues, so nothing becomes satisfied by it.
    """
    for execution in sorted(change.run.executions.values(), key=lambda each: each.ordinal):
        if execution.phase is not Phase.WAITING or execution.condition is None:
            continue
        found = plan(change.run, execution)
        if found is None:
            continue
        results = _results(execution, found)
        for messages in found.taken.values():
            for message in messages:
                change.remove(message)
        change.begin_execute(execution, results)


def plan(run: Run, execution: Execution) -> Plan | None:
    """Return what the first feasible candidate of the wait would take, or None."""
    condition = execution.condition
    assert condition is not None
    for candidate in _candidates(condition):
        if all(execution.timers[index].done for index in candidate.timers):
            taken = _reserve(run, condition, candidate.channels)
            if taken is not None:
                return Plan(taken)
    return None


def bounds(condition: pb.ChannelCondition) -> tuple[int, int]:
    """Return (at least, at most); with neither given, exactly one."""
    if not condition.HasField("at_least") and not condition.HasField("at_most"):
        return 1, 1
    at_least = condition.at_least if condition.HasField("at_least") else 0
    at_most = condition.at_most if condition.HasField("at_most") else _UNBOUNDED
    return at_least, at_most


def _candidates(condition: pb.WaitingCondition) -> list[_Candidate]:
    timers = range(len(condition.timer_conditions))
    channels = range(len(condition.channel_conditions))
    if condition.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ALL_COMPLETED:
        return [_Candidate(tuple(timers), tuple(channels))]
    if condition.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMPLETED:
        return [
            *(_Candidate(timers=(index,)) for index in timers),
            *(_Candidate(channels=(index,)) for index in channels),
        ]
    timer_ids = {each.condition_id: i for i, each in enumerate(condition.timer_conditions)}
    channel_ids = {each.condition_id: i for i, each in enumerate(condition.channel_conditions)}
    return [
        _Candidate(
            tuple(timer_ids[each] for each in combination.condition_ids if each in timer_ids),
            tuple(channel_ids[each] for each in combination.condition_ids if each in channel_ids),
        )
        for combination in condition.condition_combinations
    ]


def _reserve(
    run: Run, condition: pb.WaitingCondition, indexes: tuple[int, ...]
) -> dict[int, list[Message]] | None:
    needed: dict[str, int] = {}
    for index in set(indexes):
        channel = condition.channel_conditions[index]
        needed[channel.channel_name] = needed.get(channel.channel_name, 0) + bounds(channel)[0]
    spare: dict[str, int] = {}
    for name, minimum in needed.items():
        spare[name] = len(run.channels.get(name, ())) - minimum
        if spare[name] < 0:
            return None
    taken: dict[int, list[Message]] = {}
    position: dict[str, int] = {}
    for index in sorted(set(indexes)):
        channel = condition.channel_conditions[index]
        name = channel.channel_name
        at_least, at_most = bounds(channel)
        count = at_least + min(spare[name], at_most - at_least)
        spare[name] -= count - at_least
        start = position.get(name, 0)
        taken[index] = run.channels.get(name, [])[start : start + count]
        position[name] = start + count
    return taken


def _results(execution: Execution, found: Plan) -> pb.ConditionResults:
    condition = execution.condition
    assert condition is not None
    results = pb.ConditionResults()
    for timer, state in zip(condition.timer_conditions, execution.timers, strict=True):
        results.timer_results.add(
            condition_id=timer.condition_id,
            condition_status=(
                pb.CONDITION_STATUS_COMPLETED if state.done else pb.CONDITION_STATUS_WAITING
            ),
        )
    for index, channel in enumerate(condition.channel_conditions):
        messages = found.taken.get(index)
        result = results.channel_results.add(
            condition_id=channel.condition_id,
            channel_name=channel.channel_name,
            condition_status=(
                pb.CONDITION_STATUS_WAITING if messages is None else pb.CONDITION_STATUS_COMPLETED
            ),
        )
        result.values.extend(message.value for message in messages or ())
    return results
