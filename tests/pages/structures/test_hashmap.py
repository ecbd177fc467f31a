"""The map on pages, against Python's dict, with freezes and checkpoints in between; its index and its arena."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import EntryTooLarge, PagesDamaged
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures.hashmap import MapPages, PagedMap
from spe_adapter.pages.structures.layouts import RecordSchema
from tests.pages.structures.paged import Announcements, PagedMachine, load, manager_of, sets_of
from tests.support.examples import examples

SCHEMA = RecordSchema({"count": "int64", "small": "int16", "text": "bytes", "flag": "bool"})
Identity = tuple[bytes | None, int]

INDEX_SET = 1


def opened(sets: list[PageSet], seed: int = 7) -> PagedMap:
    """A map over three page sets."""
    return PagedMap(MapPages(*sets), SCHEMA, seed)


def columns(identities: list[Identity]) -> tuple[pa.Array, Int64s]:
    """Identities as arrays."""
    keys = pa.array([key for key, _ in identities], pa.binary())
    return keys, np.array([number for _, number in identities], np.int64)


def content(structure: PagedMap) -> dict[Identity, tuple[Any, ...]]:
    """All records of a map by identity."""
    rows = structure.rows()
    records = structure.get(rows)
    identities = zip(structure.keys(rows).to_pylist(), structure.numbers(rows).tolist(), strict=True)
    texts = structure.bytes_field("text", rows).to_pylist()
    values = zip(records["count"].tolist(), records["small"].tolist(), texts, records["flag"].tolist(), strict=True)
    return dict(zip(identities, values, strict=True))


KEYS = st.none() | st.binary(max_size=9)
IDENTITIES = st.lists(st.tuples(KEYS, st.integers(-2, 2)), max_size=8, unique=True)
MANY = st.tuples(st.integers(0, 3), st.integers(0, 600)).map(
    lambda bounds: [(b"key %d" % number, bounds[0]) for number in range(bounds[1])]
)


class MapMachine(PagedMachine):
    """A map, and a dict of its records."""

    def __init__(self) -> None:
        self.model: dict[Identity, tuple[Any, ...]] = {}
        self.version = 0
        super().__init__()

    def opened(self, sets: list[PageSet]) -> PagedMap:
        return opened(sets)

    def check(self, structure: Any) -> None:
        assert content(structure) == self.model
        assert len(structure) == len(self.model)

    @rule(identities=IDENTITIES | MANY)
    def put(self, identities: list[Identity]) -> None:
        """Identities get records: new ones open with zeros, old ones keep their rows."""
        self.version += 1
        before = self.structure.find(*columns(identities))
        rows, is_new = self.structure.ensure(*columns(identities))
        assert is_new.tolist() == [identity not in self.model for identity in identities]
        assert (rows[~is_new] == before[~is_new]).all()
        assert (before[is_new] == -1).all()
        assert len(set(rows.tolist())) == len(rows)
        new = rows[is_new]
        assert not any(self.structure.get(new)[name].any() for name in SCHEMA.fields)
        counts = np.arange(len(rows)) + 1000 * self.version
        small = np.full(len(rows), self.version % 1000, np.int16)
        self.structure.set(rows, SCHEMA.records(count=counts, small=small))
        self.structure.set_field("flag", rows, counts % 2 == 0)
        for at, identity in enumerate(identities):
            text = self.model.get(identity, (0, 0, None))[2]
            self.model[identity] = (int(counts[at]), int(small[at]), text, bool(counts[at] % 2 == 0))

    @rule(identities=IDENTITIES | MANY)
    def find(self, identities: list[Identity]) -> None:
        """What is there is found, and nothing else."""
        rows = self.structure.find(*columns(identities))
        assert (rows >= 0).tolist() == [identity in self.model for identity in identities]
        there = [identity for identity in identities if identity in self.model]
        assert self.structure.keys(rows[rows >= 0]).to_pylist() == [key for key, _ in there]

    @rule(identities=IDENTITIES | MANY)
    def remove(self, identities: list[Identity]) -> None:
        """Identities leave with their records."""
        rows = self.structure.find(*columns(identities))
        self.structure.remove(rows[rows >= 0])
        for identity in identities:
            self.model.pop(identity, None)

    @rule(data=st.data(), length=st.sampled_from([0, 3, 60, 1500]))
    def put_texts(self, data: st.DataObject, length: int) -> None:
        """Values of varying length are stored, overwritten, set to null."""
        if not self.model:
            return
        step = data.draw(st.integers(1, 40))
        chosen = sorted(self.model, key=repr)[::step][:100]
        texts = [
            None if at % 7 == 6 else b"%d" % (self.version * 1000 + at) * (length // 4) for at in range(len(chosen))
        ]
        rows = self.structure.find(*columns(chosen))
        self.structure.set_bytes_field("text", rows, pa.array(texts, pa.binary()))
        for identity, text in zip(chosen, texts, strict=True):
            record = self.model[identity]
            self.model[identity] = (record[0], record[1], text, record[3])


TestMapMachine = MapMachine.TestCase
TestMapMachine.settings = settings(max_examples=examples(40))


def numbered(count: int, first: int = 0) -> tuple[pa.Array, Int64s]:
    """Identities without keys."""
    return pa.nulls(count, pa.binary()), np.arange(first, first + count)


def test_the_index_is_filled_again_if_it_is_not_loaded() -> None:
    """A checkpoint without the index gives the same map: the index follows from the records."""
    manager = manager_of()
    structure = opened(sets_of(manager))
    keys = pa.array([b"%d" % number for number in range(5000)], pa.binary())
    rows, _ = structure.ensure(keys, np.zeros(5000, np.int64))
    structure.remove(rows[::3])
    checkpoint = manager.checkpoint()
    loaded = opened(sets_of(load(checkpoint, skip=INDEX_SET)))
    checkpoint.pages.release()
    assert np.array_equal(loaded.find(keys, np.zeros(5000, np.int64)), structure.find(keys, np.zeros(5000, np.int64)))
    assert content(loaded) == content(structure)


def test_growth_moves_no_record_and_shrinking_gives_pages_back() -> None:
    """Rows keep their numbers from one record to many and back; at the end hardly a page is left."""
    manager = manager_of(reserve=2000)
    structure = opened(sets_of(manager))
    first, _ = structure.ensure(*numbered(1000))
    sizes = [structure.size_bytes]
    for batch in range(1, 30):
        structure.ensure(*numbered(1000, 1000 * batch))
        sizes.append(structure.size_bytes)
    assert np.array_equal(structure.find(*numbered(1000)), first)
    assert max(np.diff(sizes)) < sizes[-1] / 8  # never a rehash of the whole
    structure.remove(structure.find(*numbered(29_900, 100)))
    assert np.array_equal(structure.find(*numbered(100)), first[:100])
    assert structure.size_bytes < sizes[0]


def test_garbage_of_keys_and_values_is_collected() -> None:
    """Values that are overwritten again and again leave a bounded arena."""
    manager = manager_of()
    structure = opened(sets_of(manager))
    rows, _ = structure.ensure(pa.array([b"key %d" % number for number in range(200)]), np.zeros(200, np.int64))
    print("seed 11")
    random = np.random.default_rng(11)
    for version in range(200):
        chosen = random.choice(200, 40, replace=False)
        texts = pa.array([b"%d" % version * 30 for _ in chosen], pa.binary())
        structure.set_bytes_field("text", rows[chosen], texts)
    live_bytes = 200 * (90 + 7)
    assert structure._arena.size_bytes < 4 * live_bytes + 3 * 4096
    assert structure.keys(rows).to_pylist() == [b"key %d" % number for number in range(200)]


def test_keys_move_out_of_pages_that_are_mostly_garbage() -> None:
    """After most keys are removed, the others still lead to their rows, on fewer pages; each change is announced."""
    manager = manager_of()
    structure = opened(sets_of(manager))
    announcements = Announcements(manager)
    keys = pa.array([b"a rather long key %d" % number for number in range(3000)], pa.binary())
    rows, _ = structure.ensure(keys, np.zeros(3000, np.int64))
    structure.set_bytes_field("text", rows, keys)
    announcements.check()
    size_bytes = structure._arena.size_bytes
    # Whole pages of records stay, so that only the move itself changes them.
    pages = (rows >> structure._records.shift) % 4
    for gone in range(3):
        structure.remove(rows[pages == gone])
        announcements.check()
    assert structure._arena.size_bytes < size_bytes / 2
    kept, stayed = keys.filter(pa.array(pages == 3)), rows[pages == 3]
    assert np.array_equal(structure.find(kept, np.zeros(len(kept), np.int64)), stayed)
    assert structure.bytes_field("text", stayed).equals(kept)


def test_an_entry_that_fits_no_page_is_refused_before_anything_changes() -> None:
    """The error names the length and the bound; the map stays as it was."""
    structure = opened(sets_of(manager_of()))
    with pytest.raises(EntryTooLarge, match="a value of 5000 bytes; pages of 4096 bytes hold values of up to 4032"):
        structure.ensure(pa.array([b"short", b"x" * 5000]), np.zeros(2, np.int64))
    assert content(structure) == {}
    rows, _ = structure.ensure(pa.array([b"x" * 4032]), np.zeros(1, np.int64))
    with pytest.raises(EntryTooLarge):
        structure.set_bytes_field("text", rows, pa.array([b"x" * 4033]))
    assert structure.keys(rows).to_pylist() == [b"x" * 4032]


def test_the_seed_stays_with_the_pages() -> None:
    """A map that is recovered hashes under the seed that it was made with."""
    manager = manager_of()
    structure = opened(sets_of(manager), seed=2**64 - 3)
    rows, _ = structure.ensure(*numbered(100))
    assert np.array_equal(opened(sets_of(manager), seed=5).find(*numbered(100)), rows)


def test_an_index_of_other_records_is_refused() -> None:
    """An index that has another number of rows than the map has records is not used."""
    manager = manager_of(sets=6)
    sets = sets_of(manager)
    opened(sets[:3]).ensure(*numbered(10))
    opened(sets[3:]).ensure(*numbered(20))
    with pytest.raises(PagesDamaged, match="an index of 20 rows for 10 records"):
        opened([sets[0], sets[4], sets[2]])
