"""Changes of an operator, resets, forks, other numbers of partitions, ends at any step, lost memory: in any order."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.microbatch.epoch import STEPS
from spe_adapter.operators.base import Emitted, Rows, State
from spe_adapter.tools.fork import fork
from spe_adapter.tools.reset import reset
from tests.microbatch.below import Query
from tests.microbatch.operators import QUIET_MS, Model, Visits, rows_of
from tests.microbatch.test_changed_operators import Ended, EndsOnce, state_of
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic

BATCHES = 24
ROWS = 12
STEPS_OF_A_HISTORY = 14
MOST_PARTITIONS = 4
CHANGES = ("operator", "reset", "fork", "partitions", "wipe", "end")


class Version(Visits):
    """Visits whose count has a name and a type of its own, with more columns."""

    def __init__(self, count: str, kind: pa.DataType, *more: str) -> None:
        self._count = count
        self.state: Mapping[str, pa.DataType] = {
            count: kind, "total": pa.int64(), "last": pa.int64(), **dict.fromkeys(more, pa.string())
        }  # fmt: skip

    @property
    def description(self) -> str:
        """As of all versions."""
        return "Visits"

    def process(self, rows: Rows, state: State) -> Emitted:
        """As Visits."""
        amounts = rows.batch.column("amount").to_numpy(zero_copy_only=False)
        last = state.get("last").copy()
        assert rows.times_ms is not None
        np.maximum.at(last, rows.window, rows.times_ms)
        total = state.get("total") + np.bincount(rows.window, amounts, minlength=state.size).astype(np.int64)
        state.set(self._count, state.get(self._count) + np.bincount(rows.window, minlength=state.size))
        state.set("total", total)
        state.set("last", last)
        state.expire_at(last + QUIET_MS)
        return None

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Nothing."""
        return None


def version(at: int) -> Visits:
    """A version of the operator, which follows each before it."""
    if at == 0:
        return Version("n", pa.int32())
    if at == 1:
        return Version("n", pa.int64(), "name").evolving(defaults={"name": "é"})
    if at == 2:
        return Version("visits", pa.int64(), "name").evolving(renamed={"n": "visits"})
    return Version("count", pa.int64(), "note").evolving(
        renamed={"n": "count", "visits": "count"}, dropped=["name"], defaults={"note": ""}
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_history(sidecar: Sidecar, tmp_path: Path, seed: int) -> None:
    """Whatever happened, the state in the log is that of a model that has seen the batches that count."""
    random_ = random.Random(seed)
    print(f"seed {seed}")
    epochs = rows_of(BATCHES, ROWS, 9)
    options = {"kafka.bootstrap.servers": sidecar.address}
    query = Query(sidecar.address, f"history-{seed}", tmp_path / "0")
    create_topic(sidecar.address, query.topic, MOST_PARTITIONS)
    at, batches = 0, 0
    query.operator = version(at)
    for step in range(STEPS_OF_A_HISTORY):
        batches = min(batches + random_.randint(1, 2), BATCHES)
        query.rows = [row for rows in epochs[:batches] for row in rows]
        query.run(rows_per_batch=ROWS)
        model = Model()
        for rows in epochs[:batches]:
            model.epoch(rows)
        count = next(iter(query.operator.state))
        told = f"step {step}, batch {batches}, version {at}, {query.partitions} partitions, {query.topic}"
        found = state_of(sidecar, query.topic, query=query.id)
        assert {row["key"].decode(): (row[count], row["total"]) for row in found} == {
            key: (n, total) for key, (n, total, _) in model.open.items()
        }, told
        change = random_.choice(CHANGES)
        print(told, "then", change)
        if change == "operator":
            at = min(at + 1, 3)
            query.operator = version(at)
        elif change == "reset" and batches > 2:
            batches = random_.randint(max(1, batches - 3), batches)
            reset(topic=query.topic, query=query.id, batch=batches - 1, checkpoint=query.checkpoint, options=options)
        elif change == "fork":
            batches = random_.randint(max(1, batches - 2), batches)
            directory, to = tmp_path / f"{step + 1}", f"history-{seed}-{step}"
            create_topic(sidecar.address, to, MOST_PARTITIONS)
            branch = Query(sidecar.address, to, directory)
            fork(
                topic=query.topic, to=to, checkpoint=branch.checkpoint, query=query.id, batch=batches - 1,
                options=options,
            )  # fmt: skip
            branch.operator, branch.partitions = query.operator, query.partitions
            query = branch
        elif change == "partitions":
            query.partitions = random_.randint(1, MOST_PARTITIONS)
        elif change == "wipe":
            shutil.rmtree(query.checkpoint.parent / "state", ignore_errors=True)
        elif change == "end" and batches < BATCHES:
            query.rows = [row for rows in epochs[: batches + 1] for row in rows]
            query.probe = EndsOnce(random_.choice(STEPS), batches)
            with pytest.raises(Ended):
                query.run(rows_per_batch=ROWS)
