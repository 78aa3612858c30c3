"""Owns the Flows of the simulation; each says what must be true of a run of it in the end.

Here are those that pass state along: by input, Attributes, Channels and locks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from dex.dexpb import dex_pb2 as pb
from engine_messages import (
    all_of,
    any_combination,
    any_of,
    channel,
    complete_if_empty,
    dead_end,
    force_complete,
    from_value,
    go_to,
    graceful,
    locals_of,
    move,
    publish,
    timer,
    to_value,
    writes,
)
from engine_simulation_endings import Bouquet, Nap, Purge, Trial
from engine_simulation_scripts import (
    HandlerCall,
    Record,
    Rpc,
    RpcResult,
    Script,
    StepResult,
    WaitResult,
    decides,
    start_with,
    waits,
)

_PADDING = "padding " * 30


class Chain(Script):
    """Counts down, one Step after the other; the sum must come out and no Step count twice."""

    name = "Chain"

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        step = {"left": rng.randrange(5), "sum": 0, "padding": rng.choice(["", _PADDING])}
        return start_with(move("count", step, skip_wait_for=False), steps=0)

    def wait_count(self, call: HandlerCall) -> WaitResult:
        left = call.input["left"]
        condition = any_of(timer(left % 3)) if left % 2 else None
        return waits(
            condition,
            upsert_step_exe_locals=locals_of({"left": left, "padding": call.input["padding"]}),
            upsert_attributes=writes({f"waited/{call.execution_id}": left}),
        )

    def do_count(self, call: HandlerCall) -> StepResult:
        step = dict(call.input)
        left = step["left"]
        assert call.step_locals == {"left": left, "padding": step["padding"]}
        secret = pb.AttributeWrite(
            key="secret", value=to_value("hush" if left == 2 else None), is_hard_delete_on_null=True
        )
        done = [*writes({"steps": call.attributes["steps"] + 1}), secret]
        if not left:
            return decides(force_complete(step["sum"]), upsert_attributes=done)
        step.update(left=left - 1, sum=step["sum"] + left)
        return decides(go_to(move("count", step, skip_wait_for=False)), upsert_attributes=done)

    def check(self, record: Record) -> None:
        left = from_value(record.run.start.step_input)["left"]
        assert record.output() == sum(range(left + 1))
        assert record.attributes["steps"] == left + 1
        assert not record.is_only_run or "secret" not in record.attributes
        assert record.finished("count") == left + 1


class Fan(Script):
    """Starts branches that publish, and joins them on a Channel."""

    name = "Fan"

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        return start_with(move("root", [rng.randrange(4) for _ in range(rng.randrange(1, 5))]))

    def do_root(self, call: HandlerCall) -> StepResult:
        branches = [
            move("branch", [index, seconds], skip_wait_for=not seconds)
            for index, seconds in enumerate(call.input)
        ]
        join = move(
            "join",
            len(branches),
            skip_wait_for=False,
            execute_load_attribute_map_instances=["branch/"],
        )
        return decides(go_to(*branches, join))

    def wait_branch(self, call: HandlerCall) -> WaitResult:
        return waits(all_of(timer(call.input[1]), timer(0)))

    def do_branch(self, call: HandlerCall) -> StepResult:
        index = call.input[0]
        return decides(
            dead_end(),
            publish_to_channel=publish("joined", index),
            upsert_attributes=writes({f"branch/{index}": _PADDING}),
        )

    def wait_join(self, call: HandlerCall) -> WaitResult:
        return waits(all_of(channel("joined", at_least=call.input, at_most=call.input)))

    def do_join(self, call: HandlerCall) -> StepResult:
        loaded = {key for key in call.attributes if key.startswith("branch/")}
        assert loaded == {f"branch/{index}" for index in range(call.input)}, loaded
        return decides(force_complete(sorted(call.consumed("joined"))))

    def check(self, record: Record) -> None:
        count = len(from_value(record.run.start.step_input))
        assert record.output() == list(range(count))


class Inbox(Script):
    """Readers share a Channel until it is closed and empty; every message is read exactly once."""

    name = "Inbox"
    rpcs: ClassVar[dict[str, Rpc]] = {
        "send": Rpc(),
        "close": Rpc(),
        "take_back": Rpc(is_transactional=True, load_channels=("inbox",)),
    }
    finishers = ("close",)

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        step = {
            "readers": rng.randrange(1, 3),
            "most": rng.randrange(1, 4),
            "is_slow": rng.random() < 0.5,
            "closing": False,
        }
        return start_with(move("root", step))

    def do_root(self, call: HandlerCall) -> StepResult:
        reader = move("read", call.input, skip_wait_for=False)
        return decides(go_to(*[reader] * call.input["readers"]))

    def wait_read(self, call: HandlerCall) -> WaitResult:
        inbox = channel("inbox", "inbox", at_least=1, at_most=call.input["most"])
        if call.input["closing"]:
            return waits(any_of(timer(1), inbox))
        close = channel("close", "close")
        if call.input["is_slow"]:
            ways = (["pause", "inbox"], ["pause", "close"])
            return waits(any_combination([timer(2, "pause"), inbox, close], *ways))
        return waits(any_of(inbox, close))

    def do_read(self, call: HandlerCall) -> StepResult:
        step = dict(call.input)
        step["closing"] = step["closing"] or bool(call.consumed("close"))
        seen = call.consumed("inbox")
        again = move("read", step, skip_wait_for=False)
        return decides(
            complete_if_empty(["inbox"], "closed", again) if step["closing"] else go_to(again),
            upsert_attributes=writes({f"seen/{call.execution_id}": seen} if seen else {}),
        )

    def rpc_send(self, call: HandlerCall) -> RpcResult:
        return RpcResult(
            output=to_value(None),
            publish_to_channel=publish("inbox", call.input),
            upsert_attributes=writes({f"rpc/{call.input}": 1}),
        )

    def rpc_close(self, call: HandlerCall) -> RpcResult:
        return RpcResult(
            output=to_value(None),
            publish_to_channel=publish("close", call.input),
            upsert_attributes=writes({f"rpc/{call.input}": 1}),
        )

    def rpc_take_back(self, call: HandlerCall) -> RpcResult:
        pending = call.messages.get("inbox", [])
        if not pending:
            return RpcResult(output=to_value(None))
        message_id, content = pending[-1]
        return RpcResult(
            output=to_value(content),
            delete_from_channel=[
                pb.ChannelMessageDeletion(channel_name="inbox", message_id=message_id)
            ],
            upsert_attributes=writes({f"back/{content}": 1, f"rpc/{call.input}": 1}),
        )

    def check(self, record: Record) -> None:
        assert not record.run.channels.get("inbox")
        self.check_always(record)
        seen = record.entries("seen/read-")
        read = [each for number in sorted(seen, key=int) for each in seen[number]]
        kept = [each for each in record.published("inbox") if each not in record.entries("back/")]
        if from_value(record.run.start.step_input)["readers"] == 1:
            assert read == kept, (read, kept)
        assert Counter(read) == Counter(kept), (read, kept)

    def check_always(self, record: Record) -> None:
        deleted = Counter(
            deletion.message_id
            for _, event in record.of_kind("rpc_execution_completed")
            for deletion in event.delete_from_channel
        )
        assert set(deleted.values()) <= {1}, "a message was taken back twice"
        seen = [each for part in record.entries("seen/").values() for each in part]
        back = list(record.entries("back/"))
        left = [from_value(message.value) for message in record.run.channels.get("inbox", [])]
        handled = Counter([*seen, *back, *left])
        assert not handled - Counter(record.published("inbox")), "a message was handled twice"


class Desk(Script):
    """RPCs and Steps increment Attributes under locks; no increment may get lost."""

    name = "Desk"
    rpcs: ClassVar[dict[str, Rpc]] = {
        "add": Rpc(locks=("total",)),
        "shift": Rpc(locks=("left", "right"), is_transactional=True),
        "note": Rpc(),
        "look": Rpc(),
        "spawn": Rpc(),
    }
    finishers = ("finish",)

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        return start_with(None, total=0, left=0, right=0, padding=_PADDING)

    def rpc_add(self, call: HandlerCall) -> RpcResult:
        total = call.attributes["total"] + 1
        odd = f"odd {total}" if total % 2 else None
        return self._answer(call, {"total": total, "odd": odd}, total)

    def rpc_shift(self, call: HandlerCall) -> RpcResult:
        return self._answer(call, self._shifted(call, 1))

    def rpc_note(self, call: HandlerCall) -> RpcResult:
        return self._answer(call, {}, published=publish("notes", call.input))

    def rpc_look(self, call: HandlerCall) -> RpcResult:
        return RpcResult(output=to_value(call.attributes["padding"]))

    def rpc_spawn(self, call: HandlerCall) -> RpcResult:
        number = int(call.input.rpartition("-")[2])
        kinds = ("bump", "slow_bump", "shift", "bump", "slow_bump")[number % 3 :]
        steps = [self._locked(kind) for kind in kinds[: 1 + number % 2 + number % 3]]
        glance = move("glance", skip_wait_for=True, execute_load_attribute_map_instances=["rpc/"])
        return self._answer(call, {}, decision=go_to(*steps, glance))

    def rpc_finish(self, call: HandlerCall) -> RpcResult:
        return self._answer(call, {}, decision=go_to(move("finish")))

    def do_bump(self, call: HandlerCall) -> StepResult:
        total = call.attributes["total"] + 1
        return decides(dead_end(), upsert_attributes=writes({"total": total}))

    def wait_slow_bump(self, call: HandlerCall) -> WaitResult:
        total = call.attributes["total"] + 1
        return waits(any_of(timer(2)), upsert_attributes=writes({"total": total}))

    do_slow_bump = do_bump

    def do_shift(self, call: HandlerCall) -> StepResult:
        return decides(dead_end(), upsert_attributes=writes(self._shifted(call, 5)))

    def do_glance(self, call: HandlerCall) -> StepResult:
        return decides(dead_end())

    def do_finish(self, call: HandlerCall) -> StepResult:
        return decides(graceful())

    def check_always(self, record: Record) -> None:
        bumps = record.finished("bump") + record.finished("slow_bump")
        waits = record.finished("slow_bump", "step_wait_for_completed")
        assert record.attributes["total"] == record.rpcs("add") + bumps + waits
        moved = record.rpcs("shift") + 5 * record.finished("shift")
        assert (record.attributes["left"], record.attributes["right"]) == (moved, -moved)

    @staticmethod
    def _locked(kind: str) -> pb.StepMovement:
        keys = ["right", "left"] if kind == "shift" else ["total"]
        return move(
            kind,
            skip_wait_for=kind != "slow_bump",
            wait_for_lock_attribute_keys=keys,
            execute_lock_attribute_keys=keys,
        )

    @staticmethod
    def _shifted(call: HandlerCall, by: int) -> dict[str, object]:
        left, right = call.attributes["left"], call.attributes["right"]
        assert left + right == 0, (left, right)
        return {"left": left + by, "right": right - by}

    @staticmethod
    def _answer(
        call: HandlerCall,
        attributes: dict[str, object],
        output: object = None,
        *,
        published: Iterable[pb.ChannelMessage] = (),
        decision: pb.StepDecision | None = None,
    ) -> RpcResult:
        return RpcResult(
            output=to_value(output),
            upsert_attributes=writes({**attributes, f"rpc/{call.input}": 1}),
            publish_to_channel=published,
            step_decision=decision,
        )


SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (Chain(), Fan(), Inbox(), Desk(), Trial(), Purge(), Bouquet(), Nap())
}
