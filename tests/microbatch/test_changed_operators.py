"""A query goes on with a changed operator: the state in the log becomes the operator's, wherever an epoch is ended."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from spe_adapter.datasource.state_reader import StateReader, parse_state, state_schema
from spe_adapter.epochs.scan import find_head
from spe_adapter.microbatch.epoch import STEPS, Step, batch_of
from spe_adapter.operators.base import Emitted, Rows, State
from spe_adapter.operators.errors import OperatorChanged
from spe_adapter.tools.reset import reset
from tests.microbatch.below import Query
from tests.microbatch.operators import QUIET_MS, Model, Visits, rows_of
from tests.microbatch.world import World, by_key
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic

EPOCHS = rows_of(7, 20, 12)
CHANGED_AT = 4
"""The first batch of the changed operator."""


class LongVisits(Visits):
    """Visits with a renamed and a widened column, and one more, which says how often a key was seen since then."""

    state: Mapping[str, pa.DataType] = {
        "visits": pa.int64(), "total": pa.int64(), "last": pa.int64(), "since": pa.float64()
    }  # fmt: skip

    @property
    def description(self) -> str:
        """As before."""
        return "Visits"

    def process(self, rows: Rows, state: State) -> Emitted:
        """As Visits, by the new names."""
        amounts = rows.batch.column("amount").to_numpy(zero_copy_only=False)
        counts = np.bincount(rows.window, minlength=state.size)
        n, last = state.get("visits") + counts, state.get("last").copy()
        total = state.get("total") + np.bincount(rows.window, amounts, minlength=state.size).astype(np.int64)
        assert rows.times_ms is not None
        np.maximum.at(last, rows.window, rows.times_ms)
        for name, values in {"visits": n, "total": total, "last": last, "since": state.get("since") + counts}.items():
            state.set(name, values)
        state.expire_at(last + QUIET_MS)
        return _told(n, total, last=False)

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """The last word."""
        return _told(state.get("visits"), state.get("total"), last=True)


def _told(n: Any, total: Any, *, last: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": n, "total": total, "last": np.full(len(n), last)})


class SmallVisits(Visits):
    """Visits whose count is an int32, as before its column was widened."""

    state: Mapping[str, pa.DataType] = {"n": pa.int32(), "total": pa.int64(), "last": pa.int64()}

    @property
    def description(self) -> str:
        """As Visits."""
        return "Visits"


def changed() -> Visits:
    """The operator from batch CHANGED_AT on."""
    return LongVisits().evolving(renamed={"n": "visits"}, defaults={"since": 0.5})


class Ended(Exception):
    """What stands in for the end of a process."""


class EndsOnce:
    """A probe that ends the epoch at its first arrival at a step of a batch."""

    def __init__(self, step: Step, batch: int) -> None:
        self._at: tuple[Step, int] | None = (step, batch)

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """Raise once."""
        if (step, batch_of(epoch)) == self._at:
            self._at = None
            raise Ended(step)


def grown(sidecar: Sidecar, directory: Path, topic: str) -> Query:
    """A query that has run the batches before CHANGED_AT with an int32 for its count; the rows of all are there."""
    create_topic(sidecar.address, topic, 2)
    query = Query(sidecar.address, topic, directory)
    query.operator = SmallVisits()
    query.rows = [row for rows in EPOCHS[:CHANGED_AT] for row in rows]
    query.run(rows_per_batch=20)
    query.rows = [row for rows in EPOCHS for row in rows]
    return query


def expected() -> dict[str, list[tuple[int, int, bool]]]:
    """What is told if nothing ever ended or changed."""
    model = Model()
    for rows in EPOCHS:
        model.epoch(rows)
    return by_key(model.told)


def state_of(sidecar: Sidecar, topic: str, **options: str) -> list[dict[str, Any]]:
    """The state in the log."""
    parsed = parse_state({"state": topic, "kafka.bootstrap.servers": sidecar.address, **options})
    reader = StateReader(parsed, state_schema(parsed))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_an_end_at_every_step_of_the_change(sidecar: Sidecar, tmp_path: Path, step: Step, wiped: bool) -> None:
    """The first epoch of the changed operator ends at each of its steps, with and without the host's memory: every
    result is there once, and the state is in the new columns.
    """
    topic = f"changed-{step.replace(' ', '-')}-{wiped}"
    query = grown(sidecar, tmp_path, topic)
    query.operator = changed()
    query.probe = EndsOnce(step, CHANGED_AT)
    with pytest.raises(Ended):
        query.run(rows_per_batch=20)
    if wiped:
        shutil.rmtree(tmp_path / "state")
    query.run(rows_per_batch=20)
    assert by_key(query.told()) == expected()
    for row in state_of(sidecar, topic):
        since = sum(visit.key.encode() == row["key"] for rows in EPOCHS[CHANGED_AT:] for visit in rows)
        assert row["since"] in (since, since + 0.5), "0.5 in windows that were open at the change"
    before = state_of(sidecar, topic, batch=str(CHANGED_AT - 1))
    assert {"n", "total", "last"} <= set(before[0])
    assert "since" not in before[0]


def test_a_change_with_another_number_of_partitions(sidecar: Sidecar, tmp_path: Path) -> None:
    """Both are one epoch that writes the state anew."""
    query = grown(sidecar, tmp_path, "changed-and-moved")
    query.operator = changed()
    query.partitions = 1
    query.run(rows_per_batch=20)
    told = by_key(query.told())
    assert {key: sorted(values) for key, values in told.items()} == {
        key: sorted(values) for key, values in expected().items()
    }
    assert {row["partition"] for row in state_of(sidecar, "changed-and-moved")} == {0}


@pytest.mark.parametrize("back", [CHANGED_AT - 2, CHANGED_AT - 1, CHANGED_AT, CHANGED_AT + 1])
def test_a_reset_to_before_and_behind_the_change(sidecar: Sidecar, tmp_path: Path, back: int) -> None:
    """The batches behind it run again, those before the change with the state in the former columns: they tell the
    same again.
    """
    topic = f"changed-reset-{back}"
    query = grown(sidecar, tmp_path, topic)
    query.operator = changed()
    query.run(rows_per_batch=20)
    end = state_of(sidecar, topic)
    reset(
        topic=topic, query=query.id, batch=back, checkpoint=query.checkpoint,
        options={"kafka.bootstrap.servers": sidecar.address},
    )  # fmt: skip
    query.run(rows_per_batch=20)
    early = Model()
    for rows in EPOCHS[: back + 1]:
        early.epoch(rows)
    before = by_key(early.told)
    whole = expected()
    told = by_key(query.told())
    assert told == {key: values + values[len(before.get(key, [])) :] for key, values in whole.items()}
    assert _values(state_of(sidecar, topic)) == _values(end)


def _values(state: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """State without what tells when it was written."""
    return sorted((row["key"], row["visits"], row["total"], row["last"]) for row in state)


def test_what_does_not_follow_is_refused_with_every_reason(sidecar: Sidecar, tmp_path: Path) -> None:
    """Undeclared columns, a narrower type, another class: nothing is committed, and the former operator goes on."""
    query = grown(sidecar, tmp_path, "changed-refused")
    narrow = Visits()
    narrow.state = {"n": pa.int16(), "total": pa.int64()}

    class Others(Visits):
        pass

    for operator, said in (
        (LongVisits(), r"column 'n' \(int32\) is gone: declare it"),
        (narrow, r"'last' \(int64\) is gone.*column 'n' was int32 and is int16 now"),
        (Others(), "it was Visits, which is not declared as what Others was formerly"),
    ):
        query.operator = operator
        with pytest.raises(OperatorChanged, match=said):
            query.run(rows_per_batch=20)
    with Client(parse_addresses(sidecar.address)) as client:
        head = find_head(client, TopicPartition("changed-refused", 0), query.id)
    assert head is not None
    assert batch_of(head.end.epoch) == CHANGED_AT - 1
    query.operator = Others().evolving(formerly=["Visits"])
    query.run(rows_per_batch=20)
    assert by_key(query.told()) == expected()


@pytest.mark.spark
def test_a_changed_operator_in_spark(world: World) -> None:
    """A query is started again with the changed operator: its first batch writes the state anew, and it goes on."""
    for rows in EPOCHS[:CHANGED_AT]:
        world.feed(rows)
    world.run(world.query(SmallVisits(), rows_per_batch=20))
    for rows in EPOCHS[CHANGED_AT:]:
        world.feed(rows)
    query = world.run(world.query(changed(), rows_per_batch=20))
    model = Model()
    for rows in EPOCHS[:CHANGED_AT]:
        model.epoch(rows)
    model.pause()
    for rows in EPOCHS[CHANGED_AT:]:
        model.epoch(rows)
    model.pause()
    assert by_key(world.told()) == by_key(model.told)
    assert query.progress is not None
    assert query.progress.windows == len(model.open)
    state = (
        world.spark.read.format("cairn")
        .options(**{"kafka.bootstrap.servers": world.address, "state": world.topic})
        .load()
    )
    found = {row["key"].decode(): (row["visits"], row["total"]) for row in state.collect()}
    assert found == {key: (n, total) for key, (n, total, _) in model.open.items()}
