"""Times of a busy machine, counted: beats, each a short wait and a sync of a file, and who led at which beat.

A promise such as "a client goes on in 3 s" cannot be tested by a clock: a machine that does other work too makes every
step of clients and hosts longer, and a disk that stands still holds up all of them. A beat becomes longer by the same
causes, at the same moment: it waits for a processor, for the interpreter that most clients share, and for the disk.

Invariants:
* A beat takes BEAT_S at least, so a bound of so many beats is never tighter than the time that it stands for.
* Who is `named` is named by a host that runs: what comes behind that is the client's own time, not the cluster's.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final

from benchmarks.harness.leaders import view
from benchmarks.harness.raw import RawFailed
from tests.support.beside import beside

BEAT_S: Final = 0.005


def beats(seconds: float) -> int:
    """How many beats stand for a time."""
    return round(seconds / BEAT_S)


class Beats:
    """Counts beats while `run` runs, until it is told to end."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Count."""
        with tempfile.TemporaryFile() as file:
            while not self._ended.wait(BEAT_S):
                os.pwrite(file.fileno(), b"%d" % self.count, 0)
                os.fdatasync(file.fileno())
                self.count += 1

    def end(self) -> None:
        """Count no more."""
        self._ended.set()


@contextmanager
def beating() -> Iterator[Beats]:
    """Beats that are counted meanwhile."""
    counting = Beats()
    with beside(counting.run, counting.end):
        yield counting


def longest_gap(at: Sequence[int], since: int) -> int:
    """The most beats between two events, from a beat on; `at` says of each event at which beat it was."""
    times = [since, *(each for each in at if each > since)]
    return max((after - before for before, after in pairwise(times)), default=0)


class NamedLeader:
    """The first beat at which a host that runs has named a leader of partition 0 other than the one that was lost."""

    def __init__(self, counting: Beats, ports: Callable[[], Sequence[int]], topic: str, lost: int) -> None:
        self._counting = counting
        self._ports = ports
        self._topic = topic
        self._lost = lost
        self._ended = threading.Event()
        self._begun = counting.count
        self.after: int | None = None
        """How many beats that took; None: not yet."""

    def run(self) -> None:
        """Ask all hosts in turn, until one says so."""
        while self.after is None and not self._ended.is_set():
            for port in self._ports():
                if self._is_named(port):
                    self.after = self._counting.count - self._begun
                    return
            self._ended.wait(BEAT_S)

    def _is_named(self, port: int) -> bool:
        with suppress(RawFailed, OSError):  # it has ended, or is about to
            found = view(port, self._topic)
            return found.is_whole(1) and found.partitions[0].leader != self._lost
        return False

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()


@contextmanager
def naming(counting: Beats, ports: Callable[[], Sequence[int]], topic: str, lost: int) -> Iterator[NamedLeader]:
    """Who leads is asked meanwhile."""
    asking = NamedLeader(counting, ports, topic, lost)
    with beside(asking.run, asking.end):
        yield asking
