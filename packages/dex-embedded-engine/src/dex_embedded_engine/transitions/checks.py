"""Owns which requests and Worker results are well formed. Judges, never changes.

The engine decides by these rules alone whether a result is invalid; what error type a Worker
reports says nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.values import InvalidMessageError, check_value, is_null

_MAXIMUM_TIMER_SECONDS = 10 * 366 * 24 * 3600
_HARD_DELETE_KINDS = frozenset({"string_value", "obj_value", "null_value"})
_CLOSE_DECISIONS = frozenset(pb.CloseDecisionType.values()) - {pb.CLOSE_DECISION_TYPE_UNSPECIFIED}
_WAIT_TYPES = frozenset(pb.WaitingConditionType.values()) - {pb.WAITING_CONDITION_TYPE_UNSPECIFIED}
_WAIT_FOR_FAILURES = frozenset(pb.WaitForMethodFailurePolicy.values())
_EXECUTE_FAILURES = frozenset(pb.ExecuteMethodFailurePolicy.values())
_DURABILITIES = frozenset(pb.StepDurability.values())
_SEARCH_MODES = frozenset(pb.ActiveStepSearchMode.values())
_INDEX_TYPES = frozenset(pb.IndexType.values())
# Each level nests one deeper in stored messages, and protobuf reads at most a hundred.
_DEEPEST_FALLBACK = 16


def check_wait_for_result(result: pb.InvokeWaitForMethodResponse) -> None:
    """Raise `InvalidMessageError` unless the wait_for result can be applied."""
    _check_effects(result.upsert_attributes, result.publish_to_channel, result.delete_from_channel)
    _check_entries(result.upsert_step_exe_locals, "step local")
    _check_entries(result.record_events, "recorded event")
    if result.HasField("waiting_condition"):
        check_condition(result.waiting_condition)


def check_execute_result(result: pb.InvokeExecuteMethodResponse, minimum_heartbeat: float) -> None:
    """Raise `InvalidMessageError` unless the execute result can be applied."""
    _check_effects(result.upsert_attributes, result.publish_to_channel, result.delete_from_channel)
    _check_entries(result.upsert_step_exe_locals, "step local")
    _check_entries(result.record_events, "recorded event")
    if not result.HasField("step_decision"):
        raise InvalidMessageError("execute returned no decision")
    check_decision(result.step_decision, minimum_heartbeat)


def check_rpc_result(result: pb.InvokeWorkerRPCResponse, minimum_heartbeat: float) -> None:
    """Raise `InvalidMessageError` unless the RPC result can be applied."""
    check_value(result.output, "the RPC output")
    _check_effects(result.upsert_attributes, result.publish_to_channel, result.delete_from_channel)
    _check_entries(result.record_events, "recorded event")
    decision = result.step_decision
    if decision.HasField("close_decision") or decision.cancel_sibling_step_types:
        raise InvalidMessageError("an RPC may only start and cancel Steps")
    _check_names(decision.cancel_step_types, "a cancellation names no Step type")
    for movement in decision.next_steps:
        check_movement(movement, minimum_heartbeat)


def check_condition(condition: pb.WaitingCondition) -> None:
    """Raise `InvalidMessageError` unless the waiting condition is well formed."""
    if condition.sub_flow_conditions:
        raise InvalidMessageError("SubFlow conditions are not served by this engine")
    if condition.waiting_condition_type not in _WAIT_TYPES:
        raise InvalidMessageError(
            f"unknown waiting condition type {condition.waiting_condition_type}"
        )
    ids: list[str] = []
    for timer in condition.timer_conditions:
        ids.append(timer.condition_id)
        if not 0 <= timer.duration_seconds <= _MAXIMUM_TIMER_SECONDS:
            raise InvalidMessageError(
                f"timer of {timer.duration_seconds} seconds; use 0 to {_MAXIMUM_TIMER_SECONDS}"
            )
    for channel in condition.channel_conditions:
        ids.append(channel.condition_id)
        _check_bounds(channel)
    if not ids:
        raise InvalidMessageError("a wait needs at least one condition")
    known = [each for each in ids if each]
    if len(set(known)) != len(known):
        raise InvalidMessageError(f"condition ids {sorted(known)!r} are not unique")
    _check_combinations(condition, set(known))


def check_decision(decision: pb.StepDecision, minimum_heartbeat: float) -> None:
    """Raise `InvalidMessageError` unless the Step decision is well formed."""
    for movement in decision.next_steps:
        check_movement(movement, minimum_heartbeat)
    cancels = [*decision.cancel_step_types, *decision.cancel_sibling_step_types]
    _check_names(cancels, "a cancellation names no Step type")
    if not decision.HasField("close_decision"):
        if not decision.next_steps and not cancels:
            raise InvalidMessageError("the decision is empty")
        return
    close = decision.close_decision
    if close.close_decision_type not in _CLOSE_DECISIONS:
        raise InvalidMessageError(f"unknown close decision type {close.close_decision_type}")
    if close.HasField("close_input"):
        check_value(close.close_input, "the completion output")
    conditional = pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY
    if close.close_decision_type == conditional:
        if len(decision.next_steps) != 1:
            raise InvalidMessageError("a conditional close needs exactly one fallback Step")
        if not close.HasField("close_input"):
            raise InvalidMessageError("a conditional close needs an output")
        _check_names(close.conditional_channel_names, "a conditional close names no Channel")
    elif decision.next_steps:
        raise InvalidMessageError("a close decision cannot start Steps")
    elif close.close_decision_type == pb.CLOSE_DECISION_TYPE_FORCE_FAIL and (
        close.HasField("close_input") and close.close_input.WhichOneof("kind") != "string_value"
    ):
        raise InvalidMessageError("a failing close gives its reason as text, in a string_value")


def check_movement(movement: pb.StepMovement, minimum_heartbeat: float) -> None:
    """Raise `InvalidMessageError` unless the movement names a Step with usable options."""
    if not movement.step_type:
        raise InvalidMessageError("a movement names no Step type")
    check_value(movement.step_input, f"the input of Step {movement.step_type!r}")
    check_step_options(movement.step_options, movement.step_type, minimum_heartbeat)


def check_step_options(
    options: pb.StepOptions, step_type: str, minimum_heartbeat: float, depth: int = 0
) -> None:
    """Raise `InvalidMessageError` unless the Step options are in range.

    Args:
        depth: how many Steps fall back, one to the next, before this one.
    """
    where = f"the options of Step {step_type!r}"
    for seconds in (options.wait_for_timeout_seconds, options.execute_timeout_seconds):
        if seconds < 0:
            raise InvalidMessageError(
                f"{where} have a method timeout of {seconds} seconds; use 0 for the default"
            )
    if options.wait_for_failure_policy not in _WAIT_FOR_FAILURES:
        raise InvalidMessageError(
            f"{where} have unknown wait_for failure policy {options.wait_for_failure_policy}"
        )
    _check_execute_policies(
        options.execute_failure_policy,
        (options.wait_for_durability_override, options.execute_durability_override),
        where,
    )
    check_heartbeat_timeout(options.heartbeat_timeout_seconds, where, minimum_heartbeat)
    check_retry_policy(options.wait_for_retry_policy, where)
    check_retry_policy(options.execute_retry_policy, where)
    check_lock_keys(options.wait_for_lock_attribute_keys, where)
    check_lock_keys(options.execute_lock_attribute_keys, where)
    if options.execute_failure_policy == (
        pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
    ):
        target = options.execute_failure_proceed_step_type
        _check_fallback(target, where, depth)
        check_step_options(
            options.execute_failure_proceed_step_options, target, minimum_heartbeat, depth + 1
        )


def check_timeout_handler(options: pb.FlowTimeoutHandlerOptions, minimum_heartbeat: float) -> None:
    """Raise `InvalidMessageError` unless the options of the Flow's timeout handler are in range."""
    where = "the timeout handler options"
    if options.method_timeout_seconds < 0:
        raise InvalidMessageError(
            f"{where} have a method timeout of {options.method_timeout_seconds} seconds; "
            f"use 0 for the default"
        )
    _check_execute_policies(options.failure_policy, (options.durability_override,), where)
    check_heartbeat_timeout(options.heartbeat_timeout_seconds, where, minimum_heartbeat)
    check_retry_policy(options.retry_policy, where)
    check_lock_keys(options.lock_attribute_keys, where)
    if options.failure_policy == pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP:
        target = options.failure_proceed_step_type
        _check_fallback(target, where, 0)
        check_step_options(options.failure_proceed_step_options, target, minimum_heartbeat, 1)


