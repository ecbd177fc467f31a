"""The state that benchmarks/pages.py measures: windows of a real aggregate, in memory of several kinds.

Invariants:
* The operator, its input and its windows are the same in every kind of memory.
* All windows stay open, so that an epoch changes state and nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter import Aggregate, Tumbling, agg
from spe_adapter.checkpoint.snapshot import Snapshot, VersionHeader
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.chain import processor_of
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.processor import Processor
from spe_adapter.state.direct import Direct
from spe_adapter.state.layout import Layout
from spe_adapter.state.paged import FreezePoint, FrozenBlock, PagedBlocks
from spe_adapter.state.segment import Tag
from spe_adapter.state.storage import BaseDescription
from spe_adapter.state.store import StateStore
from spe_adapter.state.table import Table, anonymous

INPUT = pa.schema([pa.field("item", pa.int64()), pa.field("at", pa.timestamp("ms")), pa.field("price", pa.int64())])
OPERATOR = Aggregate(Tumbling("365 days", "at"), n=agg.count(), low=agg.min("price"), high=agg.max("price"))
"""As in the paper: count, minimum and maximum, per group."""
FIRST_ITEM = 1_000_000
"""So that every item's key has seven characters."""
KEY_BYTES = 7
FILL_ROWS = 100_000
SEED = 12
FINGERPRINT = "benchmark of pages"


def processor_over(store: StateStore) -> Processor:
    """The operator over a store of windows."""
    return processor_of(OPERATOR, KeyCodec(INPUT, ["item"]), INPUT, store)


@lru_cache(maxsize=1)
def state_schema() -> pa.Schema:
    """The columns of a window."""
    return OPERATOR.state_schema(INPUT)


def windows_for(size_bytes: int) -> int:
    """How many windows take so many bytes of state."""
    per_window = sum(Layout(state_schema(), 1024, 0).widths.values()) + KEY_BYTES
    return max(size_bytes // per_window, 1)


def rows_of(items: Int64s, prices: Int64s) -> pa.RecordBatch:
    """Input rows of the operator, all in one window per item."""
    times = pa.array(np.full(len(items), 1_000, np.int64), pa.timestamp("ms"))
    return pa.RecordBatch.from_arrays([pa.array(items), times, pa.array(prices)], schema=INPUT)


def random_rows(random: np.random.Generator, rows: int, windows: int, first: int = 0) -> pa.RecordBatch:
    """Rows of items from `first` on, drawn alike: the worst case for pages, as in the paper."""
    items = random.integers(0, windows, rows) + first + FIRST_ITEM
    return rows_of(items, random.integers(0, 1_000_000, rows))


def fill(processor: Processor, windows: int, first: int = 0) -> None:
    """Open the window of each item, in an order that has nothing to do with their numbers."""
    items = np.random.default_rng(SEED).permutation(windows) + first + FIRST_ITEM
    for start in range(0, windows, FILL_ROWS):
        part = items[start : start + FILL_ROWS]
        processor.process(rows_of(part, part))


class Partition:
    """An operator with its windows in memory of its own.

    `page_bytes`: of pages that can be frozen; None: plain memory, whose changes nobody hears of.
    """

    def __init__(self, windows: int, page_bytes: int | None = None, first: int = 0) -> None:
        self.windows = windows
        self.first = first
        self.epoch = 1
        self.blocks = None if page_bytes is None else PagedBlocks(page_bytes)
        self._page_bytes = page_bytes
        self.table = Table.in_memory(state_schema(), windows, SEED, self.blocks or anonymous)
        self._processor = processor_over(Direct(self.table, tells_changes=False, tells_windows=False))
        fill(self._processor, windows, first)

    def process(self, batch: pa.RecordBatch) -> None:
        """Change the windows of a batch of rows."""
        self._processor.process(batch)

    @property
    def content_bytes(self) -> int:
        """Bytes of the state: what can differ from zero, without the index."""
        return sum(end - start for start, end in self.table.content())

    def freeze(self, since: FreezePoint | None = None, copies: int | None = None) -> FrozenBlock:
        """Freeze the pages. Raises RuntimeError if an earlier freeze is still read, or there are no pages."""
        frozen = None if self.blocks is None else self.blocks.freeze(since, copies)
        if frozen is None:
            raise RuntimeError("nothing could be frozen")
        return frozen

    def header(self) -> VersionHeader:
        """What a checkpoint says beside the pages."""
        return VersionHeader(FINGERPRINT, self.epoch, "a", self.table.capacity, self.table.arena_bytes, b"")

    def snapshot(self, frozen: FrozenBlock) -> Snapshot:
        """A freeze as a checkpoint manager takes it."""
        return Snapshot(self.header(), frozen.pages, frozen.point, frozen.is_full)

    def close(self) -> None:
        """Let go of the pages."""
        if self.blocks is not None:
            self.blocks.close()


def described(header: VersionHeader, page_bytes: int) -> BaseDescription:
    """The table of a checkpoint, as `load_table` wants it described."""
    tag = Tag(header.epoch, header.attempt)
    return BaseDescription(tag, header.fingerprint, header.capacity, header.arena_bytes, page_bytes, header.note)


class Split(NamedTuple):
    """An operator's windows, split into partitions alike."""

    partitions: tuple[Partition, ...]

    def process(self, batches: tuple[pa.RecordBatch, ...]) -> None:
        """An epoch: a batch for each partition."""
        for partition, batch in zip(self.partitions, batches, strict=True):
            partition.process(batch)
            partition.epoch += 1

    def draw(self, random: np.random.Generator, rows: int) -> tuple[pa.RecordBatch, ...]:
        """The input of an epoch."""
        share = rows // len(self.partitions)
        return tuple(random_rows(random, share, each.windows, each.first) for each in self.partitions)


def split(windows: int, count: int, page_bytes: int | None) -> Split:
    """An operator with so many windows in `count` partitions."""
    share = max(windows // count, 1)
    return Split(tuple(Partition(share, page_bytes, number * share) for number in range(count)))
