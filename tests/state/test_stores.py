"""Both stores against a dictionary: any sequence of calls, over several epochs."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.state.direct import Direct
from spe_adapter.state.layout import NEVER
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.store import StateStore
from spe_adapter.state.table import Table, WindowVersion
from tests.support.examples import examples

SCHEMA = pa.schema([pa.field("total", pa.int64()), pa.field("name", pa.string())])

Identity = tuple[bytes | None, int]


class Window(NamedTuple):
    """What the model keeps of a window."""

    expires: int = NEVER
    total: int | None = None
    name: str | None = None


identities = st.tuples(st.sampled_from([None, b"", b"a", b"bb", b"a key of many bytes", b"\0"]), st.integers(-1, 1))
groups = st.lists(identities, max_size=6, unique=True)
steps = st.one_of(
    st.tuples(st.just("set"), groups, st.none() | st.integers(-5, 5)),
    st.tuples(st.just("name"), groups, st.none() | st.text(max_size=12)),
    st.tuples(st.just("expire"), groups, st.integers(0, 9)),
    st.tuples(st.just("ensure"), groups, st.none()),
    st.tuples(st.just("close"), groups, st.none()),
    st.tuples(st.just("touch"), groups, st.none()),
    st.tuples(st.just("renew"), groups, st.none()),
    st.tuples(st.just("due"), st.just([]), st.integers(0, 9)),
    st.tuples(st.just("epoch"), st.just([]), st.none()),
)


def columns(group: list[Identity]) -> tuple[pa.Array, np.ndarray]:
    """Identities as the stores take them."""
    return pa.array([key for key, _ in group], pa.binary()), np.array([number for _, number in group], np.int64)


def window_batch(windows: dict[Identity, Window]) -> pa.RecordBatch:
    """Windows as `Table.put` takes them."""
    keys, numbers = columns(list(windows))
    return pa.RecordBatch.from_arrays(
        [
            keys,
            pa.array(numbers),
            pa.array([window.expires for window in windows.values()], pa.int64()),
            pa.array([window.total for window in windows.values()], pa.int64()),
            pa.array([window.name for window in windows.values()], pa.string()),
        ],
        names=["key", "number", "expires", "s_total", "s_name"],
    )


def as_model(batch: pa.RecordBatch) -> dict[Identity, Window]:
    """A batch of windows as the model has them."""
    return {
        (row["key"], row["number"]): Window(row["expires"], row["s_total"], row["s_name"]) for row in batch.to_pylist()
    }


def identities_in(batch: pa.RecordBatch) -> list[Identity]:
    """A batch of identities as a list."""
    return [(row["key"], row["number"]) for row in batch.to_pylist()]


class Model:
    """A dictionary, and what changed in it since the epoch began."""

    def __init__(self, store: StateStore, windows: dict[Identity, Window]) -> None:
        self.store = store
        self.now = dict(windows)
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget what changed."""
        self.before = set(self.now)
        self.changed: set[Identity] = set()
        self.opened: set[Identity] = set()
        self.closed: set[Identity] = set()

    def ids(self, group: list[Identity]) -> np.ndarray:
        """Ids of windows, opening them; `is_new` must agree."""
        ids, is_new = self.store.ensure(*columns(group))
        for identity, new in zip(group, is_new.tolist(), strict=True):
            assert new == (identity not in self.now)
            if new:
                self.now[identity] = Window()
                self.opened.add(identity)
                self.changed.add(identity)
        assert (self.store.find(*columns(group)) == ids).all()
        return ids

    def step(self, name: str, group: list[Identity], value: Any) -> None:
        """Do the same to both and compare."""
        store = self.store
        if name == "epoch":
            self.check_changes()
        elif name == "due":
            assert isinstance(value, int)
            ids = store.due(value)
            due = {identity for identity, window in self.now.items() if window.expires <= value}
            assert sorted(self.names(ids), key=repr) == sorted(due, key=repr)
        elif name == "close":
            group = [identity for identity in group if identity in self.now]
            store.close(store.find(*columns(group)))
            for identity in group:
                del self.now[identity]
                self.closed.add(identity)
                self.changed.discard(identity)
                self.opened.discard(identity)
        else:
            self.change(name, group, value)
        self.check()

    def change(self, name: str, group: list[Identity], value: Any) -> None:
        """Open windows, then set one thing in all."""
        ids = self.ids(group)
        if name == "ensure":
            return
        self.changed.update(group)
        windows = {identity: self.now[identity] for identity in group}
        if name == "set":
            self.store.set("total", ids, 0 if value is None else value, np.full(len(ids), value is None))
            windows = {identity: window._replace(total=value) for identity, window in windows.items()}
        elif name == "name":
            self.store.set_arrow("name", ids, pa.array([value] * len(ids), pa.string()))
            windows = {identity: window._replace(name=value) for identity, window in windows.items()}
        elif name == "expire":
            self.store.set_expires(ids, np.full(len(ids), value, np.int64))
            windows = {identity: window._replace(expires=value) for identity, window in windows.items()}
        elif name == "renew":
            self.store.renew(ids)
            self.opened.update(group)
        else:
            self.store.touch(ids)
        self.now.update(windows)

    def names(self, ids: np.ndarray) -> list[Identity]:
        """Identities of ids."""
        return list(zip(self.store.keys(ids).to_pylist(), self.store.numbers(ids).tolist(), strict=True))

    def check(self) -> None:
        """All windows are as the model has them."""
        store = self.store
        ids = store.all_rows()
        assert store.live == len(ids) == len(self.now)
        totals, nulls = store.get("total", ids).tolist(), store.nulls("total", ids).tolist()
        assert totals == [total or 0 for total in store.get_arrow("total", ids).to_pylist()]
        assert store.nulls("name", ids).tolist() == [name is None for name in store.get_arrow("name", ids).to_pylist()]
        found = {
            identity: Window(expires, None if null else total, name)
            for identity, expires, total, null, name in zip(
                self.names(ids),
                store.expires(ids).tolist(),
                totals,
                nulls,
                store.get_arrow("name", ids).to_pylist(),
                strict=True,
            )
        }
        assert found == self.now

    def check_changes(self) -> None:
        """`changes` says what changed, and the next epoch starts."""
        changes = self.store.changes()
        assert as_model(changes.footprints) == {identity: self.now[identity] for identity in self.changed}
        told = identities_in(changes.footprints)
        assert {identity for identity, opened in zip(told, changes.opened, strict=True) if opened} == self.opened
        assert self.names(changes.ids) == told
        gone = self.closed - set(self.now)
        closed, transient = identities_in(changes.closed), identities_in(changes.transient)
        assert len(closed) == len(set(closed))
        assert len(transient) == len(set(transient))
        assert set(closed) == gone & self.before
        assert set(transient) == gone - self.before
        self.start_epoch()


