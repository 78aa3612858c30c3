"""What a decision, an RPC, a stop or a start does to a run. No storage, no clock."""

from __future__ import annotations

from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb
from engine_by_hand import NOON, RunByHand
from engine_messages import (
    all_of,
    any_of,
    channel,
    complete_if_empty,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    graceful,
    move,
    publish,
    timer,
    to_value,
    writes,
)

from dex_embedded_engine.runs import Phase, Standing
from dex_embedded_engine.transitions.results import has_durable_effects
from dex_embedded_engine.transitions.starts import Verdict, judge_reuse

COMPLETED = ("COMPLETED", "UNSPECIFIED", "")


# --- number and order of executions -----------------------------------------------------------


def test_executions_are_numbered_by_type_in_the_order_of_the_movements() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"), move("a"))
    assert hand.ready == ["a-1", "b-1", "a-2"]
    hand.decides("b-1", go_to(move("b"), move("a")))
    assert hand.ids == ["a-1", "a-2", "b-2", "a-3"]


def test_a_number_is_not_used_again_after_its_execution_has_ended() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", go_to(move("a")))
    hand.decides("a-2", go_to(move("a")))
    assert hand.ids == ["b-1", "a-3"]


def test_an_execution_knows_what_created_it() -> None:
    hand = RunByHand(move("root"))
    assert hand.step("root-1").lineage == ""
    hand.decides("root-1", go_to(move("a")))
    assert hand.step("a-1").lineage == "root-1"
    hand.rpc("call", go_to(move("a")))
    assert hand.step("a-2").lineage == "__rpc/call"


def test_input_and_options_come_with_the_movement() -> None:
    options: dict[str, Any] = {"execute_timeout_seconds": 7, "skip_wait_for": False}
    hand = RunByHand.with_steps(move("a", "the input", **options), move("a"))
    assert hand.step("a-1").movement.step_input == to_value("the input")
    assert hand.step("a-1").options == pb.StepOptions(**options)
    assert hand.step("a-2").options == pb.StepOptions(skip_wait_for=True)


def test_fields_that_only_the_engine_may_set_are_not_taken_from_a_worker() -> None:
    forged = move("a")
    forged.from_step_execution_id_internal_only = "forged-9"
    forged.recovery_error_internal_only.detail = "forged"
    hand = RunByHand.with_steps(forged)
    assert hand.step("a-1").lineage == "root-1"
    assert not hand.step("a-1").movement.HasField("recovery_error_internal_only")


def test_a_step_begins_with_wait_for_unless_its_movement_skips_it() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False), move("b"))
    assert hand.step("a-1").phase is Phase.WAIT_FOR
    assert hand.step("b-1").phase is Phase.EXECUTE


# --- how branches and runs end ----------------------------------------------------------------


def test_a_run_without_steps_stays_open_until_something_closes_it() -> None:
    hand = RunByHand()
    assert hand.run.is_running
    hand.rpc("begin", go_to(move("a")))
    hand.decides("a-1", dead_end())
    assert hand.ids == []
    assert hand.run.is_running


def test_a_dead_end_ends_its_branch_and_nothing_else() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", dead_end())
    assert hand.ids == ["b-1"]
    assert hand.change.finished == [("a", 1)]
    assert hand.outputs == []
    assert not hand.run.closing


def test_a_graceful_completion_waits_for_the_other_branches_and_keeps_all_outputs() -> None:
    hand = RunByHand.with_steps(move("a"), move("b", skip_wait_for=False), move("c"))
    hand.decides("c-1", graceful("from c"))
    hand.decides("a-1", graceful("from a"))
    hand.waits("b-1", any_of(timer(5)))
    assert hand.run.is_running
    hand.advance(5)
    hand.decides("b-1", graceful("from b"))
    assert hand.ending == COMPLETED
    assert hand.outputs == [("c-1", "from c"), ("a-1", "from a"), ("b-1", "from b")]


def test_null_is_an_output_and_no_output_is_none() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", graceful(None))
    hand.decides("b-1", graceful())
    assert hand.outputs == [("a-1", None)]
    assert hand.ending == COMPLETED


def test_a_dead_end_completes_the_run_if_it_was_the_last_branch_of_a_closing_run() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", graceful("done"))
    hand.decides("b-1", dead_end())
    assert hand.ending == COMPLETED


def test_steps_that_surviving_branches_or_rpcs_add_keep_a_closing_run_open() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", graceful())
    hand.decides("b-1", go_to(move("b")))
    hand.rpc("more", go_to(move("c")))
    hand.decides("b-2", dead_end())
    assert hand.run.is_running
    hand.decides("c-1", dead_end())
    assert hand.ending == COMPLETED


