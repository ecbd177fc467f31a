"""An operator's process on a host: epochs at a fixed rate over a base of state, as micro-batch tasks have it.

An epoch opens the state at the version of the epoch before, which applies that epoch's changes to the base, updates
windows through an overlay, and publishes the changes as a delta.

Invariants:
* Epochs are due at fixed moments; a latency counts from the moment when an epoch was due, however late it began.
* `waited_s` is what the kernel says the thread waited for a processor, in and in front of the epoch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.racks.host import HostProcess, obey
from spe_adapter.state.delta import VersionStep
from spe_adapter.state.segment import Tag
from spe_adapter.state.versions import StateDirectory, WindowGroup

SUMS: Final = 9
SCHEMA: Final = pa.schema(
    [pa.field("count", pa.int64()), *(pa.field(f"sum_{number}", pa.float64()) for number in range(SUMS))]
)
FINGERPRINT: Final = "burst"
PARTITION: Final = 0
LIMIT_BYTES: Final = 1 << 30
HOT_SHARE: Final = 0.05
"""Of all windows, those that an epoch updates some of."""
BUILD_ROWS: Final = 100_000
END_S: Final = 30.0


class Epoch(NamedTuple):
    """One epoch, by the machine's monotonic clock. `took_s` without the delay of its begin."""

    due_s: float
    end_s: float
    took_s: float
    waited_s: float


class _Mark(NamedTuple):
    """What the footprints of an epoch share."""

    epoch: int
    emitted: int
    seen: int


class _NoLog:
    """A log without anything: a host whose base is lost fails, it has nothing to load from."""

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """No steps."""
        return None

    def everything(self) -> Sequence[WindowGroup]:
        """Nothing. Raises AssertionError: a base was lost."""
        raise AssertionError("the base was lost, and this operator has no log")

    def expected(self) -> int:
        """Nothing."""
        return 0

    def note(self) -> bytes:
        """Nothing."""
        return b""


class Operator(HostProcess):
    """Counts and sums of `windows` keys, of which HOT_SHARE are updated."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        super().__init__(name, address, directory)
        self._state = StateDirectory(directory, name, LIMIT_BYTES, seed=Random(name).getrandbits(63))
        self._random = np.random.default_rng(Random(name).getrandbits(32))
        self._tag: Tag | None = None
        self._epochs: list[Epoch] = []
        self._failure = ""
        self._windows = 0
        self._resting = threading.Event()
        self._thread: threading.Thread | None = None
        self.commands |= {"build": self.build, "run": self.run, "rest": self.rest}

    def build(self, windows: int) -> dict[str, str]:
        """Open all windows, and bring them into the base; where the base is."""
        for begin in range(0, windows, BUILD_ROWS):
            self._epoch(np.arange(begin, min(begin + BUILD_ROWS, windows)))
        self._windows = windows
        for _ in range(3):  # the last changes reach the base, and loops are compiled
            self._epoch(np.arange(1))
        return {"root": str(self._state.root), "query": self.name}

    def run(self, every_s: float, updates: int, begin_s: float) -> None:
        """Begin to have an epoch with so many updates at `begin_s` and every `every_s` seconds."""
        self._resting.clear()
        self._epochs = []
        self._thread = threading.Thread(target=self._run, args=(every_s, updates, begin_s), name="epochs", daemon=True)
        self._thread.start()

    def rest(self) -> list[Epoch]:
        """End the epochs; what they took. Raises AssertionError if one has failed."""
        self._resting.set()
        if self._thread is not None:
            self._thread.join(END_S)
        assert not self._failure, self._failure
        return self._epochs

    def _run(self, every_s: float, updates: int, begin_s: float) -> None:
        due_s = begin_s
        hot = max(1, int(self._windows * HOT_SHARE))
        try:
            while not self._resting.wait(max(0.0, due_s - time.monotonic())):
                began_s, waited_s = time.monotonic(), _waited_s()
                self._epoch(np.unique(self._random.integers(0, hot, updates)))
                end_s = time.monotonic()
                self._epochs.append(Epoch(due_s, end_s, end_s - began_s, _waited_s() - waited_s))
                due_s += every_s
        except Exception as error:  # noqa: BLE001 - told to who asks for the epochs
            self._failure = f"{self.name}: {error!r}"

    def _epoch(self, chosen: np.ndarray) -> None:
        number = 0 if self._tag is None else self._tag.epoch + 1
        tag = Tag(number, "0")
        keys = pa.array([b"key %012d" % key for key in chosen.tolist()], pa.binary())
        with self._state.open(PARTITION, SCHEMA, FINGERPRINT, self._tag, _NoLog()) as state:
            windows = state.overlay()
            ids, _ = windows.ensure(keys, np.zeros(len(chosen), np.int64))
            windows.set("count", ids, windows.get("count", ids) + 1)
            for number in range(SUMS):
                name = f"sum_{number}"
                windows.set(name, ids, windows.get(name, ids) + self._random.random(len(ids)))
            state.publish(tag, windows.changes(), _Mark(number, number, number))
        self._tag = tag


def _waited_s() -> float:
    """Seconds that this thread has been ready to run without a processor."""
    fields = Path("/proc/thread-self/schedstat").read_text().split()
    return int(fields[1]) / 1e9


def main(arguments: Sequence[str]) -> None:
    """The process of an operator."""
    name, address, directory = arguments
    obey(Operator(name, address, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