def filled(windows: dict[Identity, Window]) -> Table:
    """A small table with these windows, so that it grows soon."""
    table = Table.in_memory(SCHEMA, 1, seed=3)
    table.put(window_batch(windows), WindowVersion(1, 2, 3))
    return table


windows_in_base = st.dictionaries(
    identities,
    st.builds(
        Window,
        st.integers(0, 9) | st.just(NEVER),
        st.none() | st.integers(-5, 5),
        st.none() | st.text(max_size=12),
    ),
)


@pytest.mark.parametrize("kind", [Direct, Overlay])
@given(windows=windows_in_base, steps=st.lists(steps, max_size=25))
@settings(max_examples=examples(50))
def test_a_store_is_a_dictionary_that_tells_what_changed(
    kind: type[Direct] | type[Overlay], windows: dict[Identity, Window], steps: list[tuple[str, list[Identity], Any]]
) -> None:
    """Whatever is done to a store, its windows and what it tells at each epoch are those of a dictionary."""
    base = filled(windows)
    before = base.take(base.live_rows())
    model = Model(kind(base), windows)
    for step in steps:
        model.step(*step)
    model.check_changes()
    if kind is Overlay:
        assert base.take(base.live_rows()) == before


@pytest.mark.parametrize("kind", [Direct, Overlay])
def test_a_fresh_window_of_an_old_name_is_new(kind: type[Direct] | type[Overlay]) -> None:
    """Closing a window and opening its identity again in the same epoch gives an empty window, told as opened."""
    store = kind(filled({(b"a", 0): Window(5, 7, "x")}))
    name = columns([(b"a", 0)])
    store.close(store.find(*name))
    assert store.find(*name).tolist() == [-1]
    ids, is_new = store.ensure(*name)
    assert is_new.tolist() == [True]
    assert store.nulls("total", ids).tolist() == [True]
    changes = store.changes()
    assert changes.opened.tolist() == [True]
    assert changes.closed.num_rows == changes.transient.num_rows == 0


@pytest.mark.parametrize("kind", [Direct, Overlay])
def test_a_window_that_expires_at_0_is_due_at_0(kind: type[Direct] | type[Overlay]) -> None:
    """Memory that was never used is 0 too: an expiry at 0 is told from it, in a new window and in a changed copy."""
    for at_zero in ("copied", "new"):
        store = kind(filled({(b"a", 0): Window(0 if at_zero == "copied" else 9, 7, "x")}))
        ids, _ = store.ensure(*columns([(b"a", 0), (b"b", 0)]))
        store.set("total", ids[:1], 8)
        if at_zero == "new":
            store.set_expires(ids[1:], 0)
        assert store.due(0).tolist() == ids[: 1 if at_zero == "copied" else None][-1:].tolist()


def test_a_store_tells_no_more_than_is_asked_for() -> None:
    """Without other changes: what opened, was renewed, closed or is to be checked; without windows: nothing."""
    old: dict[Identity, Window] = {
        (b"a", 0): Window(5, 7, "x"),
        (b"b", 0): Window(5, 8, "y"),
        (b"c", 0): Window(5, 9, "z"),
    }
    for tells_windows in (True, False):
        store = Direct(filled(dict(old)), tells_changes=False, tells_windows=tells_windows)
        a, b, c = (store.find(*columns([(key, 0)])) for key in (b"a", b"b", b"c"))
        opened, _ = store.ensure(*columns([(b"d", 0)]))
        store.set("total", np.concatenate((a, opened)), 1)
        store.renew(b)
        store.close(c)
        changes = store.changes(a)
        told = dict(zip(identities_in(changes.footprints), changes.opened.tolist(), strict=True))
        begun = {(b"b", 0): True, (b"d", 0): True} if tells_windows else {}
        assert told == {**begun, (b"a", 0): False}
        assert identities_in(changes.closed) == ([(b"c", 0)] if tells_windows else [])
        assert store.changes(np.empty(0, np.int64)).footprints.num_rows == 0
