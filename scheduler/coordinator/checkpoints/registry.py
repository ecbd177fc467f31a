"""The complete checkpoints of all units, and their layout in the metadata.

Keys: `checkpoints/UNIT/SEQ/entry`, and `checkpoints/UNIT/removed` with the highest number that was removed; the unit is
percent-encoded.

Invariants: sans-I/O.
* A checkpoint is recoverable if all its bases are registered. The newest recoverable checkpoint of a unit and its bases
  are never removed but with the whole unit, so a unit that has a recoverable checkpoint always has it or a newer one.
* Checkpoints are registered in any order, so that a lost registry is filled again from the files.
* A number stands for one checkpoint: another checkpoint of the number is refused, and so is a number up to the highest
  one that was removed, because a delayed duplicate of a registration must not bring back what has no files any more.
* Clients see what is durable (`published`); decisions are made on what was accepted, durable or not.
* Units, checkpoints of a unit and bytes of all entries are bounded.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from logstore.base.errors import FieldError
from logstore.base.fields import MAX_INTEGER, shown
from scheduler.coordinator.checkpoints.interface import REGISTER_CHECKPOINT, SEQ, UNIT_NAME
from scheduler.coordinator.errors import ApiError, StoreDamaged
from scheduler.coordinator.metadata.interface import Change, RemovePrefix, SetValue

CHECKPOINTS = "checkpoints/"
ENTRY = "entry"
REMOVED = "removed"
BAD_REQUEST = 400
NOT_FOUND = 404
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """What the registry holds at most; every entry is in memory."""

    units: int = 10_000
    checkpoints_per_unit: int = 64
    entry_bytes: int = 256 << 10
    all_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """A file of a checkpoint. `hosts`: those that have a replica, as far as the writer knew: names or addresses."""

    name: str
    bytes: int
    crc32c: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitCheckpoint:
    """A complete checkpoint of a unit. `bases`: numbers of all other checkpoints whose files a recovery needs."""

    unit: str
    seq: int
    sink: str
    epoch: int
    attempt: str
    state_bytes: int
    bases: tuple[int, ...]
    written_ms: int
    files: tuple[RegisteredFile, ...]

    @property
    def file_bytes(self) -> int:
        """The bytes of the files that the checkpoint wrote itself, MAX_INTEGER at most: what JSON readers can tell."""
        return min(sum(file.bytes for file in self.files), MAX_INTEGER)


class RegisteredChange(NamedTuple):
    """What a call changed: the changes to store, and what makes them visible when they are durable."""

    changes: Sequence[Change]
    publish: Callable[[], None]


@dataclass(slots=True)
class _UnitEntry:
    """A unit as accepted. `bytes_of`: the length of each stored entry."""

    checkpoints: dict[int, UnitCheckpoint] = field(default_factory=dict)
    bytes_of: dict[int, int] = field(default_factory=dict)
    removed_up_to: int = 0

    @property
    def next_seq(self) -> int:
        """A number that is free and higher than all others."""
        return max(self.removed_up_to, *self.checkpoints, 0) + 1


class CheckpointRegistry:
    """All complete checkpoints that were registered and not removed."""

    def __init__(self, limits: RegistryLimits | None = None) -> None:
        self.limits = limits or RegistryLimits()
        self.published: dict[str, dict[int, UnitCheckpoint]] = {}
        """The durable checkpoints by unit and number; a unit in it has at least one."""
        self._units: dict[str, _UnitEntry] = {}
        self._bytes = 0
        self._published_checkpoints = 0
        self._published_file_bytes = 0

    # ---- changes

    def register(self, checkpoint: UnitCheckpoint) -> RegisteredChange | None:
        """Register a complete checkpoint; None if it is registered already. Raises ApiError."""
        unit, seq = checkpoint.unit, checkpoint.seq
        _check_fields(checkpoint)
        known = self._units.get(unit, _UnitEntry())
        before = known.checkpoints.get(seq)
        if before is not None:
            if before == checkpoint:
                return None
            raise ApiError(
                CONFLICT,
                f"seq={seq}: unit {shown(unit)} has another checkpoint of this number, of epoch {before.epoch} in "
                f"{shown(before.sink)}; register the next number, {known.next_seq}",
                "seq",
            )
        if seq <= known.removed_up_to:
            raise ApiError(
                CONFLICT,
                f"seq={seq}: checkpoints of unit {shown(unit)} up to number {known.removed_up_to} were removed; "
                f"register a number from {known.next_seq} on",
                "seq",
            )
        text = _json(checkpoint)
        self._check_limits(checkpoint, known, len(text))
        self._units[unit] = known
        known.checkpoints[seq], known.bytes_of[seq] = checkpoint, len(text)
        self._bytes += len(text)

        def publish() -> None:
            self._show(checkpoint)

        return RegisteredChange([SetValue(f"{_prefix(unit, seq)}{ENTRY}", text)], publish)

    def remove(self, unit: str, seq: int) -> RegisteredChange | None:
        """Remove a checkpoint; None if it is not there. Raises ApiError if it is still needed."""
        known = self._units.get(unit)
        if known is None or seq not in known.checkpoints:
            return None
        newest = newest_recoverable(known.checkpoints)
        if newest is not None and (seq == newest.seq or seq in newest.bases):
            why = "it is" if seq == newest.seq else f"checkpoint {newest.seq} builds on it and is"
            raise ApiError(
                CONFLICT,
                f"seq={seq}: {why} the newest checkpoint of unit {shown(unit)} that can be recovered; it may go when "
                "a newer one is registered that does not build on it",
                "seq",
            )
        del known.checkpoints[seq]
        self._bytes -= known.bytes_of.pop(seq)
        known.removed_up_to = max(known.removed_up_to, seq)

        def publish() -> None:
            self._hide(unit, [seq])

        changes: list[Change] = [
            RemovePrefix(_prefix(unit, seq)),
            SetValue(f"{_prefix(unit)}{REMOVED}", str(known.removed_up_to)),
        ]
        return RegisteredChange(changes, publish)

    def forget(self, unit: str) -> tuple[int, RegisteredChange | None]:
        """Forget a unit with all that is stored of it; returns how many checkpoints it had, and the change if any."""
        known = self._units.pop(unit, None)
        if known is None:
            return 0, None
        self._bytes -= sum(known.bytes_of.values())

        gone = list(known.checkpoints)

        def publish() -> None:
            self._hide(unit, gone)

        return len(known.checkpoints), RegisteredChange([RemovePrefix(_prefix(unit))], publish)

    def _check_limits(self, checkpoint: UnitCheckpoint, known: _UnitEntry, entry_bytes: int) -> None:
        """Raises ApiError if a limit would be exceeded."""
        limits, unit = self.limits, shown(checkpoint.unit)
        if entry_bytes > limits.entry_bytes:
            raise ApiError(
                BAD_REQUEST,
                f"files: the entry has {entry_bytes} bytes, at most {limits.entry_bytes} are kept; write fewer files, "
                "or name fewer hosts",
                "files",
            )
        if len(known.checkpoints) >= limits.checkpoints_per_unit:
            raise ApiError(
                CONFLICT,
                f"unit={unit}: it has {len(known.checkpoints)} checkpoints, the most that are kept; remove old ones "
                "first",
                "unit",
            )
        if checkpoint.unit not in self._units and len(self._units) >= limits.units:
            raise ApiError(
                CONFLICT,
                f"unit={unit}: {limits.units} units are registered, the most that are kept; forget units of queries "
                "that are gone (DELETE /v1/units/UNIT)",
                "unit",
            )
        if self._bytes + entry_bytes > limits.all_bytes:
            raise ApiError(
                CONFLICT,
                f"unit={unit}: the entries of all checkpoints have {self._bytes} bytes, at most {limits.all_bytes} are "
                "kept; remove old checkpoints first",
                "unit",
            )

    # ---- what clients see

    def _show(self, checkpoint: UnitCheckpoint) -> None:
        self.published.setdefault(checkpoint.unit, {})[checkpoint.seq] = checkpoint
        self._published_checkpoints += 1
        self._published_file_bytes += checkpoint.file_bytes

    def _hide(self, unit: str, numbers: Sequence[int]) -> None:
        found = self.published.get(unit, {})
        for seq in numbers:
            checkpoint = found.pop(seq)
            self._published_checkpoints -= 1
            self._published_file_bytes -= checkpoint.file_bytes
        if not found:
            self.published.pop(unit, None)

    def units(self, after: str, limit: int) -> tuple[list[str], str | None]:
        """A page of the units' names in order, and the name to continue after; None: this was the last page."""
        names = sorted(self.published)
        start = bisect_right(names, after) if after else 0
        page = names[start : start + limit]
        return page, page[-1] if start + limit < len(names) else None

    def checkpoints(self, unit: str) -> list[UnitCheckpoint]:
        """The checkpoints of a unit, the newest first. Raises ApiError if there is none."""
        found = self.published.get(unit)
        if not found:
            raise ApiError(NOT_FOUND, f"unit={shown(unit)}: it has no complete checkpoint here", "unit")
        return [found[seq] for seq in sorted(found, reverse=True)]

    def checkpoint(self, unit: str, seq: int) -> UnitCheckpoint:
        """One checkpoint. Raises ApiError if it is not registered."""
        found = self.published.get(unit, {}).get(seq)
        if found is None:
            newest = max(self.published.get(unit, {0: None}))
            hint = f"the newest is {newest}" if newest else "the unit has no complete checkpoint here"
            raise ApiError(NOT_FOUND, f"seq={seq}: unit {shown(unit)} has no checkpoint of this number; {hint}", "seq")
        return found

    def newest(self, unit: str) -> UnitCheckpoint:
        """The newest checkpoint of a unit that can be recovered. Raises ApiError if there is none."""
        found = newest_recoverable(self.published.get(unit, {}))
        if found is None:
            raise ApiError(NOT_FOUND, f"unit={shown(unit)}: it has no complete checkpoint here", "unit")
        return found

    def is_recoverable(self, checkpoint: UnitCheckpoint) -> bool:
        """Whether all bases of a checkpoint are registered."""
        return self.published.get(checkpoint.unit, {}).keys() >= set(checkpoint.bases)

    def recovery_files(self, checkpoint: UnitCheckpoint) -> Iterator[RegisteredFile]:
        """The files of a checkpoint, and of all checkpoints that it builds on."""
        found = self.published.get(checkpoint.unit, {})
        for seq in (checkpoint.seq, *checkpoint.bases):
            if seq in found:
                yield from found[seq].files

    def counts(self) -> dict[str, int]:
        """How many units and checkpoints there are, and the bytes of their files."""
        return {
            "units": len(self.published),
            "checkpoints": self._published_checkpoints,
            "file_bytes": min(self._published_file_bytes, MAX_INTEGER),
        }

    # ---- restoring

    def restore(self, entries: Mapping[str, str]) -> None:
        """Restore what is stored. Raises StoreDamaged."""
        for key, text in entries.items():
            if key.startswith(CHECKPOINTS):
                try:
                    self._restore(key.removeprefix(CHECKPOINTS).split("/"), text)
                except (ValueError, TypeError, FieldError, ApiError) as error:
                    raise StoreDamaged(
                        f"stored entry {key!r} cannot be read ({error}): it is damaged, or a newer Cairn wrote it"
                    ) from error
        for known in self._units.values():
            for checkpoint in known.checkpoints.values():
                self._show(checkpoint)

    def _restore(self, parts: Sequence[str], text: str) -> None:
        """Restore one entry. Raises ValueError, TypeError, FieldError, ApiError."""
        unit = UNIT_NAME.check(unquote(parts[0]), "unit")
        known = self._units.setdefault(unit, _UnitEntry())
        match parts[1:]:
            case [part] if part == REMOVED:
                known.removed_up_to = SEQ.check(int(text), REMOVED)
            case [number, part] if part == ENTRY:
                seq = SEQ.check(int(number), "seq")
                checkpoint = checkpoint_of(unit, seq, REGISTER_CHECKPOINT.check(json.loads(text), ""))
                _check_fields(checkpoint)
                known.checkpoints[seq], known.bytes_of[seq] = checkpoint, len(text)
                self._bytes += len(text)
            case _:
                raise ValueError("the key is of no known kind")


