"""Checkpoints of private state: frozen by the owner's thread at the end of an epoch, written beside it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import SinkFailed
from spe_adapter.checkpoint.in_process import InProcessCheckpoints
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import MANIFEST
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.refusals import MAX_REASONS, Refusals, newer_than_log
from spe_adapter.checkpoint.settings import ANY_HOST, CheckpointSettings
from spe_adapter.checkpoint.snapshot import Snapshot
from spe_adapter.errors import StateAway, StateTrimmed
from tests.checkpoint.state import UNIT, PagedState, manager_of, recovered
from tests.checkpoint.test_service import wait_until

EAGER = PolicySettings(every_s=0.0, min_every_s=0.0, min_state_bytes=0)


class Runner:
    """An operator with state of its own; notes which thread froze it, and what was acknowledged."""

    def __init__(self, root: Path) -> None:
        self.state = PagedState(20, Random(1))
        self.threads: set[int] = set()
        self.acknowledged: list[int] = []
        self.fails: Exception | None = None
        settings = CheckpointSettings(root.as_uri(), policy=EAGER)
        self.checkpoints = InProcessCheckpoints(UNIT, self.freeze, settings, self.acknowledge)

    def freeze(self, since: object) -> Snapshot | None:
        """Freeze, or fail."""
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        return self.state.freeze(since)

    def acknowledge(self, manifest: Manifest) -> None:
        """Note a checkpoint."""
        self.acknowledged.append(manifest.header.epoch)

    def epoch(self) -> bool:
        """One epoch; whether its number is past."""
        self.state.change()
        self.checkpoints.epoch(1000, 10_000)
        return True


def test_the_owner_freezes_between_epochs_and_checkpoints_follow(tmp_path: Path) -> None:
    """Every freeze is on the owner's thread; what is acknowledged is recovered exactly; closing ends the thread."""
    runner = Runner(tmp_path)
    wait_until(lambda: runner.epoch() and len(runner.acknowledged) >= 5, "five checkpoints")
    runner.checkpoints.close()
    assert runner.threads == {threading.get_ident()}
    found = recovered(tmp_path)
    assert found is not None
    assert found[0] >= runner.acknowledged[-1]
    assert found[1] == runner.state.versions[found[0]]
    assert not [thread for thread in threading.enumerate() if "checkpoint" in thread.name]


@pytest.mark.parametrize("error", [SinkFailed("cannot be frozen"), OSError(errno.EMFILE, "cannot be frozen")])
def test_a_freeze_that_fails_costs_the_checkpoint_alone(tmp_path: Path, error: Exception) -> None:
    """The epoch goes on, and later checkpoints are written."""
    runner = Runner(tmp_path)
    runner.fails = error
    wait_until(lambda: runner.epoch() and runner.checkpoints.last, "a failure")
    assert runner.checkpoints.last is not None
    assert "cannot be frozen" in runner.checkpoints.last.error
    runner.fails = None
    wait_until(lambda: runner.epoch() and runner.acknowledged, "a checkpoint")
    runner.checkpoints.close()


def test_an_owner_that_ends_lets_nobody_wait(tmp_path: Path) -> None:
    """Closed while a checkpoint waits for an epoch's end: the thread ends, nothing is written."""
    runner = Runner(tmp_path)
    runner.checkpoints.epoch(1, 1)
    runner.checkpoints.close()
    assert not list(tmp_path.glob(f"*/{MANIFEST}"))


def test_each_host_has_the_name_that_it_gives_itself() -> None:
    """`*` becomes the name; a name that is given stays."""
    settings = CheckpointSettings("file:///x", coordinator="http://127.0.0.1:1", host=ANY_HOST)
    assert settings.on_host("h1").host == "h1"
    assert settings.on_host("h1").on_host("h2").host == "h1"


def test_of_many_reasons_the_one_that_matters_is_said(tmp_path: Path) -> None:
    """A sink that could not be read is named also behind many checkpoints that do not fit."""
    (tmp_path / "sink").mkdir()
    refusals = Refusals(CheckpointSettings((tmp_path / "sink").as_uri()), UNIT)
    with refusals.looking():
        for seq in range(MAX_REASONS):
            refusals.note(seq, newer_than_log(10 + seq, 9))
        assert isinstance(refusals.explained(StateTrimmed("some windows are missing")), StateTrimmed)
        refusals.note("the next one", SinkFailed("a disk is away"))
    error = refusals.explained(StateTrimmed("some windows are missing"))
    assert isinstance(error, StateAway)
    assert "a disk is away" in str(error)
    with refusals.looking():
        pass
    assert isinstance(refusals.explained(StateTrimmed("lost")), StateTrimmed)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_query_made_anew_under_an_old_name_does_not_grow(tmp_path: Path, epochs: int) -> None:
    """Checkpoints of the former query, of higher epochs, go when two of the new one are complete."""
    former = PagedState(10, Random(3))
    former.epoch = 1000
    manager = manager_of(former, tmp_path)
    for _ in range(epochs):
        manager.checkpoint()
        former.change()
    state = PagedState(10, Random(4))
    manager = manager_of(state, tmp_path)
    for _ in range(12):
        manager.checkpoint()
        state.change(8)
    manifests = Finder(DirectorySink(tmp_path)).checkpoints(UNIT)
    assert manifests
    assert max(manifest.header.epoch for manifest in manifests) < 1000
    assert len(list(tmp_path.iterdir())) <= 5
