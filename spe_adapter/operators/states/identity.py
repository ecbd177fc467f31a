"""How the entries of named states and timers are identified in the one store of an operator's windows.

| entry | key bytes | number |
|---|---|---|
| value; head of a list or map | the routing key | state id, slot 0 |
| element of a list, place of a map | the routing key | state id, slot from 1 on |
| entry of a map | the routing key joined to the map's key | state id, JOINED |
| timer | the routing key | id of its clock, the time in ms |

The routing key is the key by which rows are sent to partitions. A number is `id << SLOT_BITS | slot`, plus JOINED where
the key bytes are joined.

Invariants:
* Different entries have different identities: a joined key begins with the length of its routing key, and null differs
  from empty.
* `routing_keys` is the only function that finds the routing key of an entry; what sends entries to partitions uses it.

Source: CEC paper, section II.B (independent parts of an operator's state).
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.kernels import Bools, Bytes, Int64s
from spe_adapter.state import kernels
from spe_adapter.state.columns import bytes_array
from spe_adapter.state.errors import StateValueRefused

SLOT_BITS: Final = 48
JOINED: Final = 1 << 62
EVENT_TIMERS: Final = 254
WALL_TIMERS: Final = 255
MAX_STATES: Final = 200
_ID_MASK: Final = 0xFF
_SLOT_MASK: Final = (1 << SLOT_BITS) - 1
_MIDDLE_MS: Final = 1 << (SLOT_BITS - 1)
"""Timers may lie before 1970; the time 0 is in the middle of the slots."""
_HEADER_BYTES: Final = 4
_NO_BYTES: Final = pa.scalar(b"", pa.binary())


class SplitKeys(NamedTuple):
    """Joined keys taken apart: the routing keys (null for the null key), and the bytes behind them."""

    routing: pa.BinaryArray
    suffix: pa.BinaryArray


def numbers_at(state_id: int, slots: Int64s | int) -> Int64s:
    """The numbers of entries of a state at some slots."""
    return np.asarray(slots, np.int64) | (state_id << SLOT_BITS)


def ids_of(numbers: Int64s) -> Int64s:
    """The state id of each entry."""
    return (numbers >> SLOT_BITS) & _ID_MASK


def slots_of(numbers: Int64s) -> Int64s:
    """The slot of each entry."""
    return numbers & _SLOT_MASK


def joined_number(state_id: int) -> int:
    """The number of all entries of a map."""
    return JOINED | (state_id << SLOT_BITS)


def are_joined(numbers: Int64s) -> Bools:
    """Whether the key bytes of each entry are joined."""
    return numbers & JOINED != 0


def timer_numbers(timer_id: int, at_ms: Int64s) -> Int64s:
    """The numbers of timers at some times, in ms since 1970. Raises StateValueRefused for a time beyond the range."""
    outside = (at_ms < -_MIDDLE_MS) | (at_ms >= _MIDDLE_MS)
    if outside.any():
        raise StateValueRefused(
            f"a timer at {int(at_ms[int(np.argmax(outside))])} ms; give a time from {-_MIDDLE_MS} to {_MIDDLE_MS - 1} "
            "ms since 1970 (years −2491 to 6429)"
        )
    return numbers_at(timer_id, at_ms + _MIDDLE_MS)


def timer_times_ms(numbers: Int64s) -> Int64s:
    """The times of timers, in ms since 1970."""
    return slots_of(numbers) - _MIDDLE_MS


def joined_keys(routing: pa.BinaryArray, suffix: pa.BinaryArray) -> pa.BinaryArray:
    """Routing keys (null allowed) joined to other bytes (no nulls)."""
    lengths = pc.binary_length(routing).fill_null(-1).to_numpy(zero_copy_only=False)
    headers = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_HEADER_BYTES), len(routing), [None, pa.py_buffer((lengths + 1).astype("<u4"))]
    )
    return pc.binary_join_element_wise(headers.cast(pa.binary()), routing.fill_null(b""), suffix, _NO_BYTES)


def split_keys(keys: pa.BinaryArray) -> SplitKeys:
    """Joined keys taken apart. Raises StateDamaged for bytes that are no joined keys."""
    parts = keys_of(keys)
    data: Bytes = np.array(parts.data)
    starts = parts.offsets[:-1].astype(np.int64)
    lengths = np.diff(parts.offsets).astype(np.int64)
    header = np.zeros((len(starts), _HEADER_BYTES), np.uint8)
    for byte in range(_HEADER_BYTES):
        inside = lengths > byte
        header[inside, byte] = data[starts[inside] + byte]
    held = header.view("<u4")[:, 0].astype(np.int64)
    sizes = np.maximum(held - 1, 0)
    behind = starts + _HEADER_BYTES + sizes
    left = np.where(_HEADER_BYTES + sizes <= lengths, starts + lengths - behind, 0)
    routing = bytes_array(pa.binary(), _refs(starts + _HEADER_BYTES, np.where(held > 0, sizes, -1)), data)
    return SplitKeys(routing, bytes_array(pa.binary(), _refs(behind, left), data))


def routing_keys(keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
    """The routing key of each entry."""
    joined = are_joined(numbers)
    if not joined.any():
        return keys
    routing = split_keys(keys.filter(pa.array(joined))).routing
    if joined.all():
        return routing
    both = pa.concat_arrays([keys.filter(pa.array(~joined)), routing])
    place = np.empty(len(numbers), np.int64)
    place[~joined] = np.arange(int((~joined).sum()))
    place[joined] = np.arange(int((~joined).sum()), len(numbers))
    return both.take(pa.array(place))


def _refs(starts: Int64s, lengths: Int64s) -> Int64s:
    """References as tables have them: position and length + 1; a length of −1 is null."""
    return np.where(lengths < 0, 0, (starts << kernels.LENGTH_BITS) | (lengths + 1))
