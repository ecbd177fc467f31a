"""Tables and `distinct`, beside what the stores' tests say of them: types, order, growth, memory, hostile keys."""

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.codec import identity_hash
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.state import kernels
from spe_adapter.state.columns import distinct
from spe_adapter.state.errors import StateDamaged, StateSchemaRefused, StateTooLarge
from spe_adapter.state.layout import NEVER, Layout
from spe_adapter.state.table import Table, WindowVersion

ALL_TYPES = pa.schema(
    [
        pa.field("i8", pa.int8()),
        pa.field("u64", pa.uint64()),
        pa.field("f16", pa.float16()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("bool", pa.bool_()),
        pa.field("date", pa.date32()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("span", pa.duration("ms")),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("amount", pa.decimal128(38, 2)),
        pa.field("list", pa.list_(pa.struct([("a", pa.string()), ("l", pa.list_(pa.decimal128(9, 2)))]))),
        pa.field("struct", pa.struct([("n", pa.int8()), ("flags", pa.list_(pa.bool_()))])),
    ]
)
MOST = Decimal(10**35 - 1)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
ROWS: list[list[Any]] = [
    [
        -5,
        2**63,
        1.5,
        -0.25,
        1e300,
        True,
        MOMENT.date(),
        MOMENT,
        dt.timedelta(hours=3),
        "ä",
        b"\0\xff",
        -MOST,
        [{"a": "x", "l": [None, Decimal("1234567.89")]}, None],
        {"n": 3, "flags": [True, None]},
    ],
    [None] * 14,
    [
        7,
        0,
        0.0,
        3.0,
        -0.0,
        False,
        dt.date(1, 1, 1),
        None,
        dt.timedelta(0),
        "",
        b"",
        Decimal("0.01"),
        [],
        {"n": None, "flags": None},
    ],
]

keys = st.none() | st.binary(max_size=20)
identities = st.lists(st.tuples(keys, st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1)), max_size=60)


def columns(rows: list[tuple[bytes | None, int]]) -> tuple[pa.Array, np.ndarray]:
    """Identities as arrays."""
    return pa.array([key for key, _ in rows], pa.binary()), np.array([number for _, number in rows], np.int64)


@given(rows=identities, seed=st.integers(0, 2**64 - 1), skip=st.integers(0, 3))
def test_distinct_numbers_identities_in_order(rows: list[tuple[bytes | None, int]], seed: int, skip: int) -> None:
    """Each row gets the number of its identity, first come first numbered, whatever the seed and wherever it lies."""
    padded = [(b"front", 1)] * skip + rows + rows[:5]
    key_column, numbers = columns(padded)
    found = distinct(key_column[skip:], numbers[skip:], seed)
    expected: dict[tuple[bytes | None, int], int] = {}
    assert found.index.tolist() == [expected.setdefault(row, len(expected)) for row in padded[skip:]]
    assert [padded[skip:][row] for row in found.first] == list(expected)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.large_string(), pa.binary(3)])
def test_keys_of_other_types_are_the_same_bytes(kind: pa.DataType) -> None:
    """Strings and other binaries count by their bytes."""
    key_column = pa.array(["abc", None, "abd"], pa.string()).cast(pa.binary()).cast(kind)
    table = Table.in_memory(pa.schema([]))
    rows, _ = table.ensure(key_column, np.zeros(3, np.int64))
    assert table.keys(rows).to_pylist() == [b"abc", None, b"abd"]


