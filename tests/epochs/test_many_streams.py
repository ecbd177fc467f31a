"""Epochs over many streams: groups are read and written together, whatever their sizes, and memory stays bounded."""

from __future__ import annotations

import pytest

from logstore.epochs import publisher
from logstore.testing.clock import ManualClock
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Rows, Sidecar, commit, commit_request, segment, stage

STREAMS = 40
SIZES = (1, 300, 70_000, 2, 5000)
"""Bytes of records: groups that share a write, and groups that are too large for that."""


def commit_epoch(sidecar: Sidecar, epoch: int, rows: Rows) -> None:
    """Two tasks, each with every second stream."""
    for task in (0, 1):
        output = {partition: values for partition, values in rows.items() if partition % 2 == task}
        stage(sidecar, segment(output, incarnation="r", epoch=epoch, task=task))
    assert (
        commit(sidecar, commit_request((0, "a0", 1), (1, "a0", 1), incarnation="r", epoch=epoch)).outcome == "committed"
    )


def test_small_groups_share_a_write() -> None:
    """The groups of an epoch over 40 streams, each with a record, cost one sync of the journal."""
    disk = SimDisk()
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", STREAMS)
    rows = {partition: [f"r{partition}"] for partition in range(STREAMS)}
    commit_epoch(sidecar, 0, rows)  # opens the streams' first chunks
    commit_epoch(sidecar, 1, rows)  # opens the journal's first file
    before = len(disk.log)
    commit_epoch(sidecar, 2, rows)
    synced = [call.path for call in disk.log[before:] if call.kind == "sync"]
    assert len([path for path in synced if path.startswith("journal/")]) == 1
    assert not [path for path in synced if path.endswith(".log")]
    assert all(sidecar.records("out", partition) == [f"r{partition}"] * 3 for partition in range(STREAMS))


@pytest.mark.parametrize("memory_bytes", [1, 1000, 1 << 20])
def test_groups_of_all_sizes_are_whole(memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few groups fit into memory together, each stream gets its group once and whole."""
    monkeypatch.setattr(publisher, "SMALL_GROUPS_BYTES", memory_bytes)
    sidecar = Sidecar(SimDisk(), ManualClock(), limit_bytes=16 << 20)
    sidecar.create("out", len(SIZES))
    rows = {partition: [f"{partition}" * size] for partition, size in enumerate(SIZES)}
    for epoch in (0, 1):
        commit_epoch(sidecar, epoch, rows)
    for partition, values in rows.items():
        assert sidecar.records("out", partition) == [*values, *values]
        markers = [value for value in sidecar.values("out", partition) if value.startswith("<")]
        assert markers == ["<Begin 0>", "<End 0>", "<Begin 1>", "<End 1>"]
