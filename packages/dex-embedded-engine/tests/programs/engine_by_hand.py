"""Owns a run that a test drives by hand: made-up clock and ids, no storage, no Workers."""

from __future__ import annotations

import itertools
from typing import Any

from dex.dexpb import dex_pb2 as pb
from engine_messages import from_value, go_to, move, to_value

from dex_embedded_engine.runs import Execution, Run, Standing
from dex_embedded_engine.settings import EngineSettings
from dex_embedded_engine.transitions.change import Change
from dex_embedded_engine.transitions.closing import stop
from dex_embedded_engine.transitions.failures import Failure, fail_attempt
from dex_embedded_engine.transitions.results import accept_execute, accept_wait_for, apply_rpc
from dex_embedded_engine.transitions.starts import begin
from dex_embedded_engine.transitions.wakes import fire_due

BOOM = Failure("boom", "tests.BoomError")
NOON = 1_000_000.0


class RunByHand:
    """A run and the last change to it.

    Args:
        movement: the starting Step; None starts without one.
        options: fields of the start request.
    """

    def __init__(self, movement: pb.StepMovement | None = None, **options: Any) -> None:
        self.now = NOON
        self.settings = EngineSettings()
        self._ids = (f"id{number}" for number in itertools.count(1))
        request = pb.StartFlowRequest(flow_id="flow", flow_type="Flow", request_id="r", **options)
        if movement is not None:
            request.start_step_type = movement.step_type
            request.step_input.CopyFrom(movement.step_input)
            request.step_options.CopyFrom(movement.step_options)
        self.run = Run(
            key=1,
            run_id="run",
            flow_id="flow",
            flow_type="Flow",
            request_id="r",
            first_run_id="run",
            run_attempt=1,
            started_at=self.now,
            start=request,
            config=pb.FlowConfig(),
        )
        self.events: list[pb.FlowHistoryEvent] = []
        self.change = self._begin()
        begin(self.change)
        self._end()

    @classmethod
    def with_steps(cls, *movements: pb.StepMovement, **options: Any) -> RunByHand:
        """Start a run whose first Step, ``root-1``, has started these."""
        hand = cls(move("root"), **options)
        hand.decides("root-1", go_to(*movements))
        return hand

    @property
    def ids(self) -> list[str]:
        """The executions that are not finished, oldest first."""
        return [each.id for _, each in sorted(self.run.executions.items())]

    @property
    def ready(self) -> list[str]:
        """What the last change made ready, in order."""
        return [each.id for each in self.change.ready]

    @property
    def outputs(self) -> list[tuple[str, Any]]:
        """The outputs so far, with the execution each came from."""
        return [
            (each.completed_step_execution_id, from_value(each.completed_step_output))
            for each in self.run.outputs
        ]

    @property
    def ending(self) -> tuple[str, str, str]:
        """Status, error type and error message of the run."""
        return (
            pb.FlowStatus.Name(self.run.status).removeprefix("FLOW_STATUS_"),
            pb.FlowErrorType.Name(self.run.error_type).removeprefix("FLOW_ERROR_TYPE_"),
            self.run.error_message,
        )

    def step(self, step_id: str) -> Execution:
        """Return an unfinished execution."""
        (found,) = [each for each in self.run.executions.values() if each.id == step_id]
        return found

    def queued(self, channel: str) -> list[Any]:
        """Return the messages of a Channel."""
        return [from_value(message.value) for message in self.run.channels.get(channel, [])]

    def hand_out(self, step_id: str) -> Execution:
        """Do to the execution what the kernel does when a Worker takes it."""
        execution = self.step(step_id)
        assert execution.standing is Standing.QUEUED, (step_id, execution.standing)
        if execution.attempt == 0:
            execution.first_attempt_at = self.now
        else:
            execution.queued_for += self.now - execution.ready_at
        execution.attempt += 1
        execution.ready_at = self.now
        execution.standing = Standing.RUNNING
        execution.task_id = f"task of {step_id}, attempt {execution.attempt}"
        return execution

    def waits(
        self, step_id: str, condition: pb.WaitingCondition | None = None, **effects: Any
    ) -> None:
        """Take a wait_for result, after a hand-out if there was none."""
        result = pb.InvokeWaitForMethodResponse(waiting_condition=condition, **effects)
        self.change = self._begin()
        accept_wait_for(self.change, self._out(step_id), result)
        self._end()

    def decides(self, step_id: str, decision: pb.StepDecision, **effects: Any) -> None:
        """Take an execute result, after a hand-out if there was none."""
        result = pb.InvokeExecuteMethodResponse(step_decision=decision, **effects)
        self.change = self._begin()
        accept_execute(self.change, self._out(step_id), result)
        self._end()

    def fails(self, step_id: str, failure: Failure = BOOM) -> None:
        """Take a failure of the attempt, after a hand-out if there was none."""
        self.change = self._begin()
        fail_attempt(self.change, self._out(step_id), failure, self.settings)
        self._end()

    def rpc(self, name: str, decision: pb.StepDecision | None = None, **effects: Any) -> None:
        """Take an RPC result."""
        result = pb.InvokeWorkerRPCResponse(
            output=to_value(None), step_decision=decision, **effects
        )
        self.change = self._begin()
        apply_rpc(self.change, name, to_value(None), result, "worker")
        self._end()

    def stop(self, stop_type: pb.StopType, reason: str) -> None:
        """Stop the run."""
        self.change = self._begin()
        stop(self.change, stop_type, reason)
        self._end()

    def advance(self, seconds: float) -> None:
        """Let time pass and apply what is due."""
        self.now += seconds
        self.change = self._begin()
        fire_due(self.change)
        self._end()

    def results(self, step_id: str) -> list[tuple[str, Any]]:
        """Return the (condition id, outcome) that execute gets: True, False, or what it took."""
        found = self.step(step_id).results
        assert found is not None
        done = pb.CONDITION_STATUS_COMPLETED
        timers = [
            (each.condition_id, each.condition_status == done) for each in found.timer_results
        ]
        channels = [
            (
                each.condition_id or each.channel_name,
                [from_value(value) for value in each.values]
                if each.condition_status == done
                else False,
            )
            for each in found.channel_results
        ]
        return [*timers, *channels]

    def _out(self, step_id: str) -> Execution:
        execution = self.step(step_id)
        if execution.standing is not Standing.RUNNING:
            self.hand_out(step_id)
        execution.task_id = None
        return execution

    def _begin(self) -> Change:
        return Change(self.run, self.now, lambda: next(self._ids))

    def _end(self) -> None:
        self.events.extend(event for _, event, _ in self.change.events)