def check_flow_config(config: pb.FlowConfig) -> None:
    """Raise `InvalidMessageError` for an unknown mode or a negative number."""
    where = "the Flow configuration"
    if config.step_durability not in _DURABILITIES:
        raise InvalidMessageError(f"{where} has unknown step durability {config.step_durability}")
    if config.active_step_search_mode not in _SEARCH_MODES:
        raise InvalidMessageError(
            f"{where} has unknown active step search mode {config.active_step_search_mode}"
        )
    if min(config.continue_as_new_threshold, config.continue_as_new_page_size_in_bytes) < 0:
        raise InvalidMessageError(f"{where} has a negative number; use 0 for the default")


def check_heartbeat_timeout(seconds: int, where: str, minimum: float) -> None:
    """Raise `InvalidMessageError` for an explicit heartbeat timeout below the minimum."""
    if seconds < 0 or 0 < seconds < minimum:
        raise InvalidMessageError(
            f"{where} have a heartbeat timeout of {seconds} seconds; use at least {minimum:g}"
        )


def check_retry_policy(policy: pb.RetryPolicy | pb.FlowRetryPolicy, where: str) -> None:
    """Raise `InvalidMessageError` for negative numbers or a coefficient that is not a number."""
    numbers = [
        policy.initial_interval_seconds,
        policy.maximum_interval_seconds,
        policy.maximum_attempts,
    ]
    if isinstance(policy, pb.RetryPolicy):
        numbers.append(policy.total_duration_seconds)
    if min(numbers) < 0:
        raise InvalidMessageError(
            f"{where} have a retry policy with the number {min(numbers)}; use 0 for the default"
        )
    if policy.backoff_coefficient < 0 or not math.isfinite(policy.backoff_coefficient):
        raise InvalidMessageError(
            f"{where} have a backoff coefficient of {policy.backoff_coefficient:g}; use a "
            f"positive number, or 0 for the default"
        )


