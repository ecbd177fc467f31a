"""One operator that is fed at a fixed rate, in a process of its own, while checkpoints of a kind are taken.

`python -m benchmarks.paging.feeding` reads a line of JSON that describes the operator (`Fed`), prints `ready`, and
answers each further line with a line of JSON: the latencies of a cycle's epochs.

Invariants:
* An epoch is due at a fixed moment, whatever the epochs before it took; its latency counts from that moment.
* A cycle begins without a checkpoint, and ends when the checkpoints of all partitions are durable. Partitions are
  checkpointed one after the other.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paging.kinds import MAKE, PAGE_BYTES, Checkpointer
from benchmarks.paging.state import Split, split, windows_for

DRAWN_EPOCHS = 64
"""Epochs whose input is drawn beforehand; they come again and again."""


@dataclass(frozen=True)
class Fed:
    """An operator and its input. `state_bytes` of all partitions; an epoch of `rows` rows each `interval_s`."""

    kind: str
    partitions: int
    state_bytes: int
    rows: int
    interval_s: float
    quiet_s: float
    directory: str


class Feeder:
    """Feeds epochs at their moments and takes checkpoints."""

    def __init__(self, fed: Fed) -> None:
        self._fed = fed
        self._operator: Split = split(windows_for(fed.state_bytes), fed.partitions, PAGE_BYTES.get(fed.kind))
        random = np.random.default_rng(1)
        self._input = [self._operator.draw(random, fed.rows) for _ in range(DRAWN_EPOCHS)]
        self._checkpointer: Checkpointer = MAKE[fed.kind](Path(fed.directory))
        self._fed_epochs = 0
        for _ in range(DRAWN_EPOCHS):
            self._epoch()

    def _epoch(self) -> None:
        self._operator.process(self._input[self._fed_epochs % DRAWN_EPOCHS])
        self._fed_epochs += 1

    def cycle(self) -> dict[str, Any]:
        """Epochs without a checkpoint, then those during one, then a few more."""
        fed = self._fed
        began = time.perf_counter()
        quiet = int(fed.quiet_s / fed.interval_s)
        latencies: list[float] = []
        stops: list[float] = []
        marks: list[tuple[float, float]] = []
        """Of each epoch: when it was due, and when it ended."""
        todo = list(enumerate(self._operator.partitions))
        from_s = to_s = 0.0
        number = after = 0
        while after < quiet // 4:
            due = began + number * fed.interval_s
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            self._epoch()
            ended = time.perf_counter()
            latencies.append(ended - due)
            marks.append((due, ended))
            number += 1
            if number < quiet:
                continue
            from_s = from_s or time.perf_counter()
            if not self._checkpointer.is_done():
                continue
            if todo:
                started = time.perf_counter()
                self._checkpointer.begin(*todo.pop(0))
                stops.append(time.perf_counter() - started)
            else:
                to_s = to_s or time.perf_counter()
                after += 1
        during = [ended >= from_s and due <= to_s for due, ended in marks]
        return {
            "quiet": latencies[: quiet - 1],
            "during": [took for took, is_in in zip(latencies, during, strict=True) if is_in],
            "all": latencies,
            "stops": stops,
            "checkpoint_s": to_s - from_s,
        }

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
        for _ in sys.stdin:
            print(json.dumps(feeder.cycle()), flush=True)
    finally:
        feeder.close()


if __name__ == "__main__":
    main()
