"""The storage of a query's state on this host, with its limit, and the builder of a new base of a partition.

Invariants: the limit counts all files of the query, without copies of frozen pages; a draft that is neither published
nor discarded does not outlive its builder.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.page_memory import Step, no_step
from spe_adapter.pages.page_table import DEFAULT_PAGE_BYTES, check_page_bytes
from spe_adapter.state.delta import live_windows
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.files import Draft, StateEnvironment, map_file, map_start
from spe_adapter.state.layout import Layout
from spe_adapter.state.query import QueryDirectory
from spe_adapter.state.segment import Header, Segment, Tag, table_at
from spe_adapter.state.table import Allocate, Table

MIN_CAPACITY: Final = 1024
"""The minimum number of windows that fit into a new base."""


PageRuns = Iterable[tuple[Int64s, NDArray[np.uint8]]]
"""Pages in any order, some at a time: their ids, and their content (n, page_bytes). Of a page that comes several times,
as from a full checkpoint and from later ones, the last content counts.
"""


class BaseDescription(NamedTuple):
    """What a checkpoint says of a base, beside its pages: which version it is, of which state, and how it lies in
    memory. `note` is what was kept with the version.
    """

    tag: Tag
    fingerprint: str
    capacity: int
    arena_bytes: int
    page_bytes: int
    note: bytes


class BaseCheckpoint(Protocol):
    """A checkpoint of a partition's base that can be loaded."""

    @property
    def described(self) -> BaseDescription:
        """The base at the checkpoint."""

    def runs(self) -> PageRuns:
        """The pages. May raise any CairnError or OSError: then the state is loaded in another way."""

    def refused(self, error: Exception) -> None:
        """Take note of why the checkpoint could not be loaded."""


