"""A disk in memory that loses un-synced data: implements `FileSystem`, and gives all states that a power cut may leave.

Model of names (`simfile` has the model of data):
* Creating, renaming and removing a name takes effect at once for the process; the change is durable once a directory
  that it touches is synced.
* A power cut keeps any subset of the operations on names since then, each one whole: a rename is never half done. The
  kept operations are applied in their original order. (Journalling file systems keep prefixes only; a program that
  survives all subsets also survives prefixes.)
* Syncing a file does not make its name durable.

Invariants: deterministic, given the random generators passed in; enumerating crash states does not change the disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from itertools import product
from math import prod
from os import strerror
from random import Random
from typing import NamedTuple

from logstore.interfaces import Buffer, DiskSpace
from logstore.testing.faults import Effect, Fault, FileCall
from logstore.testing.simfile import FileState, SimFile

ENDLESS_BYTES = 1 << 60
"""Of a disk without a capacity."""


@dataclass(eq=False, slots=True)
class SimDirectory:
    """The names in a directory: as the process sees them, and as synced."""

    entries: "dict[str, SimNode]" = field(default_factory=dict)
    durable: "dict[str, SimNode]" = field(default_factory=dict)


SimNode = SimFile | SimDirectory


class _NameChange(NamedTuple):
    """One atomic operation on names: each (directory, name) becomes the node, or is removed (None)."""

    label: str
    changes: tuple[tuple[SimDirectory, str, SimNode | None], ...]


@dataclass(frozen=True)
class CrashBounds:
    """Limits on the crash states to enumerate: all states within the limits, else a seeded choice."""

    states: int = 4096
    """Combinations of files and names at one point."""
    file_states: int = 256
    """Contents of one file."""
    torn_bytes: int = 4096
    """Bytes of the last write that are tried one by one as the point of a tear."""
    name_changes: int = 10
    """Operations on names up to which every subset is tried (2 to this power)."""
    seed: int = 0


@dataclass(slots=True)
class Coverage:
    """Counts of the states that an enumeration visited."""

    points: int = 0
    states: int = 0
    possible: int = 0
    complete_points: int = 0

    def __str__(self) -> str:
        return (
            f"{self.states} states at {self.points} points; {self.complete_points} of {self.points} points exhaustively"
            f" ({self.possible} combinations possible)"
        )


def _error(number: int, path: str) -> OSError:
    return OSError(number, strerror(number), path)


class SimDisk:
    """Implements `FileSystem` in memory.

    `unit_bytes` is the granularity at which un-synced data survives (4096: pages, 512: torn pages, less: more states
    with less data). `before_call`, if set, gets each `FileCall` before the call takes effect; `fault_for` may turn any
    call into a failure.
    """

    def __init__(self, *, unit_bytes: int = 4096) -> None:
        self.unit_bytes = unit_bytes
        self.calls = 0
        self.log: list[FileCall] = []
        self.origin = "new"
        self.capacity_bytes: int | None = None
        self.before_call: Callable[[FileCall], None] | None = None
        self.fault_for: Callable[[FileCall], Fault | None] | None = None
        self._faults: dict[int, Fault] = {}
        self._root = SimDirectory()
        self._pending: list[_NameChange] = []

    # ---- faults

    def fail_at(self, number: int, fault: Fault) -> None:
        """Make call `number` (counted from 0 over all kinds) fail."""
        self._faults[number] = fault

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit of a file, in the cache and on disk."""
        self._file(path).flip_bit(bit)

    def _enter(self, kind: str, path: str, size_bytes: int = 0) -> Fault | None:
        call = FileCall(self.calls, kind, path, size_bytes)
        if self.before_call is not None:
            self.before_call(call)
        self.calls += 1
        self.log.append(call)
        fault = self._faults.get(call.number)
        if fault is None and self.fault_for is not None:
            fault = self.fault_for(call)
        if fault is not None and fault.effect is not Effect.DONE and kind not in ("write", "sync"):
            raise fault.error(path)
        return fault

    # ---- names

    def _walk(self, path: str) -> SimNode | None:
        node: SimNode = self._root
        for part in path.split("/") if path else ():
            if not isinstance(node, SimDirectory):
                raise _error(ENOTDIR, path)
            found = node.entries.get(part)
            if found is None:
                return None
            node = found
        return node

    def _file(self, path: str) -> SimFile:
        node = self._walk(path)
        if node is None:
            raise _error(ENOENT, path)
        if isinstance(node, SimDirectory):
            raise _error(EISDIR, path)
        return node

    def _parent(self, path: str) -> tuple[SimDirectory, str]:
        parent, _, name = path.rpartition("/")
        node = self._walk(parent)
        if node is None:
            raise _error(ENOENT, path)
        if not isinstance(node, SimDirectory):
            raise _error(ENOTDIR, path)
        return node, name

    def _change(self, label: str, *changes: tuple[SimDirectory, str, SimNode | None]) -> None:
        for directory, name, node in changes:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._pending.append(_NameChange(label, changes))

    # ---- FileSystem

    def create(self, path: str) -> None:
        """Make an empty file; truncates an existing one."""
        fault = self._enter("create", path)
        directory, name = self._parent(path)
        existing = directory.entries.get(name)
        if isinstance(existing, SimDirectory):
            raise _error(EISDIR, path)
        if existing is None:
            self._change(f"create {path}", (directory, name, SimFile(self.unit_bytes)))
        else:
            existing.truncate(0)
        self._leave(fault, path)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one after the other, from byte `position` on; the file must exist."""
        data = b"".join(bytes(buffer) for buffer in buffers)
        fault = self._enter("write", path, len(data))
        file = self._file(path)
        if fault is not None and fault.effect is not Effect.DONE:
            if fault.effect is Effect.PARTIAL:
                file.write(position, data[: len(data) // 2])
            raise fault.error(path)
        room = self._room(file, position, len(data))
        file.write(position, data[:room])
        if room < len(data):
            raise _error(ENOSPC, path)
        self._leave(fault, path)

    def space(self) -> DiskSpace:
        """The room: `capacity_bytes` less the bytes of all files; without a capacity, more than anybody uses."""
        fault = self._enter("space", "")
        self._leave(fault, "")
        return DiskSpace(self._free_bytes(), ENDLESS_BYTES if self.capacity_bytes is None else self.capacity_bytes)

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return ENDLESS_BYTES
        return max(0, self.capacity_bytes - sum(len(one.content) for one in self._files(self._root)))

    def _room(self, file: SimFile, position: int, length: int) -> int:
        if self.capacity_bytes is None:
            return length
        free = self._free_bytes()
        growth = position + length - len(file.content)
        return length if growth <= free else max(0, length - (growth - free))

    def _files(self, directory: SimDirectory) -> Iterator[SimFile]:
        for node in directory.entries.values():
            if isinstance(node, SimFile):
                yield node
            else:
                yield from self._files(node)

    def files(self) -> Iterator[tuple[str, bytes | None]]:
        """Every path with its content (None: a directory), parents first; does not count as a call."""

        def visit(directory: SimDirectory, prefix: str) -> Iterator[tuple[str, bytes | None]]:
            for name, node in sorted(directory.entries.items()):
                if isinstance(node, SimFile):
                    yield prefix + name, bytes(node.content)
                else:
                    yield prefix + name, None
                    yield from visit(node, f"{prefix}{name}/")

        return visit(self._root, "")

    def sync(self, path: str) -> None:
        """fdatasync."""
        fault = self._enter("sync", path)
        file = self._file(path)
        if fault is not None and fault.effect is not Effect.DONE:
            file.fail_sync()
            raise fault.error(path)
        file.sync()
        self._leave(fault, path)

    def sync_directory(self, path: str) -> None:
        """fsync a directory, which makes its names durable."""
        fault = self._enter("sync_directory", path)
        target = self._walk(path)
        if not isinstance(target, SimDirectory):
            raise _error(ENOENT if target is None else ENOTDIR, path)
        kept: list[_NameChange] = []
        for change in self._pending:
            if not any(directory is target for directory, _, _ in change.changes):
                kept.append(change)
                continue
            for directory, name, node in change.changes:
                if node is None:
                    directory.durable.pop(name, None)
                else:
                    directory.durable[name] = node
        self._pending = kept
        self._leave(fault, path)

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut the file."""
        fault = self._enter("truncate", path, size_bytes)
        self._file(path).truncate(size_bytes)
        self._leave(fault, path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target, atomically."""
        fault = self._enter("rename", source)
        node = self._file(source)
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        if isinstance(target_directory.entries.get(target_name), SimDirectory):
            raise _error(EISDIR, target)
        self._change(
            f"rename {source} to {target}",
            (source_directory, source_name, None),
            (target_directory, target_name, node),
        )
        self._leave(fault, source)

    def remove(self, path: str) -> None:
        """Remove a file; it is no error if there is none."""
        fault = self._enter("remove", path)
        node = self._walk(path)
        if isinstance(node, SimDirectory):
            raise _error(EISDIR, path)
        if node is not None:
            directory, name = self._parent(path)
            self._change(f"remove {path}", (directory, name, None))
        self._leave(fault, path)

    def make_directory(self, path: str) -> None:
        """Make a directory; it is no error if it exists."""
        fault = self._enter("make_directory", path)
        node = self._walk(path)
        if isinstance(node, SimFile):
            raise _error(ENOTDIR, path)
        if node is None:
            directory, name = self._parent(path)
            self._change(f"make directory {path}", (directory, name, SimDirectory()))
        self._leave(fault, path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; it is no error if there is none."""
        fault = self._enter("remove_directory", path)
        node = self._walk(path)
        if isinstance(node, SimFile):
            raise _error(ENOTDIR, path)
        if node is not None:
            if node.entries:
                raise _error(ENOTEMPTY, path)
            directory, name = self._parent(path)
            self._change(f"remove directory {path}", (directory, name, None))
        self._leave(fault, path)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted; a directory that does not exist is empty."""
        fault = self._enter("list_directory", path)
        node = self._walk(path)
        self._leave(fault, path)
        if isinstance(node, SimFile):
            raise _error(ENOTDIR, path)
        return sorted(node.entries) if node is not None else []

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""
        fault = self._enter("exists", path)
        self._leave(fault, path)
        return self._walk(path) is not None

    def size(self, path: str) -> int:
        """Size of a file in bytes."""
        fault = self._enter("size", path)
        self._leave(fault, path)
        return len(self._file(path).content)

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Up to `length` bytes from `position`."""
        del drop_cache
        fault = self._enter("read", path, length)
        self._leave(fault, path)
        return bytes(self._file(path).content[position : position + length])

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        """See FileSystem."""
        data = self.read(path, position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def will_read(self, path: str, position: int, length: int) -> None:
        """See FileSystem: a disk in memory has nothing to fetch."""

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """See FileSystem: a disk in memory has every byte at hand, and fails as if it were read."""
        try:
            data = self.read(path, position, length)
        except OSError:
            return None
        return data if len(data) == length else None

    def _leave(self, fault: Fault | None, path: str) -> None:
        if fault is not None:
            raise fault.error(path)

    # ---- what a crash may leave

    def kill_state(self) -> "SimDisk":
        """The disk as the next process sees it after this one was killed: all data is present, not all of it synced."""
        copies: dict[int, SimNode] = {}

        def copy(node: SimNode) -> SimNode:
            if id(node) not in copies:
                copies[id(node)] = made = node.clone() if isinstance(node, SimFile) else SimDirectory()
                if isinstance(node, SimDirectory) and isinstance(made, SimDirectory):
                    made.entries = {name: copy(child) for name, child in node.entries.items()}
                    made.durable = {name: copy(child) for name, child in node.durable.items()}
            return copies[id(node)]

        disk = SimDisk(unit_bytes=self.unit_bytes)
        root = copy(self._root)
        assert isinstance(root, SimDirectory)
        disk._root = root
        for label, changes in self._pending:
            copied: list[tuple[SimDirectory, str, SimNode | None]] = []
            for directory, name, child in changes:
                parent = copy(directory)
                assert isinstance(parent, SimDirectory)
                copied.append((parent, name, None if child is None else copy(child)))
            disk._pending.append(_NameChange(label, tuple(copied)))
        disk.capacity_bytes = self.capacity_bytes
        disk.origin = "killed"
        return disk

    def next_life(self) -> "SimDisk":
        """`kill_state` for the next process of the same run: the call count, hooks and faults are kept."""
        disk = self.kill_state()
        disk.calls, disk.log = self.calls, self.log
        for number, fault in self._faults.items():
            disk.fail_at(number, fault)
        disk.before_call, disk.fault_for = self.before_call, self.fault_for
        return disk

    def crash(self, random: Random) -> "SimDisk":
        """A random one of the disks that a power cut now may leave."""
        style = random.random()
        kept = [change for change in self._pending if style < 0.3 or (style < 0.9 and random.random() < 0.5)]
        return self._after(kept, lambda file: file.sample(random), "a random crash")

    def crash_states(self, bounds: CrashBounds | None = None, coverage: Coverage | None = None) -> Iterator["SimDisk"]:
        """Disks that a power cut now may leave: all of them if there are no more than `bounds`, else a seeded choice.

        The `origin` of each names the kept changes. `coverage`, if given, counts the visited states.
        """
        bounds = bounds or CrashBounds()
        coverage = coverage if coverage is not None else Coverage()
        random = Random(bounds.seed)
        coverage.points += 1
        contents: dict[int, list[FileState]] = {}
        subsets, complete = self._name_subsets(bounds, random)
        plans: list[tuple[str, list[_NameChange], list[SimFile]]] = []
        for kept in subsets:
            reachable = [file for file in self._reachable(kept) if file.uncertain]
            for file in reachable:
                if id(file) not in contents:
                    contents[id(file)] = file.states(bounds.file_states, random)
                    complete = complete and file.count_states() <= bounds.file_states
            plans.append(("; ".join(change.label for change in kept) or "no names", kept, reachable))
        sizes = [prod(len(contents[id(file)]) for file in files) for _, _, files in plans]
        coverage.possible += sum(sizes)
        exhaustive = sum(sizes) <= bounds.states
        coverage.complete_points += complete and exhaustive
        share = max(1, bounds.states // len(plans))
        for (label, kept, files), size in zip(plans, sizes, strict=True):
            options = [contents[id(file)] for file in files]
            picks = product(*options) if exhaustive or size <= share else _some(options, share, random)
            for pick in picks:
                coverage.states += 1
                chosen = {id(file): state.content for file, state in zip(files, pick, strict=True)}
                what = ", ".join(state.label for state in pick)
                yield self._after(kept, _content_from(chosen), f"kept {label}; {what or 'all data'}")
        yield from self._torn(bounds, coverage)

    def _torn(self, bounds: CrashBounds, coverage: Coverage) -> Iterator["SimDisk"]:
        for file in self._reachable(self._pending):
            for state in file.torn_states(bounds.torn_bytes):
                coverage.states += 1
                coverage.possible += 1
                yield self._after(self._pending, _content_from({id(file): state.content}), f"all names; {state.label}")

    def _name_subsets(self, bounds: CrashBounds, random: Random) -> tuple[list[list[_NameChange]], bool]:
        pending = self._pending
        count = len(pending)
        if count <= bounds.name_changes:
            masks: Sequence[int] = range(1 << count)
        else:
            every = (1 << count) - 1
            prefixes = {(1 << cut) - 1 for cut in range(count + 1)}
            single = {every & ~(1 << one) for one in range(count)} | {1 << one for one in range(count)}
            others = {random.randrange(every) for _ in range(1 << bounds.name_changes)}
            masks = sorted(prefixes | single | others)
        subsets = [[change for place, change in enumerate(pending) if mask >> place & 1] for mask in masks]
        return subsets, count <= bounds.name_changes

    def _overlay(self, kept: Sequence[_NameChange]) -> dict[int, dict[str, SimNode]]:
        names: dict[int, dict[str, SimNode]] = {}
        for change in kept:
            for directory, name, node in change.changes:
                entries = names.setdefault(id(directory), dict(directory.durable))
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        return names

    def _reachable(self, kept: Sequence[_NameChange]) -> list[SimFile]:
        names = self._overlay(kept)
        found: dict[int, SimFile] = {}

        def visit(directory: SimDirectory) -> None:
            for node in names.get(id(directory), directory.durable).values():
                if isinstance(node, SimFile):
                    found[id(node)] = node
                else:
                    visit(node)

        visit(self._root)
        return list(found.values())

    def _after(self, kept: Sequence[_NameChange], content: Callable[[SimFile], bytes], origin: str) -> "SimDisk":
        names = self._overlay(kept)
        made: dict[int, SimNode] = {}

        def build(node: SimNode) -> SimNode:
            if id(node) not in made:
                if isinstance(node, SimFile):
                    made[id(node)] = SimFile(self.unit_bytes, content(node))
                else:
                    entries = {name: build(child) for name, child in names.get(id(node), node.durable).items()}
                    made[id(node)] = SimDirectory(entries, dict(entries))
            return made[id(node)]

        disk = SimDisk(unit_bytes=self.unit_bytes)
        root = build(self._root)
        assert isinstance(root, SimDirectory)
        disk._root = root
        disk.capacity_bytes = self.capacity_bytes
        disk.origin = origin
        return disk


def _content_from(chosen: dict[int, bytes]) -> Callable[[SimFile], bytes]:
    def content(file: SimFile) -> bytes:
        found = chosen.get(id(file))
        return bytes(file.content) if found is None else found

    return content


def _some(options: Sequence[Sequence[FileState]], count: int, random: Random) -> Iterator[tuple[FileState, ...]]:
    """A choice among all combinations: the extremes, each file alone in each of its states, then random ones."""
    given = 0
    for end in (0, -1):
        for place, states in enumerate(options):
            for state in states:
                if given == count:
                    return
                yield tuple(state if at == place else one[end] for at, one in enumerate(options))
                given += 1
    for _ in range(count - given):
        yield tuple(random.choice(states) for states in options)
