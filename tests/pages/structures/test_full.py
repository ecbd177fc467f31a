"""Page sets that are full: an operation that needs more pages is refused, and the structure holds what it held."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import PagesFull
from spe_adapter.pages.manager import PageManager, PageSet
from spe_adapter.pages.structures.hashmap import MapPages, PagedMap
from spe_adapter.pages.structures.layouts import RecordSchema
from spe_adapter.pages.structures.ordered import PagedOrderedMap
from spe_adapter.pages.structures.sequence import PagedList, PagedQueue
from tests.pages.structures.paged import PAGE_BYTES, sets_of

RECORD = RecordSchema({"time": "int64", "name": "int64"})
TEXTS = RecordSchema({"text": "bytes"})


def records(numbers: Int64s) -> Any:
    """Records with scattered times."""
    return RECORD.records(time=numbers * 7919 % 1009, name=numbers)


def keys_of(numbers: Int64s) -> pa.Array:
    """Keys of some length."""
    return pa.array([b"key %020d" % number for number in numbers.tolist()], pa.binary())


def put_in_map(structure: PagedMap, numbers: Int64s) -> None:
    """New keys with values; or the same keys again, if the values did not fit."""
    structure.ensure(keys_of(numbers), numbers)


def in_map(structure: PagedMap) -> Any:
    """All content of a map."""
    rows = structure.rows()
    return sorted(zip(structure.numbers(rows).tolist(), structure.keys(rows).to_pylist(), strict=True))


def remove_from_map(structure: PagedMap) -> None:
    """Remove every second record."""
    structure.remove(structure.rows()[::2])


def remove_from_ordered(structure: PagedOrderedMap) -> None:
    """Remove the first half."""
    times = structure.read(-1, 10**6)["time"]
    structure.pop_until(int(times[len(times) // 2]))


Case = tuple[Callable[[list[PageSet]], Any], Callable[[Any, Int64s], None], Callable[[Any], Any], Callable[[Any], None]]
CASES: dict[str, Case] = {
    "map": (lambda sets: PagedMap(MapPages(*sets), TEXTS, 1), put_in_map, in_map, remove_from_map),
    "list": (
        lambda sets: PagedList(sets[0], RECORD),
        lambda structure, numbers: structure.append(records(numbers)),
        lambda structure: structure.read(0, 10**6).tolist(),
        lambda structure: structure.truncate(len(structure) // 2),
    ),
    "queue": (
        lambda sets: PagedQueue(sets[0], RECORD),
        lambda structure, numbers: structure.append_front(records(numbers)),
        lambda structure: structure.peek(10**6).tolist(),
        lambda structure: structure.pop(len(structure) // 2),
    ),
    "ordered": (
        lambda sets: PagedOrderedMap(sets[0], RECORD),
        lambda structure, numbers: structure.put(records(numbers)),
        lambda structure: structure.read(-1, 10**6).tolist(),
        remove_from_ordered,
    ),
}


@pytest.mark.parametrize("reserves", [(12, 30, 40), (40, 9, 40), (40, 30, 11)], ids=["first", "second", "third"])
@pytest.mark.parametrize("case", CASES)
def test_a_full_set_refuses_more_and_keeps_what_it_has(case: str, reserves: tuple[int, ...]) -> None:
    """Whichever set of a structure is full first: the operation raises PagesFull, and nothing of it is there after."""
    opened, put, content, shrink = CASES[case]
    with PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=sum(reserves)) as manager:
        for set_id, reserve in enumerate(reserves):
            manager.create(set_id, reserve)
        structure = opened(sets_of(manager))
        begin, refused = 0, 0
        for batch in range(200):
            before = content(structure)
            try:
                put(structure, np.arange(begin, begin + 100 + batch))
                begin += 100 + batch
            except PagesFull:
                refused += 1
                assert content(structure) == before
                assert content(opened(sets_of(manager))) == before
                shrink(structure)
                assert len(content(structure)) < len(before)
        assert refused > 3
