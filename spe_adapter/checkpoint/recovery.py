"""Finds the checkpoints of a unit and reads their pages.

Invariants:
* Content comes from files whose every byte was checked, and whose manifest names them; all pages of one checkpoint, or
  CheckpointDamaged. Whoever builds state from the pages throws it away at that error.
* The listing of the sink says which checkpoints there are: a recovery gives no registry, since a coordinator that is
  away would cost time, and what lies in a sink that cannot be listed can hardly be read. Where a registry is given, it
  may be lost: what both know is tried, newest first.
* Memory is bounded: at most QUEUED runs wait for their consumer.

Source: SGuard, sections 4.4 (load) and 5 (parallel reads).
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple, TypeVar

import numpy as np

from logstore.base.events import Report, ignore
from logstore.errors import CairnError
from scheduler.client import CoordinatorError
from spe_adapter.checkpoint.chunk import ChunkReader
from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointFailed
from spe_adapter.checkpoint.events import CHECKPOINT_LOADED, CHECKPOINT_REFUSED
from spe_adapter.checkpoint.manifest import LiveFile, Manifest, decode_manifest
from spe_adapter.checkpoint.names import MAX_SEQ, CheckpointName, Unit, checkpoint_name
from spe_adapter.checkpoint.registry import NoRegistry, Registry
from spe_adapter.checkpoint.retention_rules import newest_first
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.codec.kernels import Bytes, Int64s

READERS: Final = 4
"""Files that are read in parallel."""
QUEUED: Final = 16
"""Runs of pages that wait for their consumer; each may hold the range that was read with it (READ_BYTES)."""
MAX_TRIED: Final = 16
"""Complete checkpoints of a unit that are looked at; more than are kept."""
MAX_LOOKED_AT: Final = 1000
"""Directories of a unit that are looked at: each write that was killed leaves one without a manifest."""
_POLL_S: Final = 0.2

Built = TypeVar("Built")
PageRuns = Iterator[tuple[Int64s, Bytes]]
"""Page numbers, and their content as rows of a page each."""


@dataclass(frozen=True, slots=True)
class Finder:
    """Where the checkpoints of units are looked for. `report` gets a line for each checkpoint that is not used."""

    sink: Sink
    registry: Registry = NoRegistry()  # noqa: RUF009 - has no state
    report: Report = ignore

    def checkpoints(self, unit: Unit) -> list[Manifest]:
        """The complete checkpoints of a unit, newest first, at most MAX_TRIED. Files are not looked at yet.

        Raises SinkFailed if the sink cannot be listed and the registry knows none.
        """
        found: list[Manifest] = []
        for name in self._names(unit):
            if len(found) == MAX_TRIED:
                break
            where = f"{self.sink.url}/{name}"
            try:
                data = self.sink.manifest(name)
                if data is not None:
                    found.append(decode_manifest(data, name, where))
            except CheckpointFailed as error:
                self.report(CHECKPOINT_REFUSED, checkpoint=str(name), error=error)
        return newest_first(found)

    def _names(self, unit: Unit) -> list[CheckpointName]:
        """The newest directories of a unit, as the registry and the listing know them."""
        seqs: set[int] = set()
        try:
            seqs.update(self.registry.complete(unit))
        except CoordinatorError as error:
            self.report(CHECKPOINT_REFUSED, checkpoint=unit.name, error=f"the registry: {error}")
        try:
            seqs.update(name.seq for name in self.sink.names() if name.unit == unit.name)
        except CheckpointFailed as error:
            if not seqs:
                raise
            self.report(CHECKPOINT_REFUSED, checkpoint=unit.name, error=error)
        valid = sorted((seq for seq in seqs if 1 <= seq <= MAX_SEQ), reverse=True)
        return [checkpoint_name(unit, seq) for seq in valid[:MAX_LOOKED_AT]]


class Recovery(NamedTuple):
    """A state that was built from a checkpoint. `tried`: checkpoints that were damaged before."""

    manifest: Manifest
    seconds: float
    tried: int


def recover(
    finder: Finder,
    unit: Unit,
    usable: Callable[[Manifest], bool],
    build: Callable[[Manifest, PageRuns], Built],
) -> tuple[Built, Recovery] | None:
    """What `build` makes of the newest checkpoint that is `usable` and whose files check; None if there is none.

    `build` takes all pages, in no order, and raises for what it cannot use (an error of CairnError): then, as for a
    damaged file, the checkpoint before is tried, and a line says which file and why. A sink that fails is None too.
    """
    try:
        found = finder.checkpoints(unit)
    except CheckpointFailed as error:
        finder.report(CHECKPOINT_REFUSED, checkpoint=unit.name, error=error)
        return None
    tried = 0
    for manifest in found:
        if not usable(manifest):
            continue
        started_s = monotonic()
        try:
            runs = read_pages(finder.sink, manifest)
            try:
                built = build(manifest, runs)
                for _ in runs:  # a builder that stops early must not use what was not checked
                    raise CheckpointDamaged(f"{manifest.name}: has more pages than its state takes")
            finally:
                runs.close()
        except (CairnError, OSError) as error:
            tried += 1
            finder.report(CHECKPOINT_REFUSED, checkpoint=str(manifest.name), error=error)
            continue
        recovery = Recovery(manifest, monotonic() - started_s, tried)
        finder.report(
            CHECKPOINT_LOADED,
            unit=unit.name,
            checkpoint=manifest.seq,
            epoch=manifest.header.epoch,
            bytes=manifest.all_bytes,
            seconds=round(recovery.seconds, 3),
        )
        return built, recovery
    return None


class _FileReads:
    """The files of a checkpoint while threads read them. In `runs` a None says that a thread has ended."""

    def __init__(self, sink: Sink, page_bytes: int) -> None:
        self._sink = sink
        self._page_bytes = page_bytes
        self._stop = threading.Event()
        self.runs: queue.Queue[tuple[Int64s, Bytes] | None] = queue.Queue(QUEUED)

    def stop(self) -> None:
        """End the threads: nobody takes runs any more."""
        self._stop.set()

    def read(self, live: LiveFile) -> None:
        """Read one file; its live pages go into `runs`."""
        try:
            for ids, content in checked_runs(self._sink, live, self._page_bytes):
                # Both are ascending: the live ones among the run's numbers.
                wanted = live.ids[np.searchsorted(live.ids, ids).clip(max=len(live.ids) - 1)] == ids
                if wanted.all():
                    self._put((ids, content))
                elif wanted.any():
                    self._put((ids[wanted], content[wanted]))
                if self._stop.is_set():
                    break
        finally:
            self._put(None)

    def _put(self, run: tuple[Int64s, Bytes] | None) -> None:
        while not self._stop.is_set():
            try:
                self.runs.put(run, timeout=_POLL_S)
            except queue.Full:
                continue
            return


def checked_runs(sink: Sink, live: LiveFile, page_bytes: int) -> PageRuns:
    """The runs of a file, checked against its manifest. Raises CheckpointDamaged and SinkFailed."""
    where = f"{sink.url}/{live.name}/{live.file.name}"
    reader = ChunkReader(where, live.name, live.file.thread)
    numbers = []
    for data in sink.read(live.name, live.file.name):
        if reader.size_bytes + len(data) > live.file.size_bytes:  # memory is bounded by what the manifest says
            raise CheckpointDamaged(f"{where}: is longer than the {live.file.size_bytes} bytes of the manifest")
        for ids, content in reader.feed(data):
            if content.shape[1] != page_bytes:
                raise CheckpointDamaged(f"{where}: pages of {content.shape[1]} bytes, not {page_bytes}")
            numbers.append(ids)
            yield ids, content
    reader.close()
    if (reader.size_bytes, reader.crc32c) != (live.file.size_bytes, live.file.crc32c):
        raise CheckpointDamaged(
            f"{where}: {reader.size_bytes} bytes with CRC {reader.crc32c:08x}; the manifest says "
            f"{live.file.size_bytes} with {live.file.crc32c:08x}"
        )
    if not np.array_equal(np.concatenate(numbers), live.file.ids()):
        raise CheckpointDamaged(f"{where}: other pages than the manifest says")


def read_pages(sink: Sink, manifest: Manifest) -> "PageReader":
    """All pages of a checkpoint, each once, in no order; files are read in parallel."""
    return PageReader(sink, manifest)


class PageReader(Iterator[tuple[Int64s, Bytes]]):
    """The runs of pages of a checkpoint. `close` ends the threads; iterating raises CheckpointDamaged, SinkFailed."""

    def __init__(self, sink: Sink, manifest: Manifest) -> None:
        self._reading = _FileReads(sink, manifest.page_bytes)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="checkpoint read")
        self._files = [self._pool.submit(self._reading.read, live) for live in manifest.live()]
        self._left = len(self._files)

    def __next__(self) -> tuple[Int64s, Bytes]:
        while self._left:
            run = self._reading.runs.get()
            if run is not None:
                return run
            self._left -= 1
            # A thread that failed has put its None last; others may be at work yet.
            for future in self._files:
                if future.done():
                    future.result()
        for future in self._files:
            future.result()
        raise StopIteration

    def close(self) -> None:
        """End the threads."""
        self._reading.stop()
        self._pool.shutdown(cancel_futures=True)
