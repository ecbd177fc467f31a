"""What the tests of shared state share: a small schema, a history of versions, and a log that serves it.

Invariant: every test has its own root; nothing is left in shared memory.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.state.delta import VersionStep
from spe_adapter.state.segment import Tag
from spe_adapter.state.store import WindowChanges
from spe_adapter.state.table import Table, WindowVersion

SCHEMA = pa.schema([pa.field("total", pa.int64()), pa.field("name", pa.string())])
QUERY = "a query/with a name"
OPERATOR = "operator 1"

Windows = dict[tuple[bytes | None, int], tuple[int | None, str | None]]


class Mark(NamedTuple):
    """A mark as the log has it."""

    epoch: int
    emitted: int
    seen: int


def batch_of(windows: Windows) -> pa.RecordBatch:
    """Windows as a batch of footprints."""
    keys, numbers = [key for key, _ in windows], [number for _, number in windows]
    totals, names = [total for total, _ in windows.values()], [name for _, name in windows.values()]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(numbers, pa.int64()),
            pa.array([number + 100 for number in numbers], pa.int64()),
            pa.array(totals, pa.int64()),
            pa.array(names, pa.string()),
        ],
        names=["key", "number", "expires", "s_total", "s_name"],
    )


def windows_of(table: Table) -> Windows:
    """All windows of a table, each checked to be found by its identity."""
    rows = table.live_rows()
    batch = table.take(rows)
    assert (table.find(batch.column("key"), batch.column("number").to_numpy()) == rows).all()
    assert table.live == len(rows)
    return {(row["key"], row["number"]): (row["s_total"], row["s_name"]) for row in batch.to_pylist()}


def gone(identities: Iterable[tuple[bytes | None, int]]) -> pa.RecordBatch:
    """Identities as a batch of closes."""
    listed = list(identities)
    return pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in listed], pa.binary()), pa.array([number for _, number in listed], pa.int64())],
        names=["key", "number"],
    )


class Step(NamedTuple):
    """What one epoch changes."""

    tag: Tag
    set: Windows
    closed: tuple[tuple[bytes | None, int], ...] = ()

    def mark(self) -> Mark:
        """Its mark."""
        return Mark(self.tag.epoch, 10 * self.tag.epoch, 7 * self.tag.epoch)

    def changes(self) -> WindowChanges:
        """As a store tells it."""
        opened = np.zeros(len(self.set), np.bool_)
        return WindowChanges(batch_of(self.set), opened, gone(self.closed), gone([]), np.empty(0, np.int64))

    def version_step(self) -> VersionStep:
        """As the log tells it."""
        return VersionStep(self.tag, [batch_of(self.set)], [gone(self.closed)], self.mark(), note_of(self.tag))


def note_of(tag: Tag) -> bytes:
    """What is kept beside a version."""
    return f"note of {tag.epoch} {tag.attempt}".encode()


class History:
    """The epochs of a partition, as the log has them: the StateSource of any version of it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)

    def at(self, tag: Tag | None) -> Windows:
        """The windows open at a version."""
        windows: Windows = {}
        if tag is None:
            return windows
        for step in self.steps:
            windows.update(step.set)
            for identity in step.closed:
                windows.pop(identity, None)
            if step.tag == tag:
                return windows
        raise AssertionError(f"no version {tag}")

    def loader(self, wanted: Tag | None, *, steps: bool = True) -> "Log":
        """The StateSource for a version; without `steps` it only has everything."""
        return Log(self, wanted, steps=steps)


class Log:
    """A StateSource over a history, which counts what it was asked for."""

    def __init__(self, history: History, wanted: Tag | None, *, steps: bool) -> None:
        self._history = history
        self._wanted = wanted
        self._steps = steps
        self.asked: list[str] = []

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """The steps behind a version."""
        self.asked.append("since")
        tags = [step.tag for step in self._history.steps]
        if not self._steps or tag not in tags or self._wanted not in tags:
            return None
        return [step.version_step() for step in self._history.steps[tags.index(tag) + 1 : tags.index(self._wanted) + 1]]

    def everything(self) -> Iterable[SimpleNamespace]:
        """All open windows, each with the mark of the epoch that set it last."""
        self.asked.append("everything")
        left = self._history.at(self._wanted)
        steps = self._history.steps
        upto = [step.tag for step in steps].index(self._wanted) + 1 if self._wanted is not None else 0
        for step in reversed(steps[:upto]):
            part = {identity: left.pop(identity) for identity in step.set if identity in left}
            yield SimpleNamespace(mark=step.mark(), batches=[batch_of(part)])

    def expected(self) -> int:
        """How many there are."""
        return len(self._history.at(self._wanted))

    def note(self) -> bytes:
        """What is kept beside the version."""
        return b"" if self._wanted is None else note_of(self._wanted)


def check_marks(table: Table, history: History, tag: Tag) -> None:
    """Every window carries the mark of the epoch that set it last."""
    marks: dict[tuple[bytes | None, int], WindowVersion] = {}
    for step in history.steps:
        marks.update(dict.fromkeys(step.set, WindowVersion(*step.mark())))
        if step.tag == tag:
            break
    rows = table.live_rows()
    batch = table.take(rows)
    found = zip(
        batch.column("key").to_pylist(), batch.column("number").to_pylist(), *table.window_versions(rows), strict=True
    )
    assert all(marks[key, number] == WindowVersion(int(epoch), int(o), int(s)) for key, number, epoch, o, s in found)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of its own for each test."""
    return tmp_path / "shared"