def newest_recoverable(checkpoints: Mapping[int, UnitCheckpoint]) -> UnitCheckpoint | None:
    """Of a unit's checkpoints by number, the newest whose bases are all there."""
    recoverable = (
        seq for seq in sorted(checkpoints, reverse=True) if checkpoints.keys() >= set(checkpoints[seq].bases)
    )
    newest = next(recoverable, None)
    return None if newest is None else checkpoints[newest]


def checkpoint_of(unit: str, seq: int, body: Mapping[str, Any]) -> UnitCheckpoint:
    """A checkpoint from the checked values of a registration."""
    files = tuple(RegisteredFile(**file) for file in body["files"])
    bases = tuple(sorted(body["bases"]))
    return UnitCheckpoint(unit, seq, **{**body, "files": files, "bases": bases})


def _check_fields(checkpoint: UnitCheckpoint) -> None:
    """Raises ApiError if the fields contradict each other."""
    names: set[str] = set()
    for number, file in enumerate(checkpoint.files):
        if file.name in names:
            raise ApiError(
                BAD_REQUEST, f"files[{number}].name={shown(file.name)}: appears twice", f"files[{number}].name"
            )
        names.add(file.name)
    for number, base in enumerate(checkpoint.bases):
        if base >= checkpoint.seq or base in checkpoint.bases[:number]:
            why = "appears twice" if base < checkpoint.seq else f"must be lower than its own number, {checkpoint.seq}"
            raise ApiError(BAD_REQUEST, f"bases: {base} {why}", "bases")


def _prefix(unit: str, seq: int | None = None) -> str:
    """The common part of the keys of a unit, or of one of its checkpoints."""
    found = f"{CHECKPOINTS}{quote(unit, safe='')}/"
    return found if seq is None else f"{found}{seq}/"


def _json(checkpoint: UnitCheckpoint) -> str:
    """The stored form: the body of the registration, as JSON in ASCII, so that characters are bytes."""
    values = asdict(checkpoint)
    del values["unit"], values["seq"]
    return json.dumps(values, separators=(",", ":"))
