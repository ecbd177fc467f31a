"""The control records that CEC writes to an output stream, and the positions that a driver adds to END.

Invariants:
* The control batches of an epoch follow its results: any number of footprints, any number of tombstones (TOMBSTONES in
  docs/format.md), one mark. A backward scan reads the mark first; the mark says how many windows are open.
* State is columnar: one control batch carries many windows, as one Arrow record batch, packed where that is shorter.
* Control batches stay below BATCH_TARGET_BYTES, whatever the size of the rows; only a single row may exceed it.
* The same values give the same bytes.
* Records are checked completely when they are read: damage and wrong columns raise CorruptBatch, a newer version raises
  UnknownFormatVersion. A record of a type that is not CEC's is None.

Source: CEC paper, section II.B (checkpoint types, N) and section III (tuple header); docs/format.md, "State".
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from logstore.errors import CorruptBatch, UnknownFormatVersion
from logstore.format.batch import check_batch
from logstore.format.control import (
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    Begin,
    ControlRecord,
    End,
    control_type,
    decode_control_record,
    encode_control_record,
    log_record,
)
from logstore.interfaces import Buffer
from spe_adapter.cec.packing import MAX_UNPACKED_BYTES, can_pack, pack, unpack
from spe_adapter.codec.kernels import Bools
from spe_adapter.spark_checkpoint.planned import Planned

BATCH_TARGET_BYTES: Final = 512 * 1024
"""Well below every limit on a batch, large enough that what a batch costs beside its rows does not count."""
OPEN: Final = 1
"""G_open: the window was opened in this epoch."""
CHECK: Final = 2
"""G_check: the window was open before."""
STATE_PREFIX: Final = "s_"
"""How the names of a state's columns begin, in footprints and in tables."""
_FEW_ROWS: Final = 256
_SCHEMAS: Final = 64
"""The number of operators whose columns are cached: an encoder does not derive them in every epoch."""
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""How an Arrow stream ends: the continuation marker, and a message of no bytes."""
ROWS_PACKED: Final = 2
"""Rows as `packing` has them; without the field they are an Arrow stream, as all were before there was another form."""
MIN_PACKED_ROWS: Final = 64
"""Fewer rows are not worth the time that packing takes."""
PROGRESS_VERSION: Final = 2
_READ_PROGRESS_VERSIONS: Final = (1, 2)
"""Version 1 has no planned input."""

_KIND = pa.field("kind", pa.uint8(), nullable=False)
_IDENTITY: Final = {"key": pa.binary(), "number": pa.int64()}
_FOOTPRINT: Final = {**_IDENTITY, "expires": pa.int64()}
_MAY_BE_NULL: Final = frozenset(("key",))


class Footprints(NamedTuple):
    """The state of some windows as of the end of an epoch.

    `rows` has the columns key, number, expires and the state's, each with STATE_PREFIX; `opened` says which of them
    were opened in this epoch.
    """

    query: str
    epoch: int
    rows: pa.RecordBatch
    opened: Bools


class Tombstones(NamedTuple):
    """Windows that were closed in an epoch and not opened again in it; columns key and number."""

    query: str
    epoch: int
    rows: pa.RecordBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """The counters and positions of one partition of a query at the end of an epoch.

    `open_windows` is N. `emitted` counts the results and footprints of the stream so far, `seen` the input records,
    both up to the end of this epoch; `sequence` the rows numbered. `positions` are the next input offsets by topic and
    partition, empty where the engine keeps them itself. `runs` are [input, partition, records] in the
    order of processing, for replay. `oldest_epoch` is the epoch of the oldest footprint of an open window. The epoch of
    a `rebase` has a footprint of every open window. `max_events_ms` is the newest event time of each input, for engines
    that keep the watermark in the mark.
    """

    query: str
    epoch: int
    attempt: str
    partition: int
    partitions: int
    layout: int
    operator: str
    open_windows: int
    emitted: int
    seen: int
    sequence: int
    max_event_ms: int | None
    watermark_ms: int
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    runs: tuple[tuple[int, int, int], ...] = ()
    oldest_epoch: int
    rebase: bool = False
    max_events_ms: tuple[int | None, ...] = ()

    def is_of(self, attempt: str) -> bool:
        """Whether `attempt` names this mark's attempt, by itself or behind its task as BEGIN has it."""
        return attempt in (self.attempt, f"{self.partition}:{self.attempt}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndPositions:
    """What the driver writes into END.positions, the same in all streams of the epoch.

    `late_watermark_ms` is the watermark by which late rows were dropped, `watermark_ms` the watermark by which windows
    were closed, `wall_ms` the processing time of the epoch (None where nothing goes by it). `reset_to` undoes the
    epochs after that epoch and before this one. `planned` is the input of the batch, None in the log of a version that
    did not note it. `results` are the format and columns of the results (`operators.formats.ResultColumns`), None for
    JSON. `checkpoints` has sequence number and epoch of the newest checkpoint that the driver knew of each partition,
    None where there was none; it is empty without checkpoints. `name` and `checkpoint` are the query's in Spark, for
    people; None where they are not known.
    """

    generation: int
    batch: int
    closing: bool
    late_watermark_ms: int
    watermark_ms: int
    max_event_ms: int | None
    partitions: int
    layout: int
    reset_to: int | None = None
    planned: Planned | None = None
    checkpoints: tuple[tuple[int, int] | None, ...] = ()
    wall_ms: int | None = None
    results: Mapping[str, Any] | None = None
    name: str | None = None
    checkpoint: str | None = None

    def to_json(self) -> str:
        """The positions as END carries them. Names in JSON are those of docs/format.md, not of the fields."""
        fields: dict[str, Any] = {
            "v": PROGRESS_VERSION,
            "generation": self.generation,
            "batch": self.batch,
            "closing": self.closing,
            "late_ms": self.late_watermark_ms,
            "watermark_ms": self.watermark_ms,
            "max_event_ms": self.max_event_ms,
            "partitions": self.partitions,
            "layout": self.layout,
        }
        if self.reset_to is not None:
            fields["reset_to"] = self.reset_to
        if self.planned is not None:
            fields["input"] = self.planned.to_fields()
        if self.checkpoints:
            fields["checkpoints"] = self.checkpoints
        if self.wall_ms is not None:
            fields["wall_ms"] = self.wall_ms
        if self.results is not None:
            fields["results"] = self.results
        if self.name is not None:
            fields["name"] = self.name
        if self.checkpoint is not None:
            fields["checkpoint"] = self.checkpoint
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, positions: Buffer) -> "EndPositions":
        """END's positions. Raises CorruptBatch or UnknownFormatVersion."""
        values = _object(bytes(positions))
        fields = _Fields(values, "progress")
        version = fields.integer("v")
        if version not in _READ_PROGRESS_VERSIONS:
            raise UnknownFormatVersion(f"progress version {version} is not {PROGRESS_VERSION}; upgrade Cairn")
        return cls(
            generation=fields.integer("generation"),
            batch=fields.integer("batch"),
            closing=fields.flag("closing"),
            late_watermark_ms=fields.integer("late_ms"),
            watermark_ms=fields.integer("watermark_ms"),
            max_event_ms=fields.optional_integer("max_event_ms"),
            partitions=fields.integer("partitions"),
            layout=fields.integer("layout"),
            reset_to=fields.optional_integer("reset_to"),
            planned=None if values.get("input") is None else Planned.from_fields(values["input"]),
            checkpoints=_checkpoints(values.get("checkpoints", [])),
            wall_ms=fields.optional_integer("wall_ms"),
            results=values.get("results"),
            name=fields.optional_text("name"),
            checkpoint=fields.optional_text("checkpoint"),
        )


