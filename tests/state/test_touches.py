"""Every store of a table is announced: what is frozen stays as it was, and increments make up the whole."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spe_adapter.pages.page_table import MIN_PAGE_BYTES
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.frozen import frozen_version
from spe_adapter.state.layout import Layout
from spe_adapter.state.paged import FreezePoint, FrozenBlock, PagedBlocks
from spe_adapter.state.segment import CLEAN, Header, StateOwner, Tag
from spe_adapter.state.storage import load_table
from spe_adapter.state.table import Table, anonymous
from tests.state.conftest import SCHEMA, Windows, batch_of, windows_of
from tests.support.examples import examples

CAPACITY = 1500
SEED = 11

names = st.text("xyz", max_size=40)
identities = st.tuples(st.sampled_from([b"k%d" % index * (1 + index % 4) for index in range(60)]), st.integers(0, 20))
windows = st.dictionaries(identities, st.tuples(st.none() | st.integers(0, 9), st.none() | names), max_size=20)


class TableMachine(RuleBasedStateMachine):
    """A table on pages of the smallest size, so that a change that is not announced meets a page that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = PagedBlocks(MIN_PAGE_BYTES)
        self.table = Table.in_memory(SCHEMA, CAPACITY, SEED, self.blocks)
        self.frozen: tuple[FrozenBlock, np.ndarray, Windows] | None = None
        self.content = np.empty(0, np.uint8)
        self.since: FreezePoint | None = None

    def teardown(self) -> None:
        """Release what is frozen."""
        if self.frozen is not None:
            self.frozen[0].pages.release()
        self.blocks.close()

    def tracked(self) -> np.ndarray:
        """The bytes of the table before its index."""
        block = self.table._counters.view(np.uint8)
        whole = np.lib.stride_tricks.as_strided(block, (self.table.tracked_bytes,), (1,), writeable=False)
        return whole.copy()

    def some(self, data: st.DataObject) -> Any:
        """Some rows of the table."""
        rows = self.table.live_rows()
        return data.draw(st.lists(st.sampled_from(rows.tolist()), unique=True, max_size=9)) if len(rows) else []

    @rule(many=windows)
    def put(self, many: Windows) -> None:
        """Store windows."""
        if many:
            self.table.put(batch_of(many), (1, 2, 3))

    @rule(start=st.integers(0, 10_000))
    def fill(self, start: int) -> None:
        """Open many windows, so that the table may grow."""
        self.table.put(
            batch_of({(b"%d" % number, 0): (number, "n") for number in range(start, start + 300)}), (1, 1, 1)
        )

    @rule(data=st.data(), value=st.integers(0, 99), text=names)
    def change(self, data: st.DataObject, value: int, text: str) -> None:
        """Change one thing of some windows."""
        rows = np.array(self.some(data), np.int64)
        kind = data.draw(st.sampled_from(["set", "text", "expires", "versions", "remove", "repair", "hide"]))
        table = self.table
        if kind == "set":
            table.set("total", rows, np.full(len(rows), value), rows % 2 == 0)
        elif kind == "text":
            table.set_arrow("name", rows, pa.array([text] * len(rows), pa.string()))
        elif kind == "expires":
            table.set_expires(rows, np.full(len(rows), value))
        elif kind == "versions":
            table.set_window_versions(rows, value, value, value)
        elif kind == "remove":
            table.remove(rows)
        elif kind == "hide":
            table.remove(table.hide(value % 5))
        else:
            table.repair()

    @rule()
    def freeze(self) -> None:
        """Freeze what changed since the last freeze that was read."""
        if self.frozen is not None:
            again = self.blocks.freeze()
            if again is not None:  # the table has grown into another block
                assert again.point.identity != self.frozen[0].point.identity
                again.pages.release()
            return
        block = self.blocks.freeze(self.since, copies=10_000)
        assert block is not None
        self.frozen = block, self.tracked(), windows_of(self.table)

    @rule()
    def read(self) -> None:
        """Read what is frozen: with the earlier increments it makes up the table as it was, to the byte."""
        if self.frozen is None:
            return
        block, then, open_windows = self.frozen
        self.frozen = None
        if block.is_full:
            self.content = np.zeros(-(-len(then) // MIN_PAGE_BYTES) * MIN_PAGE_BYTES, np.uint8)
        with block.pages as pages:
            self.content.reshape(-1, MIN_PAGE_BYTES)[pages.ids] = pages.read(pages.ids)
        self.since = block.point
        assert (self.content[: len(then)] == then).all()
        assert not self.content[len(then) :].any()
        self.load(block, open_windows)

    def load(self, block: FrozenBlock, open_windows: Windows) -> None:
        """Load what was read into a private table."""
        counters = self.content[:128].view(np.int64)
        owner = StateOwner("q", 0, "f", "")
        header = Header(owner, CLEAN, Tag(1, "a"), None, int(counters[0]), int(counters[1]), b"")
        described = frozen_version(header, block).described
        assert described is not None
        assert len(self.content) >= Layout(SCHEMA, described.capacity, described.arena_bytes).tracked_bytes
        pages = self.content.reshape(-1, MIN_PAGE_BYTES)
        runs = [(np.arange(len(pages), dtype=np.int64), pages)]
        assert windows_of(load_table(SCHEMA, described, runs, anonymous)) == open_windows
        assert windows_of(load_table(SCHEMA, described, runs, PagedBlocks())) == open_windows

    @invariant()
    def whole(self) -> None:
        """The table is consistent."""
        assert self.table.live <= self.table.used


TestTouches = TableMachine.TestCase
TestTouches.settings = settings(max_examples=examples(40), stateful_step_count=25)


def test_values_that_change_in_place_are_copied_first() -> None:
    """Shorter ones where they lie, longer ones behind the others."""
    many: Windows = {(b"key %d" % number, 0): (number, "a text of some length") for number in range(CAPACITY)}
    for text in ("short", "a text that is longer than the ones before"):
        blocks = PagedBlocks(MIN_PAGE_BYTES)
        table = Table.in_memory(SCHEMA, 2 * CAPACITY, SEED, blocks)
        table.put(batch_of({**many, (b"room", 0): (0, "x" * 50_000)}), (1, 2, 3))
        table.remove(table.find(pa.array([b"room"]), np.zeros(1, np.int64)))
        block = blocks.freeze(copies=10_000)
        assert block is not None
        before = table.tracked_bytes, table.get_arrow("name", table.live_rows())
        rows = table.live_rows()[500:600]
        table.set_arrow("name", rows, pa.array([text] * len(rows)))
        assert before[0] == table.tracked_bytes, "the table has grown: the test proves nothing"
        content = np.zeros((-(-table.tracked_bytes // MIN_PAGE_BYTES), MIN_PAGE_BYTES), np.uint8)
        with block.pages as pages:
            content[pages.ids] = pages.read(pages.ids)
        counters = content.reshape(-1)[:128].view(np.int64)
        header = Header(StateOwner("q", 0, "f", ""), CLEAN, Tag(1, "a"), None, int(counters[0]), int(counters[1]), b"")
        described = frozen_version(header, block).described
        assert described is not None
        loaded = load_table(SCHEMA, described, [(np.arange(len(content), dtype=np.int64), content)], anonymous)
        assert windows_of(loaded) == many
        blocks.close()


def test_memory_of_a_private_table_is_charged_and_let_go() -> None:
    """The bytes of each block are asked for first; what is frozen outlives growth and the end of the owner."""
    charged: list[int] = []

    def charge(size_bytes: int) -> None:
        if size_bytes > 1024 * 1024:
            raise StateTooLarge(f"{size_bytes} bytes")
        charged.append(size_bytes)

    blocks = PagedBlocks(MIN_PAGE_BYTES, charge)
    with pytest.raises(StateDamaged, match="no table"):
        blocks.freeze()
    table = Table.in_memory(SCHEMA, 10, SEED, blocks)
    assert charged == [table.size_bytes]
    table.put(batch_of({(b"a", 0): (1, "one")}), (1, 1, 1))
    block = blocks.freeze()
    assert block is not None
    before = block.pages.read(block.pages.ids)
    with pytest.raises(StateTooLarge):
        table.put(batch_of({(b"%d" % number, 1): (number, None) for number in range(10_000)}), (1, 1, 1))
    table.put(batch_of({(b"%d" % number, 1): (number, None) for number in range(100)}), (1, 1, 1))
    assert len(charged) > 1
    blocks.close()
    assert (block.pages.read(block.pages.ids) == before).all()
    block.pages.release()
    assert table.live == 101


def test_what_a_footprint_leaves_as_it_is_changes_no_page() -> None:
    """New values of windows that were there: neither their expiry nor the flags of their nulls are written again."""
    many: Windows = {(b"key %d" % number, 0): (number, None) for number in range(CAPACITY)}
    blocks = PagedBlocks(MIN_PAGE_BYTES)
    table = Table.in_memory(SCHEMA, CAPACITY, SEED, blocks)
    table.put(batch_of(many), (1, 2, 3))
    first = blocks.freeze()
    assert first is not None
    first.pages.release()
    table.put(batch_of({key: (total + 1, name) for key, (total, name) in many.items() if total is not None}), (2, 3, 4))
    second = blocks.freeze(first.point)
    assert second is not None
    layout = Layout(SCHEMA, table.capacity, table.arena_bytes)

    def changed(name: str) -> bool:
        start, end = layout.starts[name], layout.starts[name] + layout.widths[name] * CAPACITY
        # An array shares its outer pages with its neighbours.
        inner = range(start // MIN_PAGE_BYTES + 1, end // MIN_PAGE_BYTES)
        assert len(inner)
        return bool(np.isin(inner, second.pages.ids).any())

    assert not changed("expires")
    assert changed("s_total")
    assert changed("ordinal")
    second.pages.release()
    blocks.close()
