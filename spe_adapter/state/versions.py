"""Versions of a query's state in this host's shared memory: any worker opens the version that it needs, and none
reads what another one is writing.

A task opens its partition at the version its epoch starts from (`wanted`, the winner of the last epoch, as the driver
knows it), works on an overlay, and publishes what it changed as a delta. The next task, told which attempt won, brings
the base forward by the winner's delta; without it, by the log.

Invariants:
* Nobody gets a base whose tag is not the wanted one. What is damaged, stale or foreign is loaded anew, never used.
* A base changes only under an exclusive lock; who reads holds a shared one. If a lock is held for too long, a new file
  takes the base's place and the old one lives on for those who hold it.
* Only two versions are kept: the base, and the deltas that may lead to the next one.
* A base is changed in place only under its exclusive lock and only if everything fits; else a copy is changed, and
  takes the base's name when it is whole.
* A base whose header says "applying" is repaired and goes through the same step again, or is left.
* The log is the truth. All of this can be removed at any moment at the cost of one load.

Source: CEC paper, section II.B (loading an EC); SGuard, section 4 (copy-on-write); docs/decisions/0009.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bytes
from spe_adapter.state.delta import (
    Delta,
    EpochMark,
    VersionStep,
    check_schema,
    decode_delta,
    encode_delta,
    needs,
    needs_of,
    redo,
    window_version_of,
)
from spe_adapter.state.errors import StateBusy, StateDamaged
from spe_adapter.state.files import (
    FileKey,
    StateEnvironment,
    drafting,
    is_in_place,
    key_of,
    lock,
    map_file,
    open_file,
    tidy,
    unlock_and_close,
)
from spe_adapter.state.layout import fingerprint_of
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.query import BASE_NAME, DELTA_SUFFIX, QueryDirectory, default_root, delta_name, epoch_of_delta
from spe_adapter.state.segment import APPLYING, CLEAN, HEADER_BYTES, Header, Owner, Segment, Tag, boot_id
from spe_adapter.state.storage import MIN_CAPACITY, DraftBuilder, StateStorage
from spe_adapter.state.store import Changes
from spe_adapter.state.table import Table, anonymous

How = Literal["current", "delta", "caught_up", "loaded", "empty"]

LOCK_LIMIT_S: Final = 1.0
"""How long to wait for a lock before going round it: longer than any apply, shorter than anyone's patience."""
MAX_DELTAS: Final = 4
"""Attempts of one partition whose deltas are kept; of more, the oldest go, and their changes come from the log."""
_TRIES: Final = 20
_MIN_ARENA_BYTES: Final = 16 * 1024
_MAX_MAPS: Final = 256


class WindowGroup(Protocol):
    """Open windows whose newest footprint is of one epoch (`cec.reconstruct.Windows` is one)."""

    @property
    def mark(self) -> EpochMark:
        """Its mark."""

    @property
    def batches(self) -> Sequence[pa.RecordBatch]:
        """Batches as `Table.take` gives them, with or without a column `kind`."""


class StateSource(Protocol):
    """Where state comes from when memory does not have it: the log."""

    def since(self, tag: Tag) -> Sequence[VersionStep] | None:
        """The steps from `tag` to the wanted version, oldest first; None if there is no way, or too long a way."""

    def everything(self) -> Iterable[WindowGroup]:
        """The whole state of the wanted version."""

    def expected(self) -> int:
        """How many windows `everything` will give, 0 if not known; asked after its first group."""

    def note(self) -> bytes:
        """What is to be kept beside the wanted version; asked when `everything` was taken."""


class _Map(NamedTuple):
    key: FileKey
    size_bytes: int
    block: Bytes


_maps: dict[Path, _Map] = {}
"""This process's maps of bases, by path: mapping a large file anew costs a page fault per page."""


class _LockedBase(NamedTuple):
    """A base that is open and locked: letting go of the descriptor unlocks it."""

    descriptor: int
    segment: Segment
    header: Header | None


class Base(NamedTuple):
    """A base at the wanted version, under a shared lock."""

    descriptor: int
    table: Table
    note: bytes


