"""A query's state read as a data frame: the open windows as of any epoch, and what is said where they are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import InvalidConfig
from spe_adapter.datasource.source import CairnDataSource
from spe_adapter.datasource.state_reader import StateReader, parse_state, state_schema
from spe_adapter.epochs.lookup import standing_epoch
from spe_adapter.errors import EpochNotFound, QueryNotFound, StateTrimmed
from spe_adapter.operators.base import Emitted, Rows
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import Timers
from tests.microbatch.below import Query
from tests.microbatch.operators import QUIET_MS, Model, Row, rows_of
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic

EPOCHS = 5


def test_each_epoch_has_its_windows(sidecar: Sidecar, tmp_path: Path) -> None:
    """As of every batch, the state is that of a model that has seen the batches up to it."""
    query = grown(sidecar, tmp_path, "read-epochs")
    model = Model()
    for batch, rows in enumerate(rows_of(EPOCHS, 20, 15)):
        model.epoch(rows)
        found = windows(sidecar, query.topic, batch=str(batch))
        assert {row["key"].decode(): (row["n"], row["total"]) for row in found} == {
            key: (n, total) for key, (n, total, _) in model.open.items()
        }
        assert all(row["expires_ms"] == row["last"] + QUIET_MS and row["number"] == 0 for row in found)
        assert {row["epoch"] for row in found} <= set(range(2 * batch + 1))
        assert found == windows(sidecar, query.topic, epoch=str(2 * batch), query=query.id)
    assert found == windows(sidecar, query.topic)


def test_partitions_are_read_as_of_one_epoch(sidecar: Sidecar, tmp_path: Path) -> None:
    """What is committed between the plan and its tasks is not read."""
    query = grown(sidecar, tmp_path, "read-between")
    options = parse_state({"state": query.topic, "kafka.bootstrap.servers": sidecar.address})
    reader = StateReader(options, state_schema(options))
    before = windows(sidecar, query.topic)
    planned = reader.partitions()
    query.rows += rows_of(EPOCHS + 1, 20, 15)[EPOCHS]
    query.run(rows_per_batch=20)
    assert [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()] == before
    assert windows(sidecar, query.topic) != before


def test_what_is_not_there_is_named(sidecar: Sidecar, tmp_path: Path) -> None:
    """No such query, several queries, no such epoch or batch, a topic without state, and a log that was trimmed."""
    create_topic(sidecar.address, "read-nothing", 2)
    with pytest.raises(QueryNotFound, match=r"'read-nothing'.*no query keeps state in it"):
        windows(sidecar, "read-nothing")
    query = grown(sidecar, tmp_path / "a", "read-missing")
    with pytest.raises(QueryNotFound, match=f"nobody has no state.*it has the state of {query.id}"):
        windows(sidecar, query.topic, query="nobody")
    with pytest.raises(EpochNotFound, match=r"epoch 3;.*epochs 0 to 8 \(Spark.s batches 0 to 4"):
        windows(sidecar, query.topic, epoch="3")
    with pytest.raises(EpochNotFound, match="batch 99"):
        windows(sidecar, query.topic, batch="99")
    other = grown(sidecar, tmp_path / "b", "read-missing", allow_other_queries="true")
    with pytest.raises(QueryNotFound, match="name one of these"):
        windows(sidecar, query.topic)
    assert windows(sidecar, query.topic, query=query.id) == windows(sidecar, query.topic, query=other.id)
    with Client(parse_addresses(sidecar.address)) as client:
        stream = TopicPartition(query.topic, 0)
        standing = standing_epoch(client, stream, query.id, batch=2)
        assert (standing.epoch, standing.progress.batch) == (4, 2)
        client.delete_records(stream, -1)
    with pytest.raises(StateTrimmed, match="trimmed to offset"):
        windows(sidecar, query.topic, query=query.id)


class Baskets(StatefulOperator):
    """Named states whose names are like those of the reader's columns, with times by both clocks."""

    states = {  # noqa: RUF012  as users write it
        "Key": ValueState(pa.int64(), ttl="1 hour"),
        "s_key": ListState(pa.string()),
        "kinds": MapState(pa.string(), pa.int64()),
    }
    event_time = "ts"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """Nothing that matters."""
        return pa.schema([("n", pa.int64())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Write to each."""
        owner, amount = rows.window, rows.batch.column("amount")
        states.value("Key").set(amount, owner)
        states.list("s_key").append(owner, amount.cast(pa.string()))
        states.map("kinds").put(owner, pa.repeat("k\u00e9y", len(owner)), amount)
        timers.register(owner, 100_000)
        return None


def test_named_states_have_their_keys_and_times(sidecar: Sidecar, tmp_path: Path) -> None:
    """Entries of maps have the key of the rows, and the map's; times by the wall are told as such times are; no two
    columns have names that Spark takes for one.
    """
    query = Query(sidecar.address, "read-named", tmp_path)
    query.operator = Baskets()
    create_topic(sidecar.address, query.topic, 2)
    query.rows = [Row("a", 1_000, 7), Row("b", 2_000, 8)]
    query.run()
    found = windows(sidecar, query.topic)
    names = list(found[0])
    assert names[3:6] == ["s_Key", "s_s_key", "kinds"]
    assert len({name.lower() for name in names}) == len(names)
    assert {row["key"] for row in found} == {b"a", b"b"}
    assert {(row["key"], row["#key"], row["kinds"]) for row in found if row["kinds"] is not None} == {
        (b"a", "k\u00e9y".encode(), 7),
        (b"b", "k\u00e9y".encode(), 8),
    }
    values = [row for row in found if row["s_Key"] is not None]
    assert {(row["key"], row["s_Key"]) for row in values} == {(b"a", 7), (b"b", 8)}
    assert all(0 < row["expires_ms"] < 2**50 for row in values)
    assert sorted(row["expires_ms"] for row in found if row not in values and row["expires_ms"] is not None) == [
        100_000,
        100_000,
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": " "}, "'state' is empty"),
        ({"epoch": "-1"}, "'epoch' is '-1'"),
        ({"epoch": "1", "batch": "1"}, r"'epoch' \(1\) and 'batch' \(1\)"),
        ({"startingOffsets": "earliest"}, "startingOffsets"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
    ],
)
def test_options_are_checked(options: dict[str, str], said: str) -> None:
    """A wrong option is an error that names it."""
    with pytest.raises(InvalidConfig, match=said):
        parse_state({"state": "topic", "kafka.bootstrap.servers": "127.0.0.1:1", **options})


@pytest.mark.spark
def test_a_data_frame_of_state(spark: SparkSession, sidecar: Sidecar, tmp_path: Path) -> None:
    """Spark finds the columns by itself, and reads one partition of the state in each task."""
    query = grown(sidecar, tmp_path, "read-frame")
    options = {"kafka.bootstrap.servers": sidecar.address, "state": query.topic}
    frame = spark.read.format("cairn").options(**options).option("batch", 3).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,number:bigint,expires_ms:bigint,n:bigint,total:bigint,last:bigint,partition:int,epoch:bigint>"
    )
    found = [row.asDict() for row in frame.collect()]
    assert sorted(map(repr, found)) == sorted(map(repr, windows(sidecar, query.topic, batch="3")))
    with pytest.raises(Exception, match=r"EpochNotFound.*epoch 3"):
        spark.read.format("cairn").options(**options).option("epoch", 3).load()
    with pytest.raises(InvalidConfig, match="only batch queries read state"):
        CairnDataSource(options).streamReader(frame.schema)


def grown(sidecar: Sidecar, directory: Path, topic: str, allow_other_queries: str = "false") -> Query:
    """A query that has run EPOCHS batches."""
    query = Query(sidecar.address, topic, directory)
    with Client(parse_addresses(sidecar.address)) as client:
        if topic not in client.topics(None):
            create_topic(sidecar.address, topic, 2)
    query.rows = [row for rows in rows_of(EPOCHS, 20, 15) for row in rows]
    query.run(rows_per_batch=20, allowOtherQueries=allow_other_queries)
    return query


def windows(sidecar: Sidecar, topic: str, **options: str) -> list[dict[str, Any]]:
    """The state that a reader with these options gives, row by row."""
    parsed = parse_state({"state": topic, "kafka.bootstrap.servers": sidecar.address, **options})
    reader = StateReader(parsed, state_schema(parsed))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []
