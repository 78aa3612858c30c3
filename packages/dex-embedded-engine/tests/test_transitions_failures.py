"""What becomes of attempts that fail and of Flows that time out. No storage, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb
from engine_by_hand import BOOM, NOON, RunByHand
from engine_messages import (
    any_of,
    channel,
    dead_end,
    force_complete,
    from_value,
    go_to,
    graceful,
    move,
    timer,
    to_value,
)

from dex_embedded_engine.runs import TIMEOUT_HANDLER, Phase, Standing
from dex_embedded_engine.settings import EngineSettings
from dex_embedded_engine.transitions.failures import Failure, backoff, worker_lost

FAILED = ("FAILED", "WORKER_API_FAIL", "boom")


def trying(**policy: Any) -> RunByHand:
    """Start ``a-1``, whose execute has this retry policy."""
    return RunByHand.with_steps(move("a", "in", execute_retry_policy=pb.RetryPolicy(**policy)))


def fail_until_given_up(hand: RunByHand, failure: Failure = BOOM) -> list[float]:
    """Fail ``a-1`` again and again, as soon as it may run; return the pauses between attempts."""
    pauses: list[float] = []
    while True:
        hand.fails("a-1", failure)
        if hand.ids != ["a-1"]:
            return pauses
        wake = hand.step("a-1").wake_at
        pauses.append(0.0 if wake is None else wake - hand.now)
        hand.advance(pauses[-1])


# --- pauses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, [1, 2, 4, 8, 16, 32, 64, 100, 100]),
        ({"initial_interval_seconds": 3}, [3, 6, 12, 24, 48, 96, 192, 300]),
        ({"initial_interval_seconds": 3, "maximum_interval_seconds": 5}, [3, 5, 5]),
        ({"initial_interval_seconds": 9, "maximum_interval_seconds": 5}, [5, 5]),
        ({"backoff_coefficient": 1.0}, [1, 1, 1]),
        ({"backoff_coefficient": 1.5, "initial_interval_seconds": 2}, [2, 3, 4.5]),
        ({"backoff_coefficient": 0.5, "initial_interval_seconds": 8}, [8, 4, 2, 1]),
    ],
)
def test_the_pause_grows_from_its_initial_value_to_its_maximum(
    policy: dict[str, Any], expected: list[float]
) -> None:
    pauses = [
        backoff(pb.RetryPolicy(**policy), attempt, EngineSettings())
        for attempt in range(1, len(expected) + 1)
    ]
    assert pauses == expected


@pytest.mark.parametrize("coefficient", [0.0, 0.3, 1.0, 1.0000001, 1e300])
def test_the_pause_stays_finite_and_below_its_maximum_however_many_attempts_there_were(
    coefficient: float,
) -> None:
    policy = pb.RetryPolicy(backoff_coefficient=coefficient)
    for attempt in (1, 2, 1_000, 2**31 - 1):
        assert 0 <= backoff(policy, attempt, EngineSettings()) <= 100


def test_a_failed_attempt_waits_out_its_pause_and_is_then_ready_again() -> None:
    hand = trying()
    hand.fails("a-1")
    assert (hand.ready, hand.step("a-1").standing) == ([], Standing.PAUSED)
    hand.advance(0.999)
    assert hand.ready == []
    hand.advance(0.001)
    assert hand.ready == ["a-1"]
    assert hand.hand_out("a-1").attempt == 2


def test_a_handler_may_ask_for_another_pause_before_the_next_attempt_only() -> None:
    hand = trying()
    hand.fails("a-1", replace(BOOM, retry_after=50))
    assert hand.step("a-1").wake_at == NOON + 50
    hand.advance(50)
    hand.fails("a-1")
    assert hand.step("a-1").wake_at == hand.now + 2


def test_a_pause_that_a_worker_reports_as_negative_is_none_at_all() -> None:
    reported = Failure.reported(pb.WorkerErrorResponse(detail="x", retry_after_seconds=-5))
    assert reported.retry_after == 0


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_there_are_never_more_attempts_than_the_policy_allows(attempts: int) -> None:
    hand = trying(maximum_attempts=attempts)
    assert len(fail_until_given_up(hand)) == attempts - 1
    assert hand.ending == FAILED
    assert hand.events[-2].step_execute_failed.context.final_attempt == attempts


def test_attempts_are_limited_by_duration_alone_if_the_policy_names_no_number() -> None:
    hand = trying()
    pauses = fail_until_given_up(hand)
    assert sum(pauses) <= 4 * 3600 < sum(pauses) + 100
    assert hand.ending == FAILED


def test_no_attempt_starts_after_the_total_duration() -> None:
    hand = trying(total_duration_seconds=10)
    assert fail_until_given_up(hand) == [1, 2, 4]
    assert hand.ending == FAILED


def test_an_attempt_may_start_exactly_at_the_end_of_the_total_duration() -> None:
    hand = trying(total_duration_seconds=7)
    assert fail_until_given_up(hand) == [1, 2, 4]


def test_the_time_an_attempt_takes_counts_towards_the_total_duration() -> None:
    hand = trying(total_duration_seconds=10)
    hand.hand_out("a-1")
    hand.advance(9.5)
    hand.fails("a-1")
    assert hand.ending == FAILED


def test_a_pause_that_a_handler_asks_for_counts_towards_the_total_duration() -> None:
    hand = trying(total_duration_seconds=10)
    hand.fails("a-1", replace(BOOM, retry_after=11))
    assert hand.ending == FAILED


def test_a_pause_that_a_handler_asks_for_does_not_buy_another_attempt() -> None:
    hand = trying(maximum_attempts=1)
    hand.fails("a-1", replace(BOOM, retry_after=1))
    assert hand.ending == FAILED


def test_waiting_for_a_worker_uses_up_no_total_duration() -> None:
    hand = trying(total_duration_seconds=10)
    hand.advance(1000)
    hand.fails("a-1")
    hand.advance(1)
    hand.advance(5000)
    hand.fails("a-1")
    assert hand.step("a-1").wake_at == hand.now + 2
    hand.advance(2)
    hand.advance(5000)
    hand.fails("a-1")
    assert hand.step("a-1").wake_at == hand.now + 4
    hand.advance(4)
    hand.fails("a-1")
    assert hand.ending == FAILED


def test_a_pause_that_ends_while_the_engine_is_down_goes_over_into_waiting_for_a_worker() -> None:
    hand = trying(total_duration_seconds=10)
    hand.fails("a-1")
    hand.advance(500)
    hand.fails("a-1")
    assert hand.step("a-1").wake_at == hand.now + 2


def test_an_attempt_lost_by_an_engine_restart_counts_but_its_time_does_not() -> None:
    hand = trying(total_duration_seconds=10, maximum_attempts=2)
    hand.hand_out("a-1")
    hand.advance(1000)
    hand.fails("a-1", worker_lost("restarted", uncounted=True))
    assert hand.step("a-1").wake_at == hand.now + 1
    hand.advance(1)
    hand.fails("a-1")
    assert hand.ending == FAILED


def test_an_attempt_whose_worker_was_lost_counts_and_so_does_its_time() -> None:
    hand = trying(total_duration_seconds=10)
    hand.hand_out("a-1")
    hand.advance(11)
    hand.fails("a-1", worker_lost("the Worker is gone"))
    assert hand.ending == ("FAILED", "WORKER_API_FAIL", "the Worker is gone")


def test_a_failure_that_no_attempt_can_mend_is_not_retried() -> None:
    hand = trying()
    hand.fails("a-1", replace(BOOM, final=True))
    assert hand.ending == FAILED


def test_attempts_of_one_step_say_nothing_about_those_of_another() -> None:
    policy = pb.RetryPolicy(maximum_attempts=2)
    hand = RunByHand.with_steps(*[move("a", execute_retry_policy=policy)] * 2)
    hand.fails("a-1")
    hand.fails("a-2")
    assert hand.run.is_running
    assert [hand.step(each).attempt for each in hand.ids] == [1, 1]


def test_wait_for_and_execute_have_policies_of_their_own() -> None:
    movement = move(
        "a",
        skip_wait_for=False,
        wait_for_retry_policy=pb.RetryPolicy(maximum_attempts=3),
        execute_retry_policy=pb.RetryPolicy(maximum_attempts=1),
    )
    hand = RunByHand.with_steps(movement)
    hand.fails("a-1")
    hand.advance(1)
    hand.waits("a-1")
    hand.fails("a-1")
    assert hand.ending == FAILED
    assert hand.events[-2].WhichOneof("payload") == "step_execute_failed"


# --- what is kept between attempts --------------------------------------------------------------


def test_the_heartbeat_and_the_first_moment_are_kept_for_the_next_attempt() -> None:
    hand = trying()
    execution = hand.hand_out("a-1")
    execution.heartbeat, execution.snapshot = to_value("half"), 3
    hand.advance(5)
    hand.fails("a-1")
    hand.advance(1)
    assert (execution.heartbeat, execution.snapshot) == (to_value("half"), 3)
    assert execution.first_attempt_at == NOON


def test_a_step_between_attempts_says_why_the_last_one_failed() -> None:
    hand = trying()
    hand.fails("a-1", Failure("broken", "tests.Error", stack_trace="line 1", grpc_status=2))
    failure = hand.step("a-1").last_failure
    assert failure is not None
    assert failure.attempt == 1
    assert failure.details.original_worker_error_detail == "broken"
    assert failure.details.original_worker_error_type == "tests.Error"
    assert failure.details.original_worker_error_stack_trace == "line 1"
    assert failure.details.original_worker_error_status == 2


def test_a_cancellation_that_nobody_asked_for_is_a_lost_worker() -> None:
    lost = pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED
    cancelled = Failure.reported(pb.WorkerErrorResponse(detail="x", grpc_status=1))
    ordinary = Failure.reported(pb.WorkerErrorResponse(detail="x", grpc_status=2))
    assert (cancelled.reason, ordinary.reason) == (lost, 0)


# --- when all attempts have failed ----------------------------------------------------------------


def recovering(**options: Any) -> RunByHand:
    options.setdefault("execute_retry_policy", pb.RetryPolicy(maximum_attempts=1))
    return RunByHand.with_steps(
        move(
            "a",
            "the input",
            execute_failure_policy=pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP,
            execute_failure_proceed_step_type="rescue",
            execute_failure_proceed_step_options=pb.StepOptions(execute_timeout_seconds=9),
            **options,
        )
    )


def test_a_failed_step_fails_the_run_with_exactly_its_detail() -> None:
    hand = RunByHand.with_steps(
        move("a", execute_retry_policy=pb.RetryPolicy(maximum_attempts=1)), move("b")
    )
    out = hand.hand_out("b-1").task_id
    hand.fails("a-1", Failure(" what\nhappened ", "tests.Error"))
    assert hand.ending == ("FAILED", "WORKER_API_FAIL", " what\nhappened ")
    assert (hand.ids, hand.change.revoked) == ([], [out])


def test_a_failed_step_may_go_on_to_another_with_the_same_input_and_the_error() -> None:
    hand = recovering()
    hand.fails("a-1")
    assert (hand.ids, hand.ready) == (["rescue-1"], ["rescue-1"])
    rescue = hand.step("rescue-1")
    assert rescue.movement.step_input == to_value("the input")
    assert rescue.options == pb.StepOptions(execute_timeout_seconds=9)
    assert rescue.lineage == "a-1"
    error = rescue.movement.recovery_error_internal_only
    assert (error.detail, error.error_type) == ("boom", "tests.BoomError")
    assert hand.change.finished == [("a", 1)]
    assert hand.outputs == []


def test_the_error_reaches_both_methods_of_the_recovery_step_and_not_its_successors() -> None:
    hand = recovering()
    hand.fails("a-1")
    hand.waits("rescue-1", any_of(timer(0)))
    assert hand.step("rescue-1").movement.recovery_error_internal_only.detail == "boom"
    hand.decides("rescue-1", go_to(move("rescue")))
    assert not hand.step("rescue-2").movement.HasField("recovery_error_internal_only")


def test_a_recovery_that_ends_the_last_branch_of_a_closing_run_completes_it() -> None:
    hand = recovering()
    hand.rpc("more", go_to(move("b")))
    hand.decides("b-1", graceful("b"))
    hand.fails("a-1")
    assert hand.run.is_running
    hand.decides("rescue-1", dead_end())
    assert hand.ending == ("COMPLETED", "UNSPECIFIED", "")


def test_an_invalid_result_takes_the_way_of_the_failure_policy_too() -> None:
    hand = recovering(execute_retry_policy=pb.RetryPolicy(maximum_attempts=9))
    hand.fails("a-1", replace(BOOM, final=True))
    assert hand.ids == ["rescue-1"]


def waiting_badly(policy: pb.WaitForMethodFailurePolicy) -> RunByHand:
    hand = RunByHand.with_steps(
        move(
            "a",
            "the input",
            skip_wait_for=False,
            wait_for_retry_policy=pb.RetryPolicy(maximum_attempts=2),
            wait_for_failure_policy=policy,
        )
    )
    hand.fails("a-1")
    hand.advance(1)
    hand.fails("a-1")
    return hand


def test_a_failed_wait_for_fails_the_run_by_default() -> None:
    hand = waiting_badly(pb.WAIT_FOR_METHOD_FAILURE_POLICY_UNSPECIFIED)
    assert hand.ending == FAILED


def test_a_failed_wait_for_may_go_on_to_execute_which_is_told() -> None:
    hand = waiting_badly(pb.WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE)
    execution = hand.step("a-1")
    assert (hand.ready, execution.phase) == (["a-1"], Phase.EXECUTE)
    assert execution.results == pb.ConditionResults(wait_for_failed=True)
    assert execution.movement.recovery_error_internal_only.detail == "boom"
    assert (execution.attempt, execution.movement.step_input) == (0, to_value("the input"))


def test_messages_that_a_failed_step_had_taken_are_gone_but_no_longer_in_work() -> None:
    hand = recovering(skip_wait_for=False)
    hand.waits("a-1", any_of(channel("c", at_least=0)))
    hand.fails("a-1")
    assert hand.step("rescue-1").consumed_channels() == set()


# --- the timeout of a Flow ------------------------------------------------------------------------


def timing_out(policy: pb.FlowTimeoutPolicy, **handler: Any) -> RunByHand:
    hand = RunByHand(
        move("a", skip_wait_for=False),
        flow_timeout_seconds=30,
        flow_timeout_policy=policy,
        flow_start_options=pb.FlowStartOptions(
            timeout_handler_options=pb.FlowTimeoutHandlerOptions(**handler)
        ),
    )
    hand.waits("a-1", any_of(channel("never"), timer(30)))
    return hand


@pytest.mark.parametrize(
    ("policy", "ending"),
    [
        (pb.FLOW_TIMEOUT_POLICY_CANCEL, ("CANCELED", "UNSPECIFIED", "")),
        (
            pb.FLOW_TIMEOUT_POLICY_FAIL,
            ("FAILED", "FLOW_TIMEOUT", "Flow timed out after 30 seconds"),
        ),
        (
            pb.FLOW_TIMEOUT_POLICY_UNSPECIFIED,
            ("FAILED", "FLOW_TIMEOUT", "Flow timed out after 30 seconds"),
        ),
    ],
)
def test_a_flow_that_takes_too_long_ends_as_its_policy_says_before_timers_of_that_instant(
    policy: pb.FlowTimeoutPolicy, ending: tuple[str, str, str]
) -> None:
    hand = timing_out(policy)
    hand.advance(29.9)
    assert hand.run.is_running
    hand.advance(0.1)
    assert hand.ending == ending
    assert (hand.ids, hand.ready) == ([], [])
    assert hand.run.next_wake() is None


def test_the_timeout_counts_from_the_start_of_the_run_even_if_its_first_step_is_delayed() -> None:
    hand = RunByHand(
        move("a"),
        flow_timeout_seconds=5,
        flow_start_options=pb.FlowStartOptions(flow_start_delay_seconds=60),
    )
    hand.advance(5)
    assert hand.ending[1] == "FLOW_TIMEOUT"


def test_a_run_without_a_timeout_has_no_deadline() -> None:
    assert RunByHand(move("a")).run.next_wake() is None


def test_a_timeout_handler_is_a_step_without_input_beside_the_others() -> None:
    hand = timing_out(pb.FLOW_TIMEOUT_POLICY_HANDLER)
    hand.advance(30)
    assert hand.ids == ["a-1", "sys:timeout_handler-1"]
    assert sorted(hand.ready) == ["a-1", "sys:timeout_handler-1"]
    handler = hand.step("sys:timeout_handler-1")
    assert handler.step_type == TIMEOUT_HANDLER
    assert not handler.movement.HasField("step_input")
    assert handler.phase is Phase.EXECUTE
    hand.advance(1000)
    assert hand.ids == ["a-1", "sys:timeout_handler-1"]
    hand.decides("sys:timeout_handler-1", force_complete("late"))
    assert hand.outputs == [("sys:timeout_handler-1", "late")]


def test_a_timeout_handler_runs_with_the_options_the_flow_was_started_with() -> None:
    policy = pb.RetryPolicy(maximum_attempts=4)
    hand = timing_out(
        pb.FLOW_TIMEOUT_POLICY_HANDLER,
        method_timeout_seconds=7,
        heartbeat_timeout_seconds=11,
        retry_policy=policy,
        lock_attribute_keys=["k"],
        load_attribute_map_instances=["m/"],
        load_channel_names=["c"],
        load_channel_map_instances=["n/"],
    )
    hand.advance(30)
    handler = hand.step("sys:timeout_handler-1")
    assert handler.options == pb.StepOptions(
        skip_wait_for=True,
        execute_timeout_seconds=7,
        heartbeat_timeout_seconds=11,
        execute_retry_policy=policy,
        execute_lock_attribute_keys=["k"],
        execute_load_attribute_map_instances=["m/"],
        execute_load_channel_names=["c"],
        execute_load_channel_map_instances=["n/"],
    )
    assert handler.lock_keys() == ("k",)
    assert handler.loads() == (["m/"], ["c"], ["n/"])


def test_a_timeout_handler_that_fails_for_good_fails_the_flow_with_its_error() -> None:
    policy = pb.RetryPolicy(maximum_attempts=1)
    hand = timing_out(pb.FLOW_TIMEOUT_POLICY_HANDLER, retry_policy=policy)
    hand.advance(30)
    hand.fails("sys:timeout_handler-1")
    assert hand.ending == FAILED


def test_a_timeout_handler_that_fails_for_good_may_go_on_to_a_step_with_a_null_input() -> None:
    hand = timing_out(
        pb.FLOW_TIMEOUT_POLICY_HANDLER,
        retry_policy=pb.RetryPolicy(maximum_attempts=1),
        failure_policy=pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP,
        failure_proceed_step_type="rescue",
        failure_proceed_step_options=pb.StepOptions(skip_wait_for=True),
    )
    hand.advance(30)
    hand.fails("sys:timeout_handler-1")
    rescue = hand.step("rescue-1")
    assert from_value(rescue.movement.step_input) is None
    assert rescue.movement.recovery_error_internal_only.detail == "boom"
