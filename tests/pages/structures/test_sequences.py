"""Lists and queues on pages, against Python's lists and deques, with freezes and checkpoints in between."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from spe_adapter.pages.errors import PagesDamaged, RecordSchemaRefused
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures.layouts import Records, RecordSchema
from spe_adapter.pages.structures.sequence import PagedList, PagedQueue
from tests.pages.structures.paged import PagedMachine, manager_of, sets_of
from tests.support.examples import examples

SCHEMA = RecordSchema({"number": "int64", "small": "int16", "part": "float32"})
COUNTS = st.integers(0, 5) | st.integers(100, 700)  # a page holds 252 records


class Numbering:
    """Records that tell themselves apart."""

    def __init__(self) -> None:
        self._next = 0

    def records(self, count: int) -> Records:
        """Records that were never given before."""
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        return SCHEMA.records(number=numbers, small=numbers % 1000, part=numbers / 2)


class ListMachine(PagedMachine):
    """A list of records, and a Python list of their numbers."""

    def __init__(self) -> None:
        self.model: list[int] = []
        self.numbering = Numbering()
        super().__init__()

    def opened(self, sets: list[PageSet]) -> PagedList:
        return PagedList(sets[0], SCHEMA)

    def check(self, structure: Any) -> None:
        records = structure.read(0, 10**6)
        assert records["number"].tolist() == self.model
        assert (records["small"] == records["number"] % 1000).all()
        assert len(structure) == len(self.model)

    @rule(count=COUNTS)
    def append(self, count: int) -> None:
        """Records come to the end."""
        records = self.numbering.records(count)
        self.structure.append(records)
        self.model += records["number"].tolist()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """The records behind a length go."""
        length = data.draw(st.integers(0, len(self.model)))
        self.structure.truncate(length)
        del self.model[length:]

    @rule(more=COUNTS)
    def resize(self, more: int) -> None:
        """Records of zeros come to the end."""
        self.structure.resize(len(self.model) + more)
        self.model += [0] * more

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A range, wherever it begins and ends, is Python's slice."""
        start, stop = (data.draw(st.integers(0, len(self.model) + 5)) for _ in range(2))
        assert self.structure.read(start, stop)["number"].tolist() == self.model[start:stop]

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        """Records are overwritten by row, and read by row."""
        if not self.model:
            return
        rows = data.draw(st.lists(st.integers(0, len(self.model) - 1), unique=True, max_size=20))
        records = self.numbering.records(len(rows))
        self.structure.set(np.array(rows, np.int64), records)
        for row, number in zip(rows, records["number"].tolist(), strict=True):
            self.model[row] = number
        assert self.structure.get(np.array(rows, np.int64))["number"].tolist() == records["number"].tolist()


class QueueMachine(PagedMachine):
    """A queue of records, and a Python list of their numbers."""

    def __init__(self) -> None:
        self.model: list[int] = []
        self.numbering = Numbering()
        super().__init__()

    def opened(self, sets: list[PageSet]) -> PagedQueue:
        return PagedQueue(sets[0], SCHEMA)

    def check(self, structure: Any) -> None:
        assert structure.peek(10**6)["number"].tolist() == self.model
        # Pages before the front and behind the back are given back: two may be begun, and there is the super page.
        assert structure.size_bytes <= (len(self.model) // 252 + 3) * 4096

    @rule(count=COUNTS)
    def append(self, count: int) -> None:
        """Records come to the back."""
        records = self.numbering.records(count)
        self.structure.append(records)
        self.model += records["number"].tolist()

    @rule(count=COUNTS)
    def append_front(self, count: int) -> None:
        """Records come to the front, in their order."""
        records = self.numbering.records(count)
        self.structure.append_front(records)
        self.model = records["number"].tolist() + self.model

    @rule(count=COUNTS)
    def pop(self, count: int) -> None:
        """Records leave at the front."""
        assert self.structure.pop(count)["number"].tolist() == self.model[:count]
        del self.model[:count]

    @rule(count=COUNTS)
    def pop_back(self, count: int) -> None:
        """Records leave at the back."""
        kept = max(len(self.model) - count, 0)
        assert self.structure.pop_back(count)["number"].tolist() == self.model[kept:]
        del self.model[kept:]


TestListMachine = ListMachine.TestCase
TestQueueMachine = QueueMachine.TestCase
TestListMachine.settings = TestQueueMachine.settings = settings(max_examples=examples(40))


def test_rows_outside_a_list_are_refused() -> None:
    """A row or a length outside the list is an IndexError, and nothing changes."""
    with manager_of() as manager:
        records = PagedList(sets_of(manager)[0], SCHEMA)
        records.append(Numbering().records(3))
        for rows in ([3], [-1], [0, 5]):
            with pytest.raises(IndexError, match="list of 3 records"):
                records.get(np.array(rows, np.int64))
            with pytest.raises(IndexError, match="list of 3 records"):
                records.set(np.array(rows, np.int64), SCHEMA.zeros(len(rows)))
        with pytest.raises(IndexError, match="cut a list of 3 records to 4"):
            records.truncate(4)
        assert records.read(0, 9)["number"].tolist() == [0, 1, 2]


def test_a_set_is_not_taken_for_another_structure() -> None:
    """A page set opens as what it was made as: the kind of structure and the schema are part of the super page."""
    with manager_of() as manager:
        pages = sets_of(manager)[0]
        PagedList(pages, SCHEMA)
        with pytest.raises(PagesDamaged, match="kind"):
            PagedQueue(pages, SCHEMA)
        with pytest.raises(PagesDamaged, match="another schema"):
            PagedList(pages, RecordSchema({"number": "int64"}))


def test_schemas_and_records_are_checked() -> None:
    """What pages cannot hold is refused by name, as are records of another schema, and bytes outside a map."""
    with pytest.raises(RecordSchemaRefused, match="field 'x' has type 'object'"):
        RecordSchema({"x": "object"})
    with pytest.raises(RecordSchemaRefused, match="needs a field"):
        RecordSchema({})
    with manager_of() as manager:
        first, second, _ = sets_of(manager)
        with pytest.raises(RecordSchemaRefused, match="'text' varies in length"):
            PagedList(first, RecordSchema({"text": "bytes"}))
        records = PagedList(second, SCHEMA)
        with pytest.raises(RecordSchemaRefused, match="the structure holds"):
            records.append(RecordSchema({"other": "int64"}).zeros(1))


def test_destroy_gives_all_pages_back() -> None:
    """After `destroy` the set has no pages and can hold a new structure."""
    with manager_of() as manager:
        pages = sets_of(manager)[0]
        records = PagedList(pages, SCHEMA)
        records.append(SCHEMA.zeros(1000))
        records.destroy()
        assert len(manager.description(0).released) == pages.used
        assert len(PagedQueue(manager.recover(0), SCHEMA)) == 0
