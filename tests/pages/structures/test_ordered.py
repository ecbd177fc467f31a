"""The ordered map on pages, against a sorted dict, with freezes and checkpoints in between."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from spe_adapter.pages.errors import RecordSchemaRefused
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures.layouts import Records, RecordSchema
from spe_adapter.pages.structures.ordered import PagedOrderedMap
from tests.pages.structures.paged import PagedMachine, manager_of, sets_of
from tests.support.examples import examples

SCHEMA = RecordSchema({"time": "int64", "name": "int64", "value": "int32"})
Pair = tuple[int, int]

FEW = st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 5)), max_size=12)


def scattered(start: int, step: int, count: int) -> list[Pair]:
    """Many pairs with times from `start` on; a page holds 168 records."""
    return [(start + item * step % 997, item) for item in range(count)]


MANY = st.builds(scattered, st.integers(-5, 40), st.integers(0, 7), st.integers(0, 900))


class OrderedMachine(PagedMachine):
    """An ordered map, and a dict that is sorted to be read."""

    def __init__(self) -> None:
        self.model: dict[Pair, int] = {}
        self.version = 0
        super().__init__()

    def opened(self, sets: list[PageSet]) -> PagedOrderedMap:
        return PagedOrderedMap(sets[0], SCHEMA)

    def items(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """What a range should give."""
        return [(*pair, value) for pair, value in sorted(self.model.items()) if start <= pair[0] < stop]

    def check(self, structure: Any) -> None:
        assert structure.read(-(2**62), 2**62).tolist() == self.items(-(2**62), 2**62)
        assert len(structure) == len(self.model)
        assert structure.earliest == min((time for time, _ in self.model), default=None)

    @rule(pairs=FEW | MANY)
    def put(self, pairs: list[Pair]) -> None:
        """Records come, and replace those with the same pair."""
        self.version += 1
        values = np.arange(len(pairs)) + 1000 * self.version
        times, names = np.array(pairs, np.int64).reshape(-1, 2).T
        self.structure.put(SCHEMA.records(time=times, name=names, value=values))
        self.model.update(zip(pairs, values.tolist(), strict=True))

    @rule(pairs=st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 5)), max_size=12, unique=True) | MANY)
    def remove(self, pairs: list[Pair]) -> None:
        """Records leave by pair, and the answer says which were there."""
        pairs = list(dict.fromkeys(pairs))
        times, names = np.array(pairs, np.int64).reshape(-1, 2).T
        assert self.structure.remove(times, names).tolist() == [pair in self.model for pair in pairs]
        for pair in pairs:
            self.model.pop(pair, None)

    @rule(step=st.integers(2, 50))
    def thin_out(self, step: int) -> None:
        """Most records leave; pages that hold little are joined."""
        gone = [pair for at, pair in enumerate(sorted(self.model)) if at % step]
        times, names = np.array(gone, np.int64).reshape(-1, 2).T
        assert self.structure.remove(times, names).all()
        for pair in gone:
            del self.model[pair]
        assert self.structure.size_bytes <= 4096 * (2 + 8 * len(self.model) // 168 + 1)

    @rule(time=st.integers(-10, 1100))
    def pop_until(self, time: int) -> None:
        """What is due leaves, in order."""
        due = self.items(-(2**62), time + 1)
        assert self.structure.pop_until(time).tolist() == due
        for first, second, _ in due:
            del self.model[first, second]

    @rule(start=st.integers(-10, 1100), length=st.integers(-1, 300))
    def read(self, start: int, length: int) -> None:
        """A range by time, wherever it begins and ends."""
        assert self.structure.read(start, start + length).tolist() == self.items(start, start + length)

    @rule(pairs=FEW)
    def get(self, pairs: list[Pair]) -> None:
        """Records are found by pair."""
        times, names = np.array(pairs, np.int64).reshape(-1, 2).T
        records, there = self.structure.get(times, names)
        assert there.tolist() == [pair in self.model for pair in pairs]
        assert records["value"].tolist() == [self.model.get(pair, 0) for pair in pairs]


TestOrderedMachine = OrderedMachine.TestCase
TestOrderedMachine.settings = settings(max_examples=examples(40))


def timers(times: Any, names: Any) -> Records:
    """Records without a value."""
    return SCHEMA.records(time=times, name=names)


def test_times_that_only_grow_fill_pages_to_the_brim() -> None:
    """Timers that come in order leave no room unused behind them."""
    with manager_of() as manager:
        structure = PagedOrderedMap(sets_of(manager)[0], SCHEMA)
        for batch in range(100):
            structure.put(timers(np.full(100, batch), np.arange(100)))
        assert structure.size_bytes <= 4096 * (10_000 // 168 + 2)


def test_extreme_times_are_kept_in_order() -> None:
    """The lowest and the highest time there are can be stored, and are due as others are."""
    ends = np.iinfo(np.int64)
    with manager_of() as manager:
        structure = PagedOrderedMap(sets_of(manager)[0], SCHEMA)
        structure.put(timers(np.array([ends.max, 0, ends.min, ends.max]), np.array([1, 2, 3, 0])))
        assert structure.pop_until(ends.min)["name"].tolist() == [3]
        assert structure.pop_until(ends.max - 1)["name"].tolist() == [2]
        assert structure.pop_until(ends.max)["name"].tolist() == [0, 1]
        assert structure.earliest is None


def test_the_schema_opens_with_time_and_name() -> None:
    """An ordered map needs to know what its records are ordered by."""
    with manager_of() as manager, pytest.raises(RecordSchemaRefused, match="time and name"):
        PagedOrderedMap(sets_of(manager)[0], RecordSchema({"name": "int64", "time": "int64"}))
