"""One operator that is fed at a fixed rate, in a process of its own, with and without checkpoints of a kind in turn.

`python -m benchmarks.paging.feeding` reads a line of JSON that describes the operator (`Fed`), prints what is fed, and
answers each further line, a seed and a number of epochs, with a line of JSON: the latencies of a turn's epochs.

Invariants:
* An epoch is due at a fixed moment, whatever the epochs before it took; its latency counts from that moment. So a
  freeze between two epochs delays the next one only as far as it lasts beyond that epoch's moment.
* An epoch lies *in a checkpoint* if any moment between its being due and its end lies between the begin of a
  partition's checkpoint and the moment at which the writer finds it durable, or if the epoch is overdue when
  the last checkpoint ends. Each epoch counts once.
* Both sides are epochs of the same operator in the same process with the same input, a fraction of a second apart. A
  turn's first epochs, and one or two behind each checkpoint, count for neither side.
* Partitions are checkpointed one after the other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paging.kinds import MAKE, PAGE_BYTES, Checkpointer
from benchmarks.paging.state import Split, split, windows_for

DRAWN_EPOCHS = 64
"""Epochs whose input is drawn beforehand; they come again and again."""
MOST_LATE = 400
"""Epochs in a row that are late, before the operator is given up."""
MOST_EPOCHS = 6
"""Epochs of a turn, for each epoch in a checkpoint that is wanted: a checkpoint that ends before the next epoch is due
has none.
"""
WARM_EPOCHS = 3
"""At the begin of a turn: other operators ran before."""


@dataclass(frozen=True)
class Fed:
    """An operator and its input. `state_bytes` of all partitions; an epoch of `rows` rows each `interval_s`; so many
    `epochs` in checkpoints in each turn, at minimum, and as many without.
    """

    kind: str
    partitions: int
    state_bytes: int
    rows: int
    interval_s: float
    epochs: int
    directory: str


class _Clocked:
    """The epochs of a turn: each at its moment."""

    def __init__(self, interval_s: float, epoch: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._epoch = epoch
        self._due = time.perf_counter()
        self.latencies: list[float] = []
        """Of all epochs."""

    def next(self) -> tuple[float, float]:
        """One more epoch: when it was due, and when it ended."""
        due = self._due
        pause = due - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        self._epoch()
        ended = time.perf_counter()
        self.latencies.append(ended - due)
        self._due += self._interval_s
        return due, ended

    def catch_up(self) -> list[tuple[float, float]]:
        """Epochs until none is overdue. Raises RuntimeError if that takes too many."""
        late = []
        while time.perf_counter() > self._due:
            late.append(self.next())
            if len(late) > MOST_LATE:
                raise RuntimeError(f"{MOST_LATE} epochs in a row were late: the operator cannot keep up with its input")
        return late


class Feeder:
    """Feeds epochs at their moments and takes checkpoints."""

    def __init__(self, fed: Fed) -> None:
        self._fed = fed
        self._operator: Split = split(windows_for(fed.state_bytes), fed.partitions, PAGE_BYTES.get(fed.kind))
        random = np.random.default_rng(1)
        self._input = [self._operator.draw(random, fed.rows) for _ in range(DRAWN_EPOCHS)]
        self._checkpointer: Checkpointer = MAKE[fed.kind](Path(fed.directory))
        self._fed_epochs = 0
        self._per_checkpoint = 4
        """Epochs in the last checkpoint."""
        for _ in range(DRAWN_EPOCHS):
            self._epoch()

    def _epoch(self) -> None:
        self._operator.process(self._input[self._fed_epochs % DRAWN_EPOCHS])
        self._fed_epochs += 1

    def turn(self, seed: int, epochs: int) -> dict[str, Any]:
        """Blocks of epochs in and without checkpoints, which of the two first as the seed says for each pair; so many
        `epochs` in checkpoints, unless that takes MOST_EPOCHS for each.
        """
        random = np.random.default_rng(seed)
        clocked = _Clocked(self._fed.interval_s, self._epoch)
        for _ in range(WARM_EPOCHS):
            clocked.next()
        inside: list[float] = []
        without: list[float] = []
        stops: list[float] = []
        took: list[float] = []
        while len(inside) < epochs and len(clocked.latencies) < MOST_EPOCHS * epochs:
            checkpoint_first = bool(random.integers(2))
            missing = len(inside) - len(without)
            if not checkpoint_first:
                without += self._quiet(clocked, max(self._per_checkpoint + missing, 1))
            block, seconds = self._in_checkpoint(clocked, stops)
            inside += block
            took.append(seconds)
            self._per_checkpoint = len(block)
            if checkpoint_first:
                without += self._quiet(clocked, max(len(inside) - len(without), 1))
        return {
            "quiet": without,
            "during": inside,
            "all": clocked.latencies[WARM_EPOCHS:],
            "stops": stops,
            "checkpoint_s": took,
        }

    @staticmethod
    def _quiet(clocked: _Clocked, count: int) -> list[float]:
        clocked.catch_up()
        return [ended - due for due, ended in (clocked.next() for _ in range(count))]

    def _in_checkpoint(self, clocked: _Clocked, stops: list[float]) -> tuple[list[float], float]:
        """Checkpoint all partitions: the latencies of the epochs in it, and the seconds that it took.

        A kind that takes no checkpoints has as many epochs here as one that takes a few epochs for each.
        """
        checkpointer = self._checkpointer
        if not checkpointer.takes_any:
            return self._quiet(clocked, self._per_checkpoint), 0.0
        todo = list(enumerate(self._operator.partitions))
        clocked.catch_up()
        epochs: list[tuple[float, float]] = []
        spans: list[tuple[float, float]] = []
        while True:
            if checkpointer.is_done():
                if spans:
                    spans[-1] = spans[-1][0], checkpointer.durable_s
                if not todo:
                    break
                began = time.perf_counter()
                checkpointer.begin(*todo.pop(0))
                stops.append(time.perf_counter() - began)
                spans.append((began, began))
            epochs.append(clocked.next())
        held_up = clocked.catch_up()
        clocked.next()
        inside = [each for each in epochs if any(each[1] >= begun and each[0] <= done for begun, done in spans)]
        return [ended - due for due, ended in inside + held_up], spans[-1][1] - spans[0][0]

    def described(self) -> dict[str, Any]:
        """What is fed."""
        partitions = self._operator.partitions
        return {
            **asdict(self._fed),
            "windows": sum(each.windows for each in partitions),
            "content_bytes": sum(each.content_bytes for each in partitions),
        }

    def close(self) -> None:
        """End what works beside."""
        self._checkpointer.close()


def main() -> None:
    """Answer until the input ends."""
    feeder = Feeder(Fed(**json.loads(sys.stdin.readline())))
    try:
        print(json.dumps(feeder.described()), flush=True)
        for line in sys.stdin:
            seed, epochs = map(int, line.split())
            print(json.dumps(feeder.turn(seed, epochs)), flush=True)
    finally:
        feeder.close()


if __name__ == "__main__":
    main()
