"""Owns the Flows of the simulation that are about how Steps and Flows end.

Among them: failures and what follows, cancellations, closing decisions, timers and timeouts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

from dex.dexpb import dex_pb2 as pb
from engine_messages import (
    all_of,
    any_combination,
    any_of,
    channel,
    dead_end,
    force_complete,
    force_fail,
    from_value,
    go_to,
    graceful,
    move,
    publish,
    timer,
    to_value,
    writes,
)
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
_TIMEOUT_POLICIES = (
    pb.FLOW_TIMEOUT_POLICY_UNSPECIFIED,
    pb.FLOW_TIMEOUT_POLICY_FAIL,
    pb.FLOW_TIMEOUT_POLICY_CANCEL,
    pb.FLOW_TIMEOUT_POLICY_HANDLER,
)


class Trial(Script):
    """Fails often, with few attempts: in wait_for or execute, with or without a way on."""

    name = "Trial"
    error_rate = 0.5
    limits: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        limit = pb.RetryPolicy(
            maximum_attempts=rng.choice(self.limits),
            initial_interval_seconds=rng.randrange(3),
            maximum_interval_seconds=rng.randrange(4),
            backoff_coefficient=rng.choice([0.0, 1.0, 3.0]),
        )
        proceeds = rng.random() < 0.6
        options: dict[str, Any] = {"execute_retry_policy": limit, "wait_for_retry_policy": limit}
        if proceeds:
            options.update(
                wait_for_failure_policy=pb.WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE,
                execute_failure_policy=(
                    pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
                ),
                execute_failure_proceed_step_type="recover",
                execute_failure_proceed_step_options=pb.StepOptions(skip_wait_for=True),
            )
        return start_with(move("attempt", "try", skip_wait_for=rng.random() < 0.5, **options))

    def wait_attempt(self, call: HandlerCall) -> WaitResult:
        return waits(None)

    def do_attempt(self, call: HandlerCall) -> StepResult:
        assert bool(call.recovery) == call.results.wait_for_failed
        return decides(graceful("waited in vain" if call.recovery else "done"))

    def do_recover(self, call: HandlerCall) -> StepResult:
        assert (call.input, bool(call.recovery)) == ("try", True)
        return decides(graceful("recovered"))

    def check_always(self, record: Record) -> None:
        limit = record.run.start.step_options.execute_retry_policy.maximum_attempts
        for kind in ("step_execute_failed", "step_wait_for_failed"):
            for _, event in record.of_kind(kind):
                failure = event.output.failure
                assert failure.attempt == event.context.final_attempt
                invalid = failure.details.original_worker_error_type == "InvalidWorkerResult"
                assert invalid or event.context.final_attempt == limit

    def check(self, record: Record) -> None:
        failed = record.finished("attempt", "step_execute_failed")
        waited = record.finished("attempt", "step_wait_for_failed")
        if record.run.status == pb.FLOW_STATUS_FAILED:
            gave_up = record.finished("recover", "step_execute_failed")
            assert gave_up or failed + waited == 1
            assert record.run.error_type == pb.FLOW_ERROR_TYPE_WORKER_API_FAIL
            return
        wanted = "recovered" if failed else "waited in vain" if waited else "done"
        assert record.output() == wanted


class Purge(Script):
    """A Step cancels others, by type or among its siblings only, wherever they are by then."""

    name = "Purge"

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        step = {
            "victims": [rng.choice(["run", "wait", "nap"]) for _ in range(rng.randrange(1, 4))],
            "delay": rng.randrange(3),
            "siblings": rng.random() < 0.5,
        }
        return start_with(move("root", step))

    def do_root(self, call: HandlerCall) -> StepResult:
        victims = [self._victim(kind) for kind in call.input["victims"]]
        killer = move("kill", call.input, skip_wait_for=False)
        nest = [move("nest")] if call.input["siblings"] else []
        return decides(go_to(*victims, killer, *nest))

    def do_nest(self, call: HandlerCall) -> StepResult:
        return decides(go_to(self._victim("nap"), self._victim("run")))

    def wait_victim(self, call: HandlerCall) -> WaitResult:
        return waits(any_of(channel("never")) if call.input == "wait" else any_of(timer(2)))

    def do_victim(self, call: HandlerCall) -> StepResult:
        return decides(graceful(), upsert_attributes=writes({f"lived/{call.execution_id}": 1}))

    def wait_kill(self, call: HandlerCall) -> WaitResult:
        return waits(any_of(timer(call.input["delay"])))

    def do_kill(self, call: HandlerCall) -> StepResult:
        decision = graceful("killed")
        siblings = call.input["siblings"]
        (decision.cancel_sibling_step_types if siblings else decision.cancel_step_types).append(
            "victim"
        )
        return decides(decision)

    def check(self, record: Record) -> None:
        outputs = [from_value(each.completed_step_output) for each in record.run.outputs]
        assert outputs == ["killed"]
        siblings = from_value(record.run.start.step_input)["siblings"]
        events = [event for _, event in record.of_kind("step_execute_completed")]
        nest = {e.context.step_execution_id for e in events if e.context.step_type == "nest"}
        killed = False
        for _, kind, event in record.events:
            if not kind.startswith("step_") or event.context.step_type not in ("kill", "victim"):
                continue
            spared = siblings and event.context.from_step_execution_id in nest
            assert not killed or spared, "a cancelled Step had an effect"
            killed = killed or (event.context.step_type == "kill" and "execute" in kind)
        lived = sum(
            event.context.from_step_execution_id in nest
            for event in events
            if event.context.step_type == "victim"
        )
        assert lived == 2 * siblings

    @staticmethod
    def _victim(kind: str) -> pb.StepMovement:
        return move("victim", kind, skip_wait_for=kind == "run")


class Bouquet(Script):
    """Several branches complete gracefully, or one of them ends the Flow for all."""

    name = "Bouquet"

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        step = {
            "leaves": [rng.randrange(4) for _ in range(rng.randrange(1, 5))],
            "end": rng.choice(["", "", "complete", "fail"]),
        }
        return start_with(move("root", step))

    def do_root(self, call: HandlerCall) -> StepResult:
        leaves = [
            move("leaf", [index, seconds], skip_wait_for=not seconds)
            for index, seconds in enumerate(call.input["leaves"])
        ]
        end = call.input["end"]
        ends = [move("end", end, skip_wait_for=False)] if end else []
        return decides(go_to(*leaves, move("silent"), *ends))

    def do_silent(self, call: HandlerCall) -> StepResult:
        return decides(dead_end())

    def wait_leaf(self, call: HandlerCall) -> WaitResult:
        return waits(any_of(timer(call.input[1]), channel("never")))

    def do_leaf(self, call: HandlerCall) -> StepResult:
        return decides(graceful([call.input[0], _PADDING]))

    def wait_end(self, call: HandlerCall) -> WaitResult:
        return waits(any_of(timer(2)))

    def do_end(self, call: HandlerCall) -> StepResult:
        failing = call.input == "fail"
        return decides(force_fail(_PADDING) if failing else force_complete(["end", _PADDING]))

    def check(self, record: Record) -> None:
        step = from_value(record.run.start.step_input)
        outputs = [from_value(each.completed_step_output)[0] for each in record.run.outputs]
        done = [
            event.context.step_execution_id
            for _, event in record.of_kind("step_execute_completed")
            if event.context.step_type == "leaf"
        ]
        if step["end"] == "fail":
            assert record.run.error_type == pb.FLOW_ERROR_TYPE_STEP_DECISION_FAILING_FLOW
            assert record.run.error_message == _PADDING
        elif step["end"] == "complete":
            assert outputs.pop() == "end"
        else:
            assert sorted(outputs) == list(range(len(step["leaves"])))
        assert [each.completed_step_execution_id for each in record.run.outputs][
            : len(done)
        ] == done


class Nap(Script):
    """Waits on timers and Channels in all combinations, some under a Flow timeout."""

    name = "Nap"
    rpcs: ClassVar[dict[str, Rpc]] = {"poke": Rpc()}
    conditions: ClassVar[dict[str, Callable[[], pb.WaitingCondition]]] = {
        "any": lambda: any_of(timer(3, "t"), channel("poke", "p")),
        "all": lambda: all_of(timer(1, "t"), timer(3, "u")),
        "combined": lambda: any_combination(
            [timer(4, "t"), channel("poke", "p"), channel("poke", "q", at_least=0, at_most=2)],
            ["p", "q"],
            ["t", "q"],
        ),
        "never": lambda: all_of(channel("never", "n")),
    }

    def start(self, rng: random.Random) -> pb.StartFlowRequest:
        kind = rng.choice(list(self.conditions))
        request = start_with(move("nap", kind, skip_wait_for=False))
        request.flow_start_options.flow_start_delay_seconds = rng.choice([0, 0, 2])
        if kind == "never" or rng.random() < 0.4:
            request.flow_timeout_seconds = rng.randrange(1, 12)
            request.flow_timeout_policy = rng.choice(_TIMEOUT_POLICIES)
        return request

    def wait_nap(self, call: HandlerCall) -> WaitResult:
        return waits(self.conditions[call.input]())

    def do_nap(self, call: HandlerCall) -> StepResult:
        return decides(force_complete(call.completed()))

    def do_timeout(self, call: HandlerCall) -> StepResult:
        return decides(force_complete("late"))

    def rpc_poke(self, call: HandlerCall) -> RpcResult:
        return RpcResult(
            output=to_value(None),
            publish_to_channel=publish("poke", call.input),
            upsert_attributes=writes({f"rpc/{call.input}": 1}),
        )

    def check(self, record: Record) -> None:
        run, request = record.run, record.run.start
        if run.status == pb.FLOW_STATUS_COMPLETED and record.output() != "late":
            kind = from_value(request.step_input)
            done = set(record.output())
            assert done >= {"any": set(), "all": {"t", "u"}, "combined": {"q"}}[kind]
            assert done or kind != "any"
            if kind != "combined" and "p" not in done:
                ((entered, _),) = record.of_kind("step_wait_for_completed")
                self._check_duration(record, entered, 3)
            return
        self._check_duration(record, run.started_at, request.flow_timeout_seconds)
        policy = request.flow_timeout_policy
        if policy == pb.FLOW_TIMEOUT_POLICY_HANDLER:
            assert record.output() == "late"
        elif policy == pb.FLOW_TIMEOUT_POLICY_CANCEL:
            assert run.status == pb.FLOW_STATUS_CANCELED
        else:
            assert (run.status, run.error_message) == (
                pb.FLOW_STATUS_FAILED,
                f"Flow timed out after {request.flow_timeout_seconds} seconds",
            )

    @staticmethod
    def _check_duration(record: Record, since: float, seconds: int) -> None:
        """The run took that long, unless the clock was set back meanwhile."""
        assert seconds > 0
        assert not record.is_clock_steady or record.events[-1][0] >= since + seconds
