"""The reviewed public names: what each package's `__all__` must hold, no more and no less.

Adding a name here is a decision to support it (see VERSIONING.md).
"""

PUBLIC_EXPORTS: dict[str, list[str]] = {
    "dex_agents_checkpoint_codec": [
        "CheckpointCodecError",
        "JsonValue",
        "MAX_RUN_STATE_BYTES",
        "MessageRange",
        "NamespaceState",
        "PendingWrite",
        "RUN_STATE_FORMAT",
        "RunState",
        "RunStateFormatError",
        "RunStateSerializerError",
        "RunStateUsageError",
        "TypedSerializer",
        "decode_run_state",
        "encode_run_state",
    ],
    "dex_agents_tool_policy": [
        "ToolEffect",
        "ToolPolicy",
        "ToolPolicyError",
        "ToolPolicyResolver",
        "ToolPolicyUsageError",
        "tool_effect_from_annotations",
    ],
    "dex_embedded_engine": [
        "Clock",
        "Durability",
        "EmbeddedEngine",
        "EngineError",
        "EngineFailure",
        "EngineSettings",
        "EngineUsageError",
        "SystemClock",
        "VirtualClock",
    ],
}
