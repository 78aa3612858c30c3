"""The options of every movement a session can make."""

from __future__ import annotations

import ast
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import StepMovement, StepOptions, WaitForFailurePolicy

import dex_agents
from dex_agents import SessionSettings, StoredRecord, ToolEffect
from dex_agents.movements import SessionMovements
from dex_agents.runtime import SessionRuntime
from dex_agents.session_header import CallSummary, TurnPosition
from dex_agents.session_schema import SessionSchema
from dex_agents.steps.call_tool import CallSingleAttemptTool, CallTool, RecoverToolCall
from dex_agents.steps.run_model import RecoverModelCall, RunModel
from dex_agents.tool_calls import ToolCallRecord

SOURCE = Path(dex_agents.__file__).parent
POSITION = TurnPosition(
    turn_number=2,
    message_count=3,
    message_bytes=100,
    queue_head=0,
    round=2,
    calls=("c",),
    done=(CallSummary("c", "look", "completed", "x", 2, 100),),
    run_state_parts=2,
)


def call(effect: ToolEffect, timeout: float | None = None) -> ToolCallRecord:
    return ToolCallRecord("c", "tool", {}, effect, "turn-2", 1, 0, 1, timeout=timeout)


def every_movement() -> dict[str, StepMovement[StoredRecord]]:
    """Make every movement, by its method, once for each effect."""
    runtime = SessionRuntime(SessionSchema(), SessionSettings())
    movements = SessionMovements(runtime)
    made = {
        "start_session": movements.start_session(StoredRecord("x", "{}")),
        "run_model": movements.run_model(POSITION),
        "resume_turn": movements.resume_turn(POSITION),
        "finish_turn": movements.finish_turn(POSITION),
        "announce_queued": movements.announce_queued("m"),
    }
    for effect in ToolEffect:
        made[f"call_tool {effect}"] = movements.call_tool(call(effect))
        made[f"await_approval {effect}"] = movements.await_approval(call(effect))
        made[f"announce {effect}"] = movements.announce(call(effect))
    return made


def option(options: StepOptions | None, name: str) -> Any:
    assert options is not None
    return {each.name: getattr(options, each.name) for each in fields(options)}[name]


MOVEMENTS = every_movement()
LOCKED = {"start_session", "finish_turn", "await_approval"}


def test_table_holds_every_movement_there_is() -> None:
    methods = {name for name in vars(SessionMovements) if not name.startswith("_")}
    assert methods - {"locked_options"} == {name.split()[0] for name in MOVEMENTS}
    makers = {
        file.name
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("StepMovement")
    }
    assert makers == {"movements.py"}
    movers = {
        file.name for file in SOURCE.rglob("*.py") if "go_to(" in file.read_text(encoding="utf-8")
    }
    assert movers == set()


def test_calls_of_single_attempt_effects_have_one_attempt_and_a_recovery() -> None:
    found = 0
    for name, movement in MOVEMENTS.items():
        if movement.step is not CallSingleAttemptTool:
            continue
        found += 1
        assert option(movement.options, "execute_retry").maximum_attempts == 1, name
        assert option(movement.options, "_execute_failure_target") is RecoverToolCall, name
    assert found == 2


def test_effect_chooses_the_step() -> None:
    steps = {effect: MOVEMENTS[f"call_tool {effect}"].step for effect in ToolEffect}
    assert steps == {
        ToolEffect.READ: CallTool,
        ToolEffect.IDEMPOTENT_WRITE: CallTool,
        ToolEffect.SINGLE_ATTEMPT_WRITE: CallSingleAttemptTool,
        ToolEffect.UNCLASSIFIED: CallSingleAttemptTool,
    }


def test_calls_that_may_be_repeated_have_both_budgets_and_a_recovery() -> None:
    for name, recovery in {
        "run_model": RecoverModelCall,
        "call_tool read": RecoverToolCall,
    }.items():
        options = MOVEMENTS[name].options
        assert option(options, "execute_retry").maximum_attempts == 13
        assert option(options, "_execute_failure_target") is recovery
        recovered = option(options, "_execute_failure_options")
        assert option(recovered, "execute_retry").maximum_attempts == 0
        assert option(recovered, "_execute_failure_target") is None


def test_steps_that_call_nobody_are_repeated_until_they_commit() -> None:
    for name, movement in MOVEMENTS.items():
        if movement.step in {RunModel, CallTool, CallSingleAttemptTool}:
            continue
        assert option(movement.options, "execute_retry").maximum_attempts == 0, name
        assert option(movement.options, "wait_for_retry").maximum_attempts == 0, name


@pytest.mark.parametrize("name", MOVEMENTS)
def test_no_movement_leaves_a_default_that_could_fail_the_flow(name: str) -> None:
    options = MOVEMENTS[name].options
    assert option(options, "wait_for_failure") is WaitForFailurePolicy.PROCEED
    assert option(options, "heartbeat_timeout") == timedelta(seconds=60)
    for method in ("wait_for", "execute"):
        assert option(options, f"{method}_retry").total_duration == timedelta(days=30)
        assert option(options, f"{method}_method_timeout") >= timedelta(seconds=120)


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements_that_decide_hold_the_lock_and_no_other(name: str) -> None:
    locks = option(MOVEMENTS[name].options, "execute_lock_attributes")
    assert bool(locks) is (name.split()[0] in LOCKED)
    assert option(MOVEMENTS[name].options, "wait_for_lock_attributes") == ()


def test_method_timeout_is_above_that_of_the_body() -> None:
    runtime = SessionRuntime(SessionSchema(), SessionSettings(model_timeout=50, tool_timeout=70))
    movements = SessionMovements(runtime)
    for movement, seconds in (
        (movements.run_model(POSITION), 110),
        (movements.call_tool(call(ToolEffect.READ)), 130),
        (movements.call_tool(call(ToolEffect.READ, timeout=1000.5)), 1060),
    ):
        timeout = option(movement.options, "execute_method_timeout")
        assert timeout == timedelta(seconds=seconds)


def test_model_call_loads_what_it_needs_and_the_history_only_if_it_fits() -> None:
    schema = SessionSchema()
    movements = SessionMovements(SessionRuntime(schema, SessionSettings(history_budget=1000)))
    loaded = {
        each.physical_name
        for each in option(
            movements.run_model(POSITION).options, "execute_load_attribute_map_instances"
        )
    }
    assert loaded == {
        "agent_turns/turn-2",
        "agent_calls/turn-2%3Ac",
        "agent_parts/run-state%3Aturn-2%230",
        "agent_parts/run-state%3Aturn-2%231",
        "agent_parts/output%3Aturn-2%3Ac%230",
        "agent_parts/output%3Aturn-2%3Ac%231",
    }
    for size, maps in ((1000, (schema.messages,)), (1001, ())):
        position = TurnPosition(2, 3, size, 0)
        movement = movements.run_model(position)
        assert option(movement.options, "execute_load_attribute_maps") == maps
        assert TurnPosition.from_record(movement.input).has_history is bool(maps)
