"""Versions of state in shared memory: which one a task gets, and where it comes from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.pages.page_table import DEFAULT_PAGE_BYTES
from spe_adapter.state import kernels
from spe_adapter.state.errors import StateDamaged, StateSchemaChanged, StateTooLarge
from spe_adapter.state.query import usage
from spe_adapter.state.segment import Tag, table_at
from spe_adapter.state.versions import OpenState, StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, History, Log, Step, check_marks, note_of, windows_of

TABLE_AT = table_at(1, DEFAULT_PAGE_BYTES)
"""Where the table of a small base begins."""
LIMIT = 64 * 1024 * 1024
STEPS = [
    Step(Tag(2, "0"), {(b"a", 0): (1, "one"), (None, 0): (2, None), (b"", 7): (None, "")}),
    Step(Tag(4, "1"), {(b"a", 0): (5, "a longer name"), (b"b", 1): (6, "six")}, ((None, 0),)),
    Step(Tag(6, "0"), {(b"c", 2): (9, None)}, ((b"a", 0),)),
    Step(Tag(8, "0"), {(b"a", 0): (1, "again")}, ((b"c", 2), (b"", 7))),
]
HISTORY = History(STEPS)


@contextmanager
def opened(
    root: Path, wanted: Tag | None, *, log: Log | None = None, how: str | None = None, limit_bytes: int = LIMIT
) -> Iterator[OpenState]:
    """A partition at a version, checked to be that version."""
    directory = StateDirectory(root, QUERY, limit_bytes, seed=11, lock_limit_s=0.05)
    loader = HISTORY.loader(wanted) if log is None else log
    with directory.open(3, SCHEMA, OPERATOR, wanted, loader) as state:
        assert how is None or state.how == how
        assert windows_of(state.base) == HISTORY.at(wanted)
        if wanted is not None:
            check_marks(state.base, HISTORY, wanted)
            assert state.note == note_of(wanted)
        yield state


def publish(state: OpenState, step: Step) -> int:
    """A delta for a step."""
    return state.publish(step.tag, step.changes(), step.mark(), note_of(step.tag))


def test_a_query_goes_from_version_to_version_by_deltas(root: Path) -> None:
    """Each epoch's task finds the version before it, and the next one applies the winner's delta, never the log."""
    wanted: Tag | None = None
    for step in STEPS:
        log = HISTORY.loader(wanted)
        with opened(root, wanted, log=log, how="empty" if wanted is None else "delta") as state:
            publish(state, step)
        assert not log.asked
        wanted = step.tag
    with opened(root, wanted, how="delta"):
        pass
    with opened(root, wanted, how="current"):
        pass


def test_an_overlay_becomes_the_next_version(root: Path) -> None:
    """What an operator changed through an overlay is what the next task finds."""
    with opened(root, None) as state:
        store = state.overlay()
        ids, _ = store.ensure(pa.array([b"a", None, b""], pa.binary()), np.array([0, 0, 7]))
        store.set("total", ids, [1, 2, 0], np.array([False, False, True]))
        store.set_arrow("name", ids, pa.array(["one", None, ""]))
        store.set_expires(ids, np.array([100, 100, 107]))
        state.publish(STEPS[0].tag, store.changes(), STEPS[0].mark(), note_of(STEPS[0].tag))
        assert windows_of(state.base) == {}
    with opened(root, STEPS[0].tag, how="delta"):
        pass


def test_the_loser_is_never_used(root: Path) -> None:
    """Of two attempts at an epoch, the one that is said to have won counts, whatever came last."""
    with opened(root, None) as state:
        publish(state, STEPS[0])
        publish(state, Step(Tag(2, "1"), {(b"wrong", 0): (0, "")}))
    with opened(root, STEPS[0].tag, how="delta"):
        pass


def test_a_delta_of_another_parent_is_not_applied(root: Path) -> None:
    """A delta leads from its own parent only: where that is not the base, the log is asked."""
    with opened(root, None) as state:
        publish(state, STEPS[1])
    log = HISTORY.loader(STEPS[0].tag)
    with opened(root, STEPS[0].tag, log=log, how="loaded"):
        assert log.asked == ["everything"]
    with opened(root, STEPS[1].tag, how="caught_up"):
        pass


def test_without_a_delta_the_log_has_the_steps(root: Path) -> None:
    """A base that is several versions behind catches up by what the log has behind it."""
    with opened(root, STEPS[0].tag, how="loaded"):
        pass
    log = HISTORY.loader(STEPS[3].tag)
    with opened(root, STEPS[3].tag, log=log, how="caught_up"):
        assert log.asked == ["since"]


def test_without_a_way_everything_is_loaded(root: Path) -> None:
    """A version that is no ancestor is thrown away: forwards, backwards, and to the beginning."""
    for wanted in (STEPS[0].tag, STEPS[3].tag, STEPS[1].tag):
        with opened(root, wanted, log=HISTORY.loader(wanted, steps=False), how="loaded"):
            pass
    with opened(root, None, how="empty"):
        pass


@pytest.mark.parametrize("damage", [0, 8, 12, 32, 100, 1000, -1])
def test_a_damaged_delta_is_not_used(root: Path, damage: int) -> None:
    """A delta with one byte changed is as good as none."""
    with opened(root, None) as state:
        publish(state, STEPS[0])
    path = next(root.glob("*/*/*.delta"))
    data = bytearray(path.read_bytes())
    data[damage] ^= 1
    path.write_bytes(data)
    with opened(root, STEPS[0].tag, how="loaded"):
        pass


@pytest.mark.parametrize("keep", [0, 31, 32, 500, 1000])
def test_a_truncated_delta_is_not_used(root: Path, keep: int) -> None:
    """A delta that ends early is as good as none."""
    with opened(root, None) as state:
        publish(state, STEPS[0])
    path = next(root.glob("*/*/*.delta"))
    path.write_bytes(path.read_bytes()[:keep])
    with opened(root, STEPS[0].tag, how="loaded"):
        pass


@pytest.mark.parametrize("keep_bytes", [0, 100, 64 * 1024, 70_000])
def test_a_truncated_base_is_not_used(root: Path, keep_bytes: int) -> None:
    """A base that ends early is made anew, and nobody touches what is not there."""
    with opened(root, STEPS[0].tag, how="loaded"):
        pass
    base = next(root.glob("*/*/base"))
    data = base.read_bytes()
    base.unlink()
    base.write_bytes(data[:keep_bytes])
    with opened(root, STEPS[0].tag, how="loaded"):
        pass


def test_a_damaged_base_is_not_used(root: Path) -> None:
    """A base with a broken header or page table, or counters that contradict themselves, is made anew."""
    for at in (30, 64 * 1024, 64 * 1024 + 24, 64 * 1024 + 40, TABLE_AT, TABLE_AT + 24, TABLE_AT + 40):
        with opened(root, STEPS[1].tag):
            pass
        base = next(root.glob("*/*/base"))
        with base.open("r+b") as file:
            file.seek(at)
            file.write(b"\xee" * 8)
        with opened(root, STEPS[1].tag, how="loaded"):
            pass


def test_damage_that_is_met_late_is_not_met_twice(root: Path) -> None:
    """Where reading windows finds a base damaged, the task fails, and the next one gets a new base."""
    with opened(root, STEPS[1].tag):
        pass
    base = next(root.glob("*/*/base"))
    with base.open("r+b") as file:
        file.seek(TABLE_AT + kernels.COUNTERS * 8 + 8)
        file.write(b"\x7f" * 8)
    directory = StateDirectory(root, QUERY, LIMIT)
    with (
        pytest.raises(RuntimeError, match="an operator's own"),
        directory.open(3, SCHEMA, OPERATOR, STEPS[1].tag, HISTORY.loader(STEPS[1].tag)) as state,
    ):
        assert state.how == "current"
        try:
            state.base.keys(state.base.live_rows())
        except StateDamaged as error:
            raise RuntimeError("an operator's own") from error
    with opened(root, STEPS[1].tag, how="loaded"):
        pass


def test_foreign_state_is_not_used(root: Path) -> None:
    """Another query's base or delta under our name, or one of another operator, is not ours."""
    with opened(root, None) as state:
        publish(state, STEPS[0])
    other = StateDirectory(root, "another", LIMIT)
    with other.open(3, SCHEMA, OPERATOR, None, HISTORY.loader(None)):
        pass
    ours, theirs = (next(path.glob("p3")) for path in sorted(root.iterdir()))
    for path in ours.iterdir():
        path.rename(theirs / path.name)
    with other.open(3, SCHEMA, OPERATOR, STEPS[0].tag, HISTORY.loader(STEPS[0].tag)) as state:
        assert state.how == "loaded"
    with other.open(3, SCHEMA, "operator 2", STEPS[0].tag, HISTORY.loader(STEPS[0].tag)) as state:
        assert state.how == "loaded"