def test_every_type_comes_back() -> None:
    """What a state column can hold comes back as it was, null or not, out of slices too, through growth."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"a", None, b""], pa.binary()),
            pa.array([1, 2, 3], pa.int64()),
            pa.array([NEVER, 5, -5], pa.int64()),
            *(pa.array([row[at] for row in ROWS], field.type) for at, field in enumerate(ALL_TYPES)),
        ],
        names=["key", "number", "expires", *("s_" + name for name in ALL_TYPES.names)],
    )
    table = Table.in_memory(ALL_TYPES, 1)
    for start in range(3):
        table.put(batch.slice(start, 1), WindowVersion(1, 2, 3))
    rows = table.find(batch.column("key"), batch.column("number").to_numpy())
    assert table.take(rows).to_pylist() == batch.to_pylist()
    assert table.get("bool", rows).tolist() == [True, False, False]
    assert table.get("time", rows)[1] == 0
    assert table.take(rows[:0]).num_rows == 0
    other = Table.in_memory(ALL_TYPES)
    assert other.take(other.put(table.take(rows), WindowVersion(1, 2, 3))).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int64()), pa.decimal256(9, 2), pa.dictionary(pa.int8(), pa.string())]
)
def test_other_types_are_refused(kind: pa.DataType) -> None:
    """A column that cannot be kept is named, with what can."""
    with pytest.raises(StateSchemaRefused, match=r"'odd'.*integers.*string"):
        Table.in_memory(pa.schema([pa.field("odd", kind)]))


def test_a_name_twice_is_refused() -> None:
    """Two state columns of one name would be one."""
    with pytest.raises(StateSchemaRefused, match="'x' is there twice"):
        Table.in_memory(pa.schema([pa.field("x", pa.int8()), pa.field("x", pa.int8())]))


def test_a_column_that_is_not_there_is_named() -> None:
    """A wrong name, and numpy's form of a column without one, say what is wrong."""
    table = Table.in_memory(ALL_TYPES)
    with pytest.raises(KeyError, match="no column 'none'"):
        table.get("none", np.empty(0, np.int64))
    with pytest.raises(TypeError, match="'text' varies in width"):
        table.get("text", np.empty(0, np.int64))


