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
_PIECE = 100_000


def ids_of(items: int, records: int) -> Int64s:
    """The item of every record."""
    return np.random.default_rng([items, records]).integers(0, items, records)


def fill(address: str, topic: str, items: int, records: int) -> None:
    """Write the records into stream 0 of a topic with one."""
    ids = ids_of(items, records)
    dice = np.random.default_rng([items, records, 1])
    with Client(parse_addresses(address)) as client:
        client.partitions(topic, create=True)
        for start in range(0, records, _PIECE):
            part = ids[start : start + _PIECE]
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
