"""Staging files: golden bytes, damage of every kind, and what a restart finds in them."""

import pytest

from logstore.errors import CairnError, CorruptFile, UnknownFormatVersion
from logstore.events import EPOCH_STUCK, STAGING_CUT
from logstore.format.epoch_api import Part
from logstore.format.staged import AttemptKey, decode_segment_header, encode_segment_header
from logstore.testing.clock import ManualClock
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar, commit, commit_request, segment, stage

KEY = AttemptKey("q", "r", 1, 2, "a")
DATA = b"batches"
ENCODED, HEADER = encode_segment_header(KEY, position=0, staged_ms=5, parts=(Part("t", 3, 7, 1, 1),), data=DATA)


def test_a_frame_has_these_bytes() -> None:
    """docs/format.md, staging files: the layout does not change without a new version."""
    table = (
        b'{"query":"q","run":"r","epoch":1,"task":2,"attempt":"a","position":0,"staged_ms":5,'
        b'"parts":[{"topic":"t","partition":3,"length":7,"batches":1,"records":1}]}'
    )
    assert bytes.fromhex("43535447000100000000009c00000007b4276dd6117c43d2") + table == ENCODED
    assert decode_segment_header(ENCODED + DATA) == HEADER
    assert HEADER.size_bytes == len(ENCODED) + len(DATA)


def test_every_cut_and_every_flipped_bit_is_found() -> None:
    """A header that is not exactly what was written is CorruptFile, or a version that is not known."""
    for length in range(len(ENCODED)):
        with pytest.raises(CorruptFile):
            decode_segment_header(ENCODED[:length])
    for bit in range(len(ENCODED) * 8):
        flipped = bytearray(ENCODED)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises((CorruptFile, UnknownFormatVersion)):
            decode_segment_header(flipped)


def test_a_damaged_staging_file_is_cut_at_the_damage() -> None:
    """Whichever bit of the second of three frames flips, the first counts and the commit of all three is refused."""
    disk = SimDisk()
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", 1)
    for position in range(3):
        stage(sidecar, segment({0: [f"v{position}"]}, epoch=0, position=position))
    (name,) = disk.list_directory("staging")
    path = f"staging/{name}"
    size = disk.size(path)
    for bit in range(size // 3 * 8, size // 3 * 16, 7):
        damaged = disk.kill_state()
        damaged.flip_bit(path, bit)
        try:
            revived = Sidecar(damaged, ManualClock())
        except UnknownFormatVersion:
            continue
        revived.roll_forward()
        with pytest.raises(CairnError, match="3 staged segments, 1 are here"):
            commit(revived, commit_request((0, "a0", 3), epoch=0))
        assert STAGING_CUT.name in revived.reports.names()
        assert stage(revived, segment({0: ["v1"]}, epoch=0, position=1)).position == 2


def test_damage_found_after_the_commit_is_reported_not_published() -> None:
    """A staged batch that rots before publication stops the epoch: nothing of it is visible in that stream."""
    disk = SimDisk()
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", 1)
    stage(sidecar, segment({0: ["value"]}, epoch=0))
    (name,) = disk.list_directory("staging")
    disk.flip_bit(f"staging/{name}", disk.size(f"staging/{name}") * 8 - 20)
    with pytest.raises(CorruptFile, match="damaged"):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    assert sidecar.values("out", 0) == []
    assert sidecar.epochs.describe("query-1").state == "stuck"
    assert EPOCH_STUCK.name in sidecar.reports.names()
