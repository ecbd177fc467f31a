"""The machine of a simulated host: its disk, whose work takes virtual time, and the real engine of a store on it.

Invariants:
* The engine is the product's. Its threads are replaced: jobs and reads take virtual time, and run on the event loop.
* A power cut comes in the middle of a job too: the calls of the disk before it are made, the others are not. What was
  not synced is lost or kept, whole or torn, as `SimDisk.crash` chooses.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

import pytest
import trio

from logstore.base.events import Report
from logstore.disk.readers import ReaderThreads
from logstore.disk.writers import Finished, WriterThreads
from logstore.engine import StoreEngine
from logstore.log.jobs import DiskJob
from logstore.log.store import Store, StoreSettings
from logstore.testing.faults import FileCall
from logstore.testing.simdisk import SimDisk

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
DISK_S = 0.001
DISK_BYTES = 64 << 20
"""Of the whole disk: the journal is a part of it."""
UNIT_BYTES = 512


class VirtualClock:
    """The time of the event loop."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, of a run that begins at NOW_MS."""
        return NOW_MS + int(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        """Seconds."""
        return trio.current_time()


class PowerCut(BaseException):
    """The machine ends in the middle of a job."""


class VirtualWriters:
    """In the place of `WriterThreads`: each submission takes the time of the disk, then its jobs run at once."""

    def __init__(self, machine: Machine, nursery: trio.Nursery) -> None:
        self._machine = machine
        self._nursery = nursery
        self._finished: deque[Finished] = deque()
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.under_way: dict[int, Sequence[DiskJob]] = {}
        self._number = 0

    def submit(self, jobs: Sequence[DiskJob]) -> None:
        """See WriterThreads."""
        self._number += 1
        self.under_way[self._number] = jobs
        self._nursery.start_soon(self._work, self._number)

    def wait_briefly(self) -> bool:
        """See WriterThreads: the event loop does not wait here."""
        return bool(self._finished)

    def collect(self) -> list[Finished]:
        """See WriterThreads."""
        os.eventfd_read(self.eventfd)
        finished = list(self._finished)
        self._finished.clear()
        return finished

    async def _work(self, number: int) -> None:
        took_s = self._machine.took_s()
        await trio.sleep(took_s)
        jobs = self.under_way.pop(number)
        self._finished.extend([Finished(job, job.run(self._machine.disk), took_s) for job in jobs])
        os.eventfd_write(self.eventfd, 1)


class VirtualReaders:
    """In the place of `ReaderThreads`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def run(self, work: Callable[[], T]) -> T:
        """See ReaderThreads."""
        await trio.sleep(self._machine.took_s())
        return work()

    async def run_wake_ups(self) -> None:
        """See ReaderThreads."""
        await trio.sleep_forever()


class Machine:
    """Outlives the host that runs on it. `slowness`: how many times longer everything on the disk takes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.slowness = 1.0
        self.disk = self._sized(SimDisk(unit_bytes=UNIT_BYTES))
        self._writers: VirtualWriters | None = None
        self._descriptors: list[int] = []

    def took_s(self) -> float:
        """How long the next work of the disk takes."""
        return self.slowness * self.random.uniform(DISK_S / 2, DISK_S * 2)

    def wipe(self) -> None:
        """An empty disk; no host runs."""
        self.disk = self._sized(SimDisk(unit_bytes=UNIT_BYTES))

    def end_process(self) -> None:
        """The process is killed: what it has written is there, synced or not; the dying one sees another disk."""
        self.disk = self._sized(self.disk.kill_state())

    def cut_power(self) -> None:
        """The machine ends at once, perhaps in the middle of its jobs. The dying process sees another disk."""
        jobs = [job for jobs in (self._writers.under_way.values() if self._writers else ()) for job in jobs]
        left = self.random.randint(0, 4)

        def count(_: FileCall) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        self.disk.before_call = count
        try:
            for job in jobs:
                job.run(self.disk)
        except PowerCut:
            pass
        self.disk = self._sized(self.disk.crash(self.random))

    @staticmethod
    def _sized(disk: SimDisk) -> SimDisk:
        disk.capacity_bytes = DISK_BYTES
        return disk

    async def open(self, settings: StoreSettings, report: Report, nursery: trio.Nursery) -> StoreEngine:
        """Recover the store, and run it in the nursery; it ends when that is cancelled, as at a kill."""
        store = Store.open(self.disk, VirtualClock(), settings, new_id=self.new_id, report=report)
        self._writers = writers = VirtualWriters(self, nursery)
        self._descriptors.append(writers.eventfd)
        engine = StoreEngine(store, self.disk, cast(WriterThreads, writers), nursery)
        engine.stop_readers()
        engine._readers = engine._look_ups = cast(ReaderThreads, VirtualReaders(self))
        for run in (
            engine.run_jobs, engine.run_starts, engine.run_reads, engine.run_ticks, engine.run_saves, engine.run_looks,
            engine.run_rests,
        ):  # fmt: skip
            nursery.start_soon(run)
        return engine

    def close(self) -> None:
        """Close what hosts had open here; nothing runs any more."""
        for descriptor in self._descriptors:
            os.close(descriptor)

    def new_id(self) -> uuid.UUID:
        """An identity, from the seed."""
        return uuid.UUID(int=self.random.getrandbits(128))


@contextmanager
def no_threads() -> Iterator[None]:
    """What the product gives to a thread of trio's runs on the event loop: a thread knows nothing of virtual time."""

    async def run_sync(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return partial(work, *arguments)()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", run_sync)
        yield