class StateDirectory:
    """The shared state of one query on this host.

    `limit_bytes` bounds what all its files and a task's private memory take together. `seed` keys the hashes of bases
    made here: draw it at random. Raises StateDirectoryRefused, StateBusy and StateTooLarge throughout.
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
    ) -> None:
        environment = StateEnvironment() if environment is None else environment
        self.root = default_root() if root is None else Path(root)
        self.query = query
        directory = QueryDirectory(self.root, query, environment, lock_limit_s)
        self._storage = StateStorage(directory, limit_bytes, seed, environment, lock_limit_s)
        self._boot = boot_id()

    @contextmanager
    def open(
        self, partition: int, schema: pa.Schema, fingerprint: str, wanted: Tag | None, loader: StateSource
    ) -> Iterator["OpenState"]:
        """A partition's state at the version `wanted` (None: nothing yet), locked against change until the end.

        `fingerprint` names the operator: state under another one is not used. Raises what the loader raises,
        StateSchemaRefused and StateSchemaChanged.
        """
        clock = self._storage.environment.clock
        started_s = clock.monotonic_s()
        owner = Owner(self.query, partition, fingerprint_of(schema, fingerprint).hex(), self._boot)
        with self._storage.directory.held():
            version_loader = VersionLoader(self._storage, owner, schema, wanted, loader)
            base, how = version_loader.reach()
            try:
                yield OpenState(version_loader, base, how, clock.monotonic_s() - started_s)
            except Exception as error:
                if _is_damage(error):
                    version_loader.condemn(base)
                raise
            finally:
                unlock_and_close(base.descriptor)

    def remove(self) -> bool:
        """Remove everything of this query; False if somebody uses it."""
        return self._storage.directory.remove()


def _is_damage(error: BaseException | None) -> bool:
    """Whether damaged state is behind an error, however it was wrapped on its way."""
    while error is not None and not isinstance(error, StateDamaged):
        error = error.__cause__ or error.__context__
    return error is not None


class OpenState:
    """A partition's state as a task has it: read it through `base`, change it through an overlay.

    `how` says where it came from: "current" (it was there), "delta" (a delta was applied), "caught_up" (steps from the
    log), "loaded" (all from the log), "empty". `note` is what was published beside it.
    """

    def __init__(self, version_loader: "VersionLoader", base: Base, how: How, load_seconds: float) -> None:
        self.base = base.table
        self.how: How = how
        self.load_seconds = load_seconds
        self.note = base.note
        self.tag = version_loader.wanted
        self._version_loader = version_loader

    def overlay(self) -> Overlay:
        """A store over the base whose private memory counts towards the query's limit."""
        return Overlay(self.base, self._allocate)

    def publish(self, tag: Tag, changes: Changes, mark: EpochMark, note: bytes = b"") -> int:
        """Write what changed as the delta from this version to `tag`; the bytes written.

        It counts once somebody says that `tag` won. Raises StateTooLarge; then nothing is written.
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
        self, storage: StateStorage, owner: Owner, schema: pa.Schema, wanted: Tag | None, loader: StateSource
    ) -> None:
        self.owner = owner
        self.wanted = wanted
        self.storage = storage
        self._schema = schema
        self._loader = loader
        self._environment = storage.environment
        self._path = storage.directory.partition(owner.partition)
        self._base_path = self._path / BASE_NAME
        self._how: How = "current"
        self._is_damaged = False

    def reach(self) -> tuple[Base, How]:
        """The base at the wanted version, under a shared lock, and how it came there."""
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
        """Write a delta file, and remove those that are too many."""
        parts = encode_delta(delta)
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        self.storage.charge(size_bytes, "a delta")
        with drafting(self._path / delta_name(delta.step.tag), self._environment) as draft:
            draft.write(parts)
            draft.publish()
        deltas = [path for path in self._path.glob(f"*{DELTA_SUFFIX}") if path.name != delta_name(delta.step.tag)]
        deltas.sort(key=_age)
        for path in deltas[: max(len(deltas) + 1 - MAX_DELTAS, 0)]:
            path.unlink(missing_ok=True)
        return size_bytes

    def condemn(self, base: Base) -> None:
        """Let nobody use this base again: it turned out to be damaged."""
        if is_in_place(self._base_path, base.descriptor):
            self._base_path.unlink(missing_ok=True)

    # ---- the base as it is

    def _usable(self, found: _LockedBase) -> Base | None:
        """The base, if it is whole and at the wanted version."""
        if found.header is None or not self._is_wanted(found.header):
            return None
        try:
            return Base(found.descriptor, found.segment.table(self._schema, found.header), found.header.note)
        except StateDamaged:
            self._is_damaged = True
            return None

    def _enter(self, *, exclusive: bool) -> _LockedBase | None:
        """The base under a lock; None if there is none, or its lock is held for too long."""
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
        status = os.fstat(descriptor)
        key, size_bytes = key_of(status), status.st_size
        known = _maps.get(self._base_path)
        if size_bytes < HEADER_BYTES:
            block = None
        elif known is not None and known[:2] == (key, size_bytes):
            block = known.block
        else:
            block = map_file(descriptor, size_bytes)
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
        """Bring the base to the wanted version, or put one that is there in its place."""
        tidy(self._path, self._environment)
        base = self._enter(exclusive=True)
        in_place = base is not None
        if base is None:
            # There is none, or somebody holds on to it. What can be read can still be copied.
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
        """Apply steps to the base, or to a copy; False if there is no way from here."""
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
            table = base.segment.table(self._schema, header)
            if is_torn:
                self._environment.step("repair")
                table.repair()
            # Nothing may run out of room half-way: what does not fit starts in a larger file.
            room = _needs(table, steps)
            if in_place and table.has_room(*room) and not table.is_sparse:
                self._apply_in_place(base.segment, header, table, steps)
            else:
                self._apply_to_copy(table, steps, room)
        except StateDamaged:
            return False
        return True

    def _steps(self, header: Header) -> Sequence[VersionStep]:
        """The steps from a header's version to the wanted one; none if there is no way."""
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
        """The winner's delta, if it is here, whole, ours, and starts at `parent`."""
        if self.wanted is None:
            return None
        try:
            delta = decode_delta((self._path / delta_name(self.wanted)).read_bytes())
        except FileNotFoundError:
            return None
        if delta is None or delta.owner != self.owner or (delta.parent, delta.step.tag) != (parent, self.wanted):
            return None
        return delta

    def _apply_in_place(self, segment: Segment, header: Header, table: Table, steps: Sequence[VersionStep]) -> None:
        for step in steps:
            segment.write(header._replace(state=APPLYING, target=step.tag))
            self._redo(table, step)
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
        """A new base with everything that the loader has, or an empty one."""
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

    def _table_for(self, builder: DraftBuilder, batch: pa.RecordBatch) -> Table:
        """An empty table for about as many windows as the loader expects, of the size of those in a first batch."""
        expected = max(self._loader.expected(), batch.num_rows)
        capacity = max(MIN_CAPACITY, expected + expected // 4)
        variable = needs_of(batch, np.ones(batch.num_rows, np.bool_))[1]
        return builder.create(
            self._schema, capacity, max(variable * capacity // max(batch.num_rows, 1), _MIN_ARENA_BYTES)
        )

    def _replace(self, build: Callable[[DraftBuilder], tuple[Table, bytes]]) -> None:
        """Put a new file in the base's place, with what `build` makes."""
        builder = DraftBuilder(self.storage, self._base_path)
        try:
            table, note = build(builder)
            segment, draft = builder.content
            segment.write(Header(self.owner, CLEAN, self.wanted, None, table.capacity, table.arena_bytes, note))
            draft.publish()
            self._is_damaged = False
        except Exception:
            builder.discard()
            raise
        finally:
            builder.close()

    def _remove_old_deltas(self) -> None:
        """The base has arrived: what led to it, or to others of its epoch or before, leads nowhere now."""
        if self.wanted is None:
            return
        for path in self._path.glob(f"*{DELTA_SUFFIX}"):
            epoch = epoch_of_delta(path.name)
            if epoch is None or epoch <= self.wanted.epoch:
                self._environment.step("remove delta")
                path.unlink(missing_ok=True)


def _needs(table: Table, steps: Sequence[VersionStep]) -> tuple[int, int]:
    """How many rows and bytes of the arena steps need at most."""
    parts = [needs(table, step) for step in steps]
    return sum(rows for rows, _ in parts), sum(arena_bytes for _, arena_bytes in parts)


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


def _forget_gone_maps() -> None:
    """Unmap what was replaced: nobody should hold memory that has no name any more."""
    for path, known in list(_maps.items()):
        try:
            gone = key_of(path.stat()) != known.key
        except OSError:
            gone = True
        if gone or len(_maps) > _MAX_MAPS:
            del _maps[path]
