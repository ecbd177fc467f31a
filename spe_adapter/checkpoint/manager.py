"""The checkpoint manager: carries out the five steps of a unit's checkpoint.

    note the positions and freeze -> write in parallel, as Peace plans -> seal -> register -> acknowledge

Invariants:
* A failed checkpoint has no further effect: its pages are released, its request to Peace is cancelled, its files are
  removed, the previous checkpoint stays, and the operator gets no error.
* While Peace lets the checkpoint wait, nothing is frozen. At the start event the state is frozen again; if its pages do
  not fit the granted number of chunks, the request is cancelled and submitted again, at most MAX_REQUESTS times.
* If the coordinator is away or refuses, the chunks are written without a plan, and a log line says so.
* An incremental checkpoint builds only on the last checkpoint that this manager completed and whose files exist.
* Old checkpoints are removed after a newer one is complete (`retention_rules`).

Source: SGuard, sections 3 (checkpoint manager), 4.4 and 5.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from logstore.base.clock import Clock
from logstore.base.events import Report, ignore
from logstore.base.system import SystemClock
from logstore.errors import CairnError
from scheduler.client import CoordinatorError, CoordinatorRefused, Go
from spe_adapter.checkpoint.chunk import MAX_CHUNK_BYTES, encode_chunk, max_chunk_bytes
from spe_adapter.checkpoint.errors import (
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointTaken,
    CheckpointVersionOld,
    CheckpointVersionUnknown,
    SnapshotRefused,
)
from spe_adapter.checkpoint.events import (
    CHECKPOINT_FAILED,
    CHECKPOINT_NOT_REMOVED,
    CHECKPOINT_REMOVED,
    CHECKPOINT_UNPLANNED,
    CHECKPOINT_UNREGISTERED,
    CHECKPOINT_WRITTEN,
)
from spe_adapter.checkpoint.hdfs_sink import NodeFailed
from spe_adapter.checkpoint.manifest import (
    CheckpointFile,
    Manifest,
    decode_manifest,
    encode_manifest,
    file_of,
    parts_over,
)
from spe_adapter.checkpoint.names import CheckpointName, Unit, checkpoint_name, thread_name
from spe_adapter.checkpoint.plans import Grant, PeaceRequests, chain_of, suspects_of
from spe_adapter.checkpoint.registry import NoRegistry, Registry
from spe_adapter.checkpoint.retention_rules import may_build_on, to_remove
from spe_adapter.checkpoint.sinks import FileContent, Sink
from spe_adapter.checkpoint.snapshot import Freeze, Snapshot
from spe_adapter.checkpoint.steps import IS_COMPLETE, CheckpointEvent, CheckpointState, CheckpointSteps
from spe_adapter.checkpoint.throttle import Throttle
from spe_adapter.codec.kernels import Int64s

AT_ONCE: Final = 4
"""Chunks of a checkpoint that are written in parallel."""
SMALL_CHUNK_BYTES: Final = 8 << 20
"""Smaller chunks are not worth a file of their own, even if a thread is free."""
MAX_REQUESTS: Final = 4
"""Requests to Peace for one checkpoint, before it is written without a plan."""
MAX_CLAIMS: Final = 8
MAX_UNREGISTERED: Final = 8

_PREPARING: Final = threading.Lock()
"""Pieces of chunks are read and checked one after the other in a process, so that its checkpoints take no more than one
core from what is fed; chunks are sent at the same time.
"""


class Outcome(NamedTuple):
    """What became of a checkpoint. `state`: the last step; `manifest`: of a complete one; `freeze_s`: how long the
    state was being frozen; `write_s`: from the last freeze to the manifest; `error`: why it failed.
    """

    state: CheckpointState
    manifest: Manifest | None = None
    freeze_s: float = 0.0
    write_s: float = 0.0
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the checkpoint can be recovered."""
        return self.state in IS_COMPLETE


class ChunkRevoked(CheckpointFailed):
    """Peace planned a chunk anew while it was written."""


