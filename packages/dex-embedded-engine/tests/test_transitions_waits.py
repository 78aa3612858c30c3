"""What satisfies a wait, what it then takes, and what execute is told. No storage, no clock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb
from engine_by_hand import NOON, RunByHand
from engine_messages import (
    Condition,
    all_of,
    any_combination,
    any_of,
    channel,
    dead_end,
    go_to,
    locals_of,
    move,
    publish,
    timer,
    writes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dex_embedded_engine.runs import Execution, Message, Phase, Run, Standing, Timer
from dex_embedded_engine.transitions.conditions import plan


def waiting(condition: pb.WaitingCondition, *queued: object) -> RunByHand:
    """Let ``a-1`` wait for `condition` when Channel ``c`` already holds `queued`."""
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.rpc("fill", publish_to_channel=publish("c", *queued))
    hand.waits("a-1", condition)
    return hand


def send(hand: RunByHand, name: str, *contents: object) -> None:
    hand.rpc("send", publish_to_channel=publish(name, *contents))


# --- readiness --------------------------------------------------------------------------------


def test_all_waits_until_every_timer_has_fired_and_every_channel_has_its_message() -> None:
    hand = waiting(all_of(timer(5, "t"), timer(9, "u"), channel("c", "x"), channel("d", "y")))
    send(hand, "c", 1)
    hand.advance(5)
    hand.advance(4)
    assert hand.ready == []
    send(hand, "d", 2)
    assert hand.ready == ["a-1"]
    assert hand.results("a-1") == [("t", True), ("u", True), ("x", [1]), ("y", [2])]


def test_any_is_satisfied_by_one_condition_and_the_others_are_reported_as_waiting() -> None:
    hand = waiting(any_of(timer(5, "t"), channel("c", "x"), channel("d", "y")))
    send(hand, "d", 1)
    assert hand.results("a-1") == [("t", False), ("x", False), ("y", [1])]


def test_a_combination_needs_all_of_its_conditions_and_no_other() -> None:
    conditions: list[Condition] = [timer(5, "t"), channel("c", "x"), channel("d", "y")]
    hand = waiting(any_combination(conditions, ["t", "x"], ["x", "y"]))
    send(hand, "c", 1)
    assert hand.ready == []
    send(hand, "d", 2)
    assert hand.results("a-1") == [("t", False), ("x", [1]), ("y", [2])]


def test_the_first_feasible_combination_wins_and_only_it_consumes() -> None:
    conditions = [channel("c", "x"), channel("d", "y"), channel("e", "z")]
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.rpc("fill", publish_to_channel=[*publish("d", 1), *publish("c", 2), *publish("e", 3)])
    hand.waits("a-1", any_combination(conditions, ["x", "z"], ["y"]))
    assert hand.results("a-1") == [("x", [2]), ("y", False), ("z", [3])]
    assert hand.queued("d") == [1]


def test_a_condition_named_twice_by_a_combination_takes_its_messages_once() -> None:
    hand = waiting(any_combination([channel("c", "x")], ["x", "x"]), 1, 2)
    assert hand.results("a-1") == [("x", [1])]
    assert hand.queued("c") == [2]


def test_of_conditions_that_are_ready_at_the_same_instant_timers_come_before_channels() -> None:
    hand = waiting(any_of(channel("c", "x"), timer(0, "t")), 1)
    assert hand.results("a-1") == [("t", True), ("x", False)]
    assert hand.queued("c") == [1]


def test_of_ready_channels_the_one_declared_first_wins() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.rpc("fill", publish_to_channel=[*publish("d", 1), *publish("c", 2)])
    hand.waits("a-1", any_of(channel("c", "x"), channel("d", "y")))
    assert hand.results("a-1") == [("x", [2]), ("y", False)]


def test_a_timer_that_fired_is_reported_as_completed_even_if_it_did_not_decide() -> None:
    conditions: list[Condition] = [timer(1, "t"), timer(5, "u"), channel("c", "x")]
    hand = waiting(any_combination(conditions, ["t", "u"], ["x"]))
    hand.advance(1)
    send(hand, "c", 7)
    assert hand.results("a-1") == [("t", True), ("u", False), ("x", [7])]


def test_results_come_in_the_order_of_declaration_whatever_was_ready_first() -> None:
    conditions = (channel("d", "y"), channel("c", "x"), timer(2, "u"), timer(1, "t"))
    hand = waiting(all_of(*conditions), 1)
    hand.advance(2)
    send(hand, "d", 2)
    assert hand.results("a-1") == [("u", True), ("t", True), ("y", [2]), ("x", [1])]


def test_a_channel_result_names_its_channel_even_without_values() -> None:
    hand = waiting(any_of(timer(0), channel("c")))
    results = hand.step("a-1").results
    assert results is not None
    assert [each.channel_name for each in results.channel_results] == ["c"]
    assert [list(each.values) for each in results.channel_results] == [[]]


# --- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_least", "at_most", "queued", "taken"),
    [
        (None, None, 0, None),
        (None, None, 3, 1),
        (1, 1, 3, 1),
        (2, None, 1, None),
        (2, None, 5, 5),
        (2, 3, 2, 2),
        (2, 3, 5, 3),
        (None, 2, 0, 0),
        (None, 2, 1, 1),
        (None, 2, 5, 2),
        (0, None, 0, 0),
        (0, None, 4, 4),
        (0, 0, 4, 0),
    ],
)
def test_a_channel_condition_waits_for_its_minimum_and_takes_up_to_its_maximum(
    at_least: int | None, at_most: int | None, queued: int, taken: int | None
) -> None:
    condition = channel("c", "x", at_least=at_least, at_most=at_most)
    hand = waiting(all_of(condition), *range(queued))
    if taken is None:
        assert hand.step("a-1").standing is Standing.PARKED
        assert hand.queued("c") == list(range(queued))
    else:
        assert hand.results("a-1") == [("x", list(range(taken)))]
        assert hand.queued("c") == list(range(taken, queued))


def test_two_conditions_on_one_channel_need_the_sum_of_their_minima() -> None:
    condition = all_of(channel("c", "x", at_least=2), channel("c", "y", at_least=1))
    hand = waiting(condition, 1, 2)
    assert hand.step("a-1").standing is Standing.PARKED
    send(hand, "c", 3)
    assert hand.results("a-1") == [("x", [1, 2]), ("y", [3])]


def test_what_is_over_the_minima_goes_to_the_conditions_in_the_order_of_declaration() -> None:
    condition = all_of(
        channel("c", "x", at_least=1, at_most=2),
        channel("c", "y", at_least=1),
        channel("c", "z", at_least=1),
    )
    hand = waiting(condition, 1, 2, 3, 4, 5)
    assert hand.results("a-1") == [("x", [1, 2]), ("y", [3, 4]), ("z", [5])]


def test_a_condition_that_needs_nothing_is_ready_at_once_and_decides_an_any() -> None:
    hand = waiting(any_of(timer(60, "t"), channel("d", "x", at_least=0)))
    assert hand.results("a-1") == [("t", False), ("x", [])]


# --- competition ------------------------------------------------------------------------------


def test_one_message_satisfies_one_of_two_waits_the_older_execution_first() -> None:
    hand = RunByHand.with_steps(*[move("a", skip_wait_for=False)] * 2)
    hand.waits("a-2", any_of(channel("c", "x")))
    hand.waits("a-1", any_of(channel("c", "x")))
    send(hand, "c", 1)
    assert hand.ready == ["a-1"]
    assert hand.step("a-2").standing is Standing.PARKED
    send(hand, "c", 2)
    assert hand.results("a-2") == [("x", [2])]


def test_messages_that_arrive_together_are_shared_out_over_the_waits_in_order() -> None:
    hand = RunByHand.with_steps(*[move("a", skip_wait_for=False)] * 3)
    for number in (1, 2, 3):
        hand.waits(f"a-{number}", any_of(channel("c", "x", at_least=2)))
    send(hand, "c", 1, 2, 3)
    assert hand.ready == ["a-1"]
    assert hand.results("a-1") == [("x", [1, 2, 3])]


def test_a_wait_that_cannot_be_satisfied_reserves_nothing() -> None:
    hand = RunByHand.with_steps(*[move("a", skip_wait_for=False)] * 2)
    hand.waits("a-1", all_of(channel("c", "x"), channel("d", "y")))
    hand.waits("a-2", any_of(channel("c", "x")))
    send(hand, "c", 1)
    assert hand.ready == ["a-2"]
    assert hand.step("a-1").standing is Standing.PARKED


def test_a_wait_that_is_never_satisfied_blocks_only_its_own_execution() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False), move("b"))
    hand.waits("a-1", any_of(channel("c")))
    hand.decides("b-1", go_to(move("b")))
    assert hand.ids == ["a-1", "b-2"]
    assert hand.run.is_running


# --- time -------------------------------------------------------------------------------------


def test_a_relative_timer_becomes_absolute_when_the_result_of_wait_for_is_accepted() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.advance(100)
    hand.waits("a-1", all_of(timer(7), timer(30)))
    assert [each.fires_at for each in hand.step("a-1").timers] == [NOON + 107, NOON + 130]
    assert hand.run.next_wake() == NOON + 107


def test_a_timer_fires_at_its_moment_and_not_before() -> None:
    hand = waiting(any_of(timer(7, "t")))
    hand.advance(6.999)
    assert hand.ready == []
    hand.advance(0.001)
    assert hand.ready == ["a-1"]


def test_a_timer_of_no_seconds_is_ready_when_the_wait_begins() -> None:
    assert waiting(any_of(timer(0, "t"))).results("a-1") == [("t", True)]


def test_a_timer_whose_wait_is_over_wakes_nobody() -> None:
    hand = waiting(any_of(timer(7, "t"), channel("c", "x")), 1)
    assert hand.run.next_wake() is None
    hand.advance(7)
    assert hand.ready == []
    assert hand.change.touched == {}


# --- phases -----------------------------------------------------------------------------------


def test_wait_for_without_a_condition_goes_on_to_execute_with_empty_results() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.waits("a-1")
    assert hand.ready == ["a-1"]
    assert hand.step("a-1").phase is Phase.EXECUTE
    assert hand.step("a-1").results == pb.ConditionResults()


def test_a_step_that_skips_wait_for_begins_with_execute_and_has_no_results() -> None:
    hand = RunByHand.with_steps(move("a"))
    assert hand.ready == ["a-1"]
    assert hand.step("a-1").phase is Phase.EXECUTE
    assert hand.step("a-1").results is None


def test_wait_for_and_execute_count_their_attempts_apart_and_keep_their_own_heartbeats() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.fails("a-1")
    hand.advance(1)
    execution = hand.hand_out("a-1")
    execution.heartbeat = pb.Value(int_value=1)
    execution.snapshot = 3
    assert execution.attempt == 2
    hand.waits("a-1")
    assert execution.attempt == 0
    assert [execution.heartbeat, execution.snapshot, execution.last_failure] == [None] * 3
    assert execution.first_attempt_at == 0.0


def test_the_locals_of_wait_for_are_there_for_execute() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.waits("a-1", any_of(timer(1)), upsert_step_exe_locals=locals_of({"x": 1}))
    hand.advance(1)
    assert [each.key for each in hand.step("a-1").step_locals] == ["x"]


def test_the_writes_of_wait_for_are_committed_with_it() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.waits("a-1", any_of(timer(1)), upsert_attributes=writes({"x": 1}))
    assert [write.key for write in hand.change.writes] == ["x"]


# --- messages ---------------------------------------------------------------------------------


def test_what_a_result_publishes_can_satisfy_its_own_wait() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False))
    hand.waits("a-1", any_of(channel("c", "x")), publish_to_channel=publish("c", 1))
    assert hand.results("a-1") == [("x", [1])]


def test_a_result_deletes_the_message_it_names_and_publishes_behind_the_others() -> None:
    hand = waiting(any_of(channel("never")), 1, 2, 3)
    message = hand.run.channels["c"][1]
    deletion = pb.ChannelMessageDeletion(channel_name="c", message_id=message.message_id)
    hand.rpc("swap", delete_from_channel=[deletion], publish_to_channel=publish("c", 4))
    assert hand.queued("c") == [1, 3, 4]
    assert hand.change.removed == [message]


def test_deleting_a_message_that_is_not_there_does_nothing() -> None:
    hand = waiting(any_of(channel("never")), 1)
    deletion = pb.ChannelMessageDeletion(channel_name="c", message_id="other")
    hand.rpc("drop", delete_from_channel=[deletion, deletion])
    assert hand.queued("c") == [1]
    assert hand.change.removed == []


def test_messages_keep_the_order_of_publication_and_get_ids_of_the_engine() -> None:
    hand = waiting(any_of(channel("never")))
    forged = pb.ChannelMessage(channel_name="c", message_id="forged", value=pb.Value(int_value=3))
    hand.rpc("send", publish_to_channel=[*publish("c", 1, 2), forged])
    assert hand.queued("c") == [1, 2, 3]
    ids = [message.message_id for message in hand.run.channels["c"]]
    assert len(set(ids)) == 3
    assert "forged" not in ids


def test_a_step_that_ends_satisfies_the_waits_of_others_with_what_it_published() -> None:
    hand = RunByHand.with_steps(move("a", skip_wait_for=False), move("b"))
    hand.waits("a-1", any_of(channel("c", "x")))
    hand.decides("b-1", dead_end(), publish_to_channel=publish("c", 1))
    assert hand.ready == ["a-1"]
    assert hand.results("a-1") == [("x", [1])]


# --- the matching algorithm against a model of its description ----------------------------------

_CHANNELS = "ab"
_KINDS = (
    pb.WAITING_CONDITION_TYPE_ALL_COMPLETED,
    pb.WAITING_CONDITION_TYPE_ANY_COMPLETED,
    pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED,
)


@st.composite
def waits_and_queues(draw: Any) -> tuple[pb.WaitingCondition, list[bool], dict[str, int]]:
    fired = draw(st.lists(st.booleans(), max_size=2))
    conditions: list[Any] = [timer(5, f"t{index}") for index in range(len(fired))]
    for index in range(draw(st.integers(0 if fired else 1, 3))):
        at_least = draw(st.sampled_from([None, 0, 1, 2, 3]))
        extra = draw(st.sampled_from([None, 0, 1, 2]))
        at_most = None if extra is None else (at_least or 0) + extra
        name = draw(st.sampled_from(_CHANNELS))
        conditions.append(channel(name, f"c{index}", at_least=at_least, at_most=at_most))
    kind = draw(st.sampled_from(_KINDS))
    ids = [each.condition_id for each in conditions]
    count = 3 if kind == pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED else 0
    some = st.lists(st.sampled_from(ids), min_size=1, max_size=4)
    combinations = draw(st.lists(some, min_size=min(1, count), max_size=count))
    condition = any_combination(conditions, *combinations)
    condition.waiting_condition_type = kind
    queues = {name: draw(st.integers(0, 5)) for name in _CHANNELS}
    return condition, fired, queues


def model(
    condition: pb.WaitingCondition, fired: list[bool], queues: dict[str, int]
) -> dict[str, list[int]] | None:
    """Return what each winning Channel condition takes, by trying every distribution there is."""
    timers = [each.condition_id for each in condition.timer_conditions]
    channels = [each.condition_id for each in condition.channel_conditions]
    kind = _KINDS.index(condition.waiting_condition_type)
    combined = [list(each.condition_ids) for each in condition.condition_combinations]
    every = [*timers, *channels]
    for candidate in ([every], [[each] for each in every], combined)[kind]:
        if all(fired[timers.index(each)] for each in candidate if each in timers):
            best = _best_distribution(condition, set(candidate), queues)
            if best is not None:
                return best
    return None


def _best_distribution(
    condition: pb.WaitingCondition, candidate: set[str], queues: dict[str, int]
) -> dict[str, list[int]] | None:
    chosen = [each for each in condition.channel_conditions if each.condition_id in candidate]
    ranges = []
    for each in chosen:
        least, most = each.at_least, each.at_most if each.HasField("at_most") else 99
        if not each.HasField("at_least") and not each.HasField("at_most"):
            least = most = 1
        ranges.append(range(least, min(most, queues[each.channel_name]) + 1))
    fitting = [
        counts
        for counts in itertools.product(*ranges)
        if all(
            sum(n for n, each in zip(counts, chosen, strict=True) if each.channel_name == name)
            <= size
            for name, size in queues.items()
        )
    ]
    if not fitting:
        return None
    heads = dict.fromkeys(queues, 0)
    taken = {}
    for count, each in zip(max(fitting), chosen, strict=True):
        head = heads[each.channel_name]
        taken[each.condition_id] = list(range(head, head + count))
        heads[each.channel_name] += count
    return taken


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(waits_and_queues())
def test_planning_a_wait_agrees_with_trying_every_distribution(
    case: tuple[pb.WaitingCondition, list[bool], dict[str, int]],
) -> None:
    condition, fired, queues = case
    run = Run(1, "run", "flow", "Flow", "r", "run", 1, 0.0, pb.StartFlowRequest(), pb.FlowConfig())
    for name, size in queues.items():
        run.channels[name] = [
            Message(position, name, str(position), pb.Value(int_value=position), 1)
            for position in range(size)
        ]
    execution = Execution(1, "a", 1, pb.StepMovement(), (1, 0), Phase.WAITING, condition=condition)
    execution.timers = [Timer(5.0, done) for done in fired]
    found = plan(run, execution)
    actual = None
    if found is not None:
        actual = {
            condition.channel_conditions[index].condition_id: [each.position for each in messages]
            for index, messages in found.taken.items()
        }
    assert actual == model(condition, fired, queues)
