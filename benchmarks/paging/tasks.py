"""A partition's epochs as Spark's tasks run them: the base is opened, an overlay changed, a delta published; and beside
them a process that freezes the base and writes checkpoints, as the I/O service does.

`python -m benchmarks.paging.tasks STATE CHECKPOINTS` is that process: a line on its standard input is a checkpoint, and
a line of JSON on its standard output the outcome.

Invariants:
* The base is changed by the next epoch's open, as in the product: an epoch's time holds the changes of the one before.
* State is never loaded from elsewhere: an epoch that would need that fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from benchmarks.harness.report import Rows
from benchmarks.paging import state
from benchmarks.paging.state import processor_over, random_rows, windows_for
from spe_adapter.checkpoint.__main__ import NICENESS
from spe_adapter.checkpoint.bases import freezing
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import Unit
from spe_adapter.state.delta import VersionStep
from spe_adapter.state.segment import Tag
from spe_adapter.state.versions import StateDirectory, WindowGroup

QUERY = "pages"
LIMIT_BYTES = 1 << 40
SHARED_MEMORY = Path("/dev/shm")
UNBOUNDED, TENTH = "all in memory", "a tenth in memory"


class NoLog:
    """A source that has nothing: whoever asks it has lost the state."""

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """No steps."""
        return None

    def everything(self) -> Iterable[WindowGroup]:
        """Fails: raises RuntimeError."""
        raise RuntimeError("the state was lost, and is measured no more")

    def expected(self) -> int:
        """Nothing."""
        return 0

    def note(self) -> bytes:
        """Nothing."""
        return b""


class Counted(NamedTuple):
    """The mark of an epoch: its number, records emitted and records seen."""

    epoch: int
    emitted: int
    seen: int


class TaskEpochs:
    """The epochs of one partition, its state below `root`."""

    def __init__(self, root: Path, windows: int, memory_bytes: int | None = None) -> None:
        self._directory = StateDirectory(root, QUERY, LIMIT_BYTES, seed=1, memory_bytes=memory_bytes)
        self._tag: Tag | None = None
        self._epoch = 0
        self.windows = windows
        items = np.random.default_rng(state.SEED).permutation(windows) + state.FIRST_ITEM
        for start in range(0, windows, state.FILL_ROWS):
            part = items[start : start + state.FILL_ROWS]
            self.epoch(state.rows_of(part, part))

    def epoch(self, batch: Any) -> float:
        """One epoch; the seconds of its task."""
        started = time.perf_counter()
        with self._directory.open(0, state.state_schema(), state.FINGERPRINT, self._tag, NoLog()) as opened:
            store = opened.overlay()
            processor_over(store).process(batch)
            self._epoch += 1
            tag = Tag(self._epoch, "0")
            opened.publish(tag, store.changes(), Counted(self._epoch, self._epoch, self._epoch))
        self._tag = tag
        return time.perf_counter() - started


class BaseWriter:
    """The process that writes checkpoints of the base."""

    def __init__(self, root: Path, checkpoints: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.paging.tasks", str(root), str(checkpoints)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._told = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        os.set_blocking(self._answers.fileno(), False)

    def begin(self) -> None:
        """Start a checkpoint."""
        self._told.write("go\n")
        self._told.flush()

    def outcome(self) -> dict[str, Any] | None:
        """Of the checkpoint that began, None while it is written. Raises RuntimeError if the process ended."""
        line = self._answers.readline()
        if not line and self._process.poll() is not None:
            raise RuntimeError(f"the writer of checkpoints ended with {self._process.returncode}")
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the process."""
        self._told.close()
        self._process.wait()
        self._answers.close()


def measure_tasks(rows: Rows, size: int, epochs_of: tuple[int, ...], rounds: int, directory: Path) -> None:
    """Epochs of a number of rows each with and without a checkpoint beside them."""
    root = SHARED_MEMORY / f"cairn-bench-pages-{os.getpid()}"
    writer = None
    try:
        tasks = TaskEpochs(root, windows_for(size))
        checkpoints = directory / "base-checkpoints"
        writer = BaseWriter(root, checkpoints)
        random = np.random.default_rng(state.SEED)
        for number in range(-1, rounds):
            for count in epochs_of:
                # As many epochs without a checkpoint as fit into the time of one, before it and behind it.
                quiet = _for_a_while(tasks, random, count)
                writer.begin()
                during: list[float] = []
                started = time.perf_counter()
                while (outcome := writer.outcome()) is None:
                    during.append(tasks.epoch(random_rows(random, count, tasks.windows)))
                took = time.perf_counter() - started
                quiet += _for_a_while(tasks, random, count)
                label = {"bytes": size, "epoch_rows": count, "round": number, "outcome": outcome["state"]}
                if number >= 0:  # the first one loads compiled code
                    rows.add(
                        what="task", **label, quiet=_ms(quiet), during=_ms(during), checkpoint_s=took, **_told(outcome)
                    )
                shutil.rmtree(checkpoints, ignore_errors=True)
    finally:
        if writer is not None:
            writer.close()
        shutil.rmtree(root, ignore_errors=True)


def measure_bounded(rows: Rows, size: int, epochs: int, epoch_rows: int, directory: Path) -> None:
    """Epochs of a base on a disk, all of it in memory or a tenth of it, in turn; rows of all items, or of a tenth."""
    windows = windows_for(size)
    roots = {UNBOUNDED: directory / "unbounded", TENTH: directory / "bounded"}
    try:
        both = {
            name: TaskEpochs(root, windows, None if name == UNBOUNDED else size // 10) for name, root in roots.items()
        }
        random = np.random.default_rng(state.SEED)
        for spread, drawn in (("all", windows), ("a tenth", windows // 10)):
            for number in range(-1, epochs):
                batch = random_rows(random, epoch_rows, drawn)
                for name, tasks in both.items():
                    took = tasks.epoch(batch)
                    if number >= 0:
                        rows.add(what="bounded", bytes=size, memory=name, items=spread, round=number, seconds=took)
    finally:
        for root in roots.values():
            shutil.rmtree(root, ignore_errors=True)


def _for_a_while(tasks: TaskEpochs, random: np.random.Generator, count: int, epochs: int = 15) -> list[float]:
    return [tasks.epoch(random_rows(random, count, tasks.windows)) for _ in range(epochs)]


def _ms(seconds: Sequence[float]) -> list[float]:
    return [round(each * 1000, 3) for each in seconds]


def _told(outcome: dict[str, Any]) -> dict[str, Any]:
    return {name: outcome[name] for name in ("freeze_s", "write_s", "error", "written_bytes")}


def main() -> None:
    """Write a checkpoint for each line, each a full one."""
    os.nice(NICENESS)
    root, checkpoints = Path(sys.argv[1]), Path(sys.argv[2])
    for _ in sys.stdin:
        unit = Unit(QUERY, 0)
        manager = CheckpointManager(unit, freezing(root)(unit), ManagerTools(DirectorySink(checkpoints)))
        done = manager.checkpoint()
        size = 0 if done.manifest is None else done.manifest.own_bytes
        told = {"state": done.state.value, "freeze_s": done.freeze_s, "write_s": done.write_s, "error": done.error}
        print(json.dumps({**told, "written_bytes": size}), flush=True)


if __name__ == "__main__":
    main()
