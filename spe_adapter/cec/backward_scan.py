"""A backward scan of a stream's control batches: the groups of a query that count, newest first.

Invariants:
* Batches are read newest first: base offsets fall, and so do the epochs of the query.
* Only groups with an END are entered. Batches newer than the newest END of any query belong to a torn group; there,
  and nowhere else, a batch with a wrong checksum is skipped.
* Groups of other queries, groups newer than the requested epoch and groups undone by a reset are skipped undecoded.

Source: CEC paper, section II.B ("Constructing an EC": partial I/O is detected and discarded); docs/format.md, "Append
groups".
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from logstore.errors import CorruptBatch
from logstore.format.batch import check_batch, parse_header
from logstore.format.control import BEGIN_TYPE, END_TYPE, control_type, decode_control
from logstore.interfaces import Buffer
from spe_adapter.cec.control import Begin, Control, End, EndPositions, decode
from spe_adapter.errors import StateInconsistent

_NEVER_RESET: Final = 2**63


class Scanned(NamedTuple):
    """What a scan has read so far."""

    groups: int = 0
    footprints: int = 0
    tombstones: int = 0
    control_bytes: int = 0
    discarded: int = 0
    """Batches with a wrong checksum that are newer than the newest END."""
    oldest_offset: int = -1
    """Offset of the oldest batch read. Older batches are not needed, so a stream may be trimmed up to here."""

    @property
    def tuples(self) -> int:
        """Control tuples: one per footprint and per tombstone."""
        return self.footprints + self.tombstones


class _Position(Enum):
    """The position of a scan relative to append groups."""

    TAIL = auto()
    """Before the first END: among batches newer than the newest END of any query."""
    BETWEEN = auto()
    """Between groups."""
    GROUP = auto()
    """In a group that counts."""
    OTHER = auto()
    """In a group that does not count: of another query, newer than the requested epoch, or undone."""


class BackwardScan:
    """Finds the groups of a query that count, newest first, and yields their control records, END first."""

    def __init__(self, query: str, as_of: int | None) -> None:
        self._query = query
        self._as_of = as_of
        self._position = _Position.TAIL
        self._begin = ("", 0)
        self._before_offset = -1
        self._last_epoch = _NEVER_RESET
        self._reset_to = _NEVER_RESET
        self.end: End | None = None
        self.progress: EndPositions | None = None
        self.newest_epoch: int | None = None
        self.scanned = Scanned()
        self.missed = False
        """Whether the requested epoch is not in the log, although older epochs are."""

    def records(self, piece: Buffer) -> Iterator[Control]:
        """The control records of a piece (whole batches) that count, newest first. Raises CorruptBatch,
        UnknownFormatVersion or StateInconsistent.
        """
        position = 0
        while position < len(piece) and not self.missed:
            header = parse_header(piece, position)
            if 0 <= self._before_offset <= header.base_offset:
                raise CorruptBatch(
                    f"batch at offset {header.base_offset} follows that at {self._before_offset}; a scan goes backwards"
                )
            self.scanned = self.scanned._replace(
                control_bytes=self.scanned.control_bytes + header.size_bytes, oldest_offset=header.base_offset
            )
            if self._position is _Position.TAIL and not _is_intact(piece, position):
                self.scanned = self.scanned._replace(discarded=self.scanned.discarded + 1)
            else:
                record = self._step(piece, position)
                if record is not None:
                    yield record
            self._before_offset = header.base_offset
            position += header.size_bytes

    def _step(self, piece: Buffer, position: int) -> Control | None:
        if self._position is _Position.GROUP:
            record = decode(piece, position)
            if isinstance(record, End):
                raise CorruptBatch(f"the group of epoch {self._begin[1]} of {self._query} has no BEGIN")
            if record is None:
                return None
            if (record.query, record.epoch) != self._begin:
                raise CorruptBatch(
                    f"a control record of {record.query}, epoch {record.epoch} in the group of {self._begin}"
                )
            if isinstance(record, Begin):
                self._position = _Position.BETWEEN
            return record
        check_batch(piece, position)
        kind = control_type(piece, position)
        if self._position is _Position.OTHER:
            if kind == BEGIN_TYPE:
                self._position = _Position.BETWEEN
            return None
        control = decode_control(piece, position) if kind == END_TYPE else None
        return self._enter(control) if isinstance(control, End) else None

    def _enter(self, end: End) -> End | None:
        """The END, if its group counts; None, and the group is skipped, if not."""
        self._position = _Position.OTHER
        if end.query != self._query:
            return None
        if end.epoch >= self._last_epoch:
            raise StateInconsistent(f"{self._query}: epoch {end.epoch} stands in front of epoch {self._last_epoch}")
        self._last_epoch = end.epoch
        if self.newest_epoch is None:
            self.newest_epoch = end.epoch
        if self.end is None and self._as_of is not None and end.epoch != self._as_of:
            self.missed = end.epoch < self._as_of
            return None
        if end.epoch > self._reset_to:
            return None
        progress = EndPositions.from_json(end.positions)
        if progress.reset_to is not None:
            self._reset_to = min(self._reset_to, progress.reset_to)
        if self.end is None:
            self.end, self.progress = end, progress
        self._position = _Position.GROUP
        self._begin = (end.query, end.epoch)
        self.scanned = self.scanned._replace(groups=self.scanned.groups + 1)
        return end

    def count(self, footprints: int, tombstones: int) -> None:
        """Add footprints and tombstones to the statistics."""
        scanned = self.scanned
        self.scanned = scanned._replace(
            footprints=scanned.footprints + footprints, tombstones=scanned.tombstones + tombstones
        )


def _is_intact(piece: Buffer, position: int) -> bool:
    try:
        check_batch(piece, position)
    except CorruptBatch:
        # A wrong length would hide the batches after this one, which may be whole. The length is right if the batch
        # ends where another batch begins, or where the piece ends.
        end = position + parse_header(piece, position).size_bytes
        if end != len(piece):
            if end > len(piece):
                raise
            parse_header(piece, end)
        return False
    return True
