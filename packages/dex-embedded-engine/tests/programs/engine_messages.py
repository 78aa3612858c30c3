"""Owns the short way to write protocol messages in tests of the engine below gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dex.dexpb import dex_pb2 as pb

Condition = pb.TimerCondition | pb.ChannelCondition
_HUGE = "internal_blob_id"


def to_value(content: object) -> pb.Value:
    """Encode None, a bool, an int, text, or anything JSON."""
    if content is None:
        return pb.Value(null_value=0)  # type: ignore[arg-type]  # the stub wants the enum wrapper
    if isinstance(content, bool):
        return pb.Value(bool_value=content)
    if isinstance(content, int):
        return pb.Value(int_value=content)
    if isinstance(content, str):
        return pb.Value(string_value=content)
    payload = json.dumps(content, sort_keys=True).encode()
    return pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=payload))


def from_value(value: pb.Value) -> Any:
    """Decode what `to_value` encoded; a blob reference is an error."""
    kind = value.WhichOneof("kind")
    if kind == "obj_value":
        return json.loads(value.obj_value.payload)
    if kind is None or kind.startswith(_HUGE):
        raise AssertionError(f"a value of kind {kind!r} cannot be decoded")
    return None if kind == "null_value" else getattr(value, kind)


def writes(attributes: Mapping[str, object]) -> list[pb.AttributeWrite]:
    """Write Attributes; None deletes."""
    return [pb.AttributeWrite(key=key, value=to_value(value)) for key, value in attributes.items()]


def locals_of(entries: Mapping[str, object]) -> list[pb.KV]:
    """Encode Step locals."""
    return [pb.KV(key=key, value=to_value(value)) for key, value in entries.items()]


def publish(channel: str, *contents: object) -> list[pb.ChannelMessage]:
    """Publish messages to one Channel."""
    return [pb.ChannelMessage(channel_name=channel, value=to_value(each)) for each in contents]


def move(step_type: str, step_input: object = None, **options: Any) -> pb.StepMovement:
    """Name a next Step; without a word about it, it has no wait_for."""
    options.setdefault("skip_wait_for", True)
    return pb.StepMovement(
        step_type=step_type, step_input=to_value(step_input), step_options=pb.StepOptions(**options)
    )


def go_to(*movements: pb.StepMovement, **cancels: Any) -> pb.StepDecision:
    """Decide for next Steps, and for cancellations if named."""
    return pb.StepDecision(next_steps=movements, **cancels)


def dead_end() -> pb.StepDecision:
    """End the branch."""
    return _close(pb.CLOSE_DECISION_TYPE_DEAD_END)


def graceful(*output: object) -> pb.StepDecision:
    """End the branch and complete once no other is left; an output is optional."""
    return _close(pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE, *output)


def force_complete(*output: object) -> pb.StepDecision:
    """Complete at once; an output is optional."""
    return _close(pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE, *output)


def force_fail(reason: str) -> pb.StepDecision:
    """Fail at once."""
    return _close(pb.CLOSE_DECISION_TYPE_FORCE_FAIL, reason)


def complete_if_empty(
    channels: Iterable[str], output: object, fallback: pb.StepMovement
) -> pb.StepDecision:
    """Complete if the Channels are empty, else go to `fallback`."""
    decision = _close(pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY, output)
    decision.close_decision.conditional_channel_names.extend(channels)
    decision.next_steps.append(fallback)
    return decision


def timer(seconds: int, condition_id: str = "") -> pb.TimerCondition:
    """Wait for a time."""
    return pb.TimerCondition(condition_id=condition_id, duration_seconds=seconds)


def channel(
    name: str,
    condition_id: str = "",
    *,
    at_least: int | None = None,
    at_most: int | None = None,
) -> pb.ChannelCondition:
    """Wait for messages; without bounds, for exactly one."""
    return pb.ChannelCondition(
        condition_id=condition_id, channel_name=name, at_least=at_least, at_most=at_most
    )


def all_of(*conditions: Condition) -> pb.WaitingCondition:
    """Wait for every condition."""
    return _wait(pb.WAITING_CONDITION_TYPE_ALL_COMPLETED, conditions)


def any_of(*conditions: Condition) -> pb.WaitingCondition:
    """Wait for one condition."""
    return _wait(pb.WAITING_CONDITION_TYPE_ANY_COMPLETED, conditions)


def any_combination(
    conditions: Iterable[Condition], *combinations: Iterable[str]
) -> pb.WaitingCondition:
    """Wait for one of several sets of conditions, named by their ids."""
    wait = _wait(pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED, conditions)
    for ids in combinations:
        wait.condition_combinations.add(condition_ids=ids)
    return wait


def _close(kind: pb.CloseDecisionType, *output: object) -> pb.StepDecision:
    decision = pb.StepDecision(close_decision=pb.CloseDecision(close_decision_type=kind))
    if output:
        decision.close_decision.close_input.CopyFrom(to_value(output[0]))
    return decision


def _wait(kind: pb.WaitingConditionType, conditions: Iterable[Condition]) -> pb.WaitingCondition:
    wait = pb.WaitingCondition(waiting_condition_type=kind)
    for condition in conditions:
        if isinstance(condition, pb.TimerCondition):
            wait.timer_conditions.append(condition)
        else:
            wait.channel_conditions.append(condition)
    return wait