def _checkpoints(values: Any) -> tuple[tuple[int, int] | None, ...]:
    """Sequence numbers and epochs of checkpoints. Raises CorruptBatch."""
    found: list[tuple[int, int] | None] = []
    for value in values if isinstance(values, list) else [values]:
        if value is None:
            found.append(None)
        elif isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value):
            found.append((value[0], value[1]))
        else:
            raise CorruptBatch(f"checkpoints in a progress: {str(value)[:80]}, not sequence number and epoch")
    return tuple(found)


def holds_progress(end: End) -> bool:
    """Whether an END is of a query that keeps its state in the log: a sink's has other positions, or none. Anybody's
    may be there, with whatever positions.
    """
    try:
        return bool(end.positions) and "generation" in _object(end.positions)
    except CorruptBatch:
        return False


Control = Begin | End | Footprints | Tombstones | Mark


# ---- writing


def encode_mark(mark: Mark, timestamp_ms: int) -> bytes:
    """The control batch with a mark. Names in JSON are those of docs/format.md: `oldest_beat`, `newest_ms`."""
    fields = {
        "query": mark.query,
        "epoch": mark.epoch,
        "attempt": mark.attempt,
        "partition": mark.partition,
        "partitions": mark.partitions,
        "layout": mark.layout,
        "operator": mark.operator,
        "n": mark.open_windows,
        "emitted": mark.emitted,
        "seen": mark.seen,
        "sequence": mark.sequence,
        "max_event_ms": mark.max_event_ms,
        "watermark_ms": mark.watermark_ms,
        "positions": {
            topic: {str(partition): offsets[partition] for partition in sorted(offsets)}
            for topic, offsets in sorted(mark.positions.items())
        },
        "runs": [list(run) for run in mark.runs],
        "oldest_beat": mark.oldest_epoch,
        "rebase": mark.rebase,
        **({"newest_ms": list(mark.max_events_ms)} if mark.max_events_ms else {}),
    }
    return bytes(encode_control_record(MARK_TYPE, fields, b"", timestamp_ms))


