"""What a recovery may cost follows from what is open: footprints are written when windows open, checks keep targets.

The core runs alone, on records made here; which windows are open, and since when, is counted by naive models.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format.batch import iterate_batches
from logstore.format.records import Record
from spe_adapter.cec.control import Footprints, decode
from spe_adapter.cec.policy import NoChecks, Policy, Targets
from spe_adapter.codec.decode import SCHEMA
from spe_adapter.continuous.core import Core, Figures, FragmentInstance
from spe_adapter.continuous.fragment import plan
from spe_adapter.continuous.inputs import RecordRun
from spe_adapter.continuous.port import EpochOutput
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Operator
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.windows import Counting
from tests.continuous.fragments import OPERATORS, batches, fragment

Identity = tuple[bytes | None, int]

KINDS = sorted(OPERATORS)
COUNTING = [(1, 1), (2, 2), (7, 7), (5, 3), (6, 1)]


class Ages:
    """When the open windows of a core were opened, in input records before theirs, as of the last run."""

    def __init__(self, core: Core, counting: tuple[int, int] | None) -> None:
        """`counting`: size and advance of windows by number of rows, several of which share an identity."""
        self._core = core
        self._counting = counting
        self._rows: dict[bytes | None, list[int]] = {}
        self._opened: dict[Identity, int] = {}
        self.seen = 0

    def take(self, records: Sequence[Record]) -> None:
        """A run was processed."""
        for at, record in enumerate(records, self.seen):
            self._rows.setdefault(record.key, []).append(at)
        ids = self._core.store.all_rows()
        keys, numbers = self._core.store.keys(ids).to_pylist(), self._core.store.numbers(ids).tolist()
        self._opened = {one: self._opened.get(one, self.seen) for one in zip(keys, numbers, strict=True)}
        self.seen += len(records)

    def opened(self) -> list[int]:
        """Of every open window."""
        if self._counting is None:
            return list(self._opened.values())
        return [at for opened in self.opened_by_key().values() for at in opened]

    def opened_by_key(self) -> dict[bytes | None, list[int]]:
        """The same of windows by number of rows, for each key."""
        assert self._counting is not None
        size, step = self._counting
        return {
            key: [rows[start] for start in range(0, len(rows), step) if start + size > len(rows)]
            for key, rows in self._rows.items()
        }

    def oldest(self) -> int:
        """The age of the oldest open window in input records, 0 without one."""
        return max((self.seen - at for at in self.opened()), default=0)


def rows_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Records as a run."""
    rows = [
        {"key": record.key, "value": record.value, "offset": at, "timestamp": record.timestamp * 1000}
        for at, record in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def core_of(operator: Operator, policy: Policy) -> Core:
    """A core without state."""
    topics = ("left", "right") if isinstance(operator, WindowJoin) else ("in",)
    core = Core(plan(fragment(operator, topics)), FragmentInstance(0, 1, "run"), policy, lambda: 0.0)
    core.begin([0] * len(topics))
    return core


def footprints_in(group: EpochOutput) -> list[Footprints]:
    """The footprints that a group holds."""
    found = []
    for segment in group.segments:
        for position, header in iterate_batches(segment.data):
            record = decode(segment.data, position) if header.is_control else None
            if isinstance(record, Footprints):
                found.append(record)
    return found


def opens_in(group: EpochOutput) -> int:
    """How many of them are G_open."""
    return sum(int(one.opened.sum()) for one in footprints_in(group))


def end(core: Core, ages: Ages, epoch: int) -> tuple[EpochOutput, Figures]:
    """End an epoch, and have it committed."""
    group, figures = core.end_epoch([ages.seen] * len(core.needed), 0)
    core.committed(epoch)
    return group, figures


@settings(max_examples=settings().max_examples // 4)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 40]), st.integers(1, 5))
def test_no_more_is_replayed_than_came_since_the_oldest_open_window(
    kind: str, seed: int, keys: int, runs_per_epoch: int
) -> None:
    """Without any checks u is at most the age of the oldest open window plus one epoch, whatever the kind of window,
    and however many of a key's windows close and open in one run.
    """
    random = Random(seed)
    sizes = Random(seed)
    counting = {
        "counting": lambda: (size := sizes.randint(1, 7), size),
        "overlapping": lambda: (sizes.randint(3, 6), sizes.randint(1, 3)),
    }
    core = core_of(OPERATORS[kind](random), NoChecks())
    ages = Ages(core, counting[kind]() if kind in counting else None)
    epoch, records_of_epoch = 1, 0
    for at, records in enumerate(batches(random, 12, keys), 1):
        core.process(RecordRun(at % len(core.needed), len(records)), rows_of(records))
        ages.take(records)
        records_of_epoch += len(records)
        if at % runs_per_epoch == 0:
            _, figures = end(core, ages, epoch)
            assert figures.to_replay <= ages.oldest() + records_of_epoch
            assert min(core.needed) >= ages.seen - ages.oldest() - records_of_epoch
            epoch, records_of_epoch = epoch + 1, 0


@pytest.mark.parametrize(("size", "step"), COUNTING)
def test_every_count_window_that_opens_and_stays_open_is_written(size: int, step: int) -> None:
    """An epoch's G_opens are the keys in which a window opened that is open at its end, one each; also where a window
    was filled and its successor began in the same run.
    """
    random = Random(size)
    operator = Aggregate(Counting(size, step), mean=agg.avg("v"))
    core = core_of(operator, NoChecks())
    ages = Ages(core, (size, step))
    for epoch in range(1, 40):
        before = ages.seen
        for _ in range(2):
            records = [Record(0, 0, b"%d" % random.randint(0, 3), b"1") for _ in range(random.randint(1, 30))]
            core.process(RecordRun(0, len(records)), rows_of(records))
            ages.take(records)
        group, _ = end(core, ages, epoch)
        keys = {key for key, opened in ages.opened_by_key().items() if any(at >= before for at in opened)}
        assert opens_in(group) == len(keys)
        written = {key.as_py() for one in footprints_in(group) for key in one.rows.column(0)}
        assert written == keys


def test_slow_windows_do_not_pin_the_input() -> None:
    """Two keys, windows much shorter than a run: u stays below a run's records although every run fills windows and
    leaves others open, and upstream may trim all but the last runs.
    """
    random = Random(5)
    size, run = 100, 1_000
    core = core_of(Aggregate(Counting(size), mean=agg.avg("v")), NoChecks())
    ages = Ages(core, (size, size))
    for epoch in range(1, 60):
        records = [Record(0, 0, random.choice((b"a", b"b")), b"1") for _ in range(run)]
        core.process(RecordRun(0, run), rows_of(records))
        ages.take(records)
        _, figures = end(core, ages, epoch)
        assert figures.to_replay <= run
        assert core.needed[0] >= ages.seen - 2 * run


@settings(max_examples=settings().max_examples // 4)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 40]),
    st.integers(0, 150),
    st.integers(0, 150),
)
def test_targets_hold_at_every_moment(kind: str, seed: int, keys: int, q_limit: int, u_limit: int) -> None:
    """At the end of each epoch u is at most U and q at most Q (or N, where that is more), plus one epoch."""
    random = Random(seed)
    core = core_of(OPERATORS[kind](random), Targets(q_limit, u_limit))
    emitted = seen = 0
    for epoch, records in enumerate(batches(random, 12, keys), 1):
        core.process(RecordRun(epoch % len(core.needed), len(records)), rows_of(records))
        seen += len(records)
        _, figures = core.end_epoch([seen] * len(core.needed), 0)
        core.committed(epoch)
        assert figures.to_replay <= u_limit + len(records)
        assert figures.extent <= max(q_limit, figures.windows) + figures.emitted - emitted
        emitted = figures.emitted


def test_more_windows_than_a_policy_is_shown_at_first_are_checked_in_one_epoch() -> None:
    """Twenty thousand windows that opened in one epoch are written again in one epoch as soon as U asks for it."""
    windows = 20_000
    core = core_of(Aggregate(Counting(10), mean=agg.avg("v")), Targets(u_limit=100))
    keys = [b"%d" % number for number in range(windows)]
    for epoch, key in enumerate([keys, [b"0"] * 60, [b"1"] * 60], 1):
        rows = {
            "key": pa.array(key, pa.binary()),
            "value": pa.array([b"1"] * len(key), pa.binary()),
            "timestamp": pa.array(np.zeros(len(key), np.int64)).cast(SCHEMA.field("timestamp").type),
        }
        columns = [rows.get(one.name, pa.nulls(len(key), one.type)) for one in SCHEMA]
        core.process(RecordRun(0, len(key)), pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        _, figures = core.end_epoch([0], 0)
        core.committed(epoch)
        assert figures.to_replay <= 100
    assert figures.checks >= windows - 2
