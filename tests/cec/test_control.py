"""Control records of state: golden bytes, every way to damage them, versions of the future, and their sizes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptBatch, UnknownFormatVersion, UnsupportedBatchFormat
from logstore.format.batch import check_batch, seal_batch
from logstore.format.control import (
    FOOTPRINTS_TYPE,
    MARK_TYPE,
    TOMBSTONES_TYPE,
    Begin,
    End,
    encode_control,
    encode_control_record,
)
from logstore.format.records import Record, encode_batch
from spe_adapter.cec.control import (
    BATCH_TARGET_BYTES,
    EndPositions,
    Footprints,
    Mark,
    Tombstones,
    decode,
    encode_footprints,
    encode_mark,
    encode_tombstones,
    holds_progress,
)
from spe_adapter.spark_checkpoint.planned import Planned
from tests.cec.model import Window, footprint_rows, tombstone_rows

MARK = Mark(
    query="orders",
    epoch=2**40 + 6,
    attempt="17-b",
    partition=1,
    partitions=4,
    layout=2,
    operator="average",
    open_windows=3,
    emitted=1_000_000,
    seen=5_000_000,
    sequence=12,
    max_event_ms=None,
    watermark_ms=-5,
    positions={"in": {10: 7, 2: 9}, "also": {0: 2**62}},
    runs=((0, 2, 9), (0, 10, 7)),
    oldest_epoch=2**40,
    rebase=False,
)
PROGRESS = EndPositions(
    generation=1,
    batch=3,
    closing=False,
    late_watermark_ms=0,
    watermark_ms=10,
    max_event_ms=None,
    partitions=4,
    layout=2,
    reset_to=8,
    planned=Planned(3, "a0", "b1", offsets=('{"in":{"0":40}}',)),
    name="visits",
    checkpoint="/cp/visits",
)
GOLDEN_PROGRESS = (
    '{"v":2,"generation":1,"batch":3,"closing":false,"late_ms":0,"watermark_ms":10,"max_event_ms":null,"partitions":4,'
    '"layout":2,"reset_to":8,"input":{"batch":3,"start":"a0","end":"b1","version":"v1","metadata":"{}",'
    '"offsets":["{\\"in\\":{\\"0\\":40}}"]},"name":"visits","checkpoint":"/cp/visits"}'
)
GOLDEN_MARK = (
    b'{"query":"orders","epoch":1099511627782,"attempt":"17-b","partition":1,"partitions":4,"layout":2,'
    b'"operator":"average","n":3,"emitted":1000000,"seen":5000000,"sequence":12,"max_event_ms":null,'
    b'"watermark_ms":-5,"positions":{"also":{"0":4611686018427387904},"in":{"2":9,"10":7}},'
    b'"runs":[[0,2,9],[0,10,7]],"oldest_beat":1099511627776,"rebase":false}'
)
ROWS = footprint_rows([((b"a", 1), Window(1, 5)), ((None, 2), Window(2, 6)), ((b"", -3), Window(3, -7))])
OPENED = np.array([True, False, True])


def footprints() -> bytes:
    """A control batch with three footprints."""
    (batch,) = encode_footprints("orders", 6, ROWS, OPENED, 1_700_000_000_000)
    return batch


def tombstones() -> bytes:
    """A control batch with two tombstones."""
    (batch,) = encode_tombstones("orders", 6, tombstone_rows([(b"z", 4), (None, 0)]), 1_700_000_000_000)
    return batch


def mark() -> bytes:
    """A control batch with a mark."""
    return encode_mark(MARK, 1_700_000_000_000)


ALL = pytest.mark.parametrize("make", [footprints, tombstones, mark])


def ipc(rows: pa.RecordBatch, *, count: int = 1) -> bytes:
    """An Arrow stream with so many copies of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for _ in range(count):
            writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def tail_of(batch: bytes) -> bytes:
    """The Arrow stream in a control batch."""
    return batch[batch.index(b"}\xff\xff\xff\xff") + 1 : -1]


# ---- round trips


def test_footprints_come_back() -> None:
    """Rows with nulls, and which of them opened."""
    record = decode(footprints())
    assert isinstance(record, Footprints)
    assert (record.query, record.epoch) == ("orders", 6)
    assert record.rows.equals(ROWS, check_metadata=True)
    assert record.opened.tolist() == OPENED.tolist()


def test_closes_come_back() -> None:
    """Keys and numbers."""
    record = decode(tombstones())
    assert isinstance(record, Tombstones)
    assert record.rows.equals(tombstone_rows([(b"z", 4), (None, 0)]), check_metadata=True)