def test_another_schema_is_an_error_that_names_the_columns(root: Path) -> None:
    """Where the log's windows have other columns than the operator, nothing is loaded."""
    directory = StateDirectory(root, QUERY, LIMIT)
    schema = pa.schema([pa.field("total", pa.int64()), pa.field("label", pa.string())])
    with (
        pytest.raises(StateSchemaChanged, match=r"s_label: missing.*s_name: string, now gone"),
        directory.open(3, schema, OPERATOR, STEPS[0].tag, HISTORY.loader(STEPS[0].tag)),
    ):
        pass


def test_a_limit_is_an_error_that_says_what_to_do(root: Path) -> None:
    """Private memory, deltas and bases all count; the error names query, bytes, limit and setting, and the version that
    was there stays.
    """
    with opened(root, STEPS[0].tag):
        pass
    held_bytes = sum(used.bytes for used in usage(root))
    with (
        opened(root, STEPS[0].tag, limit_bytes=held_bytes, how="current") as state,
        pytest.raises(StateTooLarge, match=rf"'{QUERY}'.*more bytes.*{held_bytes} is the limit.*'stateLimit'"),
    ):
        publish(state, STEPS[1])
    with (
        opened(root, STEPS[0].tag, limit_bytes=held_bytes) as state,
        pytest.raises(StateTooLarge, match="private copy"),
    ):
        state.overlay()
    with opened(root, STEPS[0].tag, limit_bytes=held_bytes, how="current"):
        pass
    directory = StateDirectory(root, QUERY, held_bytes)
    with (
        pytest.raises(StateTooLarge, match="partition p4"),
        directory.open(4, SCHEMA, OPERATOR, STEPS[0].tag, HISTORY.loader(STEPS[0].tag)),
    ):
        pass
    assert sum(used.bytes for used in usage(root)) == held_bytes


