"""Owns the checkpoints of one model call: kept as live objects, the last stored per namespace.

LangGraph's savers find the newest checkpoint by the largest id, and ids follow the Worker's clock.
Here the newest is the one stored last, so a Worker whose clock runs behind goes on all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)


@dataclass
class StoredWrite:
    """One write of a task that has run since the checkpoint."""

    task_id: str
    task_path: str
    channel: str
    value: Any


@dataclass
class StoredCheckpoint:
    """One checkpoint and what was written since."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent_id: str | None
    writes: dict[tuple[str, int], StoredWrite] = field(default_factory=dict)


class TurnCheckpointer(BaseCheckpointSaver[str]):
    """A saver for one turn of one session."""

    def __init__(self) -> None:
        super().__init__()
        self._namespaces: dict[str, dict[str, StoredCheckpoint]] = {}
        # By namespace and checkpoint id: LangGraph may store a task's writes first.
        self._writes: dict[tuple[str, str], dict[tuple[str, int], StoredWrite]] = {}

    def last_checkpoints(self) -> dict[str, StoredCheckpoint]:
        """Return, per namespace, the checkpoint stored last."""
        return {
            namespace: next(reversed(stored.values()))
            for namespace, stored in self._namespaces.items()
        }

    def restore(self, namespace: str, stored: StoredCheckpoint) -> None:
        """Take in a checkpoint of an earlier model call."""
        self._writes[namespace, stored.checkpoint["id"]] = stored.writes
        self._namespaces.setdefault(namespace, {})[stored.checkpoint["id"]] = stored

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Count versions; text sorts as the numbers do."""
        number = 0 if current is None else int(current.split(".")[0])
        return f"{number + 1:032}"

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the asked checkpoint, or the one stored last in its namespace."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        found = self._namespaces.get(namespace)
        if not found:
            return None
        checkpoint_id = get_checkpoint_id(config) or next(reversed(found))
        stored = found.get(checkpoint_id)
        return None if stored is None else self._tuple(config, namespace, stored)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a namespace, the one stored last first."""
        assert config is not None
        namespace = config["configurable"].get("checkpoint_ns", "")
        found = list(reversed(self._namespaces.get(namespace, {}).values()))
        for stored in found[:limit]:
            yield self._tuple(config, namespace, stored)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint; it is now the last one of its namespace."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        kept = self._namespaces.setdefault(namespace, {})
        kept.pop(checkpoint["id"], None)
        kept[checkpoint["id"]] = StoredCheckpoint(
            checkpoint,
            get_checkpoint_metadata(config, metadata),
            get_checkpoint_id(config),
            self._writes.setdefault((namespace, checkpoint["id"]), {}),
        )
        return _config(config, namespace, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep the writes of a task."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        checkpoint_id = config["configurable"]["checkpoint_id"]
        kept = self._writes.setdefault((namespace, checkpoint_id), {})
        for index, (channel, value) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, index))
            if key[1] >= 0 and key in kept:
                continue
            kept[key] = StoredWrite(task_id, task_path, channel, value)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the asked checkpoint, or the one stored last in its namespace."""
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints of a namespace, the one stored last first."""
        for each in self.list(config, filter=filter, before=before, limit=limit):
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint; it is now the last one of its namespace."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep the writes of a task."""
        self.put_writes(config, writes, task_id, task_path)

    def _tuple(
        self, config: RunnableConfig, namespace: str, stored: StoredCheckpoint
    ) -> CheckpointTuple:
        writes = sorted(
            stored.writes.items(), key=lambda item: (item[1].task_path, item[0][0], item[0][1])
        )
        parent = stored.parent_id
        return CheckpointTuple(
            config=_config(config, namespace, stored.checkpoint["id"]),
            checkpoint=stored.checkpoint,
            metadata=stored.metadata,
            parent_config=None if parent is None else _config(config, namespace, parent),
            pending_writes=[(write.task_id, write.channel, write.value) for _, write in writes],
        )


def _config(config: RunnableConfig, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": config["configurable"]["thread_id"],
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
