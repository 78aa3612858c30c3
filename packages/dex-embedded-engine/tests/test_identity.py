"""Ids of runs, tasks and Channel messages."""

from __future__ import annotations

import uuid

from dex_embedded_engine.identity import make_id


def test_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    """Rule 11.1.1."""
    ids = [make_id(1_800_000_000 + second) for second in range(100)]
    assert ids == sorted(ids)
    assert {uuid.UUID(each).version for each in ids} == {7}
    assert {uuid.UUID(each).variant for each in ids} == {uuid.RFC_4122}


def test_ids_of_one_moment_differ() -> None:
    assert len({make_id(1_800_000_000) for _ in range(1000)}) == 1000
