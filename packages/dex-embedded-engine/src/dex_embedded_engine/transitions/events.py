"""Owns what a Step's journal event says of the method call it closes.

The journal does not repeat itself: a Step's input and options stand in the event that created
the execution, Attribute values in the events that wrote them. `history` puts them together again
for a reader.
"""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from dex_embedded_engine.runs import Execution, Phase

_NANOS = 1_000_000_000


def timestamp(moment: float) -> Timestamp:
    """Convert unix seconds to a protobuf timestamp."""
    whole = int(moment)
    return Timestamp(seconds=whole, nanos=int((moment - whole) * _NANOS))


def method_input(execution: Execution) -> pb.StepMethodEventInput:
    """Describe what the method call was given, without what the journal holds elsewhere."""
    if execution.phase is Phase.EXECUTE:
        return pb.StepMethodEventInput(condition_results=execution.results)
    return pb.StepMethodEventInput()


def method_context(execution: Execution, now: float) -> pb.StepMethodEventContext:
    """Describe the method call: identity, attempts, and when it ran."""
    context = pb.StepMethodEventContext(
        step_execution_id=execution.id,
        from_step_execution_id=execution.lineage,
        step_type=execution.step_type,
        durability=pb.STEP_DURABILITY_SYNC,
        final_attempt=execution.attempt,
        started_time=timestamp(execution.first_attempt_at or now),
        last_failure_info=execution.last_failure,
    )
    elapsed = max(0.0, now - (execution.first_attempt_at or now))
    whole = int(elapsed)
    context.duration.CopyFrom(Duration(seconds=whole, nanos=int((elapsed - whole) * _NANOS)))
    return context
