"""A table that a crash left in the middle of a compiled loop, with any of the loop's stores done and the others not.

The loops run as Python here, so that each store can be seen. What a killed process leaves is some of them, in whatever
order the compiler and the processor chose.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.state import kernels
from spe_adapter.state.delta import VersionStep, redo
from spe_adapter.state.layout import Layout
from spe_adapter.state.segment import Tag
from spe_adapter.state.table import Table
from tests.state.conftest import SCHEMA, Step, Windows, windows_of
from tests.support.examples import examples

LOOPS = ("insert_rows", "unlink_rows", "scatter_bytes")
CAPACITY = 64
ARENA_BYTES = 4096


class Crash(BaseException):
    """The process dies here."""


class Noted:
    """An array whose stores are noted."""

    def __init__(self, array: np.ndarray, stores: list[tuple[np.ndarray, Any, Any]]) -> None:
        self.shape = array.shape
        self._array = array
        self._stores = stores

    def __getitem__(self, at: Any) -> Any:
        return self._array[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._stores.append((self._array, at, self._array[at]))
        self._array[at] = value


class Torn:
    """Lets one call of one of the loops happen in part, and then crashes."""

    def __init__(self, crash_in: int | None, chance: Random) -> None:
        self.calls = 0
        self._crash_in = crash_in
        self._chance = chance

    def wrap(self, loop: Any) -> Any:
        """A loop that is counted, and torn if its turn has come."""

        def run(*arguments: Any) -> int:
            self.calls += 1
            if self.calls - 1 != self._crash_in:
                return loop(*arguments)
            stores: list[tuple[np.ndarray, Any, Any]] = []
            noted = [
                Noted(each, stores) if isinstance(each, np.ndarray) and each.flags.writeable else each
                for each in arguments
            ]
            loop.py_func(*noted)
            self._undo(stores)
            raise Crash

        return run

    def _undo(self, stores: list[tuple[np.ndarray, Any, Any]]) -> None:
        """Of each place that was stored to, what was stored last or, as often, what was there before."""
        first: dict[tuple[int, str], tuple[np.ndarray, Any, Any]] = {}
        for array, at, before in stores:
            first.setdefault((array.__array_interface__["data"][0], repr(at)), (array, at, before))
        share = self._chance.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        for array, at, before in first.values():
            if self._chance.random() < share:
                array[at] = before


@contextmanager
def torn(crash_in: int | None, chance: Random) -> Iterator[Torn]:
    """Within it the loops are torn."""
    tearing = Torn(crash_in, chance)
    with pytest.MonkeyPatch.context() as patch:
        for name in LOOPS:
            patch.setattr(kernels, name, tearing.wrap(getattr(kernels, name)))
        yield tearing


identities = st.tuples(st.sampled_from([None, b"", b"a", b"bb", b"a key of many bytes"]), st.integers(0, 3))
values = st.tuples(st.none() | st.integers(0, 9), st.none() | st.text("xyz", max_size=9))
windows = st.dictionaries(identities, values, max_size=12)


def run(table: Table, step: VersionStep) -> None:
    """All of a step."""
    for _ in redo(table, step):
        pass


@given(
    before=windows, changed=windows, closed=st.sets(identities), crash_in=st.integers(0, 4), seed=st.integers(0, 2**32)
)
@settings(max_examples=examples(50))
def test_a_torn_table_is_made_whole_by_the_same_step(
    before: Windows, changed: Windows, closed: set[tuple[bytes | None, int]], crash_in: int, seed: int
) -> None:
    """Repaired and taken through the same step again, a table is what it would have been, and goes on as such."""
    layout = Layout(SCHEMA, CAPACITY, ARENA_BYTES)
    block = np.zeros(layout.size_bytes, np.uint8)
    table = Table.create(SCHEMA, layout, block, seed=seed)
    run(table, Step(Tag(0, ""), before | {(b"gone", 0): (1, "soon")}).version_step())
    run(table, Step(Tag(1, ""), {}, ((b"gone", 0),)).version_step())
    step = Step(Tag(2, ""), changed, tuple(closed - changed.keys())).version_step()
    with torn(crash_in, Random(seed)):
        try:
            run(table, step)
        except Crash:
            table = Table(SCHEMA, layout, block, None, is_torn=True)
            table.repair()
    run(table, step)
    expected = {
        identity: value for identity, value in (before | changed).items() if identity not in closed - changed.keys()
    }
    assert windows_of(table) == expected
    rows = table.live_rows()
    assert sorted(table.due(103).tolist()) == rows.tolist()
    assert sorted(table.oldest(100).tolist()) == rows.tolist()
    table.remove(rows)
    run(table, step)
    assert windows_of(table) == changed