@pytest.mark.parametrize(
    "changed",
    [
        MARK,
        replace(MARK, max_event_ms=7, rebase=True, positions={}, runs=()),
        replace(MARK, open_windows=2**62),
        replace(MARK, max_events_ms=(None, -7, 2**40)),
    ],
)
def test_a_mark_comes_back(changed: Mark) -> None:
    """Every field."""
    assert decode(encode_mark(changed, 1)) == changed


@pytest.mark.parametrize("changed", [PROGRESS, replace(PROGRESS, reset_to=None, closing=True, max_event_ms=3)])
def test_progress_comes_back(changed: EndPositions) -> None:
    """Every field, through END's positions."""
    end = decode(encode_control(End("q", 1, 1, changed.to_json().encode()), timestamp_ms=1))
    assert isinstance(end, End)
    assert EndPositions.from_json(end.positions) == changed


def test_progress_as_it_is_written() -> None:
    """Byte for byte; and a log of version 1, which did not note the input, is read."""
    assert PROGRESS.to_json() == GOLDEN_PROGRESS
    former = GOLDEN_PROGRESS[: GOLDEN_PROGRESS.index(',"input"')].replace('"v":2', '"v":1') + "}"
    assert EndPositions.from_json(former.encode()) == replace(PROGRESS, planned=None, name=None, checkpoint=None)
    with pytest.raises(UnknownFormatVersion, match="progress version 3"):
        EndPositions.from_json(GOLDEN_PROGRESS.replace('"v":2', '"v":3').encode())


def test_whose_end_is_a_stateful_querys() -> None:
    """A sink's END has other positions, a batch job's none."""
    for positions, expected in ((PROGRESS.to_json(), True), ("", False), ("{}", False), ('{"v":2,"of":"sink"}', False)):
        assert holds_progress(End("q", 1, 1, positions.encode())) is expected


def test_a_batch_is_decoded_where_it_stands() -> None:
    """Records end to end, each at its position; what stands around them does not matter."""
    batches = [footprints(), tombstones(), mark()]
    log = b"".join(batches)
    kinds = []
    position = 0
    while position < len(log):
        kinds.append(type(decode(log, position)))
        position += check_batch(log, position).size_bytes
    assert kinds == [Footprints, Tombstones, Mark]


def test_what_is_decoded_needs_no_buffer() -> None:
    """A piece of a scan may be overwritten as soon as it was decoded."""
    buffer = bytearray(footprints())
    record = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert isinstance(record, Footprints)
    assert record.rows.equals(ROWS)


def test_records_of_others_are_none_or_theirs() -> None:
    """BEGIN and END are the log's; unknown types are nobody's business here."""
    begin = Begin("q", 1, 1, ("0:a",), 0, 0)
    assert decode(encode_control(begin, timestamp_ms=1)) == begin
    assert decode(encode_control_record(1999, {}, b"", 1)) is None
    other_key = encode_batch([Record(0, 1, struct.pack(">hh", 1, MARK_TYPE), b"")], control=True)
    assert decode(other_key) is None


# ---- golden bytes


def test_the_bytes_of_a_mark_are_golden() -> None:
    """What is in logs stays readable: neither names nor order change."""
    assert mark() == encode_control_record(MARK_TYPE, json.loads(GOLDEN_MARK), b"", 1_700_000_000_000)
    assert GOLDEN_MARK in mark()


def test_the_fields_of_footprints_and_closes_are_golden() -> None:
    """JSON in front, Arrow's stream behind it; the columns in their order."""
    assert b'{"query":"orders","epoch":6,"n":3}\xff\xff\xff\xff' in footprints()
    assert b'{"query":"orders","epoch":6,"n":2}\xff\xff\xff\xff' in tombstones()
    schema = pa.ipc.open_stream(tail_of(footprints())).schema
    assert schema.names == ["kind", "key", "number", "expires", "s_count", "s_total", "s_text"]
    assert schema.metadata is None


@ALL
def test_the_same_values_give_the_same_bytes(make: Callable[[], bytes]) -> None:
    """Also from slices of longer columns, and with metadata that is nobody's business."""
    assert make() == make()
    rows = pa.concat_batches([ROWS, ROWS]).slice(3).replace_schema_metadata({"a": "b"})
    (batch,) = encode_footprints("orders", 6, rows, OPENED, 1_700_000_000_000)
    assert batch == footprints()


# ---- damage