def check_lock_keys(keys: Sequence[str], where: str) -> None:
    """Raise `InvalidMessageError` for an empty Attribute lock key."""
    if not all(keys):
        raise InvalidMessageError(f"{where} have an empty Attribute lock key")


def check_attribute_writes(writes: Iterable[pb.AttributeWrite]) -> None:
    """Raise `InvalidMessageError` for a write without key or value, or one that cannot be kept."""
    for write in writes:
        if not write.key:
            raise InvalidMessageError("an Attribute write has no key")
        where = f"Attribute {write.key!r}"
        check_value(write.value, where)
        if write.index_config.type not in _INDEX_TYPES:
            raise InvalidMessageError(f"{where} has unknown index type {write.index_config.type}")
        if not write.is_hard_delete_on_null:
            continue
        if write.value.WhichOneof("kind") not in _HARD_DELETE_KINDS:
            raise InvalidMessageError(
                f"{where} is deleted for good; such a value can only be text or an object"
            )
        if write.index_config.enable or write.sync_config.enabled:
            raise InvalidMessageError(
                f"{where} is deleted for good; it cannot be indexed or projected"
            )


def _check_effects(
    writes: Iterable[pb.AttributeWrite],
    published: Iterable[pb.ChannelMessage],
    deleted: Iterable[pb.ChannelMessageDeletion],
) -> None:
    check_attribute_writes(writes)
    for message in published:
        if not message.channel_name:
            raise InvalidMessageError("a published message names no Channel")
        check_value(message.value, f"a message for Channel {message.channel_name!r}")
    for deletion in deleted:
        if not deletion.channel_name or not deletion.message_id:
            raise InvalidMessageError("a message deletion lacks its Channel or message id")


def _check_execute_policies(
    failure: pb.ExecuteMethodFailurePolicy, durabilities: Iterable[pb.StepDurability], where: str
) -> None:
    if failure not in _EXECUTE_FAILURES:
        raise InvalidMessageError(f"{where} have unknown execute failure policy {failure}")
    for durability in durabilities:
        if durability not in _DURABILITIES:
            raise InvalidMessageError(f"{where} have unknown durability {durability}")


def _check_fallback(target: str, where: str, depth: int) -> None:
    if not target:
        raise InvalidMessageError(f"{where} proceed on failure to no Step; name one")
    if depth >= _DEEPEST_FALLBACK:
        raise InvalidMessageError(
            f"{where} are {_DEEPEST_FALLBACK} levels deep in the options of Steps that fall back "
            f"to one another; use fewer"
        )


def _check_names(names: Iterable[str], problem: str) -> None:
    if not all(names):
        raise InvalidMessageError(problem)


def _check_entries(entries: Iterable[pb.KV], what: str) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not entry.key or entry.key in seen:
            raise InvalidMessageError(f"{what} key {entry.key!r} is empty or repeated")
        seen.add(entry.key)
        check_value(entry.value, f"{what} {entry.key!r}")


def _check_bounds(channel: pb.ChannelCondition) -> None:
    if not channel.channel_name:
        raise InvalidMessageError("a Channel condition names no Channel")
    at_least = channel.at_least if channel.HasField("at_least") else 0
    if at_least < 0 or (channel.HasField("at_most") and channel.at_most < at_least):
        raise InvalidMessageError(
            f"the bounds of Channel {channel.channel_name!r} are {at_least} to {channel.at_most}"
        )


def _check_combinations(condition: pb.WaitingCondition, known: set[str]) -> None:
    combined = condition.waiting_condition_type == (
        pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED
    )
    if combined != bool(condition.condition_combinations):
        raise InvalidMessageError("combinations belong to, and only to, a wait for combinations")
    for combination in condition.condition_combinations:
        ids = list(combination.condition_ids)
        if not ids or not set(ids) <= known:
            raise InvalidMessageError(f"combination {ids!r} is empty or names unknown conditions")


def is_deletion(write: pb.AttributeWrite) -> bool:
    """Tell whether the write removes its Attribute."""
    return is_null(write.value)