@dataclass(frozen=True, slots=True)
class ManagerTools:
    """What a manager works with. `peace`: None to write without plans; `replicas`: of a chunk without a plan; `pool`:
    the threads that write chunks, None for own ones.
    """

    sink: Sink
    peace: PeaceRequests | None = None
    registry: Registry = NoRegistry()  # noqa: RUF009 - has no state
    throttle: Throttle | None = None
    report: Report = ignore
    clock: Clock = SystemClock()  # noqa: RUF009 - has no state
    replicas: int = 1
    pool: Executor | None = None


class _Last(NamedTuple):
    """The last checkpoint that this manager completed, and the point of its freeze."""

    manifest: Manifest
    point: object


class CheckpointManager:
    """Writes the checkpoints of one unit, one at a time. `acknowledge` is called with each registered one."""

    def __init__(
        self,
        unit: Unit,
        freeze: Freeze,
        tools: ManagerTools,
        acknowledge: Callable[[Manifest], None] | None = None,
    ) -> None:
        self.unit = unit
        self._freeze = freeze
        self._tools = tools
        self._acknowledge = acknowledge
        self._last: _Last | None = None
        self._unregistered: list[Manifest] = []
        self._manifests: dict[int, Manifest] = {}
        self._frozen: Snapshot | None = None
        self._freeze_s = 0.0
        self._claimed_seq = 0
        """The last number that this manager has claimed: a number is used once, even if its files were removed."""

    def checkpoint(self) -> Outcome:
        """Write a checkpoint of the present version; blocks until it is complete, skipped or has failed."""
        steps = CheckpointSteps(self.unit.name)
        self._freeze_s = 0.0
        try:
            outcome = self._taken(steps)
        except (CairnError, CoordinatorError, OSError) as error:
            if steps.state in IS_COMPLETE:
                raise  # what follows a complete checkpoint handles its own errors
            steps.move(CheckpointEvent.FAIL)
            self._tools.report(CHECKPOINT_FAILED, unit=self.unit.name, error=error)
            outcome = Outcome(steps.state, freeze_s=self._freeze_s, error=str(error))
        finally:
            self._release()
        return outcome

    # ---- the five steps

    def _taken(self, steps: CheckpointSteps) -> Outcome:
        seqs = self._seqs()
        since = self._last
        if since is not None and not (may_build_on(since.manifest, seqs) and self._is_whole(since.manifest)):
            since = None
        if not self._froze(steps, since):
            return Outcome(steps.state)
        grant = self._granted(steps, since)
        frozen = self._frozen
        if frozen is None:
            return Outcome(steps.state)
        started_s = self._tools.clock.monotonic_s()
        steps.move(CheckpointEvent.START)
        try:
            name = self._claimed(max({*seqs, self._claimed_seq}) + 1)
            try:
                files, is_planned = self._written(name, frozen, grant)
            except BaseException:
                self._abandon(name)
                raise
        except BaseException:
            if grant is not None:
                grant.cancel()
            raise
        base = since.manifest if since is not None and not frozen.is_full else None
        parts = parts_over(files, name.seq, base)
        now_ms = self._tools.clock.wall_ms()
        manifest = Manifest(self.unit, name.seq, frozen.header, frozen.pages.page_bytes, parts, is_planned, now_ms)
        self._tools.sink.seal(name, encode_manifest(manifest))
        steps.move(CheckpointEvent.SEAL)
        self._release()
        write_s = self._tools.clock.monotonic_s() - started_s
        self._completed(manifest, frozen, write_s)
        if self._registered(manifest):
            steps.move(CheckpointEvent.REGISTER)
            if self._acknowledge is not None:
                self._acknowledge(manifest)
            steps.move(CheckpointEvent.ACKNOWLEDGE)
        self._clean()
        return Outcome(steps.state, manifest, self._freeze_s, write_s)

    def _froze(self, steps: CheckpointSteps, since: _Last | None) -> bool:
        """Steps one and two: the version and its pages; False if there is nothing to freeze."""
        started_s = self._tools.clock.monotonic_s()
        self._frozen = self._freeze(None if since is None else since.point)
        self._freeze_s += self._tools.clock.monotonic_s() - started_s
        frozen = self._frozen
        if frozen is None or (self._last is not None and _version(frozen) == self._last.manifest.version):
            self._release()
            self._frozen = None
            steps.move(CheckpointEvent.NO_VERSION)
            return False
        if since is None and not frozen.is_full:
            raise SnapshotRefused(f"{self.unit.name}: only changed pages were frozen, and nothing tells since when")
        steps.move(CheckpointEvent.FREEZE)
        return True

    def _granted(self, steps: CheckpointSteps, since: _Last | None) -> Grant | None:
        """The plan of the chunks, None to write without one. What is frozen afterwards fits it."""
        if self._tools.peace is None:
            return None
        grant = None
        try:
            for _ in range(MAX_REQUESTS):
                chunks = self._chunks()
                if not chunks:
                    return None
                grant = self._tools.peace.ask(chunks)
                if not grant.is_waiting:
                    return grant
                steps.move(CheckpointEvent.TOLD_TO_WAIT)
                self._release()
                grant.wait()
                steps.move(CheckpointEvent.GO)
                if not self._froze(steps, since) or self._fits(grant.chunks):
                    return self._if_frozen(grant)
                grant.cancel()
            self._tools.report(CHECKPOINT_UNPLANNED, unit=self.unit.name, error=f"{MAX_REQUESTS} requests, none fits")
        except CoordinatorError as error:
            if grant is not None:
                grant.cancel()
            self._tools.report(CHECKPOINT_UNPLANNED, unit=self.unit.name, error=error)
            if steps.state is CheckpointState.WAITING:
                steps.move(CheckpointEvent.GO)
                self._froze(steps, since)
        return None

    def _if_frozen(self, grant: Grant) -> Grant | None:
        """The grant, unless there was no version left to freeze."""
        if self._frozen is None:
            grant.cancel()
            return None
        return grant

    def _completed(self, manifest: Manifest, frozen: Snapshot, write_s: float) -> None:
        self._last = None if frozen.point is None else _Last(manifest, frozen.point)
        self._manifests[manifest.seq] = manifest
        self._tools.report(
            CHECKPOINT_WRITTEN,
            unit=self.unit.name,
            checkpoint=manifest.seq,
            epoch=manifest.header.epoch,
            bytes=manifest.own_bytes,
            pages_bytes=manifest.own_page_bytes,
            files=len(manifest.files),
            builds_on=len(manifest.bases),
            planned=manifest.is_planned,
            seconds=round(write_s, 3),
        )

    def _registered(self, manifest: Manifest) -> bool:
        """Step four, also for checkpoints that could not be registered before. False: the registry is away."""
        self._unregistered = [*self._unregistered, manifest][-MAX_UNREGISTERED:]
        while self._unregistered:
            try:
                self._tools.registry.register(self._unregistered[0], self._tools.sink.url)
            except CoordinatorRefused as error:
                # Such as a base that the registry has lost: the next checkpoint needs none.
                self._tools.report(CHECKPOINT_UNREGISTERED, unit=self.unit.name, error=error)
                refused = self._unregistered.pop(0)
                if refused is manifest:
                    self._last = None
                    return False
            except CoordinatorError as error:
                self._tools.report(CHECKPOINT_UNREGISTERED, unit=self.unit.name, error=error)
                return False
            else:
                self._unregistered.pop(0)
        return True

    # ---- writing

    def _claimed(self, first: int) -> CheckpointName:
        """A name that is this writer's alone."""
        for seq in range(first, first + MAX_CLAIMS):
            name = checkpoint_name(self.unit, seq)
            try:
                self._tools.sink.claim(name)
            except CheckpointTaken:
                continue
            self._claimed_seq = seq
            return name
        raise CheckpointTaken(f"{self.unit.name}: others took the numbers {first} to {first + MAX_CLAIMS - 1}")

    def _written(
        self, name: CheckpointName, frozen: Snapshot, grant: Grant | None
    ) -> tuple[list[CheckpointFile], bool]:
        """Step three: the files of all frozen pages, and whether all were written as planned."""
        ids = frozen.pages.ids
        count = self._chunks() if grant is None else grant.chunks
        if not count:
            return [], False
        writing = _Writing(name, frozen, np.array_split(ids, count), self._tools)
        if self._tools.pool is not None:
            writing.all(grant, self._tools.pool)
        else:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="checkpoint") as pool:
                writing.all(grant, pool)
        return writing.files(), writing.is_planned

    def _chunks(self) -> int:
        return 0 if self._frozen is None else chunk_count(self._frozen)

    def _fits(self, chunks: int) -> bool:
        """Whether the frozen pages can be written as so many chunks."""
        if self._frozen is None:
            return True
        pages, page_bytes = len(self._frozen.pages.ids), self._frozen.pages.page_bytes
        return chunks <= pages and -(-pages // chunks) * page_bytes <= MAX_CHUNK_BYTES

    def _release(self) -> None:
        """End the freeze. One that cannot be ended properly ends with its process, or is cancelled by the operator."""
        if self._frozen is not None:
            try:
                self._frozen.pages.release()
            except (CairnError, OSError) as error:
                self._tools.report(CHECKPOINT_FAILED, unit=self.unit.name, error=f"release: {error}")

    def _abandon(self, name: CheckpointName) -> None:
        """Remove the files of a checkpoint that failed before its manifest: with them a full sink would stay full."""
        try:
            self._tools.sink.remove(name)
        except (CairnError, OSError) as error:
            self._tools.report(CHECKPOINT_NOT_REMOVED, checkpoint=str(name), error=error)

    # ---- old checkpoints

    def _seqs(self) -> set[int]:
        return {name.seq for name in self._tools.sink.names() if name.unit == self.unit.name}

    def _is_whole(self, manifest: Manifest) -> bool:
        """Whether all files of a recovery are there, at their lengths."""
        for part in manifest.parts:
            present = self._tools.sink.files(checkpoint_name(self.unit, part.seq))
            if any(present.get(file.name) != file.size_bytes for file in part.files):
                return False
        return True

    def _clean(self) -> None:
        """Remove what no checkpoint needs any more. An error costs room, nothing else."""
        try:
            seqs = self._seqs()
            self._manifests = {seq: manifest for seq, manifest in self._manifests.items() if seq in seqs}
            for seq in seqs - set(self._manifests):
                self._learn(seq)
            for seq in to_remove(list(self._manifests.values()), seqs):
                self._tools.registry.remove(self.unit, seq)
                self._tools.sink.remove(checkpoint_name(self.unit, seq))
                self._manifests.pop(seq, None)
                self._tools.report(CHECKPOINT_REMOVED, unit=self.unit.name, checkpoint=seq)
        except (CairnError, CoordinatorError, OSError) as error:
            self._tools.report(CHECKPOINT_NOT_REMOVED, checkpoint=self.unit.name, error=error)

    def _learn(self, seq: int) -> None:
        """Read the manifest of a checkpoint that this manager did not write."""
        name = checkpoint_name(self.unit, seq)
        data = self._tools.sink.manifest(name)
        if data is None:
            return
        try:
            self._manifests[seq] = decode_manifest(data, name, f"{self._tools.sink.url}/{name}")
        except CheckpointVersionOld as error:
            self._tools.report(CHECKPOINT_NOT_REMOVED, checkpoint=str(name), error=error)
        except CheckpointVersionUnknown:
            raise  # what a newer release builds on is not known: nothing is removed
        except CheckpointDamaged as error:
            self._tools.report(CHECKPOINT_NOT_REMOVED, checkpoint=str(name), error=error)


def chunk_count(frozen: Snapshot) -> int:
    """The number of chunks for frozen pages: few enough to be worth their files, enough for all threads."""
    pages = len(frozen.pages.ids)
    size_bytes = pages * frozen.pages.page_bytes
    per_chunk = max(MAX_CHUNK_BYTES // frozen.pages.page_bytes, 1)
    return min(pages, max(-(-pages // per_chunk), min(AT_ONCE, -(-size_bytes // SMALL_CHUNK_BYTES))))


def _version(frozen: Snapshot) -> tuple[int, str]:
    return frozen.header.epoch, frozen.header.attempt


class _Writing:
    """The chunks of one checkpoint while they are written."""

    def __init__(self, name: CheckpointName, frozen: Snapshot, shares: Sequence[Int64s], tools: ManagerTools) -> None:
        self._name = name
        self._pages = frozen.pages
        self._shares = shares
        self._tools = tools
        self._done: dict[int, CheckpointFile] = {}
        self._fatal: Exception | None = None
        self.is_planned = False
        """All chunks were written at a go of Peace."""
        self._lock = threading.Lock()

    def files(self) -> list[CheckpointFile]:
        """All files, when all are written."""
        return [self._done[thread] for thread in range(len(self._shares))]

    def all(self, grant: Grant | None, pool: Executor) -> None:
        """Write all chunks. Threads of `pool` are done with this checkpoint at the end, also after an error."""
        if grant is not None:
            self.planned(grant, pool)
        self.unplanned(pool)

    def planned(self, grant: Grant, pool: Executor) -> None:
        """Write each chunk at its go. Chunks are left if the coordinator goes away or gives the request up."""
        latest: dict[int, Future[None]] = {}
        try:
            for go in grant.goes():
                before = latest.get(go.chunk)
                latest[go.chunk] = pool.submit(self._attempt, go, before, grant)
        except CoordinatorError as error:
            grant.cancel()
            if self._fatal is None:
                self._tools.report(CHECKPOINT_UNPLANNED, unit=self._name.unit, error=error)
        for future in latest.values():
            future.exception()
        if self._fatal is not None:
            raise self._fatal

    def unplanned(self, pool: Executor) -> None:
        """Write all chunks that are not written yet, where the sink puts them."""
        left = [thread for thread in range(len(self._shares)) if thread not in self._done]
        self.is_planned = not left
        futures = [pool.submit(self._write, thread, (), None) for thread in left]
        errors = [error for error in [future.exception() for future in futures] if error is not None]
        if errors:
            raise errors[0]

    def _attempt(self, go: Go, before: "Future[None] | None", grant: Grant) -> None:
        if before is not None:
            before.exception()  # wait until the earlier attempt has stopped
        try:
            if go.chunk not in self._done:  # else its report came too late: the file is there
                self._write(go.chunk, chain_of(go), go)
        except ChunkRevoked:
            return
        except NodeFailed as error:
            go.failed(suspects_of(go, error.address))
            return
        except CheckpointFailed:
            go.failed()
            return
        except Exception as error:  # the freeze is gone, or a bug: no further attempt can succeed
            self._fatal = error
            grant.cancel()
            raise
        go.done()

    def _write(self, thread: int, chain: tuple[str, ...], go: Go | None) -> None:
        ids = self._shares[thread]
        checksum = size_bytes = 0

        def pieces() -> Iterator[bytes]:
            nonlocal checksum, size_bytes
            checksum = size_bytes = 0
            encoded = encode_chunk(self._name, thread, ids, self._pages)
            while True:
                if go is not None and go.revoked:
                    raise ChunkRevoked(f"{self._name}/{thread_name(thread)}: planned again")
                with _PREPARING:
                    piece = next(encoded, None)
                    if piece is None:
                        return
                    checksum = crc32c(piece, checksum)
                    size_bytes += len(piece)
                if self._tools.throttle is not None:
                    self._tools.throttle.take(len(piece))
                yield piece

        content = FileContent(max_chunk_bytes(len(ids), self._pages.page_bytes), pieces, chain, self._tools.replicas)
        hosts = self._tools.sink.write(self._name, thread_name(thread), content)
        if go is not None and hosts == chain:
            hosts = go.hosts[1:]
        with self._lock:
            self._done[thread] = file_of(thread, ids, size_bytes, checksum, hosts)
            self._pages.written(ids)