def test_only_two_versions_are_kept(root: Path) -> None:
    """However many epochs, attempts and failures, one base and few deltas remain; after `remove`, nothing."""
    wanted: Tag | None = None
    steps: list[Step] = []
    for epoch in range(30):
        history = History(steps)
        directory = StateDirectory(root, QUERY, LIMIT, lock_limit_s=0.05)
        with directory.open(0, SCHEMA, OPERATOR, wanted, history.loader(wanted)) as state:
            assert windows_of(state.base) == history.at(wanted)
            for attempt in range(epoch % 7 + 1):
                step = Step(Tag(epoch, str(attempt)), {(b"k%d" % epoch, attempt): (epoch, "x" * epoch)}, ())
                publish(state, step)
            steps.append(step)
        wanted = step.tag
        names = [path.name for path in root.glob("*/p0/*")]
        assert len(names) <= 1 + 4
        assert "base" in names
    assert StateDirectory(root, QUERY, LIMIT).remove()
    assert list(root.iterdir()) == []


def test_a_directory_in_use_is_not_removed(root: Path) -> None:
    """`remove` leaves alone what somebody has open, and removes it once nobody has."""
    directory = StateDirectory(root, QUERY, LIMIT, lock_limit_s=0.01)
    with opened(root, STEPS[0].tag):
        assert not directory.remove()
    assert directory.remove()
    with opened(root, STEPS[0].tag, how="loaded"):
        pass


def test_usage_names_versions(root: Path) -> None:
    """`usage` says what there is by query, partition and version."""
    with opened(root, STEPS[0].tag) as state:
        publish(state, STEPS[1])
        used = usage(root)
    assert [(entry.query, entry.partition) for entry in used] == [(QUERY, 3), (QUERY, 3)]
    assert {entry.version for entry in used} == {"2 of attempt 0", "00000000000000000004-1.delta"}
    assert all(entry.bytes > 0 for entry in used)