@ALL
def test_every_flipped_bit_is_found(make: Callable[[], bytes]) -> None:
    """Of the bytes outside the checksum, length and magic contradict the rest; offset and leader epoch say nothing
    about the record.
    """
    whole = make()
    expected = decode(whole)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit // 8 < 8 or 12 <= bit // 8 < 16:
            record = decode(bytes(damaged))
            assert type(record) is type(expected)
        else:
            with pytest.raises((CorruptBatch, UnsupportedBatchFormat)):
                decode(bytes(damaged))


@ALL
def test_every_truncation_is_found(make: Callable[[], bytes]) -> None:
    """A batch that ends early, at every byte."""
    whole = make()
    for length in range(len(whole)):
        with pytest.raises(CorruptBatch):
            decode(whole[:length])


@ALL
def test_bytes_behind_the_content_are_found(make: Callable[[], bytes]) -> None:
    """Inside the record nothing follows what is known."""
    whole = make()
    kind = {footprints: FOOTPRINTS_TYPE, tombstones: TOMBSTONES_TYPE, mark: MARK_TYPE}[make]
    fields = (
        json.loads(GOLDEN_MARK) if make is mark else {"query": "q", "epoch": 1, "n": 3 if make is footprints else 2}
    )
    payload = b"" if make is mark else tail_of(whole)
    decode(encode_control_record(kind, fields, payload, 1))
    with pytest.raises(CorruptBatch):
        decode(encode_control_record(kind, fields, payload + b"\0", 1))


@pytest.mark.parametrize("make", [footprints, tombstones])
def test_hostile_arrow_bytes_never_raise_anything_else(make: Callable[[], bytes]) -> None:
    """With the checksum made to fit, damaged Arrow is CorruptBatch or rows that add up."""
    whole = make()
    start = whole.index(b"}\xff\xff\xff\xff") + 1
    source = random.Random(7)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(start, len(damaged) - 1)] = source.randrange(256)
        try:
            record = decode(bytes(seal_batch(damaged)))
        except CorruptBatch:
            refused += 1
        else:
            assert isinstance(record, (Footprints, Tombstones))
            record.rows.validate(full=True)
    assert refused > 100


def test_a_newer_version_is_named() -> None:
    """Of the record, and of progress: upgrade, rather than guess."""
    value = struct.pack(">hi", 1, 2) + b"{}"
    newer = encode_batch([Record(0, 1, struct.pack(">hh", 0, MARK_TYPE), value)], control=True)
    with pytest.raises(UnknownFormatVersion, match="version 1"):
        decode(newer)
    with pytest.raises(UnknownFormatVersion, match="version 3"):
        EndPositions.from_json(PROGRESS.to_json().replace('"v":2', '"v":3').encode())


def test_a_batch_that_is_no_control_batch_is_refused() -> None:
    """A client's record with the same key is no state."""
    value = struct.pack(">hi", 0, len(GOLDEN_MARK)) + GOLDEN_MARK
    with pytest.raises(CorruptBatch):
        decode(encode_batch([Record(0, 1, struct.pack(">hh", 0, MARK_TYPE), value)]))


@pytest.mark.parametrize("name", json.loads(GOLDEN_MARK))
@pytest.mark.parametrize(
    "value", [..., None, "text", -(2**70), 1.5, [1], {"t": {"x": 1}}, {"t": 1}, [[1, 2]], [[1, 2, "3"]]]
)
def test_every_field_of_a_mark_is_checked(name: str, value: object) -> None:
    """Missing or of another type: CorruptBatch, naming the field."""
    fields = json.loads(GOLDEN_MARK)
    if value is ...:
        del fields[name]
    elif type(value) is type(fields[name]) and value not in ([1], [[1, 2]], [[1, 2, "3"]], {"t": {"x": 1}}, {"t": 1}):
        if value != -(2**70):
            return
        fields[name] = value
    else:
        fields[name] = value
    if name == "max_event_ms" and fields.get(name) is None:
        assert isinstance(decode(encode_control_record(MARK_TYPE, fields, b"", 1)), Mark)
        return
    with pytest.raises(CorruptBatch, match=name):
        decode(encode_control_record(MARK_TYPE, fields, b"", 1))


