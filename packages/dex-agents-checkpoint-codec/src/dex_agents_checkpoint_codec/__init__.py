"""Run states of durable agents to and from JSON text that is checked before anything is decoded.

`encode_run_state` and `decode_run_state` are the whole job. The package knows no LangChain type: it
takes any serializer with `dumps_typed` and `loads_typed`, and never looks into what these return.
"""

from dex_agents_checkpoint_codec._json_text import JsonValue
from dex_agents_checkpoint_codec.codec import RUN_STATE_FORMAT, decode_run_state, encode_run_state
from dex_agents_checkpoint_codec.errors import (
    CheckpointCodecError,
    RunStateFormatError,
    RunStateSerializerError,
    RunStateUsageError,
)
from dex_agents_checkpoint_codec.limits import MAX_RUN_STATE_BYTES
from dex_agents_checkpoint_codec.run_state import (
    MessageRange,
    NamespaceState,
    PendingWrite,
    RunState,
)
from dex_agents_checkpoint_codec.serializer import TypedSerializer

__all__ = [
    "MAX_RUN_STATE_BYTES",
    "RUN_STATE_FORMAT",
    "CheckpointCodecError",
    "JsonValue",
    "MessageRange",
    "NamespaceState",
    "PendingWrite",
    "RunState",
    "RunStateFormatError",
    "RunStateSerializerError",
    "RunStateUsageError",
    "TypedSerializer",
    "decode_run_state",
    "encode_run_state",
]