def encode_footprints(
    query: str, epoch: int, batch: pa.RecordBatch, opened: Bools, timestamp_ms: int
) -> Iterator[bytes]:
    """Control batches with the state of some windows: `batch` as `Footprints.rows`, `opened` one per row.

    Raises CorruptBatch for columns that could not be read back.
    """
    written = _footprint_schema(batch.schema)
    if len(opened) != batch.num_rows:
        raise CorruptBatch(f"{len(opened)} kinds for {batch.num_rows} footprints")
    kinds = pa.array(np.where(opened, np.uint8(OPEN), np.uint8(CHECK)))
    rows = pa.RecordBatch.from_arrays([kinds, *batch.columns], schema=written)
    return _encode_rows(FOOTPRINTS_TYPE, query, epoch, rows, timestamp_ms)


def encode_tombstones(query: str, epoch: int, batch: pa.RecordBatch, timestamp_ms: int) -> Iterator[bytes]:
    """Control batches with closed windows: `batch` has the columns key and number.

    Raises CorruptBatch for other columns.
    """
    rows = pa.RecordBatch.from_arrays(batch.columns, schema=_tombstone_schema(batch.schema))
    return _encode_rows(TOMBSTONES_TYPE, query, epoch, rows, timestamp_ms)


@lru_cache(_SCHEMAS)
def _footprint_schema(schema: pa.Schema) -> pa.Schema:
    """How footprints with these columns are written. Raises CorruptBatch."""
    _check_columns(schema, _FOOTPRINT, state=True)
    return pa.schema([_KIND, *(entry.remove_metadata() for entry in schema)])


@lru_cache(_SCHEMAS)
def _tombstone_schema(schema: pa.Schema) -> pa.Schema:
    """How tombstones with these columns are written. Raises CorruptBatch."""
    _check_columns(schema, _IDENTITY, state=False)
    return pa.schema([entry.remove_metadata() for entry in schema])


@lru_cache(_SCHEMAS)
def _schema_message(schema: pa.Schema) -> bytes:
    """A schema as the first message of a stream."""
    return schema.serialize().to_pybytes()


