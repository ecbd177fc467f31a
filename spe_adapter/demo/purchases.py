"""The CEC paper's purchases and who made them: what they are, how they travel, and the results that must come out.

Invariants: a purchase is 100 bytes of text, "item,price,time in ms,customer," and padding; event times are out of order
by less than `DISORDER_MS`; the same seed gives the same purchases. Dealt out to partitions, the closing purchase is the
last that a query reads, however few records a micro-batch has. `averages` and `spendings` are the oracles: they know
nothing of Spark.

Source: CEC paper, section IV (tuples of item_id, item_price, item_time; 100 bytes).
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RECORD_BYTES: Final = 100
DISORDER_MS: Final = 500
WINDOW_MS: Final = 10_000
CUSTOMER_WINDOW_MS: Final = 60_000
WATERMARK_MS: Final = 60_000
"""Far above the disorder of the events and the distance of the partitions from each other, so nothing is ever late."""
CUSTOMERS: Final = 2_000
EVENTS_PER_SECOND: Final = 1000
"""In event time: how densely purchases happen, not how fast they are sent."""
FIRST_EVENT_MS: Final = 1_700_000_000_000 // CUSTOMER_WINDOW_MS * CUSTOMER_WINDOW_MS
CLOSING_ITEM: Final = 999_999
"""The last purchase, far ahead in time: it moves the watermark so that every window before it closes."""
CLOSING_DELAY_MS: Final = 3_600_000
_ITEM_DIGITS, _PRICE_DIGITS, _TIME_DIGITS, _CUSTOMER_DIGITS = 6, 6, 13, 6
_PRICE_AT = _ITEM_DIGITS + 1
_TIME_AT = _PRICE_AT + _PRICE_DIGITS + 1
_CUSTOMER_AT = _TIME_AT + _TIME_DIGITS + 1
_COMMA, _ZERO, _PADDING = ord(","), ord("0"), ord(".")

Ints = npt.NDArray[np.int64]


class Purchases(NamedTuple):
    """Purchases as columns."""

    items: Ints
    prices: Ints
    times_ms: Ints
    customers: Ints


def generate(count: int, items: int, seed: int, block: int) -> Iterator[Purchases]:
    """`count` purchases in blocks, times rising but for the disorder; the closing one comes last, alone."""
    random = np.random.default_rng(seed)
    for start in range(0, count, block):
        rows = min(block, count - start)
        moments = FIRST_EVENT_MS + (start + np.arange(rows, dtype=np.int64)) * 1000 // EVENTS_PER_SECOND
        yield Purchases(
            random.integers(0, items, rows, dtype=np.int64),
            random.integers(1, 100_000, rows, dtype=np.int64),
            moments + random.integers(0, DISORDER_MS, rows, dtype=np.int64),
            random.integers(0, CUSTOMERS, rows, dtype=np.int64),
        )
    end_ms = FIRST_EVENT_MS + count * 1000 // EVENTS_PER_SECOND + CLOSING_DELAY_MS
    yield Purchases(*(np.array([value], dtype=np.int64) for value in (CLOSING_ITEM, 1, end_ms, CLOSING_ITEM)))


def deal(blocks: Iterable[Purchases], partitions: int) -> Iterator[tuple[int, Purchases]]:
    """The blocks in parts, each with the partition that it goes to, to be appended in this order.

    A micro-batch under `maxOffsetsPerTrigger` takes from each partition a share by its backlog, and at least one
    record. A closing purchase in a partition with little else would be read before others, which would then be late. So
    every partition gets its share of every block; what does not divide, the closing purchase too, goes to the last
    partitions, whose backlog is never the smaller.
    """
    for block in blocks:
        for number in range(partitions):
            part = Purchases(*(column[partitions - 1 - number :: partitions] for column in block))
            if len(part.items):
                yield number, part


def to_values(purchases: Purchases) -> pa.Array:
    """The purchases as record values."""
    rows = len(purchases.items)
    text = np.full((rows, RECORD_BYTES), _PADDING, np.uint8)
    columns = (
        (purchases.items, 0, _ITEM_DIGITS),
        (purchases.prices, _PRICE_AT, _PRICE_DIGITS),
        (purchases.times_ms, _TIME_AT, _TIME_DIGITS),
        (purchases.customers, _CUSTOMER_AT, _CUSTOMER_DIGITS),
    )
    for column, at, digits in columns:
        for digit in range(digits):
            text[:, at + digit] = column // 10 ** (digits - 1 - digit) % 10 + _ZERO
        text[:, at + digits] = _COMMA
    offsets = np.arange(rows + 1, dtype=np.int32) * RECORD_BYTES
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def from_values(values: pa.Array) -> Purchases:
    """The purchases that record values hold. Raises ValueError if one is not of the right size."""
    rows = len(values)
    sizes = np.diff(np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + rows + 1])
    if rows and (sizes != RECORD_BYTES).any():
        raise ValueError(f"a purchase of {int(sizes[sizes != RECORD_BYTES][0])} bytes; all have {RECORD_BYTES}")
    start = np.frombuffer(values.buffers()[1], np.int32)[values.offset] if rows else 0
    text = np.frombuffer(values.buffers()[2], np.uint8)[start : start + rows * RECORD_BYTES].reshape(rows, RECORD_BYTES)
    digits = text.astype(np.int64) - _ZERO

    def number(at: int, count: int) -> Ints:
        weights = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
        return np.asarray(digits[:, at : at + count] @ weights, dtype=np.int64)

    return Purchases(
        number(0, _ITEM_DIGITS),
        number(_PRICE_AT, _PRICE_DIGITS),
        number(_TIME_AT, _TIME_DIGITS),
        number(_CUSTOMER_AT, _CUSTOMER_DIGITS),
    )


Expected = dict[tuple[int, int], tuple[int, float]]
"""(window start in ms, item or customer) to (purchases, average price or sum of prices)."""


def averages(purchases: Purchases) -> Expected:
    """The average price of each item in each window that the closing purchase closes."""
    sums = _sums(purchases, purchases.items, WINDOW_MS)
    return {key: (count, total / count) for key, (count, total) in sums.items()}


def spendings(purchases: Purchases) -> Expected:
    """What each customer has spent in each window that the closing purchase closes."""
    return _sums(purchases, purchases.customers, CUSTOMER_WINDOW_MS)


def together(blocks: Iterable[Purchases]) -> Purchases:
    """All blocks as one."""
    whole = [block for block in blocks if len(block.items)]
    return Purchases(*(np.concatenate(columns) for columns in zip(*whole, strict=True)))


def _sums(purchases: Purchases, keys: Ints, window_ms: int) -> Expected:
    keep = purchases.items != CLOSING_ITEM
    windows = purchases.times_ms[keep] // window_ms * window_ms
    unique, inverse, counts = np.unique(windows * 1_000_000 + keys[keep], return_inverse=True, return_counts=True)
    sums = np.bincount(inverse, weights=purchases.prices[keep], minlength=len(unique))
    return {
        (both // 1_000_000, both % 1_000_000): (count, total)
        for both, count, total in zip(unique.tolist(), counts.tolist(), sums.tolist(), strict=True)
    }
