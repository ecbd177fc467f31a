"""The paper's source: tuples of 100 bytes with item_id, item_price and item_time, ids drawn at random.

Invariants:
* Everything follows from the number of ids and of records.
* A record's value is its tuple: little-endian int32 id, int32 price, int64 time, zeros up to 100 bytes.

Source: CEC paper, section IV (experimental set-up).
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from spe_adapter.codec.encode import Columns, encode

Int64s = npt.NDArray[np.int64]

TUPLE_BYTES = 100
_TUPLE = np.dtype(
    {"names": ["id", "price", "time"], "formats": ["<i4", "<i4", "<i8"], "offsets": [0, 4, 8], "itemsize": TUPLE_BYTES}
)
_PRICES = 10_000


def ids_of(items: int, records: int) -> Int64s:
    """The item of every record."""
    return np.random.default_rng([items, records]).integers(0, items, records)


class Source(NamedTuple):
    """A topic of items, which is read again and again: record i of the run is record i modulo `records`.

    `batch_records` records were sent at once. `rate` is how many come a second (0: as many as are asked for).
    """

    topic: str
    items: int
    records: int
    batch_records: int
    rate: float = 0.0

    def ids(self, records: int) -> Int64s:
        """The items of the first so many records of a run."""
        return np.resize(ids_of(self.items, self.records), records)


def fill(address: str, source: Source) -> None:
    """Write the records into stream 0 of a topic with one."""
    topic, items, records, batch_records, _ = source
    ids = ids_of(items, records)
    dice = np.random.default_rng([items, records, 1])
    with Client(parse_addresses(address)) as client:
        client.partitions(topic, create=True)
        for start in range(0, records, batch_records):
            part = ids[start : start + batch_records]
            tuples = np.zeros(len(part), _TUPLE)
            tuples["id"] = part
            tuples["price"] = dice.integers(1, _PRICES, len(part))
            tuples["time"] = np.arange(start, start + len(part))
            offsets = np.arange(0, (len(part) + 1) * TUPLE_BYTES, TUPLE_BYTES, dtype=np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(tuples.tobytes())]
            values = pa.Array.from_buffers(pa.binary(), len(part), buffers)
            stamps = np.full(len(part), time.time_ns() // 1_000_000, np.int64)
            encoded, batches = encode(Columns(None, values, None, stamps), np.zeros(len(part), np.int32))
            for batch in batches:
                client.produce(TopicPartition(topic, 0), encoded[batch.start : batch.end])


def to_items(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The step in front of the operator: records as columns item_id and item_price."""
    values = batch.column("value")
    if not len(values):
        return pa.RecordBatch.from_arrays([pa.array([], pa.int64())] * 2, names=["item_id", "item_price"])
    _, offsets, content = values.buffers()
    first = int(np.frombuffer(offsets, np.int32)[values.offset])
    tuples = np.frombuffer(content, _TUPLE, count=len(values), offset=first)
    columns = [pa.array(tuples[name].astype(np.int64)) for name in ("id", "price")]
    return pa.RecordBatch.from_arrays(columns, names=["item_id", "item_price"])


class Lives(NamedTuple):
    """Which record opened and which closed each window, in the order of closing."""

    opened: Int64s
    closed: Int64s


def lives_of(ids: Int64s, window: int) -> Lives:
    """Of all windows of `window` records per item that were filled."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ids)])
    rank = np.arange(len(ids)) - np.repeat(starts, counts)
    closed = np.flatnonzero(rank % window == window - 1)
    by_time = np.argsort(order[closed])
    closed = closed[by_time]
    return Lives(order[closed - (window - 1)], order[closed])


def opens_of(source: Source, window: int, bounds: Int64s) -> int:
    """How many windows of `window` records per item opened in one epoch and were open at its end, where epochs end
    behind `bounds` records: counted item by item, without the operator.
    """
    ids = ids_of(source.items, source.records)
    counts = np.zeros(source.items, np.int64)
    opened = before = 0
    for bound in bounds.tolist():
        grown = counts + _between(ids, before, bound, source.items)
        begun = grown - grown % window
        opened += int(np.count_nonzero((begun >= counts) & (begun < grown)))
        counts, before = grown, bound
    return opened


def results_of(source: Source, window: int, records: int) -> int:
    """How many windows the first so many records fill."""
    ids = ids_of(source.items, source.records)
    return int((_between(ids, 0, records, source.items) // window).sum())


def _between(ids: Int64s, first: int, end: int, items: int) -> Int64s:
    """How often each item comes in records first to end − 1 of a run."""
    laps, at = divmod(end, len(ids))
    first_lap, first_at = divmod(first, len(ids))
    if laps == first_lap:
        return np.bincount(ids[first_at:at], minlength=items)
    whole = np.bincount(ids, minlength=items) * (laps - first_lap - 1) if laps > first_lap + 1 else 0
    return np.bincount(ids[first_at:], minlength=items) + np.bincount(ids[:at], minlength=items) + whole
