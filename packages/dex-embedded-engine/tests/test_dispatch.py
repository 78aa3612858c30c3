"""Which Worker stream gets which task, and which waits: bookkeeping without tasks' contents."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from dex_embedded_engine.dispatch import Dispatcher, StreamPhase, Task, WorkerStream

LONG = 0.01  # longer than the time after which a task is known to be a long one
PAUSE = 0.03  # longer than a Worker is left alone to close a stream


@dataclass(eq=False)
class NamedTask(Task):
    name: str = ""


@dataclass
class Hall:
    """A dispatcher, the streams of some Workers, and a made-up clock."""

    now: float = 100.0
    acknowledged: list[int] = field(default_factory=list)
    streams: dict[int, WorkerStream] = field(default_factory=dict)
    handed_out: int = 0

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(lambda stream: self.acknowledged.append(stream.stream_id))

    def open(self, *numbers: int, worker: str = "w", queue: str = "Flow", types: str = "") -> None:
        for number in numbers:
            self.streams[number] = self.dispatcher.open_stream(
                number, queue, worker, (types or queue).split(), self.now
            )

    def queue(self, *names: str, **fields: object) -> list[NamedTask]:
        tasks = [NamedTask("Flow", 1, name=name) for name in names]
        for task in tasks:
            for key, value in fields.items():
                setattr(task, key, value)
            self.dispatcher.enqueue(task)
        return tasks

    def pair(self, seconds: float = 0.0) -> list[tuple[str, int]]:
        """Let time pass and hand out all that can be; return which task went to which stream."""
        self.now += seconds
        found = []
        for task, stream in self.dispatcher.pairs(self.now):
            assert isinstance(task, NamedTask)
            self.handed_out += 1
            self.dispatcher.hand_out(task, stream, f"task {self.handed_out}", self.now)
            found.append((task.name, stream.stream_id))
        return found

    def finish(self, number: int) -> None:
        self.dispatcher.finish(self.streams[number], self.now)

    def decline(self, number: int) -> None:
        task = self.dispatcher.decline(self.streams[number], self.now)
        assert task is not None
        self.dispatcher.requeue(task)


@pytest.fixture
def hall() -> Hall:
    return Hall()


# --- order ------------------------------------------------------------------------------------


def test_steps_go_out_in_the_order_in_which_they_were_queued(hall: Hall) -> None:
    hall.queue("a", "b", "c")
    hall.open(1)
    order = []
    for _ in range(3):
        order += hall.pair()
        hall.finish(1)
    assert order == [("a", 1), ("b", 1), ("c", 1)]


def test_an_rpc_goes_out_before_steps_that_were_queued_earlier(hall: Hall) -> None:
    hall.queue("step")
    hall.queue("rpc", is_rpc=True)
    hall.open(1)
    assert hall.pair() == [("rpc", 1)]


def test_a_task_that_was_not_taken_is_the_first_of_its_kind_again(hall: Hall) -> None:
    hall.queue("a", "b")
    hall.open(1)
    hall.pair()
    hall.decline(1)
    assert hall.pair(PAUSE) == [("a", 1)]


def test_a_stream_carries_one_task_at_a_time(hall: Hall) -> None:
    hall.queue("a", "b")
    hall.open(1)
    assert hall.pair() == [("a", 1)]
    assert hall.pair() == []
    hall.finish(1)
    assert hall.pair() == [("b", 1)]


def test_a_withdrawn_task_never_goes_out(hall: Hall) -> None:
    first, _ = hall.queue("a", "b")
    hall.dispatcher.withdraw(first)
    hall.dispatcher.withdraw(first)
    hall.open(1)
    assert hall.pair() == [("b", 1)]


# --- queues and Workers -------------------------------------------------------------------------


def test_a_stream_of_a_flow_type_takes_tasks_of_that_type_only(hall: Hall) -> None:
    hall.queue("a")
    hall.open(1, queue="Other", types="Other Flow")
    assert hall.pair() == []
    hall.open(2, queue="Flow", types="Other Flow")
    assert hall.pair() == [("a", 2)]


def test_a_stream_of_the_workers_own_queue_takes_tasks_of_all_its_types(hall: Hall) -> None:
    hall.queue("a")
    hall.queue("strange", flow_type="Strange")
    hall.open(1, queue="w", types="Flow Other")
    assert hall.pair() == [("a", 1)]
    assert hall.dispatcher.has_worker("Other")
    assert not hall.dispatcher.has_worker("Strange")


def test_of_two_idle_workers_the_one_that_served_the_run_last_is_preferred(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, worker="w")
    hall.queue("a", preferred_worker="w")
    assert hall.pair() == [("a", 2)]


def test_a_less_busy_worker_is_chosen_before_the_preferred_one(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, 3, worker="w")
    hall.queue("a", "b", preferred_worker="w")
    assert hall.pair() == [("a", 2), ("b", 1)]


def test_a_preferred_worker_that_is_gone_keeps_nobody_waiting(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.queue("a", preferred_worker="gone")
    assert hall.pair() == [("a", 1)]


# --- streams that are held ------------------------------------------------------------------------


def test_the_first_stream_of_each_queue_is_acknowledged_at_once_and_spares_are_not(
    hall: Hall,
) -> None:
    hall.open(1, 2)
    hall.open(3, 4, queue="w", types="Flow")
    assert hall.acknowledged == [1, 3]


def test_a_spare_stream_is_acknowledged_when_a_long_task_occupies_the_other(hall: Hall) -> None:
    hall.open(1, 2)
    hall.queue("long", "next")
    assert hall.pair() == [("long", 1)]
    assert hall.dispatcher.next_retry(hall.now) is not None
    assert hall.pair(LONG) == [("next", 2)]
    assert hall.acknowledged == [1, 2]


def test_a_spare_stream_stays_unused_while_short_tasks_come_and_go(hall: Hall) -> None:
    hall.open(1, 2)
    hall.queue("a", "b")
    assert hall.pair() == [("a", 1)]
    hall.finish(1)
    assert hall.pair() == [("b", 1)]
    assert hall.acknowledged == [1]


def test_a_spare_stream_is_acknowledged_when_its_queue_has_lost_the_other(hall: Hall) -> None:
    hall.open(1, 2)
    hall.dispatcher.close_stream(hall.streams[1])
    assert hall.acknowledged == [1, 2]
    hall.queue("a")
    assert hall.pair() == [("a", 2)]


def test_a_stream_that_the_worker_may_be_closing_is_left_alone_for_a_moment(hall: Hall) -> None:
    hall.open(1)
    hall.queue("a", "b")
    hall.pair()
    hall.open(2)
    assert hall.pair(LONG) == [("b", 2)]
    hall.finish(1)
    hall.pair(PAUSE)
    hall.finish(2)
    hall.queue("c", "d")
    assert hall.pair() == [("c", 1)]
    assert hall.pair(PAUSE) == [("d", 2)]


# --- Workers that decline or do not know --------------------------------------------------------


def test_a_worker_that_declined_is_left_alone_and_for_longer_each_time(hall: Hall) -> None:
    hall.open(1)
    hall.queue("a")
    pauses = []
    for _ in range(12):
        assert hall.pair() == [("a", 1)]
        hall.decline(1)
        assert hall.pair() == []
        retry = hall.dispatcher.next_retry(hall.now)
        assert retry is not None
        pauses.append(round(retry - hall.now, 6))
        hall.now = retry
    assert pauses[:4] == [0.005, 0.01, 0.02, 0.04]
    assert pauses[-3:] == [1.0, 1.0, 1.0]


def test_a_task_that_one_worker_declined_goes_to_another(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.queue("a")
    hall.pair()
    hall.open(2, worker="w")
    hall.decline(1)
    assert hall.pair() == [("a", 2)]


def test_a_worker_that_has_no_room_for_steps_is_still_asked_to_take_rpcs(hall: Hall) -> None:
    hall.open(1)
    hall.queue("step")
    hall.pair()
    hall.decline(1)
    hall.queue("rpc", is_rpc=True)
    assert hall.pair() == [("rpc", 1)]


def test_a_worker_that_ended_a_task_is_asked_again_at_once(hall: Hall) -> None:
    hall.open(1, queue="w", types="Flow")
    hall.open(2)
    hall.queue("a", "b")
    hall.pair()
    hall.pair(LONG)
    hall.decline(2)
    assert hall.pair() == []
    hall.finish(1)
    assert [name for name, _ in hall.pair()] == ["b"]


def test_a_task_is_not_offered_again_to_a_worker_that_does_not_know_its_name(hall: Hall) -> None:
    hall.open(1, worker="v")
    (task,) = hall.queue("a", excluded={"v"})
    assert hall.pair(1000) == []
    hall.open(2, worker="w")
    assert hall.pair() == [("a", 2)]
    assert task.excluded == {"v"}


def test_a_task_that_no_worker_knows_does_not_hold_up_those_behind_it(hall: Hall) -> None:
    hall.open(1)
    hall.queue("unknown", "other unknown", excluded={"w"})
    hall.queue("known")
    assert hall.pair() == [("known", 1)]
    hall.finish(1)
    hall.open(2, worker="v")
    assert hall.pair() == [("unknown", 2)]


def test_a_worker_that_left_and_came_back_is_asked_again_for_it_may_have_learnt(
    hall: Hall,
) -> None:
    hall.open(1)
    hall.queue("a", excluded={"w"})
    hall.dispatcher.close_stream(hall.streams[1])
    hall.open(2)
    assert hall.pair() == [("a", 2)]


# --- locks --------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_attempt_and_waited_for_in_order(hall: Hall) -> None:
    hall.open(1, worker="u")
    hall.open(2, worker="v")
    hall.open(3, worker="w")
    hall.queue("a", "b", "c", locks=("k",))
    hall.queue("free")
    assert hall.pair() == [("a", 1), ("free", 2)]
    assert hall.dispatcher.held_lock(1, ["j", "k"]) == "k"
    hall.finish(1)
    assert hall.pair() == [("b", 1)]
    hall.finish(1)
    assert hall.pair() == [("c", 1)]


def test_all_locks_of_a_task_are_taken_together_or_none(hall: Hall) -> None:
    for number in (1, 2, 3):
        hall.open(number, worker=f"w{number}")
    hall.queue("a", locks=("k",))
    hall.queue("both", locks=("j", "k"))
    hall.queue("c", locks=("j",))
    assert [name for name, _ in hall.pair()] == ["a", "c"]
    hall.finish(1)
    assert hall.pair() == []
    hall.finish(2)
    assert [name for name, _ in hall.pair()] == ["both"]


def test_locks_of_one_run_are_no_concern_of_another(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, worker="w")
    hall.queue("a", locks=("k",))
    hall.queue("b", locks=("k",), run_key=2)
    assert [name for name, _ in hall.pair()] == ["a", "b"]


@pytest.mark.parametrize("way", ["finish", "decline", "vanish", "give up"])
def test_locks_are_free_again_however_the_attempt_ends(hall: Hall, way: str) -> None:
    hall.open(1)
    (task,) = hall.queue("a", locks=("k",))
    hall.pair()
    if way == "finish":
        hall.finish(1)
    elif way == "decline":
        hall.decline(1)
    elif way == "vanish":
        hall.dispatcher.close_stream(hall.streams[1])
    else:
        hall.dispatcher.release_locks(task)
    assert hall.dispatcher.held_lock(1, ["k"]) is None


def test_a_step_that_waits_for_a_lock_takes_no_stream_from_others(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, worker="w")
    hall.queue("a", "waits", locks=("k",))
    hall.queue("b")
    assert hall.pair() == [("a", 1), ("b", 2)]


def test_giving_up_locks_does_not_take_those_of_a_later_holder(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, worker="w")
    first, _ = hall.queue("a", "b", locks=("k",))
    hall.pair()
    hall.dispatcher.release_locks(first)
    assert hall.pair() == [("b", 2)]
    hall.finish(1)
    assert hall.dispatcher.held_lock(1, ["k"]) == "k"


def test_a_withdrawn_task_that_waited_for_a_lock_never_goes_out(hall: Hall) -> None:
    hall.open(1, worker="v")
    hall.open(2, worker="w")
    _, second = hall.queue("a", "b", locks=("k",))
    hall.pair()
    hall.dispatcher.withdraw(second)
    hall.finish(1)
    assert hall.pair() == []


# --- streams that vanish --------------------------------------------------------------------------


def test_a_stream_that_vanishes_gives_back_its_task(hall: Hall) -> None:
    hall.open(1)
    (task,) = hall.queue("a")
    hall.pair()
    assert hall.dispatcher.tasks_out() == [task]
    assert hall.dispatcher.close_stream(hall.streams[1]) is task
    assert hall.dispatcher.tasks_out() == []
    assert (task.task_id, task.stream) == (None, None)
    assert hall.streams[1].phase is StreamPhase.GONE


def test_a_worker_is_gone_with_its_last_stream(hall: Hall) -> None:
    hall.open(1, 2)
    hall.dispatcher.close_stream(hall.streams[1])
    assert hall.dispatcher.has_worker("Flow")
    hall.dispatcher.close_stream(hall.streams[2])
    assert not hall.dispatcher.has_worker("Flow")


def test_a_worker_in_doubt_gets_nothing_until_it_shows_that_it_lives(hall: Hall) -> None:
    hall.open(1, 2)
    hall.queue("a")
    doubted = hall.dispatcher.doubt(hall.streams[1].worker)
    assert [stream.stream_id for stream in doubted] == [1, 2]
    assert hall.acknowledged == [1, 2]
    assert hall.pair(1000) == []
    hall.dispatcher.trust(hall.streams[2])
    assert hall.pair() == [("a", 2)]
    assert hall.streams[1].usable_at == math.inf


# --- when to try again --------------------------------------------------------------------------


def test_nobody_has_to_be_asked_again_while_nothing_is_queued(hall: Hall) -> None:
    hall.open(1)
    hall.queue("a")
    hall.pair()
    hall.dispatcher.decline(hall.streams[1], hall.now)
    assert hall.dispatcher.next_retry(hall.now) is None
    assert not hall.dispatcher.may_hand_out(hall.now, hall.now + 1000)


def test_a_task_may_go_out_when_a_pause_has_ended_and_not_before(hall: Hall) -> None:
    hall.open(1)
    hall.queue("a")
    hall.pair()
    hall.decline(1)
    retry = hall.dispatcher.next_retry(hall.now)
    assert retry is not None
    assert not hall.dispatcher.may_hand_out(hall.now, retry - 0.001)
    assert hall.dispatcher.may_hand_out(hall.now, retry)


def test_a_task_may_go_out_at_any_time_while_a_worker_is_in_doubt(hall: Hall) -> None:
    hall.open(1)
    hall.queue("a")
    hall.dispatcher.doubt(hall.streams[1].worker)
    assert hall.dispatcher.next_retry(hall.now) is None
    assert hall.dispatcher.may_hand_out(hall.now, hall.now)