def _encode_rows(kind: int, query: str, epoch: int, rows: pa.RecordBatch, timestamp_ms: int) -> Iterator[bytes]:
    """Batches of about equal numbers of rows, halved where they are still too large: rows differ in size."""
    if not rows.num_rows:
        return
    # Few rows are tried as they are: how large they are is dear to ask.
    pieces = 1 if rows.num_rows <= _FEW_ROWS else rows.nbytes * 9 // (BATCH_TARGET_BYTES * 8) + 1
    step = -(-rows.num_rows // min(rows.num_rows, pieces))
    waiting = [rows.slice(start, step) for start in range(0, rows.num_rows, step)]
    waiting.reverse()
    while waiting:
        part = waiting.pop()
        more, payload = _to_payload(part)
        fields = {"query": query, "epoch": epoch, "n": part.num_rows, **more}
        encoded = encode_control_record(kind, fields, payload, timestamp_ms)
        if len(encoded) > BATCH_TARGET_BYTES and part.num_rows > 1:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
        else:
            yield bytes(encoded)


def _to_payload(rows: pa.RecordBatch) -> tuple[dict[str, int], Buffer]:
    """Rows as opaque bytes, packed where that is shorter and can be read; and the fields that say so."""
    if rows.num_rows >= MIN_PACKED_ROWS and can_pack(rows.schema):
        packed, size_bytes = pack(rows)
        if len(packed) < rows.nbytes and size_bytes <= MAX_UNPACKED_BYTES:
            return {"rows": ROWS_PACKED, "size": size_bytes}, packed
    return {}, _to_ipc(rows)


def _to_ipc(rows: pa.RecordBatch) -> bytes:
    """An Arrow stream of one batch, byte for byte as Arrow's own writer makes it."""
    return b"".join((_schema_message(rows.schema), rows.serialize(), _END_OF_STREAM))


# ---- reading


def decode(buffer: Buffer, position: int = 0) -> Control | None:
    """The control record of the control batch at `position`; None if its type is not one of these.

    Nothing of it refers to `buffer` afterwards. Raises CorruptBatch or UnknownFormatVersion.
    """
    if control_type(buffer, position) is None:
        check_batch(buffer, position)
        return None
    record = decode_control_record(buffer, position)
    if record.kind == FOOTPRINTS_TYPE:
        return _decode_footprints(record)
    if record.kind == TOMBSTONES_TYPE:
        return _decode_tombstones(record)
    if record.kind == MARK_TYPE:
        return _decode_mark(record)
    return log_record(record)


def _decode_mark(record: ControlRecord) -> Mark:
    fields = _Fields(record.fields, "mark")
    if len(record.payload):
        raise CorruptBatch(f"{len(record.payload)} bytes behind a mark")
    return Mark(
        query=fields.text("query"),
        epoch=fields.integer("epoch"),
        attempt=fields.text("attempt"),
        partition=fields.integer("partition", minimum=0),
        partitions=fields.integer("partitions", minimum=1),
        layout=fields.integer("layout", minimum=0),
        operator=fields.text("operator"),
        open_windows=fields.integer("n", minimum=0),
        emitted=fields.integer("emitted", minimum=0),
        seen=fields.integer("seen", minimum=0),
        sequence=fields.integer("sequence", minimum=0),
        max_event_ms=fields.optional_integer("max_event_ms"),
        watermark_ms=fields.integer("watermark_ms"),
        positions=fields.positions("positions"),
        runs=fields.runs("runs"),
        oldest_epoch=fields.integer("oldest_beat"),
        rebase=fields.flag("rebase"),
        max_events_ms=fields.optional_integers("newest_ms"),
    )


def _decode_footprints(record: ControlRecord) -> Footprints:
    fields = _Fields(record.fields, "footprints")
    rows = _from_payload(record.payload, fields)
    if rows.schema.names[:1] != ["kind"] or rows.schema.types[0] != pa.uint8() or rows.column(0).null_count:
        raise CorruptBatch(f"footprints begin with {rows.schema.names[:1]}, not with their kind")
    kinds = rows.column(0).to_numpy(zero_copy_only=False)
    opened = kinds == OPEN
    if not np.all(opened | (kinds == CHECK)):
        raise CorruptBatch(f"footprints of kinds {np.unique(kinds)[:8].tolist()}; {OPEN} and {CHECK} are known")
    state = rows.remove_column(0)
    _check_columns(state.schema, _FOOTPRINT, state=True)
    _check_nulls(state, _FOOTPRINT)
    return Footprints(fields.text("query"), fields.integer("epoch"), state, opened)


def _decode_tombstones(record: ControlRecord) -> Tombstones:
    fields = _Fields(record.fields, "closes")
    rows = _from_payload(record.payload, fields)
    _check_columns(rows.schema, _IDENTITY, state=False)
    _check_nulls(rows, _IDENTITY)
    return Tombstones(fields.text("query"), fields.integer("epoch"), rows)


def _from_payload(payload: memoryview, fields: "_Fields") -> pa.RecordBatch:
    """Decode a control record's rows, packed or Arrow IPC."""
    count = fields.integer("n", minimum=1)
    form = fields.optional_integer("rows")
    if form is None:
        return _from_ipc(payload, count)
    if form != ROWS_PACKED:
        raise UnknownFormatVersion(f"a control record with rows in form {form}; {ROWS_PACKED} is known; upgrade Cairn")
    return unpack(payload, count, fields.integer("size", minimum=0))


def _from_ipc(payload: memoryview, rows: int) -> pa.RecordBatch:
    """The one record batch of an Arrow stream, checked whole, in memory of its own (aligned, as loops want it)."""
    try:
        source = pa.BufferReader(pa.py_buffer(bytes(payload)))
        batches = list(pa.ipc.open_stream(source))
        for batch in batches:
            batch.validate(full=True)
            _ = batch.schema.names  # which may be no text
        left = len(payload) - source.tell()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"control record with {len(payload)} bytes that are no Arrow stream: {error}") from error
    if len(batches) != 1 or left:
        raise CorruptBatch(f"control record with {len(batches)} Arrow batches and {left} bytes behind them")
    if batches[0].num_rows != rows:
        raise CorruptBatch(f"control record with {batches[0].num_rows} rows claims {rows}")
    return batches[0]


