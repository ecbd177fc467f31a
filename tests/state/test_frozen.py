"""Checkpoints of a base: frozen while tasks go on, loaded again, and what happens when anything goes wrong."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import StateTrimmed
from spe_adapter.pages.errors import FreezeCancelled, PagesRefused
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.frozen import FrozenVersion, freeze_base
from spe_adapter.state.paged import FreezePoint
from spe_adapter.state.query import QueryDirectory
from spe_adapter.state.segment import Tag
from spe_adapter.state.storage import BaseCheckpoint, BaseDescription, PageRuns, StateStorage, load_table
from spe_adapter.state.table import anonymous
from spe_adapter.state.versions import OpenState, StateDirectory, StateSource, WindowGroup, no_checkpoints
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, History, check_marks, note_of, windows_of
from tests.state.history import long_history

LIMIT = 256 * 1024 * 1024
HISTORY = long_history(3000, 6)
TAGS = [step.tag for step in HISTORY.steps]


class Written(NamedTuple):
    """A checkpoint that was read from frozen pages, and is kept in memory."""

    described: BaseDescription
    pages: tuple[tuple[Int64s, np.ndarray], ...]

    def runs(self) -> PageRuns:
        """The pages, as they were read."""
        return iter(self.pages)

    def refused(self, error: Exception) -> None:
        """See BaseCheckpoint: the state says it too."""


def written(frozen: FrozenVersion, before: Written | None = None, run: int = 3) -> Written:
    """Read all frozen pages, some at a time, and release them."""
    assert frozen.is_full == (before is None)
    assert frozen.described is not None
    parts = []
    for start in range(0, frozen.pages.pages, run):
        ids = frozen.pages.ids[start : start + run]
        parts.append((ids, frozen.pages.read(ids)))
        frozen.pages.written(ids)
    frozen.pages.release()
    return Written(frozen.described, (() if before is None else before.pages) + tuple(parts))


def directory(root: Path) -> StateDirectory:
    """The shared state of the query."""
    return StateDirectory(root, QUERY, LIMIT, seed=3, lock_limit_s=0.05)


def advance(root: Path, version: int, checkpoints: Iterable[BaseCheckpoint] = (), *, steps: bool = True) -> str:
    """Open a version and compare it with the model; its origin."""
    log = HISTORY.loader(TAGS[version], steps=steps)
    with directory(root).open(0, SCHEMA, OPERATOR, TAGS[version], log, lambda: checkpoints) as state:
        assert windows_of(state.base) == HISTORY.at(TAGS[version])
        check_marks(state.base, HISTORY, TAGS[version])
        assert state.note == note_of(TAGS[version])
        return state.how


def frozen_of(root: Path, since: FreezePoint | None = None, copies: int | None = 1000) -> FrozenVersion:
    """The base, frozen."""
    frozen = freeze_base(root, QUERY, 0, since, copies=copies)
    assert frozen is not None
    return frozen


def check_table(checkpoint: Written, version: int, history: History = HISTORY) -> None:
    """A checkpoint is the version, to the window."""
    table = load_table(SCHEMA, checkpoint.described, checkpoint.runs(), anonymous)
    assert windows_of(table) == history.at(history.steps[version].tag)
    assert checkpoint.described.tag == history.steps[version].tag
    assert checkpoint.described.note == note_of(history.steps[version].tag)


def test_a_checkpoint_is_the_version_at_the_freeze(root: Path) -> None:
    """Whatever tasks change in the base while the pages are read."""
    advance(root, 0)
    frozen = frozen_of(root)
    assert advance(root, 1) == "caught_up"
    checkpoint = written(frozen)
    check_table(checkpoint, 0)
    assert advance(root, 2) == "caught_up"
    check_table(written(frozen_of(root)), 2)


def test_a_base_is_changed_in_place_while_it_is_frozen(root: Path) -> None:
    """The old content of changed pages is copied aside, and given back with the release."""
    advance(root, 2)
    base = next(root.glob("*/*/base"))
    inode, size_bytes = base.stat().st_ino, base.stat().st_size
    frozen = frozen_of(root)
    advance(root, 3)
    assert base.stat().st_ino == inode
    assert base.stat().st_size > size_bytes
    check_table(written(frozen), 2)
    assert base.stat().st_size == size_bytes


def test_copies_of_frozen_pages_do_not_count_towards_the_limit(root: Path) -> None:
    """A state that fits its limit exactly fits while a checkpoint is written, too."""
    advance(root, 2)
    query = QueryDirectory(root, QUERY, StateEnvironment(), 1.0)
    held_bytes = query.size_bytes()
    storage = StateStorage(query, held_bytes, 0, StateEnvironment(), 1.0)
    frozen = frozen_of(root)
    advance(root, 3)
    assert query.size_bytes() > held_bytes
    storage.charge(0, "nothing")  # to the block
    with pytest.raises(StateTooLarge, match=f"{held_bytes} is the limit"):
        storage.charge(1 << 20, "a megabyte")
    frozen.pages.release()
    storage.charge(0, "nothing")


def test_later_checkpoints_hold_what_changed(root: Path) -> None:
    """A full checkpoint with the increments behind it is the newest version; an increment is no larger."""
    advance(root, 0)
    frozen = frozen_of(root)
    checkpoint = written(frozen)
    for version in (1, 2, 3):
        assert advance(root, version) == "caught_up"
        next_one = freeze_base(root, QUERY, 0, frozen.point, copies=1000)
        assert next_one is not None
        full = next_one.is_full  # a larger copy may have replaced the base
        checkpoint = written(next_one, None if full else checkpoint)
        frozen = next_one
        check_table(checkpoint, version)
    unchanged = freeze_base(root, QUERY, 0, frozen.point)
    assert unchanged is not None
    assert unchanged.pages.pages == 0
    unchanged.pages.release()


def test_another_file_is_checkpointed_as_a_whole(root: Path) -> None:
    """Sequence numbers of a base that was replaced say nothing about the new one; what was frozen stays readable."""
    advance(root, 0)
    frozen = frozen_of(root)
    next(root.glob("*/*/base")).unlink()
    advance(root, 1)
    later = frozen_of(root, frozen.point)
    assert later.is_full
    check_table(written(later), 1)
    check_table(written(frozen), 0)


def test_too_many_copies_cancel_the_freeze_and_not_the_task(root: Path) -> None:
    """The task goes on; whoever reads the pages is told."""
    advance(root, 2)
    frozen = frozen_of(root, copies=1)
    assert advance(root, 3) == "caught_up"
    with pytest.raises(FreezeCancelled, match="copies of changed pages"):
        frozen.pages.read(frozen.pages.ids)
    frozen.pages.release()
    check_table(written(frozen_of(root)), 3)


def test_one_freeze_at_a_time(root: Path) -> None:
    """A second one is refused until the first is released; a freeze of nothing is none."""
    assert freeze_base(root, QUERY, 0) is None
    advance(root, 0)
    frozen = frozen_of(root)
    assert freeze_base(root, QUERY, 0) is None
    frozen.pages.release()
    frozen_of(root).pages.release()


def test_pages_that_are_given_back_are_not_read_again(root: Path) -> None:
    """Nor pages that were never frozen."""
    advance(root, 0)
    with frozen_of(root).pages as pages:
        pages.written(pages.ids[:1])
        for wrong in (pages.ids[0], 1 << 40, -1, 100_000):
            with pytest.raises(PagesRefused):
                pages.read(np.array([wrong]))


def test_state_is_loaded_from_a_checkpoint(root: Path, tmp_path: Path) -> None:
    """The newest one from which the log leads to the wanted version, and the log's steps behind it."""
    checkpoints: list[Written] = []
    for version in range(3):
        advance(root, version)
        checkpoints.insert(0, written(frozen_of(root)))
    log = HISTORY.loader(TAGS[4])
    with directory(tmp_path / "new").open(0, SCHEMA, OPERATOR, TAGS[4], log, lambda: checkpoints) as state:
        assert state.how == "checkpoint"
        assert windows_of(state.base) == HISTORY.at(TAGS[4])
        check_marks(state.base, HISTORY, TAGS[4])
        assert state.note == note_of(TAGS[4])
        assert state.refused_checkpoints == ()
    assert log.asked == ["since"]
    assert advance(tmp_path / "new", 5, checkpoints) == "caught_up"
    assert advance(tmp_path / "just it", 2, checkpoints, steps=False) == "checkpoint"
    assert advance(tmp_path / "log is trimmed", 1, checkpoints[:1], steps=False) == "loaded"


