"""A delta: the changes of one attempt at an epoch, in a file that leads from one version of a partition to the next.

The file: magic, CRC-32C of all that follows it, lengths; a description in JSON; padding to 64; windows that changed and
are open, then windows that closed, each an Arrow IPC stream.

Invariants: a delta is used only if it is whole and of the same owner. The delta does not say which of several attempts
won its epoch; the driver of the query knows.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from logstore.interfaces import Buffer
from spe_adapter.cec.control import STATE_PREFIX
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.kernels import Bools
from spe_adapter.codec.nested import encoded_bytes, is_nested
from spe_adapter.state.errors import StateSchemaChanged
from spe_adapter.state.layout import take_schema
from spe_adapter.state.segment import StateOwner, Tag
from spe_adapter.state.store import identities_of
from spe_adapter.state.table import Table, WindowVersion

_MAGIC: Final = b"cairndlt"
_HEAD: Final = struct.Struct("<8sIIQQ")
"""Magic, checksum of what follows the checksum, lengths of description, footprints and tombstones."""
_CHECKED_FROM: Final = 12
_ALIGNMENT: Final = 64
_SLICE_ROWS: Final = 64 * 1024
"""Rows that are applied at a time, so that their columns stay in the processor's cache."""


ENSURE: Final = "ensure"
REMOVE: Final = "remove"
"""The first change of each slice of windows that a step stores, or removes."""


class EpochMark(Protocol):
    """The fields of a mark that the footprints of its epoch share (`cec.control.Mark` has them): the epoch, and the
    counters at its end.
    """

    @property
    def epoch(self) -> int:
        """The number of the epoch."""

    @property
    def emitted(self) -> int:
        """Records emitted to the stream so far: the ordinal of the footprints."""

    @property
    def seen(self) -> int:
        """Input records so far."""


def window_version_of(mark: EpochMark) -> WindowVersion:
    """The version of the windows with a footprint in the epoch of a mark."""
    return WindowVersion(mark.epoch, mark.emitted, mark.seen)


class VersionStep(NamedTuple):
    """One step from a version to `tag`: footprints and tombstones of the epoch, and the note to keep with `tag`."""

    tag: Tag
    footprints: Sequence[pa.RecordBatch]
    tombstones: Sequence[pa.RecordBatch]
    mark: EpochMark | WindowVersion
    note: bytes = b""
    needs: tuple[int, int] | None = None
    """Rows and bytes of the arena that the step needs at most, where that is known beforehand."""


class Delta(NamedTuple):
    """The content of a delta file."""

    owner: StateOwner
    parent: Tag | None
    step: VersionStep


def encode_delta(delta: Delta) -> list[Buffer]:
    """The bytes of the file, in pieces."""
    mark = delta.step.mark
    described = {
        "owner": delta.owner,
        "tag": delta.step.tag,
        "parent": delta.parent,
        "note": delta.step.note.hex(),
        "needs": delta.step.needs,
        "mark": [int(part) for part in (mark if isinstance(mark, WindowVersion) else window_version_of(mark))],
    }
    description = json.dumps(described).encode()
    description += b" " * (-(_HEAD.size + len(description)) % _ALIGNMENT)
    footprints, tombstones = _stream(delta.step.footprints), _stream(delta.step.tombstones)
    head = _HEAD.pack(_MAGIC, 0, len(description), len(footprints), len(tombstones))
    checksum = crc32c(head[_CHECKED_FROM:])
    for part in (description, footprints, tombstones):
        checksum = crc32c(part, checksum)
    head = _HEAD.pack(_MAGIC, checksum, len(description), len(footprints), len(tombstones))
    return [head, description, footprints, tombstones]


