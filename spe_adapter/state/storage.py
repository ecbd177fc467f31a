"""The storage of a query's state on this host, with its limit, and the builder of a new base of a partition.

Invariants: the limit counts all files of the query; a draft that is neither published nor discarded does not outlive
its builder.
"""

from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from spe_adapter.codec.kernels import Bytes
from spe_adapter.state.delta import live_windows
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.files import Draft, StateEnvironment
from spe_adapter.state.layout import Layout
from spe_adapter.state.query import QueryDirectory
from spe_adapter.state.segment import HEADER_BYTES, Segment
from spe_adapter.state.table import Table

MIN_CAPACITY: Final = 1024
"""The minimum number of windows that fit into a new base."""


class StateStorage(NamedTuple):
    """The directory of a query's state on this host, its limit in bytes, and what is needed to use it."""

    directory: QueryDirectory
    limit_bytes: int
    seed: int
    environment: StateEnvironment
    lock_limit_s: float

    def charge(self, more_bytes: int, where: str) -> None:
        """Raise StateTooLarge if `more_bytes` beside the present files exceed the limit."""
        held_bytes = self.directory.size_bytes()
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
        self._storage.charge(HEADER_BYTES + size_bytes, f"partition {self._path.parent.name}")
        draft = Draft(self._path, self._storage.environment)
        before, self._content = self._content, None
        try:
            self._content = Segment(draft.reserve(HEADER_BYTES + size_bytes), self._storage.environment), draft
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

    def discard(self) -> None:
        """Remove the draft."""
        if self._content is not None:
            self._content[1].discard()

    def close(self) -> None:
        """Close the draft, which is published or discarded."""
        if self._content is not None:
            self._content[1].close()
