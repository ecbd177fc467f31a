"""Power cuts while epochs with control batches are staged and published: a scan finds whole groups, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from logstore.errors import InvalidRecord
from logstore.format.control import (
    BEGIN_TYPE,
    END_TYPE,
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    decode_control_record,
    encode_control_record,
)
from logstore.format.epoch_api import Part, StageRequest
from logstore.format.records import Record, encode_batch
from logstore.testing.clock import ManualClock
from logstore.testing.simdisk import CrashBounds, SimDisk
from tests.epochs.power_cuts import interrupted, recover
from tests.epochs.stage_set import Sidecar, commit, commit_request, stage
from tests.support.examples import is_long

EPOCHS = 3
NOW_MS = 1_700_000_000_000
STATE = (FOOTPRINTS_TYPE, FOOTPRINTS_TYPE, TOMBSTONES_TYPE, MARK_TYPE)


def content(incarnation: str, epoch: int, partition: int, number: int) -> dict[str, object]:
    """What a control batch of one execution says: like no other."""
    return {"query": "query-1", "run": incarnation, "epoch": epoch, "partition": partition, "number": number}


def staged(incarnation: str, epoch: int) -> StageRequest:
    """One task's output: a record and its state, for both partitions."""
    parts: list[Part] = []
    data = bytearray()
    for partition in (0, 1):
        batches = [encode_batch([Record(0, NOW_MS, None, f"{epoch}:{incarnation}".encode())])]
        for number, kind in enumerate(STATE):
            tail = bytes([number]) * 300
            batches.append(encode_control_record(kind, content(incarnation, epoch, partition, number), tail, NOW_MS))
        whole = b"".join(batches)
        parts.append(Part("out", partition, len(whole), len(batches), len(batches)))
        data += whole
    return StageRequest("query-1", incarnation, epoch, 0, "a0", 0, tuple(parts), bytes(data))


def run_epochs(sidecar: Sidecar, incarnation: str, first: int, acked: dict[int, str]) -> None:
    """A stateful query from epoch `first` on. `acked` gets the incarnation of each epoch that was answered."""
    for epoch in range(first, EPOCHS):
        stage(sidecar, staged(incarnation, epoch))
        if commit(sidecar, commit_request((0, "a0", 1), incarnation=incarnation, epoch=epoch)).outcome == "committed":
            acked[epoch] = incarnation


def scanned(sidecar: Sidecar, partition: int) -> list[tuple[int, str]]:
    """Epoch and incarnation of every group that a scan finds, oldest first; each must be whole and in order."""
    stream = sidecar.store.stream("out", partition)
    records = [decode_control_record(batch) for _, batch in sidecar.controls(stream)]
    size = len(STATE) + 2
    assert len(records) % size == 0
    groups: list[tuple[int, str]] = []
    for start in range(0, len(records), size):
        begin, *state, end = records[start : start + size]
        assert [record.kind for record in (begin, *state, end)] == [BEGIN_TYPE, *STATE, END_TYPE]
        epoch, incarnation = begin.fields["epoch"], str(state[0].fields["run"])
        assert end.fields["epoch"] == epoch
        for number, record in enumerate(state):
            assert record.fields == content(incarnation, epoch, partition, number)
            assert bytes(record.payload) == bytes([number]) * 300
        groups.append((epoch, incarnation))
    return groups


def check(sidecar: Sidecar, acked: dict[int, str]) -> list[tuple[int, str]]:
    """Both streams have the same whole groups, each epoch once, from one execution, the acked ones among them, and
    exactly the records that belong to them.
    """
    groups = scanned(sidecar, 0)
    assert groups == scanned(sidecar, 1)
    assert [epoch for epoch, _ in groups] == list(range(len(groups)))
    assert len(groups) >= len(acked)
    assert all(groups[epoch] == (epoch, incarnation) for epoch, incarnation in acked.items())
    for partition in (0, 1):
        assert sidecar.records("out", partition) == [f"{epoch}:{incarnation}" for epoch, incarnation in groups]
    return groups


Leaves = Callable[[int, SimDisk], Iterator[SimDisk]]


def after_power_cut(number: int, disk: SimDisk) -> Iterator[SimDisk]:
    """Some of what a power cut can leave."""
    each = 8 if is_long() else 4
    yield from disk.crash_states(CrashBounds(states=each, file_states=each, torn_bytes=each, seed=number))


def after_kill(_: int, disk: SimDisk) -> Iterator[SimDisk]:
    """What a kill leaves: everything that was written."""
    yield disk.kill_state()


@pytest.mark.parametrize("leaves", [after_power_cut, after_kill])
def test_groups_with_state_are_all_or_nothing(leaves: Leaves) -> None:
    """Wherever the power goes, a scan after recovery finds exactly the published groups, and the query goes on."""
    points = published = 0
    for number, disk, acked in interrupted(run_epochs):
        points += 1
        for state in leaves(number, disk):
            sidecar = recover(state)
            groups = check(sidecar, acked)
            published += len(groups)
            later = dict(groups)
            run_epochs(sidecar, "run-2", len(acked), later)
            assert len(check(sidecar, {**later, **acked})) == EPOCHS
    assert points > 20
    assert published > points


def test_refused_control_batches_leave_nothing() -> None:
    """A part with a control batch that may not be staged is refused as a whole, and the query can go on."""
    sidecar = Sidecar(SimDisk(), ManualClock())
    sidecar.create("out", 2)
    bad = bytes(encode_control_record(END_TYPE, {"query": "query-1", "epoch": 0, "run": 1}, b"", NOW_MS))
    request = staged("run-1", 0)
    parts = (*request.parts, Part("out", 0, len(bad), 1, 1))
    worse = replace(request, parts=parts, data=bytes(request.data) + bad)
    with pytest.raises(InvalidRecord, match="1001"):
        stage(sidecar, worse)
    assert sidecar.epochs.describe("query-1").staged_bytes == 0
    run_epochs(sidecar, "run-1", 0, {})
    assert len(check(sidecar, {})) == EPOCHS
