"""The option `lateTopic`: rows that came too late, in a topic of their own, in the same epochs as the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.errors import InvalidConfig, InvalidPartitions
from spe_adapter.errors import SchemaRefused
from spe_adapter.microbatch.frames import check_late
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.topics import prepare_late_topic
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Running, Tumbling
from tests.microbatch.below import PARTITIONS, SCHEMA, Query
from tests.microbatch.operators import Row, rows_of
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, read_all

MINUTE = Tumbling("10 seconds", time="ts", delay="1 second")
COUNTS = Aggregate(MINUTE, n=agg.count(), total=agg.sum("amount"))


def values_of(address: str, topic: str) -> list[dict[str, Any]]:
    """The records' values of a topic."""
    return [json.loads(row.value or b"null") for row in read_all(address, topic)]


def test_each_row_is_counted_or_late_exactly_once(sidecar: Sidecar, tmp_path: Path) -> None:
    """Whatever is repeated because a driver died before its batch was noted: rows in results and late rows add up."""
    query = Query(sidecar.address, "late-out", tmp_path)
    query.operator = COUNTS
    create_topic(sidecar.address, "late-out", PARTITIONS)
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_late_topic(client, "late-rows", PARTITIONS)
    rows = [row for epoch in rows_of(6, 20, 8, seed=3) for row in epoch]
    query.rows = [row._replace(ms=row.ms if at % 7 else max(row.ms - 60_000, 0)) for at, row in enumerate(rows)]
    last = max(row.ms for row in query.rows)
    query.run(rows_per_batch=20, dies_before_commit=True, lateTopic="late-rows")
    query.run(rows_per_batch=20, lateTopic="late-rows")
    for minutes in (1, 2):
        query.rows.append(Row("end", last + minutes * 60_000, 0))
        query.run(lateTopic="late-rows")
    late, results = values_of(sidecar.address, "late-rows"), values_of(sidecar.address, "late-out")
    assert len(late) > 5
    assert {tuple(row) for row in late} == {("key", "ts", "amount")}
    told = sum(result["n"] for result in results if result["key"] != "end")
    ours = [row for row in query.rows if row.key != "end"]
    assert told + len(late) == len(ours)
    paid = sum(result["total"] or 0 for result in results) + sum(row["amount"] for row in late)
    assert paid == sum(row.amount for row in ours)
    known = {(row.key, row.amount) for row in ours}
    assert all((row["key"], row["amount"]) in known for row in late)


def test_a_topic_for_late_rows_has_a_partition_for_each_of_the_states(sidecar: Sidecar) -> None:
    """It is created so; one with fewer is refused, one with more is taken."""
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_late_topic(client, "late-new", 3)
        assert client.partitions("late-new") == 3
        prepare_late_topic(client, "late-new", 2)
        create_topic(sidecar.address, "late-few", 1)
        with pytest.raises(InvalidPartitions, match="2 state partitions, but topic 'late-few', for late rows, has 1"):
            prepare_late_topic(client, "late-few", 2)


def test_what_late_rows_exclude_is_refused() -> None:
    """The results' own topic, combining, operators without event time, columns that cannot be written."""
    servers = {"kafka.bootstrap.servers": "localhost:1"}
    assert parse_stateful({**servers, "lateTopic": "late"}, "out").combine == "never"
    with pytest.raises(InvalidConfig, match="option 'lateTopic' is 'out'; write the name of a topic other than"):
        parse_stateful({**servers, "lateTopic": "out"}, "out")
    with pytest.raises(InvalidConfig, match="'combine' = always and 'lateTopic' exclude each other"):
        parse_stateful({**servers, "lateTopic": "late", "combine": "always"}, "out")
    with pytest.raises(InvalidConfig, match="operator Aggregate uses no event time"):
        check_late(Aggregate(Running(), n=agg.count()), SCHEMA)
    with pytest.raises(SchemaRefused, match="with 'lateTopic', column 'm' is map"):
        check_late(COUNTS, SCHEMA.append(pa.field("m", pa.map_(pa.string(), pa.string()))))
