"""The input of the stateful benchmark, and the results that are right.

Files of (key: long, price: int, time: timestamp), written once and handed to every engine as the same bytes. One
file is one epoch.

Invariants:
* Everything follows from the number of keys and the epoch: two engines never see different rows.
* Event time stands still while windows are only filled or updated, so that nobody runs the empty epoch that a moving
  watermark brings along. It moves in two places: with the first file, and with the ones that are to close windows.
* Prices are whole and sums stay far below 2**53: every engine's average is the same double.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Int64s = npt.NDArray[np.int64]

WINDOW_MS = 3_600_000
EARLY_WINDOWS = 6
"""Each can be closed by itself: as many recoveries can follow one another."""
DELAY_MS = (EARLY_WINDOWS + 1) * WINDOW_MS
"""How far the watermark is behind the newest event."""
CYCLE_WINDOWS = EARLY_WINDOWS + 2
"""How much later windows are filled again once all are closed: the newest are those in which the closing rows were, so
that event time stands still."""
FIRST_MS = 470_000 * WINDOW_MS
"""Start of window 0, in 2023: sidecars, as Kafka, refuse results with times in the future."""
EPOCH_ROWS = 100_000
CLOSING_ROWS = 1_000
"""The epoch whose event times close windows is small: what it costs is the closing."""
EARLY_SHARE = 100
"""One key in so many has EARLY_WINDOWS windows before window 0, each of which can be closed by itself."""
_PRICES = 1_000
_DIGEST = 1_000


class Epoch(NamedTuple):
    """One epoch's rows."""

    keys: Int64s
    prices: Int64s
    times_ms: Int64s


class Digest(NamedTuple):
    """Results in three numbers that do not depend on their order: how many, and two sums over key and average."""

    results: int
    averages: int
    weighted: int


def fill(keys: int, number: int = 0, window: int = 0) -> Epoch:
    """The first epoch: every key's window 0 opens, and one key in EARLY_SHARE has windows before it. After a `closing`
    of all windows the same again, CYCLE_WINDOWS later.
    """
    start_ms = FIRST_MS + window * WINDOW_MS
    early = np.arange(0, keys, EARLY_SHARE, dtype=np.int64)
    rows = np.arange(max(keys, EPOCH_ROWS), dtype=np.int64) % keys
    starts = [np.full(len(rows), start_ms, np.int64)]
    starts += [np.full(len(early), start_ms - back * WINDOW_MS, np.int64) for back in range(1, EARLY_WINDOWS + 1)]
    return _epoch(keys, number, np.concatenate([rows, *[early] * EARLY_WINDOWS]), np.concatenate(starts))


def update(keys: int, number: int) -> Epoch:
    """Epoch `number` (from 1): EPOCH_ROWS rows of window 0, with as many different keys as there are or fit."""
    dice = np.random.default_rng([keys, number, 1])
    if keys <= EPOCH_ROWS:
        rows = np.arange(EPOCH_ROWS, dtype=np.int64) % keys
    else:
        rows = dice.choice(keys, EPOCH_ROWS, replace=False).astype(np.int64)
    return _epoch(keys, number, rows, np.full(len(rows), FIRST_MS, np.int64))


def closing(keys: int, number: int, window: int) -> Epoch:
    """A few rows whose event times close `window` (0, or negative for early ones) and all before it."""
    rows = np.arange(CLOSING_ROWS, dtype=np.int64) % keys
    start_ms = FIRST_MS + (window + 1) * WINDOW_MS + DELAY_MS
    return _epoch(keys, number, rows, np.full(len(rows), start_ms, np.int64))


def _epoch(keys: int, number: int, rows: Int64s, starts_ms: Int64s) -> Epoch:
    dice = np.random.default_rng([keys, number])
    order = dice.permutation(len(rows))
    prices = dice.integers(1, _PRICES, len(rows))
    # Half a window wide, and the first row (of the newest window) is the last moment: the watermark stands still.
    offsets = dice.integers(0, WINDOW_MS // 2, len(rows))
    offsets[np.flatnonzero(order == 0)] = WINDOW_MS // 2
    return Epoch(rows[order], prices, starts_ms[order] + offsets)


def write(epoch: Epoch, path: Path) -> None:
    """One file, complete under its name or not there."""
    table = pa.table(
        {
            "key": pa.array(epoch.keys),
            "price": pa.array(epoch.prices.astype(np.int32)),
            "time": pa.array(epoch.times_ms * 1000).cast(pa.timestamp("us", tz="UTC")),
        }
    )
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    os.rename(hidden, path)


def digest(keys: Int64s, averages: npt.NDArray[np.float64]) -> Digest:
    """Of results; `DIGEST_SQL` computes the same inside Spark."""
    whole = np.floor(averages * _DIGEST).astype(np.int64)
    return Digest(len(keys), int(whole.sum()), int((whole * (keys % _PRICES + 1)).sum()))


DIGEST_SQL = (
    "count(*)",
    f"coalesce(sum(cast(floor(average * {_DIGEST}) as bigint)), 0)",
    f"coalesce(sum(cast(floor(average * {_DIGEST}) as bigint) * (key % {_PRICES} + 1)), 0)",
)
"""Expressions over result columns `key` and `average`, in the order of Digest."""


def of_windows(epoch: Epoch, first_window: int, last_window: int) -> Epoch:
    """The rows of an epoch that lie in these windows."""
    numbers = (epoch.times_ms - FIRST_MS) // WINDOW_MS
    wanted = (numbers >= first_window) & (numbers <= last_window)
    return Epoch(epoch.keys[wanted], epoch.prices[wanted], epoch.times_ms[wanted])


def pieces(epoch: Epoch, rows: int) -> Iterator[Epoch]:
    """The epoch as epochs of at most so many rows. The first has the newest event, so that event time stands still."""
    order = np.roll(np.arange(len(epoch.keys)), -int(np.argmax(epoch.times_ms)))
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        yield Epoch(epoch.keys[part], epoch.prices[part], epoch.times_ms[part])


def expected(epochs: Sequence[Epoch], first_window: int, last_window: int) -> Digest:
    """The digest of the results of these windows, from these rows."""
    parts = [of_windows(epoch, first_window, last_window) for epoch in epochs]
    keys, prices, times_ms = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    numbers = (times_ms - FIRST_MS) // WINDOW_MS
    span = last_window - first_window + 1
    windows, index = np.unique(keys * span + numbers - first_window, return_inverse=True)
    sums = np.bincount(index, weights=prices.astype(np.float64), minlength=len(windows))
    return digest(windows // span, sums / np.bincount(index, minlength=len(windows)))
