"""The manager's promises: exact content, incremental files, two recoverable checkpoints, steps as in the table."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from logstore.base.events import LogEvent, Report
from spe_adapter.checkpoint import steps
from spe_adapter.checkpoint.chunk import MAX_CHUNK_BYTES
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools, chunk_count
from spe_adapter.checkpoint.manifest import VERSION, Manifest
from spe_adapter.checkpoint.names import checkpoint_name
from spe_adapter.checkpoint.recovery import MAX_TRIED, Finder
from spe_adapter.checkpoint.retention_rules import KEPT, MAX_CHAIN, RECENT
from spe_adapter.checkpoint.steps import CheckpointState
from tests.checkpoint.state import UNIT, PagedState, manager_of, recovered


def test_what_is_recovered_is_the_version_that_was_frozen(tmp_path: Path) -> None:
    """After every checkpoint of a random run, a recovery gives exactly the newest version; pages are let go."""
    seed = 20261123
    print(f"seed {seed}")
    state = PagedState(50, Random(seed))
    manager = manager_of(state, tmp_path)
    for _ in range(30):
        outcome = manager.checkpoint()
        assert outcome.state is CheckpointState.ACKNOWLEDGED, outcome
        assert recovered(tmp_path) == (state.epoch, state.versions[state.epoch])
        assert all(frozen.released for frozen in state.frozen)
        state.change(state.random.randrange(1, 6))
    assert not list(tmp_path.rglob("*.tmp*"))


def test_an_incremental_checkpoint_holds_what_changed(tmp_path: Path) -> None:
    """The second checkpoint holds the changed pages only; the third of an unchanged version is not written."""
    state = PagedState(100, Random(1))
    manager = manager_of(state, tmp_path)
    first = manager.checkpoint().manifest
    state.change(5)
    second = manager.checkpoint().manifest
    assert first is not None
    assert second is not None
    assert sum(file.pages for file in first.files) == 100
    assert sum(file.pages for file in second.files) == 5
    assert second.bases == (first.seq,)
    assert manager.checkpoint().state is CheckpointState.SKIPPED


def test_chains_are_bounded_and_old_checkpoints_go(tmp_path: Path) -> None:
    """A full checkpoint comes at the latest after MAX_CHAIN; what no kept checkpoint needs is removed."""
    state = PagedState(200, Random(2))
    manager = manager_of(state, tmp_path)
    longest = 0
    for _ in range(3 * MAX_CHAIN):
        manifest = manager.checkpoint().manifest
        assert manifest is not None
        longest = max(longest, len(manifest.bases))
        left = Finder(DirectorySink(tmp_path)).checkpoints(UNIT)
        assert len(left) >= min(KEPT, manifest.seq)
        assert len(list(tmp_path.iterdir())) <= 2 * (MAX_CHAIN + 1)
        state.change(1)
    assert longest == MAX_CHAIN


def test_a_lost_base_makes_the_next_checkpoint_full(tmp_path: Path) -> None:
    """A base that vanished is not built upon; the incremental one above it is not recovered."""
    state = PagedState(20, Random(3))
    manager = manager_of(state, tmp_path)
    manager.checkpoint()
    state.change()
    second = manager.checkpoint().manifest
    assert second is not None
    DirectorySink(tmp_path).remove(second.name._replace(seq=1))
    assert recovered(tmp_path) is None
    state.change()
    third = manager.checkpoint().manifest
    assert third is not None
    assert third.bases == ()
    assert recovered(tmp_path) == (state.epoch, state.versions[state.epoch])


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_lost_file_makes_the_next_checkpoint_full(tmp_path: Path, is_torn: bool) -> None:
    """A file of an older checkpoint that is missing or torn is noticed with the next one, not with a recovery."""
    state = PagedState(20, Random(12))
    manager = manager_of(state, tmp_path)
    manager.checkpoint()
    state.change(1)
    manager.checkpoint()
    (file,) = tmp_path.glob("*-0000000001/000")
    if is_torn:
        os.truncate(file, 1000)
    else:
        file.unlink()
    assert recovered(tmp_path) is None
    state.change(1)
    third = manager.checkpoint().manifest
    assert third is not None
    assert third.bases == ()
    assert recovered(tmp_path) == (state.epoch, state.versions[state.epoch])


def test_a_number_that_another_writer_took_is_left_to_the_other_writer(tmp_path: Path) -> None:
    """Two managers of one unit get two numbers, and both checkpoints are whole."""
    first, second = PagedState(10, Random(4)), PagedState(10, Random(5))
    second.change()
    managers = [manager_of(first, tmp_path), manager_of(second, tmp_path)]
    manifests = [manager.checkpoint().manifest for manager in managers]
    assert [manifest and manifest.seq for manifest in manifests] == [1, 2]
    assert recovered(tmp_path) == (2, second.versions[2])


def test_a_checkpoint_is_acknowledged_when_it_can_be_recovered(tmp_path: Path) -> None:
    """The owner is told of a checkpoint once a recovery finds it."""
    state = PagedState(10, Random(6))
    told = []

    def acknowledge(manifest: Manifest) -> None:
        told.append((manifest.header.epoch, recovered(tmp_path)))

    CheckpointManager(UNIT, state.freeze, ManagerTools(DirectorySink(tmp_path)), acknowledge).checkpoint()
    assert told == [(1, (1, state.versions[1]))]


def test_nothing_to_freeze_is_no_failure(tmp_path: Path) -> None:
    """Without a version the checkpoint is skipped, and no directory is made."""
    outcome = CheckpointManager(UNIT, lambda since: None, ManagerTools(DirectorySink(tmp_path))).checkpoint()
    assert outcome.state is CheckpointState.SKIPPED
    assert not list(tmp_path.iterdir())


def test_chunks_are_bounded_and_many_enough_for_the_threads() -> None:
    """No chunk has more than 64 MiB of pages; small checkpoints have one, larger ones some for every thread."""
    for page_bytes, pages in ((65536, 1), (65536, 128), (65536, 2048), (65536, 100_000), (4096, 20_000)):
        state = PagedState(1, Random(7))
        snapshot = state.freeze(None)
        assert snapshot is not None
        frozen = state.frozen[0]
        frozen.page_bytes, frozen.ids = page_bytes, range(pages)  # type: ignore[assignment]
        count = chunk_count(snapshot)
        assert -(-pages // count) * page_bytes <= MAX_CHUNK_BYTES
        assert count <= max(4, 1 + pages * page_bytes // MAX_CHUNK_BYTES)
        assert count >= min(4, pages * page_bytes // (8 << 20))


def test_checkpoints_that_fail_leave_nothing_and_hide_nothing(tmp_path: Path) -> None:
    """A sink without room for chunks: no files are left there, and a number is not claimed twice. Directories of killed
    writers, which nobody removes, hide no checkpoint from a recovery.
    """
    state = PagedState(20, Random(8))
    failing = False

    def step(what: str) -> None:
        if failing and what.startswith("sync"):
            raise OSError(errno.ENOSPC, "no room")
        claimed.extend([what] if what.startswith("claim ") else [])

    claimed: list[str] = []
    manager = manager_of(state, tmp_path, step)
    manager.checkpoint()
    wanted = recovered(tmp_path)
    assert wanted is not None
    failing = True
    for _ in range(3):
        state.change()
        assert manager.checkpoint().state is CheckpointState.FAILED
        assert len(list(tmp_path.iterdir())) == 1
    assert len(set(claimed)) == len(claimed) == 4
    for seq in range(10, 10 + 2 * MAX_TRIED):
        DirectorySink(tmp_path).claim(checkpoint_name(UNIT, seq))
    assert recovered(tmp_path) == wanted


def test_a_host_that_a_unit_has_left_displaces_no_checkpoint(tmp_path: Path) -> None:
    """Hosts with old versions write them under new numbers: the two newest versions stay, and old ones go later."""
    present, left = PagedState(20, Random(9)), [PagedState(20, Random(seed)) for seed in (10, 11)]
    present.epoch = 100
    manager = manager_of(present, tmp_path)
    manager.checkpoint()
    for _ in range(3):
        present.change()
        assert manager.checkpoint().is_complete
        newest = [manifest.header.epoch for manifest in Finder(DirectorySink(tmp_path)).checkpoints(UNIT)][:KEPT]
        for state in left:
            assert manager_of(state, tmp_path).checkpoint().is_complete
        epochs = [manifest.header.epoch for manifest in Finder(DirectorySink(tmp_path)).checkpoints(UNIT)]
        assert epochs[:KEPT] == newest == [present.epoch, present.epoch - 1]
        assert len(list(tmp_path.iterdir())) <= RECENT + MAX_CHAIN


def test_checkpoints_of_an_old_format_go_behind_new_ones(tmp_path: Path) -> None:
    """A version that is not read any more keeps nothing in the sink; an unknown one may build on anything."""
    for old_version, left in ((VERSION - 1, [KEPT + 2, KEPT + 3]), (VERSION + 1, [1, *range(2, KEPT + 4)])):
        root = tmp_path / str(old_version)
        sink = DirectorySink(root)
        name = checkpoint_name(UNIT, 1)
        sink.claim(name)
        sink.seal(name, b"cairn-checkpoint %d %08x 2\n{}" % (old_version, crc32c(b"{}")))
        state = PagedState(20, Random(12))
        told: list[str] = []
        for _ in range(KEPT + 2):
            state.change(len(state.content))
            manager = CheckpointManager(UNIT, state.freeze, ManagerTools(sink, report=_into(told)))
            assert manager.checkpoint().is_complete
        assert sorted(name.seq for name in sink.names()) == left
        assert any(f"format version {old_version}" in line for line in told)


def _into(told: list[str]) -> Report:
    """A report that keeps the fields of events as text."""

    def report(_: LogEvent, /, **fields: object) -> None:
        told.append(str(fields))

    return report


@pytest.mark.parametrize("event", [steps.CheckpointEvent.SEAL, steps.CheckpointEvent.ACKNOWLEDGE])
def test_a_step_outside_the_table_is_a_bug(event: steps.CheckpointEvent) -> None:
    """A checkpoint that nothing was frozen of is neither sealed nor acknowledged."""
    with pytest.raises(AssertionError, match="noted"):
        steps.CheckpointSteps("unit").move(event)