def test_force_complete_abandons_the_other_steps_and_adds_its_output_to_earlier_ones() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"), move("c"), move("d", skip_wait_for=False))
    hand.decides("a-1", graceful(1))
    hand.waits("d-1", any_of(channel("never")))
    out = hand.hand_out("c-1").task_id
    hand.decides("b-1", force_complete(2))
    assert hand.ending == COMPLETED
    assert hand.outputs == [("a-1", 1), ("b-1", 2)]
    assert hand.ids == []
    assert hand.change.revoked == [out]
    assert hand.change.ready == []


def test_force_complete_without_an_output_adds_none() -> None:
    hand = RunByHand(move("a"))
    hand.decides("a-1", force_complete())
    assert (hand.ending, hand.outputs) == (COMPLETED, [])


def test_force_fail_fails_at_once_with_exactly_its_reason() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", force_fail(" because\n"))
    assert hand.ending == ("FAILED", "STEP_DECISION_FAILING_FLOW", " because\n")
    assert hand.ids == []


def test_a_close_is_the_last_event_and_holds_the_outcome() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", graceful(1))
    hand.decides("b-1", force_fail("no"))
    closed = hand.events[-1].flow_closed
    assert closed.flow_status == pb.FLOW_STATUS_FAILED
    assert closed.error_message == "no"
    assert [each.completed_step_execution_id for each in closed.results] == ["a-1"]
    assert hand.run.closed_at == NOON
    assert hand.change.closed


# --- closing if Channels are empty --------------------------------------------------------------


def closing(*names: str) -> pb.StepDecision:
    return complete_if_empty(names, "empty", move("again", skip_wait_for=False))


def test_a_conditional_close_completes_when_its_channels_are_empty() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.rpc("send", publish_to_channel=publish("other", 1))
    hand.decides("a-1", closing("c", "d"))
    assert hand.ending == COMPLETED
    assert hand.outputs == [("a-1", "empty")]


def test_a_conditional_close_goes_to_its_fallback_when_a_channel_holds_a_message() -> None:
    hand = RunByHand(move("a"))
    hand.rpc("send", publish_to_channel=publish("d", 1))
    hand.decides("a-1", closing("c", "d"))
    assert hand.ready == ["again-1"]
    assert hand.outputs == []
    assert hand.run.is_running


def test_a_conditional_close_sees_what_its_own_result_publishes() -> None:
    hand = RunByHand(move("a"))
    hand.decides("a-1", closing("c"), publish_to_channel=publish("c", 1))
    assert hand.ids == ["again-1"]


def test_a_conditional_close_sees_what_its_own_result_deletes() -> None:
    hand = RunByHand(move("a"))
    hand.rpc("send", publish_to_channel=publish("c", 1))
    (message,) = hand.run.channels["c"]
    deletion = pb.ChannelMessageDeletion(channel_name="c", message_id=message.message_id)
    hand.decides("a-1", closing("c"), delete_from_channel=[deletion])
    assert hand.ending == COMPLETED


def test_a_channel_is_not_empty_while_another_execution_still_executes_its_message() -> None:
    hand = RunByHand.with_steps(*[move("a", skip_wait_for=False)] * 2, move("b"))
    hand.waits("a-1", any_of(channel("c")))
    hand.waits("a-2", any_of(channel("c")))
    hand.rpc("send", publish_to_channel=publish("c", 1, 2))
    hand.decides("a-1", closing("c"))
    assert hand.ids == ["a-2", "b-1", "again-1"]
    hand.decides("a-2", closing("c"))
    assert hand.ending == COMPLETED


def test_an_execution_that_took_no_message_does_not_keep_its_channel_from_being_empty() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False), move("b"))
    hand.waits("a-1", any_of(channel("c", at_least=0)))
    hand.decides("b-1", closing("c"))
    assert hand.ending == COMPLETED


# --- the order of effects ---------------------------------------------------------------------


def test_what_a_decision_publishes_reaches_the_waits_of_steps_it_does_not_cancel() -> None:
    hand = RunByHand.with_steps(*[move("a", skip_wait_for=False)] * 2, move("b"))
    hand.decides("b-1", go_to(move("c", skip_wait_for=False)))
    hand.waits("c-1", any_of(channel("m")))
    hand.waits("a-1", any_of(channel("m")))
    hand.waits("a-2", any_of(channel("m")))
    cancels = pb.StepDecision(cancel_step_types=["a"])
    hand.rpc("both", cancels, publish_to_channel=publish("m", 1))
    assert hand.ready == ["c-1"]
    assert hand.results("c-1") == [("m", [1])]


def test_a_decision_cancels_before_it_starts_so_its_own_steps_live() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("b-1", go_to(move("a"), cancel_step_types=["a"]))
    assert hand.ids == ["a-2"]
    assert hand.ready == ["a-2"]


