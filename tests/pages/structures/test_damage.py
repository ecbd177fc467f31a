"""Damaged pages: structures raise PagesDamaged or give wrong records, but never read or write outside their pages, and
never loop without end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import EntryTooLarge, PagesDamaged, PagesFull
from spe_adapter.pages.manager import PageManager
from spe_adapter.pages.structures.hash_index import PagedHashIndex
from spe_adapter.pages.structures.hashmap import MapPages, PagedMap
from spe_adapter.pages.structures.layouts import PagedStructure, RecordSchema
from spe_adapter.pages.structures.ordered import PagedOrderedMap
from spe_adapter.pages.structures.sequence import PagedList, PagedQueue
from tests.pages.structures.paged import PAGE_BYTES, manager_of, sets_of

TROUBLE = (PagesDamaged, PagesFull, EntryTooLarge)
"""What a structure may raise over damaged pages. Full pages, as damaged counts ask for ever more of them."""

NUMBERS = np.arange(800, dtype=np.int64)
RECORD = RecordSchema({"time": "int64", "name": "int64"})
WORDS = [0, 1, -1, 2**62, -(2**63), 2**63 - 1, 2**31, 300]


def map_of(manager: PageManager) -> Any:
    """A map with keys, numbers and values."""
    return PagedMap(MapPages(*sets_of(manager)), RecordSchema({"count": "int64", "text": "bytes"}), 3)


def fill_map(structure: Any) -> None:
    """Keys, values, and holes where others were."""
    keys = pa.array([None if number % 5 == 0 else b"key %d" % number for number in NUMBERS.tolist()], pa.binary())
    rows, _ = structure.ensure(keys, NUMBERS)
    structure.set_bytes_field("text", rows, keys)
    structure.remove(rows[::4])


def use_map(structure: Any) -> None:
    """Every operation of a map, over what is there and what is not."""
    keys = pa.array([None if number % 5 == 0 else b"key %d" % number for number in NUMBERS.tolist()], pa.binary())
    rows = structure.find(keys, NUMBERS)
    rows = rows[rows >= 0]
    structure.keys(rows)
    structure.get(rows)
    structure.bytes_field("text", rows)
    structure.set_bytes_field("text", rows[::2], pa.array([b"other"] * len(rows[::2]), pa.binary()))
    structure.ensure(keys, NUMBERS + 1)
    structure.remove(np.unique(structure.rows()[::3]))
    structure.ensure(keys, NUMBERS + 2)


def list_of(manager: PageManager) -> Any:
    """An empty list."""
    return PagedList(sets_of(manager)[0], RECORD)


def fill(structure: Any) -> None:
    """Records at the end."""
    structure.append(RECORD.records(time=NUMBERS, name=NUMBERS))


def use_list(structure: Any) -> None:
    """Every operation of a list."""
    length = len(structure)
    structure.get(np.arange(0, length, 7))
    structure.read(5, length - 5)
    fill(structure)
    structure.resize(3 * length)
    structure.truncate(length // 2)


def queue_of(manager: PageManager) -> Any:
    """An empty queue."""
    return PagedQueue(sets_of(manager)[0], RECORD)


def use_queue(structure: Any) -> None:
    """Every operation of a queue."""
    fill(structure)
    structure.pop(900)
    structure.append_front(RECORD.zeros(300))
    structure.pop_back(500)


def ordered_of(manager: PageManager) -> Any:
    """An empty ordered map."""
    return PagedOrderedMap(sets_of(manager)[0], RECORD)


def fill_ordered(structure: Any) -> None:
    """Records in many pages."""
    structure.put(RECORD.records(time=NUMBERS * 7 % 800, name=NUMBERS))


def use_ordered(structure: Any) -> None:
    """Every operation of an ordered map."""
    structure.get(NUMBERS, NUMBERS)
    structure.read(100, 300)
    structure.remove(NUMBERS[::3] * 7 % 800, NUMBERS[::3])
    structure.put(RECORD.records(time=NUMBERS, name=NUMBERS + 1))
    structure.pop_until(500)
    structure.put(RECORD.records(time=NUMBERS, name=NUMBERS + 2))


Case = tuple[Callable[[PageManager], Any], Callable[[Any], None], Callable[[Any], None]]
CASES: dict[str, Case] = {
    "map": (map_of, fill_map, use_map),
    "list": (list_of, fill, use_list),
    "queue": (queue_of, fill, use_queue),
    "ordered": (ordered_of, fill_ordered, use_ordered),
}


def damage(manager: PageManager, random: np.random.Generator) -> None:
    """Overwrite words of a random page: some of them, in the header or behind it, or all."""
    positions = np.flatnonzero(manager.table.is_allocated(np.arange(manager.max_pages)))
    page: Int64s = manager.memory[random.choice(positions)].view(np.int64)
    kind = random.integers(4)
    if kind == 0:
        page[:] = random.integers(-(2**63), 2**63 - 1, len(page))
    elif kind == 1:
        page[:] = 0
    else:
        places = random.integers(2, 20 if kind == 2 else len(page), 3)
        page[places] = random.choice(WORDS, 3)


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_page_is_noticed_or_harmless(case: str) -> None:
    """Whatever a page holds: opening and using the structure ends, with records or with PagesDamaged."""
    opened, filled, used = CASES[case]
    outcomes = {"refused when opened": 0, "refused in use": 0, "used": 0}
    for seed in range(60):
        for is_open in (True, False):
            random = np.random.default_rng([seed, is_open])
            with manager_of() as manager:
                structure = opened(manager)
                filled(structure)
                damage(manager, random)
                try:
                    if not is_open:
                        structure = opened(manager)
                except TROUBLE:
                    outcomes["refused when opened"] += 1
                    continue
                try:
                    used(structure)
                except TROUBLE:
                    outcomes["refused in use"] += 1
                except BaseException as error:
                    error.add_note(f"case {case}, seed {seed}, is_open {is_open}")
                    raise
                else:
                    outcomes["used"] += 1
    print(f"seeds 0 to 59: {outcomes}")
    assert outcomes["refused when opened"]


def test_headers_that_contradict_each_other_are_refused() -> None:
    """A page in a wrong place, a page of another structure and a missing page are noticed when the set is opened."""

    def swapped(words: Int64s, page_words: int) -> None:
        pages = words.reshape(-1, page_words)
        pages[[1, 2]] = pages[[2, 1]]

    def foreign(words: Int64s, page_words: int) -> None:
        words[page_words] += 1

    def miscounted(words: Int64s, page_words: int) -> None:
        words.reshape(-1, page_words)[2, 4] -= 1

    for spoil, structure in ((swapped, ordered_of), (foreign, list_of), (foreign, queue_of), (miscounted, ordered_of)):
        with manager_of() as manager:
            opened: PagedStructure = structure(manager)
            (fill_ordered if structure is ordered_of else fill)(opened)
            spoil(manager.recover(0).bytes.view(np.int64), PAGE_BYTES // 8)
            with pytest.raises(PagesDamaged):
                structure(manager)


def test_hashes_that_collide_overflow_onto_more_pages() -> None:
    """Even if all keys shared a bucket, the index would hold them, split them in vain, and give the pages back."""
    same = np.arange(3000, dtype=np.int64) << 40 | 5
    with manager_of() as manager:
        index = PagedHashIndex(sets_of(manager)[0])
        rows = np.arange(3000, dtype=np.int64)
        for begin in range(0, 3000, 700):
            part = slice(begin, begin + 700)
            index.insert(same[part], rows[part], lambda wanted: same[wanted])
        index.recover()
        assert len(index) == 3000
        assert np.array_equal(np.sort(index._entries(index._chain(5)) & 0xFFFFFFFF), rows + 1)
        pages = len(index._allocated())
        index.remove(same[10:], rows[10:])
        index.recover()
        assert np.array_equal(np.sort(index._entries(index._chain(5 % len(index.first))) & 0xFFFFFFFF), rows[:10] + 1)
        assert len(index._allocated()) < pages / 2