def test_oldest_is_by_ordinal_then_row() -> None:
    """The oldest footprints come first; windows that are gone are not among them."""
    table = Table.in_memory(pa.schema([]))
    rows, _ = table.ensure(*columns([(b"k", number) for number in range(20)]))
    table.set_window_versions(rows, rows % 3, 100 - rows // 4, rows)
    table.remove(rows[16:18])
    order = sorted(set(rows.tolist()) - {16, 17}, key=lambda row: (100 - row // 4, row))
    for count in (0, 1, 2, 3, 5, 17, 18, 19, 40):
        assert table.oldest(count).tolist() == order[:count]
    assert table.oldest_window_version() == (18 % 3, 100 - 18 // 4, 18)
    table.remove(table.live_rows())
    assert table.oldest_window_version() is None


def test_due_is_inclusive_and_forgets_the_gone() -> None:
    """A window expires at its time; NEVER never comes."""
    table = Table.in_memory(pa.schema([]))
    rows, _ = table.ensure(*columns([(b"k", number) for number in range(4)]))
    table.set_expires(rows[:3], np.array([5, 6, 7]))
    assert table.due(4).tolist() == []
    assert table.due(6).tolist() == rows[:2].tolist()
    table.remove(rows[:1])
    assert table.due(6).tolist() == rows[1:2].tolist()
    assert table.due(NEVER).tolist() == []


def test_freed_rows_and_bytes_are_used_again() -> None:
    """A table whose windows come and go does not grow beyond what it holds at a time."""
    schema = pa.schema([pa.field("text", pa.string())])
    table = Table.in_memory(schema, 64)
    sizes = set()
    for turn in range(200):
        rows, is_new = table.ensure(*columns([(b"key %d" % turn * 3, number) for number in range(40)]))
        assert is_new.all()
        table.set_arrow("text", rows, pa.array([f"{turn} {row}" * 5 for row in range(40)]))
        table.remove(rows)
        sizes.add(table.size_bytes)
    assert table.live == 0
    assert len(sizes) <= 3


def test_what_is_too_long_is_an_error() -> None:
    """Keys and values have a limit, which the error names; nothing was changed."""
    table = Table.in_memory(pa.schema([pa.field("text", pa.string())]))
    long = b"x" * (kernels.MAX_ENTRY_BYTES + 1)
    with pytest.raises(StateTooLarge, match="a key of"):
        table.ensure(*columns([(long, 0)]))
    rows, _ = table.ensure(*columns([(long[1:], 0)]))
    with pytest.raises(StateTooLarge, match="state column 'text'"):
        table.set_arrow("text", rows, pa.array([long.decode()]))
    assert table.live == 1
    assert table.keys(rows).to_pylist() == [long[1:]]


def test_hashes_differ_with_the_seed() -> None:
    """Keys that collide under one seed do not under another."""
    key_column, numbers = columns([(b"key %d" % number, 0) for number in range(20_000)])
    parts = keys_of(key_column)
    mask = 2**12 - 1
    first = hashes_of(parts, numbers, 1) & mask
    colliding = np.flatnonzero(first == first[0])
    second = hashes_of(keys_of(key_column.take(pa.array(colliding))), numbers[colliding], 2) & mask
    assert len(colliding) > 1
    assert len(set(second.tolist())) == len(colliding)
    assert np.bincount(first, minlength=mask + 1).max() < 25


@pytest.mark.parametrize("at", range(8))
def test_contradicting_counters_are_damage(at: int) -> None:
    """A table whose counters cannot be is not used."""
    layout = Layout(ALL_TYPES, 100, 1000)
    block = np.zeros(layout.size_bytes, np.uint8)
    Table.create(ALL_TYPES, layout, block, 0)
    Table(ALL_TYPES, layout, block, None)
    for value in (-1, 10**6):
        damaged = block.copy()
        damaged[at * 8 : at * 8 + 8].view(np.int64)[0] = value
        with pytest.raises(StateDamaged):
            Table(ALL_TYPES, layout, damaged, None)


@given(data=st.data())
def test_damaged_memory_never_leads_outside(data: st.DataObject) -> None:
    """Whatever stands in index, identities and references: an answer or StateDamaged, and it ends."""
    schema = pa.schema([pa.field("text", pa.string())])
    layout = Layout(schema, 16, 400)
    block = np.zeros(layout.size_bytes, np.uint8)
    table = Table.create(schema, layout, block, 0)
    names = columns([(b"key %d" % number, number) for number in range(10)])
    rows, _ = table.ensure(*names)
    table.set_arrow("text", rows, pa.array(["text"] * 10))
    words = block[kernels.COUNTERS * 8 :].view(np.int64)
    for at in data.draw(st.lists(st.integers(0, len(words) - 1), min_size=1, max_size=20)):
        words[at] = data.draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 40))
    more = columns([(b"more %d" % number, 0) for number in range(5)])
    for action in (
        lambda: table.find(*names),
        lambda: table.take(table.live_rows()),
        lambda: table.ensure(*more),
        lambda: table.set_arrow("text", rows, pa.array(["longer text"] * 10)),
        lambda: table.remove(rows),
        table.repair,
    ):
        with suppress(StateDamaged, StateTooLarge):
            action()


def test_each_loop_is_compiled_once() -> None:
    """However arrays were made, loops see one type of each: a second one would cost every worker seconds."""
    table = Table.in_memory(pa.schema([pa.field("text", pa.string())]), 1, 2**64 - 1)
    key_column, numbers = columns([(b"a", 1), (None, 2), (b"c", 3)])
    numbers.flags.writeable = False
    unaligned = np.frombuffer(bytes(1) + numbers.tobytes(), np.uint8)[1:].view(np.int64)
    inputs: tuple[tuple[pa.Array, Any], ...] = (
        (key_column, numbers),
        (key_column.slice(2), numbers[2:]),
        (pa.array([b"x"] * 3), unaligned),
        (pa.array(["x"] * 3), numbers.astype(np.int32)),
    )
    for some_keys, some_numbers in inputs:
        distinct(some_keys, some_numbers, 2**63)
        rows, _ = table.ensure(some_keys, some_numbers)
        rows.flags.writeable = False
        table.set_arrow("text", rows, some_keys)
        table.take(rows)
        table.remove(rows)
    assert len(identity_hash.hash_rows.signatures) == 1
    for name in (
        "distinct_rows",
        "find_rows",
        "insert_rows",
        "unlink_rows",
        "scatter_bytes",
        "move_bytes",
    ):
        assert len(getattr(kernels, name).signatures) == 1, name
