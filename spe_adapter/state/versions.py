"""Versions of a query's state in the shared memory of this host. Any worker opens the version that it needs; no worker
reads a version that another worker is writing.

A task opens its partition at the version from which its epoch starts (`wanted`: the attempt that won the last epoch,
which the driver knows). It works on an overlay and publishes its changes as a delta. The next task applies the delta of
the attempt that won to the base; if there is no such delta, it reads the changes from the log. Where there is no base,
a checkpoint is loaded and the log's steps behind it are applied, or everything is read from the log.

Invariants:
* A task gets a base only if its tag is the wanted version. State that is damaged, stale or foreign is loaded again,
  never used.
* A base is changed only under an exclusive lock; a reader holds a shared lock. If a lock is held for too long, a new
  file replaces the base, and the old file lives until its readers close it.
* At most two versions are kept: the base, and the deltas that may lead to the next version.
* A base is changed in place only if all changes fit. Otherwise a copy is changed, and replaces the base when it is
  complete.
* A base whose header says "applying" is repaired and the same step is applied again, or it is not used.
* The log is the truth. All files here may be removed at any time, at the cost of one load.

Source: CEC paper, section II.B (loading an EC); SGuard, section 4 (copy-on-write); docs/decisions/0009.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from logstore.errors import CairnError
from spe_adapter.codec.kernels import Bytes
from spe_adapter.pages.kernels import load_loops
from spe_adapter.state.delta import (
    ENSURE,
    REMOVE,
    Delta,
    EpochMark,
    VersionStep,
    check_schema,
    decode_delta,
    encode_delta,
    needs_of,
    needs_of_all,
    redo,
    window_version_of,
)
from spe_adapter.state.errors import StateBusy, StateDamaged
from spe_adapter.state.files import (
    FileKey,
    StateEnvironment,
    age_of,
    drafting,
    is_in_place,
    key_of,
    lock,
    open_file,
    tidy,
    unlock_and_close,
)
from spe_adapter.state.layout import fingerprint_of
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.query import BASE_NAME, DELTA_SUFFIX, QueryDirectory, default_root, delta_name, epoch_of_delta
from spe_adapter.state.segment import APPLYING, CLEAN, Header, Segment, StateOwner, Tag, boot_id, segment_bytes
from spe_adapter.state.storage import MIN_CAPACITY, BaseCheckpoint, DraftBuilder, StateStorage
from spe_adapter.state.store import WindowChanges
from spe_adapter.state.table import Table, anonymous

How = Literal["current", "delta", "caught_up", "checkpoint", "loaded", "empty"]

LOCK_LIMIT_S: Final = 1.0
"""Time to wait for a lock before a new file is made instead: longer than a step takes to apply."""
MAX_DELTAS: Final = 4
"""Deltas that are kept per partition. Older ones are removed; their changes are read from the log."""
MAX_CHECKPOINTS: Final = 4
"""Checkpoints that are tried before everything is read from the log."""
_TRIES: Final = 20
_CONDEMNED: Final = "condemned"
"""The file that says that a base of the partition proved to be damaged, until there is another base."""
_MIN_ARENA_BYTES: Final = 16 * 1024
_MAX_MAPS: Final = 256


class WindowGroup(Protocol):
    """Open windows with their newest footprint in one epoch, such as `cec.reconstruct.Windows`."""

    @property
    def mark(self) -> EpochMark:
        """The mark of the epoch."""

    @property
    def batches(self) -> Sequence[pa.RecordBatch]:
        """The windows, as `Table.take` gives them, with or without a column `kind`."""


class StateSource(Protocol):
    """The source of state that is not in memory: the log."""

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """The steps from `tag` to the wanted version, oldest first; None if `tag` does not lead there, or if there are
        too many steps.
        """

    def everything(self) -> Iterable[WindowGroup]:
        """The whole state of the wanted version."""

    def expected(self) -> int:
        """The number of windows that `everything` gives, 0 if unknown. Called after its first group."""

    def note(self) -> bytes:
        """The note to keep with the wanted version. Called after all of `everything` was read."""


Checkpoints = Callable[[], Iterable[BaseCheckpoint]]
"""A function that gives the checkpoints of a partition, newest first. It is called only if all must be loaded. The
loader uses the first one that can be read and from which the log's steps lead to the wanted version. The function may
raise any CairnError or OSError: then there are none.
"""


def no_checkpoints() -> Iterable[BaseCheckpoint]:
    """No checkpoints."""
    return ()


class _Map(NamedTuple):
    key: FileKey
    size_bytes: int
    block: Bytes


_maps: dict[Path, _Map] = {}
"""Maps of bases in this process, by path: mapping a large file again costs a page fault per page."""


class _LockedBase(NamedTuple):
    """A base that is open and locked, until the descriptor is unlocked and closed."""

    descriptor: int
    segment: Segment
    header: Header | None


class Base(NamedTuple):
    """A base at the wanted version, under a shared lock."""

    descriptor: int
    segment: Segment
    table: Table
    note: bytes


class StateDirectory:
    """The shared state of one query on this host.

    `limit_bytes` bounds the files together with the private memory of a task. `seed` keys the hashes of bases that are
    made here: a random number. `memory_bytes` bounds what stays in memory of each partition's base between uses, where
    the root lies on a disk; the rest is read again on access. All methods raise StateDirectoryRefused, StateBusy and
    StateTooLarge.
    """

    def __init__(
        self,
        root: Path | str | None,
        query: str,
        limit_bytes: int,
        *,
        seed: int = 0,
        environment: StateEnvironment | None = None,
        lock_limit_s: float = LOCK_LIMIT_S,
        memory_bytes: int | None = None,
    ) -> None:
        environment = StateEnvironment() if environment is None else environment
        self.root = default_root() if root is None else Path(root)
        self.query = query
        directory = QueryDirectory(self.root, query, environment, lock_limit_s)
        self._storage = StateStorage(directory, limit_bytes, seed, environment, lock_limit_s, memory_bytes=memory_bytes)
        self._boot = boot_id()
        load_loops()  # before there is a lock that others wait for

    @contextmanager
    def open(
        self,
        partition: int,
        schema: pa.Schema,
        fingerprint: str,
        wanted: Tag | None,
        loader: StateSource,
        checkpoints: Checkpoints = no_checkpoints,
    ) -> Iterator["OpenState"]:
        """The state of a partition at the version `wanted` (None: an empty state), locked against changes within the
        context. Where all must be loaded, `checkpoints` are tried first.

        State with another `fingerprint`, that is of another operator, is not used. Raises the errors of the loader,
        StateSchemaRefused and StateSchemaChanged.
        """
        clock = self._storage.environment.clock
        started_s = clock.monotonic_s()
        owner = StateOwner(self.query, partition, fingerprint_of(schema, fingerprint).hex(), self._boot)
        with self._storage.directory.held():
            version_loader = VersionLoader(self._storage, owner, schema, wanted, loader, checkpoints)
            base, how = version_loader.reach()
            try:
                yield OpenState(version_loader, base, how, clock.monotonic_s() - started_s)
            except Exception as error:
                if _is_damage(error):
                    version_loader.condemn(base)
                raise
            finally:
                try:
                    version_loader.leave(base)
                finally:
                    unlock_and_close(base.descriptor)

    def remove(self) -> bool:
        """Remove all state of this query; False if a task uses it."""
        return self._storage.directory.remove()


def _is_damage(error: BaseException | None) -> bool:
    """Whether StateDamaged is the error or one of its causes."""
    while error is not None and not isinstance(error, StateDamaged):
        error = error.__cause__ or error.__context__
    return error is not None


class OpenState:
    """The open state of a partition: read it through `base`, change it through an overlay.

    `how` names the origin of the base: "current" (no change was needed), "delta" (a delta was applied), "caught_up"
    (steps of the log were applied), "checkpoint" (a checkpoint was loaded, and steps of the log behind
    it were applied), "loaded" (all was read from the log), "empty". `note` was published with it. `refused_checkpoints`
    are the errors of checkpoints that could not be loaded.
    """

    def __init__(self, version_loader: "VersionLoader", base: Base, how: How, load_seconds: float) -> None:
        self.base = base.table
        self.how: How = how
        self.load_seconds = load_seconds
        self.note = base.note
        self.tag = version_loader.wanted
        self.refused_checkpoints = tuple(version_loader.refused)
        self._version_loader = version_loader

    def overlay(self) -> Overlay:
        """A copy-on-write store over the base. Its private memory counts towards the limit of the query."""
        return Overlay(self.base, self._allocate)

    def publish(self, tag: Tag, changes: WindowChanges, mark: EpochMark, note: bytes = b"") -> int:
        """Write the changes as the delta from this version to `tag`; the number of bytes written.

        The delta is applied only if `tag` wins its epoch. Raises StateTooLarge; then nothing is written.
        """
        step = VersionStep(
            tag,
            [changes.footprints],
            [changes.closed],
            window_version_of(mark),
            note,
            needs_of(changes.footprints, changes.opened),
        )
        return self._version_loader.write_delta(Delta(self._version_loader.owner, self.tag, step))

    def _allocate(self, size_bytes: int) -> Bytes:
        self._version_loader.storage.charge(size_bytes, "a task's private copy")
        return anonymous(size_bytes)


class VersionLoader:
    """Brings the base of one partition to the wanted version: by a delta, by steps of the log, or by the whole log."""

    def __init__(
        self,
        storage: StateStorage,
        owner: StateOwner,
        schema: pa.Schema,
        wanted: Tag | None,
        loader: StateSource,
        checkpoints: Checkpoints = no_checkpoints,
    ) -> None:
        self.owner = owner
        self.wanted = wanted
        self.storage = storage
        self._schema = schema
        self._loader = loader
        self._checkpoints = checkpoints
        self._environment = storage.environment
        self._path = storage.directory.partition(owner.partition)
        self._base_path = self._path / BASE_NAME
        self._how: How = "current"
        self.refused: list[Exception] = []
        """Why checkpoints were not loaded."""
        self._is_damaged = False

    def reach(self) -> tuple[Base, How]:
        """The base at the wanted version, under a shared lock, and its origin."""
        _forget_gone_maps()
        for _ in range(_TRIES):
            found = self._enter(exclusive=False)
            if found is not None:
                base = self._usable(found)
                if base is not None:
                    return base, self._how
                unlock_and_close(found.descriptor)
            self._advance()
        raise StateBusy(f"{self._base_path} keeps changing to other versions than {self.wanted}")

    def write_delta(self, delta: Delta) -> int:
        """Write a delta file, and remove the oldest ones beyond MAX_DELTAS; the number of bytes written."""
        parts = encode_delta(delta)
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        self.storage.charge(size_bytes, "a delta")
        with drafting(self._path / delta_name(delta.step.tag), self._environment) as draft:
            draft.write(parts)
            draft.publish()
        deltas = [path for path in self._path.glob(f"*{DELTA_SUFFIX}") if path.name != delta_name(delta.step.tag)]
        deltas.sort(key=age_of)
        for path in deltas[: max(len(deltas) + 1 - MAX_DELTAS, 0)]:
            path.unlink(missing_ok=True)
        return size_bytes

    def leave(self, base: Base) -> None:
        """Keep the base's memory within its bound when a task ends, and its pages out of this process's map: the next
        task of the partition may run in another one.
        """
        if self.storage.memory_bytes is not None:
            self.storage.write_out(base.segment, base.descriptor)
            base.segment.let_go()

    def condemn(self, base: Base) -> None:
        """Remove a base that proved to be damaged, so that no task uses it again."""
        if is_in_place(self._base_path, base.descriptor):
            (self._path / _CONDEMNED).touch(mode=0o600)
            self._base_path.unlink(missing_ok=True)

    # ---- the base as it is

    def _usable(self, found: _LockedBase) -> Base | None:
        """The base, if it is whole and at the wanted version; else None."""
        if found.header is None or not self._is_wanted(found.header):
            return None
        try:
            table = found.segment.table(self._schema, found.header)
            return Base(found.descriptor, found.segment, table, found.header.note)
        except StateDamaged:
            self._is_damaged = True
            return None

    def _enter(self, *, exclusive: bool) -> _LockedBase | None:
        """The base under a lock; None if there is no base, or if its lock is held for too long."""
        for _ in range(_TRIES):
            descriptor = open_file(self._base_path)
            if descriptor is None:
                return None
            if not lock(descriptor, self._environment, self.storage.lock_limit_s, exclusive=exclusive):
                os.close(descriptor)
                return None
            if is_in_place(self._base_path, descriptor):
                return self._mapped(descriptor)
            unlock_and_close(descriptor)
        return None

    def _mapped(self, descriptor: int) -> _LockedBase | None:
        key, size_bytes = key_of(os.fstat(descriptor)), segment_bytes(descriptor)
        known = _maps.get(self._base_path)
        if size_bytes is None:
            block = None
        elif known is not None and known[:2] == (key, size_bytes):
            block = known.block
        else:
            block = self.storage.mapped(descriptor, size_bytes)
            _maps[self._base_path] = _Map(key, size_bytes, block)
        if block is None:
            unlock_and_close(descriptor)
            return None
        segment = Segment(block, self._environment)
        return _LockedBase(descriptor, segment, segment.header())

    def _is_wanted(self, header: Header | None) -> bool:
        return header is not None and header.owner == self.owner and header[1:3] == (CLEAN, self.wanted)

    # ---- the way to the wanted version

    def _advance(self) -> None:
        """Bring the base to the wanted version, or replace it by a new base at that version."""
        tidy(self._path, self._environment)
        base = self._enter(exclusive=True)
        in_place = base is not None
        if base is None:
            # There is no base, or a reader holds its lock. A readable base can still be copied.
            base = self._enter(exclusive=False)
        try:
            if base is not None and self._is_wanted(base.header) and not self._is_damaged:
                return
            if base is None or not self._go_on(base, in_place=in_place):
                self._start_anew()
            self._remove_old_deltas()
        finally:
            if base is not None:
                unlock_and_close(base.descriptor)

    def _go_on(self, base: _LockedBase, *, in_place: bool) -> bool:
        """Apply steps to the base, or to a copy of it; False if its version does not lead to the wanted one."""
        header = base.header
        if header is None or header.owner != self.owner or self.wanted is None or self._is_damaged:
            return False
        is_torn = header.state != CLEAN
        if is_torn and not in_place:
            return False
        steps = self._steps(header)
        if not steps or (is_torn and steps[0].tag != header.target):
            return False
        for step in steps:
            check_schema(self._schema, step.footprints)
        try:
            table = base.segment.table(self._schema, header, base.descriptor if in_place else None)
            if is_torn:
                self._environment.step("repair")
                table.repair()
            # A change must not run out of room half-way: if it does not fit, it is made in a larger copy.
            room = needs_of_all(table, steps)
            if in_place and table.has_room(*room) and not table.is_sparse:
                self._apply_in_place(base, header, table, steps)
            else:
                self._apply_to_copy(table, steps, room)
        except StateDamaged:
            return False
        return True

    def _steps(self, header: Header) -> Sequence[VersionStep]:
        """The steps from the version of a header to the wanted version; none if it does not lead there."""
        delta = self._delta(header.tag)
        if delta is not None:
            self._how = "delta"
            return [delta.step]
        if header.tag is None:
            return []
        steps = self._loader.since(header.tag)
        if not steps or steps[-1].tag != self.wanted:
            return []
        self._how = "caught_up"
        return steps

    def _delta(self, parent: Tag | None) -> Delta | None:
        """The delta to the wanted version, if the file exists, is whole, is of this owner and starts at `parent`."""
        if self.wanted is None:
            return None
        try:
            delta = decode_delta((self._path / delta_name(self.wanted)).read_bytes())
        except FileNotFoundError:
            return None
        if delta is None or delta.owner != self.owner or (delta.parent, delta.step.tag) != (parent, self.wanted):
            return None
        return delta

    def _apply_in_place(self, base: _LockedBase, header: Header, table: Table, steps: Sequence[VersionStep]) -> None:
        segment = base.segment
        for step in steps:
            segment.write(header._replace(state=APPLYING, target=step.tag))
            segment.page_table().advance()
            for change in redo(table, step):
                self._environment.step(change)
                if change in (ENSURE, REMOVE):  # between two slices of rows
                    self.storage.write_out(segment, base.descriptor)
            header = header._replace(state=CLEAN, tag=step.tag, target=None, note=step.note)
            segment.write(header)

    def _apply_to_copy(self, table: Table, steps: Sequence[VersionStep], more: tuple[int, int]) -> None:
        def build(builder: DraftBuilder) -> tuple[Table, bytes]:
            copy = builder.copy_of(table, *more)
            for step in steps:
                self._redo(copy, step)
            return copy, steps[-1].note

        self._replace(build)

    def _redo(self, table: Table, step: VersionStep) -> None:
        for change in redo(table, step):
            self._environment.step(change)

    def _start_anew(self) -> None:
        """Make a new base: from a checkpoint, with all windows of the loader, or empty if no version is wanted. After a
        base proved to be damaged the loader comes first: checkpoints may have been taken of that base.
        """
        condemned = self._path / _CONDEMNED
        if condemned.exists():
            try:
                self._load_log()
            except CairnError as error:
                self.refused.append(error)
                if not self._load_checkpoint():
                    raise
            condemned.unlink(missing_ok=True)
        elif not self._load_checkpoint():
            self._load_log()

    def _load_log(self) -> None:
        self._how = "empty" if self.wanted is None else "loaded"

        def build(builder: DraftBuilder) -> tuple[Table, bytes]:
            if self.wanted is None:
                return builder.create(self._schema, MIN_CAPACITY, _MIN_ARENA_BYTES), b""
            table = None
            for group in self._loader.everything():
                check_schema(self._schema, group.batches)
                for batch in group.batches:
                    if table is None:
                        table = self._table_for(builder, batch)
                    table.put(batch, window_version_of(group.mark))
            if table is None:
                table = builder.create(self._schema, MIN_CAPACITY, _MIN_ARENA_BYTES)
            return table, self._loader.note()

        self._replace(build)

    def _load_checkpoint(self) -> bool:
        """Make a new base of the newest checkpoint that leads to the wanted version; False if there is none."""
        if self.wanted is None:
            return False
        # Whatever goes wrong with checkpoints, the log has everything; only a lack of room would stop the log too.
        try:
            for checkpoint in islice(self._checkpoints(), MAX_CHECKPOINTS):
                try:
                    if self._load(checkpoint):
                        self._how = "checkpoint"
                        return True
                except (CairnError, OSError) as error:
                    self.refused.append(error)
                    checkpoint.refused(error)
        except (CairnError, OSError) as error:
            self.refused.append(error)
        return False

    def _load(self, checkpoint: BaseCheckpoint) -> bool:
        described = checkpoint.described
        if described.fingerprint != self.owner.fingerprint:
            return False
        steps: Sequence[VersionStep] = ()
        if described.tag != self.wanted:
            steps = self._loader.since(described.tag) or ()
            if not steps or steps[-1].tag != self.wanted:
                return False
        for step in steps:
            check_schema(self._schema, step.footprints)

        def build(builder: DraftBuilder) -> tuple[Table, bytes]:
            table = builder.load(self._schema, described, checkpoint.runs())
            for step in steps:
                self._redo(table, step)
            return table, steps[-1].note if steps else described.note

        self._replace(build)
        return True

    def _table_for(self, builder: DraftBuilder, batch: pa.RecordBatch) -> Table:
        """An empty table with room for the windows that the loader expects, sized like those of the first batch."""
        expected = max(self._loader.expected(), batch.num_rows)
        capacity = max(MIN_CAPACITY, expected + expected // 4)
        variable = needs_of(batch, np.ones(batch.num_rows, np.bool_))[1]
        return builder.create(
            self._schema, capacity, max(variable * capacity // max(batch.num_rows, 1), _MIN_ARENA_BYTES)
        )

    def _replace(self, build: Callable[[DraftBuilder], tuple[Table, bytes]]) -> None:
        """Replace the base by a new file with the table that `build` makes."""
        builder = DraftBuilder(self.storage, self._base_path)
        try:
            table, note = build(builder)
            header = Header(self.owner, CLEAN, self.wanted, None, table.capacity, table.arena_bytes, note)
            builder.publish(table, header)
            self._is_damaged = False
        except Exception:
            builder.discard()
            raise
        finally:
            builder.close()

    def _remove_old_deltas(self) -> None:
        """Remove the deltas up to the epoch of the base: no base needs them any more."""
        if self.wanted is None:
            return
        for path in self._path.glob(f"*{DELTA_SUFFIX}"):
            epoch = epoch_of_delta(path.name)
            if epoch is None or epoch <= self.wanted.epoch:
                self._environment.step("remove delta")
                path.unlink(missing_ok=True)


def _forget_gone_maps() -> None:
    """Drop the maps of bases that were replaced, so that their memory becomes free."""
    for path, known in list(_maps.items()):
        try:
            gone = key_of(path.stat()) != known.key
        except OSError:
            gone = True
        if gone or len(_maps) > _MAX_MAPS:
            del _maps[path]