class TrimmedLog:
    """A source of state that has nothing."""

    def since(self, tag: Tag) -> None:
        """No way."""

    def everything(self) -> list[WindowGroup]:
        """Gone."""
        raise StateTrimmed("the log begins later")

    def expected(self) -> int:
        """Unknown."""
        return 0

    def note(self) -> bytes:
        """None."""
        return b""


@pytest.mark.parametrize(("log", "how"), [(HISTORY.loader(TAGS[2]), "loaded"), (TrimmedLog(), "checkpoint")])
def test_a_checkpoint_of_a_damaged_base_is_not_loaded_again_and_again(root: Path, log: StateSource, how: str) -> None:
    """Only the use of a base shows that it is damaged, and a checkpoint was taken of it: the next task takes the log;
    or the checkpoint, if the log does not have the state. After that checkpoints come first again.
    """
    advance(root, 2)
    checkpoint = written(frozen_of(root))

    def opened() -> AbstractContextManager[OpenState]:
        return directory(root).open(0, SCHEMA, OPERATOR, TAGS[2], log, lambda: [checkpoint])

    with pytest.raises(StateDamaged, match="in use"), opened():
        raise StateDamaged("found in use")
    with opened() as state:
        assert state.how == how
    next(root.glob("*/*/base")).unlink()
    with opened() as state:
        assert state.how == "checkpoint"