@pytest.mark.parametrize("name", json.loads(PROGRESS.to_json()))
def test_every_field_of_progress_is_checked(name: str) -> None:
    """As a mark's."""
    fields = json.loads(PROGRESS.to_json())
    fields[name] = 1.5 if isinstance(fields[name], str) else "text"
    with pytest.raises(CorruptBatch, match=name):
        EndPositions.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("positions", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_positions_that_are_no_object_are_refused(positions: bytes) -> None:
    """Whatever a driver wrote there."""
    with pytest.raises(CorruptBatch):
        EndPositions.from_json(positions)


def with_kind(kinds: Sequence[int | None], rows: pa.RecordBatch = ROWS) -> pa.RecordBatch:
    """Rows as they are in the log."""
    return pa.RecordBatch.from_arrays([pa.array(kinds, pa.uint8()), *rows.columns], names=["kind", *rows.schema.names])


KINDS = [1, 2, 1]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        with_kind([1, 2, 3]),
        with_kind([1, None, 1]),
        with_kind(KINDS).rename_columns(["kind", "key", "number", "expires", "s_count", "s_count", "s_text"]),
        with_kind(KINDS).rename_columns(["kind", "key", "number", "expires", "s_count", "total", "s_text"]),
        with_kind(KINDS).rename_columns(["kind", "number", "key", "expires", "s_count", "s_total", "s_text"]),
        with_kind(KINDS).select(["kind", "key", "number", "s_count"]),
        with_kind(KINDS).set_column(1, "key", pa.array(["a", "b", "c"])),
        with_kind(KINDS).set_column(2, "number", pa.array([1, None, 3], pa.int64())),
        with_kind(KINDS).set_column(3, "expires", pa.array([1, 2, 3], pa.int32())),
        with_kind(KINDS).set_column(0, "kind", pa.array(KINDS, pa.int8())),
    ],
)
def test_wrong_columns_are_refused(rows: pa.RecordBatch) -> None:
    """Names, order, types, nulls and kinds."""
    with pytest.raises(CorruptBatch):
        decode(encode_control_record(FOOTPRINTS_TYPE, {"query": "q", "epoch": 1, "n": 3}, ipc(rows), 1))


@pytest.mark.parametrize(("count", "rows"), [(0, 3), (2, 3), (1, 2), (1, 4), (1, 0)])
def test_one_batch_with_the_rows_that_were_announced(count: int, rows: int) -> None:
    """No batch, two batches, or another number of rows."""
    payload = ipc(with_kind(KINDS), count=count)
    with pytest.raises(CorruptBatch):
        decode(encode_control_record(FOOTPRINTS_TYPE, {"query": "q", "epoch": 1, "n": rows}, payload, 1))


def test_wrong_columns_are_not_even_written() -> None:
    """What could not be read back."""
    with pytest.raises(CorruptBatch):
        encode_footprints("q", 1, ROWS.rename_columns(["key", "number", "expires", "a", "b", "c"]), OPENED, 1)
    with pytest.raises(CorruptBatch):
        encode_footprints("q", 1, ROWS, OPENED[:2], 1)
    with pytest.raises(CorruptBatch):
        encode_tombstones("q", 1, ROWS, 1)


# ---- sizes


@given(st.lists(st.sampled_from([0, 10, 1000, 100_000, 400_000, 600_000]), max_size=30))
def test_batches_stay_below_their_size(sizes: list[int]) -> None:
    """Whatever the rows' sizes: only a row that is too large by itself makes a batch too large; none is lost."""
    rows = pa.record_batch(
        {
            "key": pa.array([b"%d" % index for index in range(len(sizes))], pa.binary()),
            "number": pa.array(range(len(sizes)), pa.int64()),
            "expires": pa.array([0] * len(sizes), pa.int64()),
            "s_blob": pa.array([bytes(size) for size in sizes], pa.binary()),
        }
    )
    batches = list(encode_footprints("q", 1, rows, np.zeros(len(sizes), np.bool_), 1))
    back = []
    for batch in batches:
        record = decode(batch)
        assert isinstance(record, Footprints)
        assert len(batch) <= BATCH_TARGET_BYTES or record.rows.num_rows == 1
        back.append(record.rows)
    if sizes:
        assert pa.concat_batches(back).equals(rows)
    else:
        assert not batches


def test_small_rows_fill_their_batches() -> None:
    """Hardly more batches than the bytes need, of rows that cannot be packed."""
    count = 100_000
    dice = np.random.default_rng(1)
    keys = [bytes(key) for key in dice.integers(0, 256, (count, 24), dtype=np.uint8)]
    rows = tombstone_rows(list(zip(keys, dice.integers(-(2**63), 2**63 - 1, count).tolist(), strict=True)))
    batches = list(encode_tombstones("q", 1, rows, 1))
    assert len(batches) <= sum(map(len, batches)) // BATCH_TARGET_BYTES + 2
    assert max(map(len, batches)) <= BATCH_TARGET_BYTES
