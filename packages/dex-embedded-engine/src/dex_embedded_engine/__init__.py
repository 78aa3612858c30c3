"""A durable engine for one machine: it speaks Dex's gRPC protocol and keeps everything in SQLite.

Start it with `EmbeddedEngine`, or from the command line with ``dex-embedded-engine serve``, and
point Workers and Clients of ``dex-python-sdk`` at its address.
"""

from dex_embedded_engine.clock import Clock, SystemClock, VirtualClock
from dex_embedded_engine.errors import EngineError, EngineFailure, EngineUsageError
from dex_embedded_engine.server import EmbeddedEngine
from dex_embedded_engine.settings import Durability, EngineSettings

__all__ = [
    "Clock",
    "Durability",
    "EmbeddedEngine",
    "EngineError",
    "EngineFailure",
    "EngineSettings",
    "EngineUsageError",
    "SystemClock",
    "VirtualClock",
]
