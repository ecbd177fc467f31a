"""A digest of records that does not depend on their order: of two executions of an epoch it tells whether they wrote
the same.

Invariant: it is a sum over the records, so that tasks' digests add up to the epoch's, however rows were dealt out and
batched. Key and value count, null and empty apart; timestamps, headers and streams do not.

Source: FNV-1a over words of eight bytes, with MurmurHash3's finaliser.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.columns import BytesColumn
from spe_adapter.codec.kernels import Bytes, Int32s, Uint64s, compiled

MODULUS: Final = 2**64


def digest_of(keys: pa.Array | None, values: pa.Array) -> int:
    """The digest of records with these keys (None: none) and values; add digests modulo MODULUS."""
    states = np.full(len(values), 0xCBF29CE484222325, np.uint64)
    for column in (pa.nulls(len(values), pa.binary()) if keys is None else keys, values):
        parts = BytesColumn.of(column)
        _mix(parts.offsets, parts.bitmap, parts.bit, parts.data, states)
    return int(np.add.reduce(states)) % MODULUS


@compiled
def _mix(offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, states: Uint64s) -> None:
    """Take the bytes of each row into its state."""
    prime = np.uint64(0x100000001B3)
    eight = np.uint64(8)
    for row in range(states.shape[0]):
        state = states[row]
        where = bit + row
        if bitmap.shape[0] > 0 and not (bitmap[where >> 3] >> (where & 7)) & 1:
            state = np.uint64((state ^ np.uint64(0xFFFFFFFFFFFFFFFF)) * prime)
        else:
            at = np.int64(offsets[row])
            end = np.int64(offsets[row + 1])
            length = np.uint64(end - at)
            while at + 8 <= end:
                word = np.uint64(data[at])
                for place in range(1, 8):
                    word |= np.uint64(data[at + place]) << np.uint64(eight * np.uint64(place))
                state = np.uint64((state ^ word) * prime)
                state = np.uint64(state ^ (state >> np.uint64(31)))
                at += 8
            while at < end:
                state = np.uint64((state ^ np.uint64(data[at])) * prime)
                at += 1
            state = np.uint64((state ^ length) * prime)
        state = np.uint64((state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD))
        state = np.uint64((state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53))
        states[row] = np.uint64(state ^ (state >> np.uint64(33)))