def test_attribute_writes_of_a_result_come_in_order_and_without_the_hard_deleted_ones() -> None:
    hand = RunByHand(move("a"))
    hard = pb.AttributeWrite(key="h", value=to_value("secret"), is_hard_delete_on_null=True)
    hand.decides("a-1", dead_end(), upsert_attributes=[*writes({"x": 1, "y": None}), hard])
    assert [(each.key, each.value) for each in hand.change.writes] == [
        ("x", to_value(1)),
        ("y", to_value(None)),
    ]


# --- cancellation -----------------------------------------------------------------------------


def crowd() -> RunByHand:
    """Three victims of ``root-1`` (queued, out, waiting), one of ``nest-1``, and a killer."""
    victims = [move("v"), move("v"), move("v", skip_wait_for=False)]
    hand = RunByHand.with_steps(*victims, move("nest"), move("k"))
    hand.decides("nest-1", go_to(move("v"), move("other")))
    hand.hand_out("v-2")
    hand.waits("v-3", any_of(channel("c")))
    return hand


def test_cancelling_a_type_ends_all_its_executions_whatever_they_do() -> None:
    hand = crowd()
    hand.decides("k-1", go_to(move("next"), cancel_step_types=["v"]))
    assert hand.ids == ["other-1", "next-1"]
    assert [name for name, _ in hand.change.finished] == ["k", "v", "v", "v", "v"]


def test_cancelling_siblings_spares_executions_that_something_else_created() -> None:
    hand = crowd()
    hand.decides("k-1", go_to(move("next"), cancel_sibling_step_types=["v"]))
    assert hand.ids == ["v-4", "other-1", "next-1"]


def test_both_selectors_of_one_decision_apply() -> None:
    hand = crowd()
    decision = go_to(move("next"), cancel_step_types=["other"], cancel_sibling_step_types=["v"])
    hand.decides("k-1", decision)
    assert hand.ids == ["v-4", "next-1"]


def test_the_handler_of_a_cancelled_execution_hears_of_it_only_with_its_next_frame() -> None:
    hand = crowd()
    hand.decides("k-1", go_to(move("next"), cancel_step_types=["v"]))
    assert hand.change.disowned == ["task of v-2, attempt 1"]
    assert hand.change.revoked == []


def test_a_cancelled_wait_takes_no_message() -> None:
    hand = crowd()
    hand.decides("k-1", go_to(move("next"), cancel_step_types=["v"]))
    hand.rpc("send", publish_to_channel=publish("c", 1))
    assert hand.queued("c") == [1]
    assert hand.ready == []


def test_cancelling_what_has_ended_or_never_was_does_nothing() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"), move("k"))
    hand.decides("a-1", dead_end())
    hand.decides("k-1", go_to(move("k"), cancel_step_types=["a", "unknown"]))
    assert hand.ids == ["b-1", "k-2"]
    assert hand.change.finished == [("k", 1)]


def test_a_decision_may_consist_of_cancellations_and_then_ends_its_branch() -> None:
    hand = crowd()
    hand.decides("k-1", pb.StepDecision(cancel_step_types=["v", "other"]))
    assert hand.ids == []
    assert hand.run.is_running


def test_a_cancelled_execution_counts_as_finished_for_a_graceful_completion() -> None:
    hand = crowd()
    decision = graceful("done")
    decision.cancel_step_types.extend(["v", "other"])
    hand.decides("k-1", decision)
    assert hand.ending == COMPLETED


def test_a_cancelled_execution_leaves_no_event_of_its_own() -> None:
    hand = crowd()
    before = len(hand.events)
    hand.decides("k-1", go_to(move("next"), cancel_step_types=["v"]))
    assert len(hand.events) == before + 1


def test_steps_of_an_rpc_are_siblings_of_each_other_only() -> None:
    hand = RunByHand()
    hand.rpc("first", go_to(move("v"), move("k")))
    hand.rpc("second", go_to(move("v")))
    hand.decides("k-1", go_to(move("next"), cancel_sibling_step_types=["v"]))
    assert hand.ids == ["v-2", "next-1"]


# --- RPCs -------------------------------------------------------------------------------------


def test_an_rpc_that_cancels_the_last_steps_of_a_closing_run_completes_it() -> None:
    hand = RunByHand.with_steps(move("a"), move("b"))
    hand.decides("a-1", graceful(1))
    hand.rpc("stop", pb.StepDecision(cancel_step_types=["b"]))
    assert hand.ending == COMPLETED