def _check_columns(schema: pa.Schema, wanted: Mapping[str, pa.DataType], *, state: bool) -> None:
    """The columns in front by name and type, then only those of the state, each name once."""
    names = schema.names
    first = len(wanted)
    if names[:first] != list(wanted) or schema.types[:first] != list(wanted.values()):
        raise CorruptBatch(f"columns {dict(zip(names, schema.types, strict=True))} do not begin with {dict(wanted)}")
    others = names[first:]
    if len(set(others)) != len(others) or not all(state and name.startswith(STATE_PREFIX) for name in others):
        raise CorruptBatch(f"columns {others} are not distinct names that begin with {STATE_PREFIX!r}")


def _check_nulls(rows: pa.RecordBatch, wanted: Mapping[str, pa.DataType]) -> None:
    for index, name in enumerate(wanted):
        if name not in _MAY_BE_NULL and rows.column(index).null_count:
            raise CorruptBatch(f"column {name} has nulls")


def _object(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptBatch(f"positions {text[:80]!r} are not JSON") from error
    if not isinstance(fields, dict):
        raise CorruptBatch(f"positions {text[:80]!r} are not an object")
    return fields


class _Fields:
    """JSON fields, each with its type checked. All methods raise CorruptBatch."""

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        return value if isinstance(value, str) else self._refuse(name, value)

    def optional_text(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        return value if isinstance(value, bool) else self._refuse(name, value)

    def integer(self, name: str, *, minimum: int = -(2**63)) -> int:
        value = self._fields.get(name)
        return value if _is_integer(value, minimum) else self._refuse(name, value)

    def optional_integer(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.integer(name)

    def optional_integers(self, name: str) -> tuple[int | None, ...]:
        """Integers or nulls; nothing if the field is not there."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(one is None or _is_integer(one, -(2**63)) for one in value):
            return self._refuse(name, value)
        return tuple(value)

    def positions(self, name: str) -> dict[str, dict[int, int]]:
        """Offsets by topic and partition; JSON has text for the partition."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            return self._refuse(name, value)
        result: dict[str, dict[int, int]] = {}
        for topic, offsets in value.items():
            if not isinstance(offsets, dict):
                return self._refuse(name, value)
            if not all(key.isascii() and key.isdigit() and _is_integer(offset, 0) for key, offset in offsets.items()):
                return self._refuse(name, value)
            result[topic] = {int(key): offset for key, offset in offsets.items()}
        return result

    def runs(self, name: str) -> tuple[tuple[int, int, int], ...]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            return self._refuse(name, value)
        for run in value:
            if not isinstance(run, list) or len(run) != 3 or not all(_is_integer(part, 0) for part in run):
                return self._refuse(name, value)
        return tuple((run[0], run[1], run[2]) for run in value)

    def _refuse(self, name: str, value: object) -> Any:
        raise CorruptBatch(f"{self._what}: field {name} is {str(value)[:80]!r}")


def _is_integer(value: object, minimum: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 2**63


__all__ = [
    "BATCH_TARGET_BYTES",
    "CHECK",
    "OPEN",
    "STATE_PREFIX",
    "Begin",
    "Control",
    "End",
    "EndPositions",
    "Footprints",
    "Mark",
    "Tombstones",
    "decode",
    "encode_footprints",
    "encode_mark",
    "encode_tombstones",
    "holds_progress",
]
