"""Frozen pages read while their owner changes them: every interleaving of the steps of both gives the content at the
freeze, or says that the freeze is over.
"""

import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.pages.errors import FreezeCancelled, FreezeRefused
from spe_adapter.pages.frozen import FrozenPages
from spe_adapter.pages.manager import PageManager
from spe_adapter.pages.page_table import RECORD_PAGES, SLOT_BITS
from tests.support.examples import examples

PAGES = 6
PAGE_BYTES = 4096
OWNERS = ("write", "write_words", "freeze")
"""Actions of the owner of the pages."""
MAX_DEPTH = 2
"""How many interruptions may be nested: a writer within a reader."""


class Interleaved:
    """A writer and readers of one manager. At each step of the one, the others may act."""

    def __init__(self, data: st.DataObject, copies: int) -> None:
        self._data = data
        self._copies = copies
        self._depth = MAX_DEPTH  # nobody acts before all is set up
        self._acting: set[str] = set()
        self.manager = PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=PAGES, step=self.step)
        self.set = self.manager.create(0, PAGES)
        self.set.allocate(PAGES)
        self.now = np.zeros((PAGES, PAGE_BYTES // 8), np.int64)
        self.freezes: list[tuple[FrozenPages, np.ndarray]] = []
        self._depth = 0

    def step(self, what: str) -> None:
        """Let somebody else act before the step, several times, or nobody."""
        if self._depth < MAX_DEPTH:
            for _ in range(self._data.draw(st.sampled_from((0, 0, 0, 0, 1, 6)), label=what)):
                self.act()

    def act(self) -> None:
        """One action of somebody who is not in the middle of one."""
        # Freezing, changing and reclaiming exclude each other by a lock; a reader waits for nobody.
        free = [
            name for name in ("write", "write_words", "freeze", "read", "written", "release") if self._allowed(name)
        ]
        name = self._data.draw(st.sampled_from(free), label="action")
        kind = "owner" if name in OWNERS else name
        self._acting.add(kind)
        self._depth += 1
        try:
            getattr(self, name)()
        finally:
            self._depth -= 1
            self._acting.discard(kind)

    def _allowed(self, name: str) -> bool:
        if name in OWNERS:
            return "owner" not in self._acting
        return name not in self._acting

    def write(self) -> None:
        """Change some pages."""
        numbers = np.array(self._data.draw(st.lists(st.integers(0, PAGES - 1), max_size=3)), np.int64)
        value = self._data.draw(st.integers(0, 255))
        self.set.touch(numbers)
        content = self.manager.memory.view(np.int64)
        content[numbers, : PAGE_BYTES // 16] = value
        self.step("half written")
        content[numbers, PAGE_BYTES // 16 :] = value
        self.now[numbers] = value

    def write_words(self) -> None:
        """Change some words, each time the same ones or others, up to so many that pages are copied."""
        first, step = self._data.draw(st.sampled_from([(0, 1), (3, 100), (500, 40), (512, 512), (1000, 7)]))
        count = self._data.draw(st.sampled_from([1, 4, 20]))
        words = np.arange(first, first + count * step, step, dtype=np.int64)
        words = words[words < self.now.size]
        value = self._data.draw(st.integers(1000, 2000))
        self.set.touch_words(words)
        content = self.manager.memory[:PAGES].reshape(-1).view(np.int64)
        content[words[::2]] = value
        self.step("half written")
        content[words[1::2]] = value
        self.now.reshape(-1)[words] = value

    def freeze(self) -> None:
        """Freeze, if no other freeze is active."""
        with suppress(FreezeRefused):
            self.freezes.append((self.manager.freeze(copies=self._copies), self.now.copy()))

    def _chosen(self) -> tuple[FrozenPages, np.ndarray] | None:
        return self._data.draw(st.sampled_from(self.freezes)) if self.freezes else None

    def read(self) -> None:
        """Read pages that were not given back, of any freeze."""
        chosen = self._chosen()
        if chosen is None or chosen[0]._descriptor < 0:
            return
        pages, then = chosen
        ids = pages.ids[self.manager.table.done[pages.ids] != pages.number]
        try:
            found = pages.read(ids)
        except FreezeCancelled:
            assert self.manager.table.active != pages.number
        else:
            assert (found.view(np.int64) == then[ids]).all()

    def written(self) -> None:
        """Give a page back."""
        chosen = self._chosen()
        if chosen is not None and chosen[0]._descriptor >= 0 and "read" not in self._acting:
            pages = chosen[0]
            ids = pages.ids[self.manager.table.done[pages.ids] != pages.number]
            pages.written(ids[:1])

    def release(self) -> None:
        """End a freeze, unless somebody is reading it."""
        chosen = self._chosen()
        if chosen is not None and "read" not in self._acting:
            chosen[0].release()


@given(data=st.data(), copies=st.integers(0, 2 * PAGES))
@settings(max_examples=examples(50))
def test_every_interleaving_gives_the_content_at_the_freeze(data: st.DataObject, copies: int) -> None:
    """Or FreezeCancelled, and the live pages are always what was last written."""
    both = Interleaved(data, copies)
    for _ in range(data.draw(st.integers(1, 25), label="actions")):
        both.act()
    assert (both.manager.memory[:PAGES].view(np.int64) == both.now).all()
    for pages, _ in both.freezes:
        pages.close()
    both.manager.close()


def frozen_set(copies: int = 10, **more: Any) -> tuple[PageManager, FrozenPages]:
    """A manager with one set, which is frozen."""
    manager = PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=PAGES, **more)
    pages = manager.create(0, PAGES)
    pages.allocate(PAGES)
    pages.pages[:] = np.arange(PAGES, dtype=np.uint8)[:, None]
    return manager, manager.freeze(copies=copies)


def test_a_page_is_copied_once() -> None:
    """Later changes of the page, and changes of pages that were given back, cost no copy."""
    manager, frozen = frozen_set()
    with manager, frozen:
        frozen.written(frozen.ids[:2])
        for _ in range(3):
            manager.touch(np.array([0, 1, 2, 2, 3]))
        marked = manager.table.mark >> SLOT_BITS == frozen.number
        assert np.flatnonzero(marked).tolist() == [2, 3]


def test_an_owner_that_is_gone_freezes_nothing() -> None:
    """Its freeze is cancelled by the next change or freeze."""
    for change in (True, False):
        manager, frozen = frozen_set()
        with manager:
            frozen.close()
            assert manager.table.active == frozen.number
            if change:
                manager.touch(np.array([1]))
                assert manager.table.active == 0
            manager.freeze().release()


def test_room_of_copies_is_given_back() -> None:
    """By the first change after the release."""
    manager, frozen = frozen_set()
    with manager:
        manager.touch(np.arange(PAGES))
        assert frozen.read(frozen.ids)[:, 0].tolist() == list(range(PAGES))
        frozen.release()
        frozen.release()
        assert manager.table.head[7] == PAGES
        manager.touch(np.array([0]))
        assert manager.table.head[7] == 0


def test_a_disk_without_room_cancels_the_freeze() -> None:
    """The operator goes on."""
    manager, frozen = frozen_set()
    with manager:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        aside_at = int(manager.table.head[11])
        resource.setrlimit(resource.RLIMIT_FSIZE, (aside_at, hard))
        try:
            manager.touch(np.array([3]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with pytest.raises(FreezeCancelled):
            frozen.read(frozen.ids)
        frozen.release()


def test_copies_that_make_way_for_another_freeze_are_not_read() -> None:
    """A reader that is overtaken between the mark and the copy gets FreezeCancelled, not another page's content."""
    at_step: dict[str, Callable[[], None]] = {}

    def step(what: str) -> None:
        if what in at_step:
            at_step.pop(what)()

    manager, frozen = frozen_set(copies=1, step=step)

    def overtake() -> None:
        manager.touch(np.array([3, 4]))  # more than there is room for: cancelled
        manager.memory[:] = 77
        again = manager.freeze(copies=1)
        manager.touch(np.array([5]))
        again.close()

    with manager:
        manager.touch(np.array([2]))
        manager.memory[2] = 99
        at_step["read copies"] = overtake
        with pytest.raises(FreezeCancelled):
            frozen.read(frozen.ids[2:3])
        assert not at_step
        frozen.release()


def test_words_are_noted_where_few_of_a_page_change() -> None:
    """A few words of each page take less room than the pages; many words of a page are a copy of the page."""
    manager, frozen = frozen_set()
    with manager, frozen:
        page_set = manager.recover(0)
        before = frozen.read(frozen.ids)
        few = np.arange(0, PAGES * PAGE_BYTES // 8, 100, dtype=np.int64)
        for _ in range(3):
            page_set.touch_words(few)
            page_set.bytes.view(np.int64)[few] += 1
        assert manager.table.head[RECORD_PAGES] == frozen.copied > 0
        assert (frozen.read(frozen.ids[::-1]) == before[::-1]).all()
        many = np.arange(PAGE_BYTES // 8, PAGE_BYTES // 4, dtype=np.int64)
        page_set.touch_words(many)
        page_set.bytes.view(np.int64)[many] = -1
        page_set.touch_words(few)
        page_set.bytes.view(np.int64)[few] = -2
        assert np.flatnonzero(manager.table.mark >> SLOT_BITS == frozen.number).tolist() == [1]
        assert (frozen.read(frozen.ids) == before).all()


def test_records_without_room_make_way_for_copies() -> None:
    """When the words of a freeze have taken their share of the room, pages are copied aside, and the freeze goes on."""
    manager, frozen = frozen_set(copies=PAGES)
    with manager, frozen:
        page_set = manager.recover(0)
        before = frozen.read(frozen.ids)
        words = np.arange(0, PAGES * PAGE_BYTES // 8, 20, dtype=np.int64)
        for _ in range(20):
            page_set.touch_words(words)
            page_set.bytes.view(np.int64)[words] += 1
        assert manager.table.head[RECORD_PAGES] == PAGES // 2
        assert (manager.table.mark >> SLOT_BITS == frozen.number).all()
        assert (frozen.read(frozen.ids) == before).all()


def test_records_of_several_pages_stand_beside_copies() -> None:
    """Neither overwrites the other."""
    manager, frozen = frozen_set(copies=100)
    with manager, frozen:
        page_set = manager.recover(0)
        before = frozen.read(frozen.ids)
        words = np.arange(0, PAGES * PAGE_BYTES // 8, 5, dtype=np.int64)
        for number in range(3):
            page_set.touch_words(words)
            page_set.bytes.view(np.int64)[words] = number
            page_set.touch(np.array([number]))
            page_set.pages[number] = 7
        assert manager.table.head[RECORD_PAGES] > 3
        assert (frozen.read(frozen.ids) == before).all()


def test_many_small_records_are_read() -> None:
    """More than a reader keeps apart; the oldest value of a word counts."""
    manager, frozen = frozen_set(copies=100)
    with manager, frozen:
        page_set = manager.recover(0)
        before = frozen.read(frozen.ids)
        chance = np.random.default_rng(7)
        for number in range(300):
            words = chance.integers(0, PAGES * PAGE_BYTES // 8, 5)
            page_set.touch_words(words)
            page_set.bytes.view(np.int64)[words] = number
            if number % 70 == 0:
                assert (frozen.read(frozen.ids) == before).all()
        assert (frozen.read(frozen.ids) == before).all()
        assert not (manager.table.mark >> SLOT_BITS == frozen.number).any()
