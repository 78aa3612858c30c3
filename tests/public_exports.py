"""The reviewed public names: what each package's `__all__` must hold, no more and no less.

Adding a name here is a decision to support it (see VERSIONING.md).
"""

PUBLIC_EXPORTS: dict[str, list[str]] = {
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
