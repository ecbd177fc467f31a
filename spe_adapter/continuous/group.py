"""A beat's append group as bytes: results, footprints, closes, mark; cut into pieces that can be staged.

Invariants:
* Results come first, in the order in which the operator gave them; control batches follow; the mark is the last.
* A piece holds whole batches and is small enough to stage.

Source: CEC paper, section II.B (footprints follow the results of their beat in the output queue).
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.format.private import Part
from logstore.interfaces import Buffer
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.continuous.port import Piece

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Large enough that a request costs little per byte; a quarter of what the sidecar accepts."""


class Records(NamedTuple):
    """Results as Kafka records: keys (null: none) and values, in the order of emission."""

    keys: pa.Array
    values: pa.Array


class _Batch(NamedTuple):
    data: Buffer
    records: int


def pieces(topic: str, partition: int, results: list[Records], controls: Iterable[Buffer], now_ms: int) -> list[Piece]:
    """The group as pieces to stage. Results and control batches carry `now_ms` as their timestamp."""
    made: list[Piece] = []
    waiting: list[_Batch] = []
    size = 0
    for batch in _batches(results, controls, now_ms):
        if waiting and size + len(batch.data) > PIECE_BYTES:
            made.append(_piece(topic, partition, waiting))
            waiting, size = [], 0
        waiting.append(batch)
        size += len(batch.data)
    if waiting:
        made.append(_piece(topic, partition, waiting))
    return made


def _batches(results: list[Records], controls: Iterable[Buffer], now_ms: int) -> Iterator[_Batch]:
    for keys, values in _merged(results):
        rows = len(values)
        columns = Columns(keys, values, None, np.full(rows, now_ms, np.int64))
        data, table = encode(columns, np.zeros(rows, np.int32))
        for entry in table:
            yield _Batch(data[entry.start : entry.end], entry.records)
    for control in controls:
        yield _Batch(control, 1)


def _merged(results: list[Records]) -> Iterator[Records]:
    """One column of keys and one of values for the whole beat, so that its batches are as large as they may be."""
    if len(results) < 2:
        yield from results
        return
    keys = pa.concat_arrays([one.keys for one in results])
    yield Records(keys, pa.concat_arrays([one.values for one in results]))


def _piece(topic: str, partition: int, batches: list[_Batch]) -> Piece:
    data = batches[0].data if len(batches) == 1 else b"".join(batch.data for batch in batches)
    return Piece(Part(topic, partition, len(data), len(batches), sum(batch.records for batch in batches)), data)
