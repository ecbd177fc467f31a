"""Queries with named states, without Spark: epochs between batches, restarts, other numbers of partitions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.microbatch.driver import QueryDriver
from spe_adapter.microbatch.epoch import QueryDefinition
from spe_adapter.microbatch.frames import check
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.operators.base import Emitted, Results, Rows
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
from tests.microbatch.below import PARTITIONS, SCHEMA, Query
from tests.microbatch.operators import Row
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, read_all
from tests.support.waiting import until

OUTPUT = pa.schema([("what", pa.string()), ("total", pa.int64()), ("items", pa.int64()), ("kinds", pa.int64())])
REPEATS = 3


class Reminders(StatefulOperator):
    """Sums, and reminds of them at once, REPEATS times, by processing time."""

    states = {  # noqa: RUF012  as users write it
        "total": ValueState(pa.int64()),
        "told": ValueState(pa.int64()),
        "items": ListState(pa.int64()),
        "kinds": MapState(pa.string(), pa.int64()),
    }
    processing_time = True

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The sum, and how much there is in list and map."""
        return OUTPUT

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Sum up, and be called."""
        total, amount = states.total.get(), rows.batch.column("amount").to_numpy()
        np.add.at(total, rows.window, amount)
        states.total.set(total)
        states.items.append(rows.window, amount)
        states.kinds.put(rows.window, pa.array([str(each) for each in amount.tolist()]), amount)
        timers.register(None, timers.now_ms + 1)
        return None

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """Remind, and be called again, up to REPEATS times."""
        told = states.told.get() + 1
        states.told.set(told)
        timers.register(expired.owner[told[expired.owner] < REPEATS], timers.now_ms + 1)
        items = np.bincount(states.items.read().owner, minlength=states.count)
        kinds = np.bincount(states.kinds.entries().owner, minlength=states.count)
        what = pa.array([f"reminder {each}" for each in told.tolist()])
        columns = [what, states.total.column(), pa.array(items), pa.array(kinds)]
        return Results(pa.RecordBatch.from_arrays([column.take(pa.array(expired.owner)) for column in columns],
                                                  schema=OUTPUT), expired.owner)  # fmt: skip


class ReminderQuery(Query):
    """A query of Reminders."""

    def fixed(self, options: dict[str, str]) -> QueryDefinition:
        """What a run is made of."""
        given = {"kafka.bootstrap.servers": self.address, "stateDirectory": str(self._state), **options}
        operator = Reminders()
        fingerprint = check(operator, SCHEMA, ("key",))
        return QueryDefinition(operator, ("key",), SCHEMA, fingerprint, PARTITIONS, parse_stateful(given, self.topic))

    def reminders(self) -> list[tuple[str, str, int, int, int]]:
        """What stands in the topic, by key and reminder."""
        values = [json.loads(row.value or b"null") for row in read_all(self.address, self.topic)]
        return sorted((value["key"], value["what"], value["total"], value["items"], value["kinds"]) for value in values)


@pytest.fixture
def query(sidecar: Sidecar, tmp_path: Path, request: pytest.FixtureRequest) -> ReminderQuery:
    """A query with a topic of its own."""
    topic = f"named-{request.node.name}"
    create_topic(sidecar.address, topic, PARTITIONS + 1)
    return ReminderQuery(sidecar.address, topic, tmp_path)


def test_timers_run_epochs_between_batches(query: ReminderQuery) -> None:
    """Several epochs without input follow one batch, each when a timer is due, also in a new incarnation and from the
    log; the next batch goes on behind them; then there is no more to do.
    """
    query.rows += [Row("a", 1000, 5), Row("b", 1000, 7), Row("a", 2000, 5)]
    query.run()
    expected = [("a", "reminder 1", 10, 2, 1), ("b", "reminder 1", 7, 1, 1)]

    def closes(driver: QueryDriver, fixed: QueryDefinition) -> None:
        until(lambda: query.close_due(driver, fixed), "a timer is due")

    for reminder in range(1, REPEATS + 1):
        fixed = query.fixed({})
        driver = query.driver(fixed)
        closes(driver, fixed)
        assert query.reminders() == sorted(
            (key, f"reminder {n}", total, items, kinds)
            for key, _, total, items, kinds in expected
            for n in range(1, reminder + 1)
        )
    # A new incarnation does not know whether a timer is due, and looks once.
    assert not query.close_due(driver, fixed)
    query.rows += [Row("c", 3000, 1)]
    query.run()
    fixed = query.fixed({})
    closes(query.driver(fixed), fixed)
    assert query.reminders()[-1] == ("c", "reminder 1", 1, 1, 1)


def test_entries_move_with_their_keys(query: ReminderQuery) -> None:
    """In another number of partitions the entries of lists and maps are found where the rows of their keys go."""
    query.rows += [Row(f"k{at % 7}", 1000, at % 3) for at in range(40)]
    query.run(rows_per_batch=40)
    before = query.fixed({})
    moved = replace(before, partitions=PARTITIONS + 1)
    driver = query.driver(moved)
    tasks = range(moved.partitions)
    until(
        lambda: driver.close_due(lambda plan: [query._task(moved, plan, partition, []) for partition in tasks]),
        "a timer is due",
    )
    counts = {key: (items, kinds) for key, _, _, items, kinds in query.reminders()}
    own = {f"k{at}": [n % 3 for n in range(40) if n % 7 == at] for at in range(7)}
    assert counts == {key: (len(amounts), len(set(amounts))) for key, amounts in own.items()}
