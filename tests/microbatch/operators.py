"""The operator that most tests of this room run, and what it must give: a naive model, record by record.

A visit to a shop: per key the count and total so far, told after every epoch that has rows of the key; ten seconds of
event time after its last row, the key is closed with a last word. The next row opens it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.operators.base import Emitted, Operator, Rows, State

QUIET_MS = 10_000
DELAY_MS = 2_000


class Row(NamedTuple):
    """An input row: key, event time in ms, amount."""

    key: str
    ms: int
    amount: int

    def encoded(self) -> bytes:
        """As the input topic has it."""
        return json.dumps(self._asdict()).encode()


class Visits(Operator):
    """See the module."""

    state: Mapping[str, pa.DataType] = {"n": pa.int64(), "total": pa.int64(), "last": pa.int64()}
    event_time = "ts"
    delay_ms = DELAY_MS

    def output(self, schema: pa.Schema) -> pa.Schema:
        """What is told of a key."""
        return pa.schema([("n", pa.int64()), ("total", pa.int64()), ("last", pa.bool_())])

    def process(self, rows: Rows, state: State) -> Emitted:
        """Count and add up."""
        amounts = rows.batch.column("amount").to_numpy(zero_copy_only=False)
        n = state.get("n") + np.bincount(rows.window, minlength=state.size)
        total = state.get("total") + np.bincount(rows.window, amounts, minlength=state.size).astype(np.int64)
        last = state.get("last").copy()
        assert rows.times_ms is not None
        np.maximum.at(last, rows.window, rows.times_ms)
        state.set("n", n)
        state.set("total", total)
        state.set("last", last)
        state.expire_at(last + QUIET_MS)
        return _told(n, total, last=False)

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """The last word."""
        return _told(state.get("n"), state.get("total"), last=True)


def _told(n: np.ndarray, total: np.ndarray, *, last: bool) -> pa.RecordBatch:
    columns = [pa.array(n, pa.int64()), pa.array(total, pa.int64()), pa.array(np.full(len(n), last))]
    return pa.RecordBatch.from_arrays(columns, names=["n", "total", "last"])


class Failing(Visits):
    """Fails at one key. Its state is that of Visits."""

    @property
    def name(self) -> str:
        """The same as that of Visits."""
        return "Visits"

    def process(self, rows: Rows, state: State) -> Emitted:
        """As Visits, but for key `bad`."""
        if "bad" in rows.batch.column("key").to_pylist():
            raise ValueError("this key I cannot count")
        return super().process(rows, state)


class Silent(Visits):
    """Fails when it should tell the last word."""

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Never."""
        raise RuntimeError("no last word")


@dataclass
class Model:
    """What Visits must tell, epoch by epoch."""

    open: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    watermark_ms: int = 0
    newest_ms: int | None = None
    told: list[tuple[str, int, int, bool]] = field(default_factory=list)

    def epoch(self, rows: Iterable[Row]) -> None:
        """One epoch with these rows (which all are one Arrow batch: a key is told once)."""
        late_ms = self.watermark_ms
        if self.newest_ms is not None:
            self.watermark_ms = max(self.watermark_ms, self.newest_ms - DELAY_MS)
        touched: dict[str, None] = {}
        for row in rows:
            self.newest_ms = row.ms if self.newest_ms is None else max(self.newest_ms, row.ms)
            if row.ms <= late_ms:
                continue
            n, total, last = self.open.get(row.key, (0, 0, 0))
            self.open[row.key] = (n + 1, total + row.amount, max(last, row.ms))
            touched[row.key] = None
        self.told += [(key, *self.open[key][:2], False) for key in touched]
        for key, (n, total, last) in list(self.open.items()):
            if last + QUIET_MS <= self.watermark_ms:
                self.told.append((key, n, total, True))
                del self.open[key]

    def pause(self) -> None:
        """Input pauses: an epoch without any, if the watermark moves."""
        if self.newest_ms is not None and self.newest_ms - DELAY_MS > self.watermark_ms:
            self.epoch([])


def rows_of(epochs: int, per_epoch: int, keys: int, seed: int = 1) -> list[list[Row]]:
    """Rows for so many epochs: time goes on by a second an epoch, rows are up to four seconds behind, some keys fall
    silent for long.
    """
    random = np.random.default_rng(seed)
    made: list[list[Row]] = []
    for epoch in range(epochs):
        here: list[Row] = []
        for _ in range(per_epoch):
            group = int(random.integers(0, 4))
            # Each group of keys is silent in three of four stretches of 15 epochs.
            key = int(random.integers(0, keys)) * 4 + (group if random.random() < 0.1 else (epoch // 15) % 4)
            ms = 100_000 + epoch * 1000 - int(random.integers(0, 4000))
            here.append(Row(f"k{key}", ms, int(random.integers(1, 100))))
        made.append(here)
    return made


def expected_of(epochs: Sequence[Sequence[Row]], *, pause_at_end: bool = True) -> list[tuple[str, int, int, bool]]:
    """What Visits must have told after these epochs without pauses between them."""
    model = Model()
    for rows in epochs:
        model.epoch(rows)
    if pause_at_end:
        model.pause()
    return model.told