def fill_pages(block: Bytes, page_bytes: int, runs: PageRuns, step: Step) -> None:
    """Fill a block of zeros with the pages of a checkpoint. Raises StateDamaged for pages that lie outside of it."""
    check_page_bytes(page_bytes)
    whole = len(block) // page_bytes
    pages = block[: whole * page_bytes].reshape(whole, page_bytes)
    tail = block[whole * page_bytes :]
    count = -(-len(block) // page_bytes)
    for ids, content in runs:
        if content.shape != (len(ids), page_bytes):
            raise StateDamaged(f"{len(ids)} pages of {page_bytes} bytes come as an array {content.shape}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < count:
            raise StateDamaged(f"pages {ids.min()} to {ids.max()} do not fit a table of {count} pages")
        step("load pages")
        inside = ids < whole
        pages[ids[inside]] = content[inside]
        if not inside.all():
            tail[:] = content[~inside][-1][: len(tail)]


def load_table(
    schema: pa.Schema, described: BaseDescription, runs: PageRuns, allocate: Allocate, step: Step = no_step
) -> Table:
    """The table of a checkpoint, in memory that `allocate` gives. The index is built, and counters are checked.

    Raises StateDamaged if pages contradict each other or the description, and the errors of `allocate` and `runs`.
    """
    layout = Layout(schema, described.capacity, described.arena_bytes)
    block = allocate(layout.size_bytes)
    fill_pages(block[: layout.tracked_bytes], described.page_bytes, runs, step)
    table = Table(schema, layout, block, allocate, is_torn=True)
    table.repair()
    return table


class StateStorage(NamedTuple):
    """The directory of a query's state on this host, its limit in bytes, and what is needed to use it."""

    directory: QueryDirectory
    limit_bytes: int
    seed: int
    environment: StateEnvironment
    lock_limit_s: float
    page_bytes: int = DEFAULT_PAGE_BYTES
    """The size of pages of bases that are made."""
    memory_bytes: int | None = None
    """The bytes of a partition's base that stay in memory between uses, None: all. For a directory on a disk."""

    @property
    def mapped(self) -> Callable[[int, int], Bytes]:
        """How files are mapped: all at once, or page by page when pages are used."""
        return map_file if self.memory_bytes is None else map_start

    def write_out(self, segment: Segment, descriptor: int) -> None:
        """Drop pages of a segment from memory beyond the bound, if there is a bound."""
        if self.memory_bytes is not None:
            self.environment.step("write out")
            segment.write_out(descriptor, self.memory_bytes)

    def charge(self, more_bytes: int, where: str) -> None:
        """Raise StateTooLarge if `more_bytes` beside the present files exceed the limit. Copies of frozen pages, which
        have a bound of their own, do not count: no task fails because of a checkpoint.
        """
        held_bytes = self.directory.size_bytes()
        if held_bytes + more_bytes > self.limit_bytes:
            held_bytes -= self.directory.copies_bytes()
        if held_bytes + more_bytes > self.limit_bytes:
            raise StateTooLarge(
                f"query {self.directory.query!r}: {where} needs {more_bytes} more bytes of state beside "
                f"{held_bytes} on this host, and {self.limit_bytes} is the limit; raise the option 'stateLimit', use "
                "more partitions or hosts, or let windows expire"
            )


class DraftBuilder:
    """Builds a new base in a draft, which is replaced by a larger one when the table in it grows."""

    def __init__(self, storage: StateStorage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._content: tuple[Segment, Draft] | None = None

    @property
    def content(self) -> tuple[Segment, Draft]:
        """The newest segment and its draft."""
        if self._content is None:
            raise StateDamaged("nothing was built")
        return self._content

    def allocate(self, size_bytes: int) -> Bytes:
        """Memory for a table, in a new draft; the former draft is removed."""
        at = table_at(size_bytes, self._storage.page_bytes)
        self._storage.charge(at + size_bytes, f"partition {self._path.parent.name}")
        draft = Draft(self._path, self._storage.environment)
        before, self._content = self._content, None
        try:
            self._content = (
                Segment(draft.reserve(at + size_bytes, mapped=self._storage.mapped), self._storage.environment, at),
                draft,
            )
        except Exception:
            draft.discard()
            raise
        except BaseException:
            draft.close()
            raise
        finally:
            if before is not None:
                before[1].discard()
        return self._content[0].table_block()

    def create(self, schema: pa.Schema, capacity: int, arena_bytes: int) -> Table:
        """An empty table."""
        layout = Layout(schema, capacity, arena_bytes)
        return Table.create(schema, layout, self.allocate(layout.size_bytes), self._storage.seed, self.allocate)

    def copy_of(self, table: Table, rows: int, arena_bytes: int) -> Table:
        """A copy with room for more rows and bytes: for twice as many, or few more if the limit is near."""
        if table.is_sparse:
            copy = self.create(table.schema, max(2 * (table.live + rows), MIN_CAPACITY), 2 * arena_bytes)
            for batch, mark in live_windows(table):
                copy.put(batch, mark)
            return copy
        try:
            layout = table.grown(rows, arena_bytes)
            block = self.allocate(layout.size_bytes)
        except StateTooLarge:
            layout = table.grown(rows, arena_bytes, tight=True)
            block = self.allocate(layout.size_bytes)
        table.copy_to(layout, block)
        return Table(table.schema, layout, block, self.allocate)

    def load(self, schema: pa.Schema, described: "BaseDescription", runs: PageRuns) -> Table:
        """The table of a checkpoint. Raises StateDamaged if pages are missing, too many, or contradict each other."""
        return load_table(schema, described, runs, self.allocate, self._storage.environment.step)

    def publish(self, table: Table, header: Header) -> None:
        """Give the draft with this table the base's name."""
        segment, draft = self.content
        segment.begin_pages(table, self._storage.page_bytes)
        segment.write(header)
        self._storage.write_out(segment, draft.descriptor)
        draft.publish()

    def discard(self) -> None:
        """Remove the draft."""
        if self._content is not None:
            self._content[1].discard()

    def close(self) -> None:
        """Close the draft, which is published or discarded."""
        if self._content is not None:
            self._content[1].close()