def decode_delta(data: Buffer) -> Delta | None:
    """The delta in a file; None if the file is incomplete or of another version of Cairn."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        return None
    magic, checksum, description_bytes, footprint_bytes, close_bytes = _HEAD.unpack_from(view)
    described_end = _HEAD.size + description_bytes
    footprints_end = described_end + footprint_bytes
    if magic != _MAGIC or footprints_end + close_bytes != len(view) or crc32c(view[_CHECKED_FROM:]) != checksum:
        return None
    try:
        described: dict[str, Any] = json.loads(bytes(view[_HEAD.size : described_end]))
        parent = described["parent"]
        step = VersionStep(
            Tag(*described["tag"]),
            _batches(view[described_end:footprints_end]),
            _batches(view[footprints_end:]),
            WindowVersion(*described["mark"]),
            bytes.fromhex(described["note"]),
            _pair(described["needs"]),
        )
        owner = StateOwner(*described["owner"])
        return Delta(owner, None if parent is None else Tag(*parent), step)
    except (ValueError, KeyError, TypeError, pa.ArrowException):
        # Whole, and yet not what we write: another version's.
        return None


def _stream(batches: Sequence[pa.RecordBatch]) -> Buffer:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue()
    padding = -data.size % _ALIGNMENT
    return memoryview(data) if not padding else memoryview(data.to_pybytes() + bytes(padding))


def _pair(numbers: Any) -> tuple[int, int] | None:
    return None if numbers is None else (int(numbers[0]), int(numbers[1]))


def _batches(data: memoryview) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(pa.py_buffer(data))) if len(data) else []


# ---- applying


def check_schema(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    """Raise StateSchemaChanged unless batches of windows have just the columns of this state."""
    wanted = {field.name: field.type for field in take_schema(schema)}
    for batch in batches:
        found = {field.name: field.type for field in batch.schema if field.name != "kind"}
        if found != wanted:
            differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
            told = ", ".join(
                f"{name}: {found.get(name, 'missing')}, now {wanted.get(name, 'gone')}" for name in differing
            )
            raise StateSchemaChanged(
                f"the state in the log has other columns than the operator ({told}); restore the operator's state, or "
                "start a new query with a new checkpoint location and a new topic"
            )


def needs(table: Table, step: VersionStep) -> tuple[int, int]:
    """Upper bounds of the rows and the arena bytes that a step needs."""
    if step.needs is not None:
        return step.needs
    parts = [needs_of(batch, table.find(*identities_of(batch)) < 0) for batch in step.footprints]
    return sum(rows for rows, _ in parts), sum(arena_bytes for _, arena_bytes in parts)


def needs_of_all(table: Table, steps: Sequence[VersionStep]) -> tuple[int, int]:
    """Upper bounds of the rows and the arena bytes that steps need."""
    parts = [needs(table, step) for step in steps]
    return sum(rows for rows, _ in parts), sum(arena_bytes for _, arena_bytes in parts)


def needs_of(batch: pa.RecordBatch, is_new: Bools) -> tuple[int, int]:
    """Upper bounds of the rows and the arena bytes that windows need; `is_new`: which of them need a row."""
    arena_bytes = int(np.diff(keys_of(batch.column("key")).offsets)[is_new].sum(dtype=np.int64))
    for name in batch.schema.names:
        column = batch.column(name)
        if not name.startswith(STATE_PREFIX):
            continue
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            arena_bytes += int(np.diff(keys_of(column).offsets).sum(dtype=np.int64))
        elif is_nested(column.type):
            arena_bytes += encoded_bytes(column)
    return int(is_new.sum()), arena_bytes


def redo(table: Table, step: VersionStep) -> Iterator[str]:
    """Apply a step to a table; yields a name before each change. A step, or the rest of it, may be applied again."""
    mark = step.mark if isinstance(step.mark, WindowVersion) else window_version_of(step.mark)
    check_schema(table.schema, step.footprints)
    for batch in _slices(step.footprints):
        yield ENSURE
        rows, _ = table.ensure(*identities_of(batch))
        yield "fill"
        table.fill(rows, batch)
        yield "mark"
        table.set_window_versions(rows, *mark)
    for batch in _slices(step.tombstones):
        rows = table.find(*identities_of(batch))
        yield REMOVE
        table.remove(rows[rows >= 0])


def _slices(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            yield batch.slice(start, _SLICE_ROWS)


def live_windows(table: Table) -> Iterator[tuple[pa.RecordBatch, WindowVersion]]:
    """All windows of a table with their versions, in slices."""
    rows = table.live_rows()
    for start in range(0, len(rows), _SLICE_ROWS):
        part = rows[start : start + _SLICE_ROWS]
        yield table.take(part), WindowVersion(*(np.ascontiguousarray(column) for column in table.window_versions(part)))
