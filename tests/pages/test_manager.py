"""The page manager against a dictionary of page contents; its errors; its life in a file."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spe_adapter.pages.errors import FreezeCancelled, FreezeRefused, PagesDamaged, PagesFull, PagesRefused
from spe_adapter.pages.frozen import FrozenPages
from spe_adapter.pages.manager import PageManager, SetDescription, SetsCheckpoint
from tests.support.examples import examples

PAGE_BYTES = 4096
MAX_PAGES = 64
RESERVE = 12
SETS = (0, 1, 7, 2**31 - 1)

Content = dict[int, dict[int, int]]
"""For each page set, the value of each allocated page."""


class ManagerMachine(RuleBasedStateMachine):
    """Sets that grow and shrink, freezes that are read later, and copies of everything by checkpoint and load."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=MAX_PAGES)
        self.content: Content = {}
        self.frozen: tuple[SetsCheckpoint, Content] | None = None
        self.full: Content = {}
        self.number: int | None = None

    def teardown(self) -> None:
        """Close all."""
        if self.frozen is not None:
            self.frozen[0].pages.release()
        self.manager.close()

    @rule(set_id=st.sampled_from(SETS))
    def create(self, set_id: int) -> None:
        """A new set, if its id is free."""
        if set_id in self.content:
            with pytest.raises(PagesRefused, match=f"page set {set_id} exists"):
                self.manager.create(set_id, RESERVE)
        else:
            self.manager.create(set_id, RESERVE)
            self.content[set_id] = {}

    @precondition(lambda self: self.content)
    @rule(data=st.data(), count=st.integers(0, RESERVE))
    def allocate(self, data: st.DataObject, count: int) -> None:
        """More pages, all zeros, or an error where the set was reserved for fewer."""
        set_id = data.draw(st.sampled_from(sorted(self.content)))
        pages = self.content[set_id]
        page_set = self.manager.recover(set_id)
        if len(pages) + count > RESERVE:
            with pytest.raises(PagesFull, match=f"page set {set_id} was created for {RESERVE}"):
                page_set.allocate(count)
            return
        for number in page_set.allocate(count).tolist():
            assert number not in pages
            assert not page_set.pages[number].any()
            pages[number] = 0

    def _some(self, data: st.DataObject) -> tuple[int, np.ndarray]:
        set_id = data.draw(st.sampled_from(sorted(self.content)))
        numbers = sorted(self.content[set_id])
        chosen = data.draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else []
        return set_id, np.array(chosen, np.int64)

    @precondition(lambda self: self.content)
    @rule(data=st.data(), value=st.integers(0, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        """Change some pages of a set."""
        set_id, numbers = self._some(data)
        page_set = self.manager.recover(set_id)
        page_set.touch(numbers)
        page_set.pages[numbers] = value
        self.content[set_id].update(dict.fromkeys(numbers.tolist(), value))

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give some pages back."""
        set_id, numbers = self._some(data)
        page_set = self.manager.recover(set_id)
        page_set.release(numbers)
        for number in numbers.tolist():
            del self.content[set_id][number]
        if len(numbers):
            with pytest.raises(PagesRefused, match="is not allocated"):
                self.manager.resolve(page_set.ids(numbers))

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        """Copies of some pages in the same set."""
        set_id, numbers = self._some(data)
        pages = self.content[set_id]
        if len(numbers) and len(pages) + len(numbers) <= RESERVE:
            clones = self.manager.clone(self.manager.recover(set_id).ids(numbers)) & 0xFFFFFFFF
            pages.update(
                {clone: pages[number] for clone, number in zip(clones.tolist(), numbers.tolist(), strict=True)}
            )

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        """Remove a set."""
        set_id = data.draw(st.sampled_from(sorted(self.content)))
        self.manager.destroy(set_id)
        del self.content[set_id]
        assert not self.manager.exists(set_id)

    @rule(copies=st.sampled_from([None, 3, 64]), incremental=st.booleans())
    def freeze(self, copies: int | None, incremental: bool) -> None:
        """Freeze everything, or what changed since the last checkpoint that was read."""
        if self.frozen is not None:
            if self.frozen[0].pages.is_valid:
                with pytest.raises(FreezeRefused):
                    self.manager.freeze()
            else:  # too many pages changed
                self.manager.freeze().release()
            return
        since = self.number if incremental else None
        if since is None:
            self.full = {}
        frozen = self.manager.checkpoint(since=since, copies=copies)
        self.frozen = frozen, {set_id: dict(pages) for set_id, pages in self.content.items()}

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def read(self) -> None:
        """Read what was frozen, and load it elsewhere: it is what was there at the freeze."""
        assert self.frozen is not None
        (sets, pages), then = self.frozen
        self.frozen = None
        with pages:
            try:
                found = pages.read(pages.ids)
            except FreezeCancelled:
                self.number = None
                return
        assert (found == found[:, :1]).all()
        for page_id, value in zip(pages.ids.tolist(), found[:, 0].tolist(), strict=True):
            self.full.setdefault(page_id >> 32, {})[page_id & 0xFFFFFFFF] = value
        self.number = pages.number
        self._load(sets, pages, then)

    def _load(self, sets: tuple[SetDescription, ...], pages: FrozenPages, then: Content) -> None:
        kept = {(set_id << 32) | number for set_id, found in then.items() for number in found}
        flat = {
            (set_id << 32) | number: value for set_id, found in self.full.items() for number, value in found.items()
        }
        ids = np.array(sorted(kept & flat.keys()), np.int64)
        content = np.repeat(np.array([flat[page_id] for page_id in ids.tolist()], np.uint8), PAGE_BYTES)
        with PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=MAX_PAGES) as copy:
            copy.load(sets, [(ids, content.reshape(-1, PAGE_BYTES))])
            assert copy.sets() == sorted(then)
            for set_id, found in then.items():
                page_set = copy.recover(set_id)
                assert copy.description(set_id) in sets
                assert {number: int(page_set.pages[number, 0]) for number in found} == found
            wrong = np.array([(SETS[1] << 32) | RESERVE], np.int64)
            with pytest.raises(PagesDamaged):
                copy.load([], [(wrong, np.zeros((1, PAGE_BYTES), np.uint8))])

    @invariant()
    def holds(self) -> None:
        """All pages have the content that was last written."""
        assert self.manager.sets() == sorted(self.content)
        for set_id, pages in self.content.items():
            page_set = self.manager.recover(set_id)
            numbers = np.array(sorted(pages), np.int64)
            expected = np.array([pages[number] for number in numbers.tolist()], np.uint8)
            assert (page_set.pages[numbers] == expected[:, None]).all()


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_a_file_outlives_its_owner(tmp_path: Path) -> None:
    """Sets and pages are found again; two owners at once are refused; another file is none."""
    path = tmp_path / "pages"
    with PageManager.create_file(path, page_bytes=PAGE_BYTES, max_pages=100) as manager:
        manager.create(3, 10).allocate(4)
        manager.recover(3).pages[2] = 9
        with pytest.raises(PagesRefused, match="another process owns"):
            PageManager.open(path)
        with pytest.raises(FileExistsError):
            PageManager.create_file(path)
    with PageManager.open(path) as manager:
        assert manager.recover(3).used == 4
        assert manager.recover(3).pages[:, 0].tolist() == [0, 0, 9, 0]
        with pytest.raises(PagesRefused, match="no page set 4"):
            manager.recover(4)
    for wrong in (b"", b"x" * 100_000, path.read_bytes()[:50_000]):
        path.write_bytes(wrong)
        with pytest.raises(PagesDamaged):
            PageManager.open(path)


def test_a_set_grows_without_a_move() -> None:
    """An array over a set stays valid; memory is backed as pages are allocated, and given back with them."""
    with PageManager.create_file(max_pages=1000) as manager:
        page_set = manager.create(1, 500)
        page_set.allocate(1)
        early = page_set.pages
        page_set.allocate(100)
        page_set.pages[0] = 5
        assert early[0, 0] == 5
        assert page_set.bytes.shape == (101 * manager.page_bytes,)
        assert np.shares_memory(early, page_set.bytes)


def test_limits_are_named() -> None:
    """Sizes out of range, ranges that do not fit, and more pages than the limit."""
    for wrong in (0, 4095, 5000, 2 * 1024 * 1024):
        with pytest.raises(PagesRefused, match=f"pages of {wrong} bytes"):
            PageManager.create_file(page_bytes=wrong)
    with PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=100, limit_bytes=10 * PAGE_BYTES) as manager:
        manager.create(1, 60)
        with pytest.raises(PagesFull, match="no range of 41 pages"):
            manager.create(2, 41)
        manager.create(2, 40).allocate(4)
        with pytest.raises(PagesFull, match="the limit is 10 pages"):
            manager.recover(1).allocate(7)
        manager.destroy(2)
        manager.recover(1).allocate(10)
        for wrong_id in (-1, 2**31):
            with pytest.raises(PagesRefused):
                manager.create(wrong_id)


def test_a_freeze_outlives_a_change_of_every_page() -> None:
    """By default copies have as much room as the pages: rows all over a table change all of them in one epoch."""
    with PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=MAX_PAGES) as manager:
        page_set = manager.create(7, RESERVE)
        numbers = page_set.allocate(RESERVE)
        page_set.pages[:] = 1
        with manager.freeze() as frozen:
            page_set.touch(numbers)
            page_set.pages[:] = 2
            assert (frozen.read(frozen.ids) == 1).all()
            assert len(frozen.ids) == RESERVE