def test_an_rpc_cancels_before_it_starts_steps() -> None:
    hand = RunByHand.with_steps(move("a"))
    hand.rpc("replace", go_to(move("a"), cancel_step_types=["a"]))
    assert hand.ids == ["a-2"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"step_decision": pb.StepDecision()}, False),
        ({"record_events": [pb.KV(key="x", value=to_value(1))]}, False),
        ({"upsert_attributes": writes({"x": 1})}, True),
        ({"publish_to_channel": publish("c", 1)}, True),
        (
            {"delete_from_channel": [pb.ChannelMessageDeletion(channel_name="c", message_id="m")]},
            True,
        ),
        ({"step_decision": go_to(move("a"))}, True),
        ({"step_decision": pb.StepDecision(cancel_step_types=["a"])}, True),
    ],
)
def test_an_rpc_that_only_looks_has_no_durable_effects(
    fields: dict[str, Any], expected: bool
) -> None:
    result = pb.InvokeWorkerRPCResponse(output=to_value(None), **fields)
    assert has_durable_effects(result) is expected


# --- stops and starts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop_type", "ending"),
    [
        (pb.STOP_TYPE_CANCEL, ("CANCELED", "UNSPECIFIED", "")),
        (pb.STOP_TYPE_TERMINATE, ("TERMINATED", "UNSPECIFIED", "")),
        (pb.STOP_TYPE_FAIL, ("FAILED", "CLIENT_API_FAILING_FLOW", "enough")),
    ],
)
def test_a_stop_closes_at_once_and_only_a_failing_one_keeps_its_reason(
    stop_type: pb.StopType, ending: tuple[str, str, str]
) -> None:
    hand = RunByHand.with_steps(move("a"), move("b", skip_wait_for=False), move("c"))
    hand.decides("c-1", graceful("kept"))
    out = hand.hand_out("a-1").task_id
    hand.waits("b-1", all_of(timer(5)))
    hand.stop(stop_type, "enough")
    assert hand.ending == ending
    assert hand.outputs == [("c-1", "kept")]
    assert hand.change.revoked == [out]
    assert (hand.ids, hand.run.next_wake()) == ([], None)


STATUSES = (
    None,
    pb.FLOW_STATUS_RUNNING,
    pb.FLOW_STATUS_COMPLETED,
    pb.FLOW_STATUS_FAILED,
    pb.FLOW_STATUS_CANCELED,
    pb.FLOW_STATUS_TERMINATED,
    pb.FLOW_STATUS_SERVER_SIDE_TIMEOUT_INTERNAL_ONLY,
)
REUSE = {
    pb.ID_REUSE_POLICY_UNSPECIFIED: "S R R R R R R",
    pb.ID_REUSE_POLICY_DISALLOW_REUSE: "S R R R R R R",
    pb.ID_REUSE_POLICY_ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY: "S R R S S S S",
    pb.ID_REUSE_POLICY_ALLOW_IF_NO_RUNNING: "S R S S S S S",
    pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING: "S T S S S S S",
}
VERDICTS = {"S": Verdict.START, "R": Verdict.REFUSE, "T": Verdict.TERMINATE_AND_START}


@pytest.mark.parametrize(
    ("policy", "status", "expected"),
    [
        (policy, status, VERDICTS[letter])
        for policy, row in REUSE.items()
        for status, letter in zip(STATUSES, row.split(), strict=True)
    ],
)
def test_a_flow_id_is_used_again_as_the_policy_says(
    policy: pb.IdReusePolicy, status: pb.FlowStatus | None, expected: Verdict
) -> None:
    latest = None
    if status is not None:
        latest = RunByHand().run
        latest.status = status
    assert judge_reuse(latest, policy) is expected


def test_every_reuse_policy_of_the_protocol_has_a_row_in_the_table() -> None:
    assert set(REUSE) == set(pb.IdReusePolicy.values())


def test_a_start_sets_attributes_and_queues_the_starting_step() -> None:
    options = pb.FlowStartOptions(attributes=writes({"x": 1}))
    hand = RunByHand(move("a", "in"), flow_start_options=options)
    assert [write.key for write in hand.change.writes] == ["x"]
    assert hand.ready == ["a-1"]
    assert hand.step("a-1").movement.step_input == to_value("in")


def test_a_hard_deleted_initial_attribute_stands_neither_in_writes_nor_in_the_journal() -> None:
    hard = pb.AttributeWrite(key="h", value=to_value("secret"), is_hard_delete_on_null=True)
    hand = RunByHand(flow_start_options=pb.FlowStartOptions(attributes=[hard]))
    assert hand.change.writes == []
    assert not hand.events[0].flow_started_or_continued.initial_start.initial_attributes


def test_a_delayed_start_makes_only_the_starting_step_wait() -> None:
    hand = RunByHand(move("a"), flow_start_options=pb.FlowStartOptions(flow_start_delay_seconds=30))
    assert (hand.ready, hand.step("a-1").standing) == ([], Standing.PAUSED)
    hand.rpc("begin", go_to(move("b")))
    assert hand.ready == ["b-1"]
    hand.advance(29.9)
    assert hand.ready == []
    hand.advance(0.1)
    assert hand.ready == ["a-1"]