def broken(checkpoint: Written) -> Iterator[Written]:
    """Checkpoints that are wrong in one way each."""
    described, pages = checkpoint
    yield checkpoint._replace(described=described._replace(fingerprint="another operator's"))
    yield checkpoint._replace(described=described._replace(capacity=described.capacity + 1))
    yield checkpoint._replace(described=described._replace(tag=Tag(99, "of another history")))
    yield checkpoint._replace(pages=())
    yield checkpoint._replace(pages=pages[1:])
    ids, content = pages[0]
    yield checkpoint._replace(pages=((ids + 100_000, content), *pages[1:]))
    yield checkpoint._replace(pages=((ids, content[:, :100]), *pages[1:]))
    yield checkpoint._replace(pages=((ids, ~content), *pages[1:]))


def test_a_checkpoint_that_cannot_be_used_is_passed_over(root: Path, tmp_path: Path) -> None:
    """For an older one, or for the log."""
    advance(root, 1)
    older = written(frozen_of(root))
    advance(root, 2)
    newer = written(frozen_of(root))
    for number, wrong in enumerate(broken(newer)):
        assert advance(tmp_path / f"a{number}", 3, [wrong, older]) == "checkpoint"
        assert advance(tmp_path / f"b{number}", 3, [wrong]) == "loaded"


def test_a_sink_that_fails_is_not_the_end(root: Path, tmp_path: Path) -> None:
    """Where checkpoints cannot be listed or read, the log is read, and the error is kept for whoever reports it."""
    advance(root, 1)
    checkpoint = written(frozen_of(root))

    noted: list[str] = []

    class Unreadable(NamedTuple):
        described: BaseDescription

        def runs(self) -> PageRuns:
            yield checkpoint.pages[0]
            raise OSError("the disk is gone")

        def refused(self, error: Exception) -> None:
            noted.append(str(error))

    def unlisted() -> Iterable[BaseCheckpoint]:
        raise StateDamaged("no list")

    for listed in (unlisted, lambda: [Unreadable(checkpoint.described)]):
        log = HISTORY.loader(TAGS[1])
        with directory(tmp_path / "new").open(0, SCHEMA, OPERATOR, TAGS[1], log, listed) as state:
            assert state.how == "loaded"
            assert len(state.refused_checkpoints) == 1
            assert windows_of(state.base) == HISTORY.at(TAGS[1])
        directory(tmp_path / "new").remove()
    assert noted == ["the disk is gone"]
    assert list(no_checkpoints()) == []
