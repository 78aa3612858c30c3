"""Owns the requests a Worker gets: what a handler call sees of its run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from dex.dexpb import dex_pb2 as pb

from dex_embedded_engine.runs import TIMEOUT_HANDLER, Execution, Message, Phase, Run
from dex_embedded_engine.storage.attributes import AttributeStore
from dex_embedded_engine.storage.payloads import PayloadStore

# What the SDK's channels take. A longer frame breaks the stream, and the Worker then keeps away
# from its queue for a minute.
LARGEST_FRAME = 4 * 1024 * 1024
_ROOM = LARGEST_FRAME - 64 * 1024
_StepRequest = pb.InvokeWaitForMethodRequest | pb.InvokeExecuteMethodRequest
_AnyRequest = _StepRequest | pb.InvokeWorkerRPCRequest


class RequestBuilder:
    """Builds task requests from a run and the store.

    Args:
        budget: bytes of payload that travel inside a request; the rest goes by reference.
    """

    def __init__(self, attributes: AttributeStore, payloads: PayloadStore, budget: int) -> None:
        self._attributes = attributes
        self._payloads = payloads
        self._budget = budget

    def step(self, run: Run, execution: Execution) -> _StepRequest:
        """Build the request of the execution's current method call, at its snapshot."""
        context = _step_context(run, execution)
        request: _StepRequest
        if execution.phase is Phase.WAIT_FOR:
            request = pb.InvokeWaitForMethodRequest(
                context=context, flow_type=run.flow_type, step_type=execution.step_type
            )
        else:
            request = pb.InvokeExecuteMethodRequest(
                context=context,
                flow_type=run.flow_type,
                step_type=execution.step_type,
                step_exe_locals=execution.step_locals,
                condition_results=execution.results,
            )
        if execution.step_type != TIMEOUT_HANDLER:
            request.step_input.CopyFrom(execution.movement.step_input)
        assert execution.snapshot is not None
        self._fill(request, run, execution.snapshot, execution.loads())
        return request

    def rpc(self, run: Run, call: pb.InvokeRPCRequest) -> pb.InvokeWorkerRPCRequest:
        """Build the request of an RPC on the run as it is now."""
        request = pb.InvokeWorkerRPCRequest(
            context=pb.Context(
                flow_id=run.flow_id,
                run_id=run.run_id,
                flow_started_timestamp=int(run.started_at),
                run_attempt=run.run_attempt,
            ),
            flow_type=run.flow_type,
            rpc_name=call.rpc_name,
            input=call.input,
        )
        loads = (
            list(call.load_attribute_map_instances),
            list(call.load_channel_names),
            list(call.load_channel_map_instances),
        )
        self._fill(request, run, run.sequence, loads)
        return request

    def _fill(
        self,
        request: _AnyRequest,
        run: Run,
        sequence: int,
        loads: tuple[list[str], list[str], list[str]],
    ) -> None:
        maps, channels, channel_maps = loads
        secrets = self._attributes.read_hard(run.flow_id, maps)
        hidden = {secret.key for secret in secrets}
        request.attributes.extend(
            entry
            for entry in self._attributes.read(run.key, sequence, maps)
            if entry.key not in hidden
        )
        request.loaded_attribute_map_instances.extend(maps)
        request.loaded_channel_names.extend(channels)
        request.loaded_channel_map_instances.extend(channel_maps)
        for name, messages in _pending(run, sequence):
            request.channel_infos[name].size = len(messages)
            if _is_loaded(name, channels, channel_maps):
                request.loaded_channel_messages[name].messages.extend(
                    channel_message(message) for message in messages
                )
        room = max(0, _ROOM - sum(secret.ByteSize() for secret in secrets))
        budget = max(0, min(self._budget, room - request.ByteSize()))
        self._payloads.put_back(run.flow_id, request, budget)
        self._payloads.fit(run.flow_id, request, room)
        # Only now: the SDK caches what is referred to on the disk, and secrets must not be there.
        request.attributes.extend(secrets)


def channel_message(message: Message) -> pb.ChannelMessage:
    """Describe a pending message as the protocol does."""
    return pb.ChannelMessage(
        channel_name=message.channel, value=message.value, message_id=message.message_id
    )


def _step_context(run: Run, execution: Execution) -> pb.Context:
    context = pb.Context(
        flow_id=run.flow_id,
        run_id=run.run_id,
        flow_started_timestamp=int(run.started_at),
        step_execution_id=execution.id,
        first_attempt_timestamp=int(execution.first_attempt_at),
        attempt=execution.attempt,
        from_step_execution_id=execution.lineage,
        run_attempt=run.run_attempt,
        last_heartbeat_value=execution.heartbeat,
    )
    if execution.movement.HasField("recovery_error_internal_only"):
        context.recovery_error.CopyFrom(execution.movement.recovery_error_internal_only)
    return context


def _pending(run: Run, sequence: int) -> Iterable[tuple[str, list[Message]]]:
    names = dict.fromkeys(run.channels)
    names.update(dict.fromkeys(message.channel for message in run.ghosts))
    for name in names:
        queue = run.channels.get(name, [])
        count = bisect_right(queue, sequence, key=lambda message: message.created)
        messages = queue[:count]
        gone = [
            message
            for message in run.ghosts
            if message.channel == name
            and message.created <= sequence
            and (message.removed is not None and message.removed > sequence)
        ]
        if gone:
            messages = sorted([*gone, *messages], key=lambda message: message.position)
        if messages:
            yield name, messages


def _is_loaded(name: str, channels: list[str], channel_maps: list[str]) -> bool:
    if "/" not in name:
        return name in channels
    return name in channel_maps or name[: name.index("/") + 1] in channel_maps
