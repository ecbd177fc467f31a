"""Results as Avro and Arrow: once each, whatever ends, and columns again for whoever reads them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import CorruptBatch, InvalidConfig
from spe_adapter.codec import avro
from spe_adapter.datasource.result_reader import result_columns, result_schema
from spe_adapter.datasource.source import CairnDataSource
from spe_adapter.errors import SchemaRefused
from spe_adapter.microbatch.epoch import STEPS, Step
from spe_adapter.operators.formats import RECORD_TARGET_BYTES, formatted, stream_rows
from spe_adapter.operators.output import Output
from tests.microbatch.below import Query
from tests.microbatch.operators import Model, Visits, rows_of
from tests.microbatch.test_changed_operators import Ended, EndsOnce
from tests.microbatch.world import World, by_key
from tests.support.sidecar import Sidecar
from tests.support.spark_session import finish
from tests.support.streams import create_topic, produce, read_all

EPOCHS = rows_of(5, 20, 12)


class Raw(Visits):
    """An operator that gives the values itself."""

    def output(self, schema: pa.Schema) -> pa.Schema:
        """One column."""
        return pa.schema([("value", pa.string())])


def grown(sidecar: Sidecar, directory: Path, topic: str, result_format: str, probe: Any = None) -> Query:
    """A query that has told all epochs in a format; it is ended once if there is a probe."""
    create_topic(sidecar.address, topic, 2)
    query = Query(sidecar.address, topic, directory)
    query.rows = [row for rows in EPOCHS for row in rows]
    if probe is not None:
        query.probe = probe
        with pytest.raises(Ended):
            query.run(rows_per_batch=20, resultFormat=result_format)
    query.run(rows_per_batch=20, resultFormat=result_format)
    return query


def expected() -> dict[str, list[tuple[int, int, bool]]]:
    """What is told, by key."""
    model = Model()
    for rows in EPOCHS:
        model.epoch(rows)
    return by_key(model.told)


def options_of(sidecar: Sidecar, topic: str, result_format: str, **more: str) -> dict[str, str]:
    """The options of a reader."""
    named = {"kafka.bootstrap.servers": sidecar.address, "subscribe": topic, "resultFormat": result_format}
    return {**named, **more}


def told(sidecar: Sidecar, topic: str, result_format: str) -> dict[str, list[tuple[int, int, bool]]]:
    """The results that a reader gives, by key."""
    options = options_of(sidecar, topic, result_format)
    source = CairnDataSource(options)
    schema = source.schema()
    assert not isinstance(schema, str)
    reader = source.reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in _rows(batch)]
    return by_key([(row["key"], row["n"], row["total"], row["last"]) for row in rows])


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    return iter(batch.to_pylist())


@pytest.mark.parametrize("result_format", ["avro", "arrow"])
@pytest.mark.parametrize("step", [None, *STEPS])
def test_each_result_is_read_once(sidecar: Sidecar, tmp_path: Path, result_format: str, step: Step | None) -> None:
    """With an end at any step of an epoch, or without: columns and values are those of the operator."""
    topic = f"formats-{result_format}-{(step or 'none').replace(' ', '-')}"
    grown(sidecar, tmp_path, topic, result_format, None if step is None else EndsOnce(step, 2))
    assert told(sidecar, topic, result_format) == expected()


def test_records_are_plain_avro(sidecar: Sidecar, tmp_path: Path) -> None:
    """Any client that finds the schema reads them: the key beside them, the fingerprint in front."""
    query = grown(sidecar, tmp_path, "formats-plain", "avro")
    with Client(parse_addresses(sidecar.address)) as client:
        (columns,) = result_columns(client, TopicPartition(query.topic, 0))
    described = avro.avro_schema(columns.schema)
    found = []
    for record in read_all(sidecar.address, query.topic):
        assert record.value is not None
        assert record.value[:10] == b"\xc3\x01" + avro.fingerprint(described)
        row = fastavro.schemaless_reader(io.BytesIO(record.value[10:]), fastavro.parse_schema(described), None)
        assert isinstance(row, dict)
        assert record.key == str(row["key"]).encode()
        found.append((row["key"], row["n"], row["total"], row["last"]))
    assert by_key(found) == expected()


def test_many_results_are_few_arrow_records() -> None:
    """Each record stays below its limit, but for a row that is larger; each has the newest time of its rows."""
    rows = pa.RecordBatch.from_pydict({"n": pa.array(range(200_000), pa.int64()), "text": ["x" * 10] * 200_000})
    keys = pa.array([b"k"] * 200_000, pa.binary())
    output = Output(keys, rows, rows.column(0).to_numpy())
    made = formatted(output, "arrow")
    assert len(made.values) <= 2 * rows.nbytes // RECORD_TARGET_BYTES + 1
    assert all(len(value.as_py()) <= RECORD_TARGET_BYTES for value in made.values)
    parts = [stream_rows(value.as_py()) for value in made.values]
    assert pa.concat_tables(parts).combine_chunks().to_batches()[0].equals(rows)
    assert made.times_ms is not None
    assert made.times_ms.tolist() == [part.column("n")[-1].as_py() for part in parts]
    large = pa.RecordBatch.from_pydict({"text": ["x" * RECORD_TARGET_BYTES] * 3})
    assert len(formatted(Output(keys.slice(0, 3), large, None), "arrow").values) == 3


def test_what_cannot_be_read_is_named(sidecar: Sidecar, tmp_path: Path) -> None:
    """A topic without such results, records in another format, and an option that is wrong."""
    create_topic(sidecar.address, "formats-none", 1)
    with pytest.raises(SchemaRefused, match="no epoch in formats-none tells columns of results in the format 'avro'"):
        result_schema(options_of(sidecar, "formats-none", "avro"))
    with pytest.raises(InvalidConfig, match="'resultFormat' is 'csv'; allowed: records, avro, arrow"):
        CairnDataSource(options_of(sidecar, "formats-none", "csv")).schema()
    query = grown(sidecar, tmp_path, "formats-mixed", "avro")
    produce(sidecar.address, query.topic, [b'{"n":1}'], partition=1)
    with pytest.raises(CorruptBatch, match=r"formats-mixed-1, offsets .* not results in the .* 'avro'.*fingerprint"):
        told(sidecar, query.topic, "avro")
    query.operator = Raw()
    with pytest.raises(SchemaRefused, match="'resultFormat' is 'arrow', but the operator gives"):
        query.run(resultFormat="arrow")


def test_columns_may_change(sidecar: Sidecar, tmp_path: Path) -> None:
    """Results of a later operator have other columns: each is read by those that it was written with."""

    class More(Visits):
        description = "Visits"

        def output(self, schema: pa.Schema) -> pa.Schema:
            return pa.schema([*super().output(schema), ("mean", pa.float64())])

        def process(self, rows: Any, state: Any) -> pa.RecordBatch:
            return _with_mean(super().process(rows, state))

        def expire(self, state: Any, watermark_ms: int) -> pa.RecordBatch:
            return _with_mean(super().expire(state, watermark_ms))

    for result_format in ("avro", "arrow"):
        query = grown(sidecar, tmp_path / result_format, f"formats-change-{result_format}", result_format)
        before = sum(map(len, told(sidecar, query.topic, result_format).values()))
        query.operator = More()
        query.rows += rows_of(6, 20, 12)[5]
        query.run(rows_per_batch=20, resultFormat=result_format)
        source = CairnDataSource(options_of(sidecar, query.topic, result_format))
        schema = source.schema()
        assert not isinstance(schema, str)
        assert schema.names == ["key", "n", "total", "last", "mean"]
        reader = source.reader(schema)
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in _rows(batch)]
        assert sum(row["mean"] is None for row in rows) == before
        assert all(row["mean"] in (None, row["total"] / row["n"]) for row in rows)


def _with_mean(told: Any) -> pa.RecordBatch:
    mean = told.column("total").to_numpy() / told.column("n").to_numpy()
    return pa.RecordBatch.from_arrays([*told.columns, pa.array(mean)], names=[*told.schema.names, "mean"])


@pytest.mark.spark
def test_columns_in_spark(world: World, spark: SparkSession) -> None:
    """A query writes Avro; another one reads all columns as a stream, and a third those that it names."""
    for rows in EPOCHS:
        world.feed(rows)
    world.run(world.query(rows_per_batch=20).option("resultFormat", "avro"))
    model = Model()
    for rows in EPOCHS:
        model.epoch(rows)
    model.pause()
    frame = (
        spark.readStream.format("cairn")
        .options(**{"kafka.bootstrap.servers": world.address, "subscribe": world.topic})
        .options(resultFormat="avro", startingOffsets="earliest")
        .load()
    )
    assert frame.schema.simpleString() == "struct<key:string,n:bigint,total:bigint,last:boolean>"
    finish(frame.writeStream.format("memory").queryName("told_columns").trigger(availableNow=True).start())
    found = [tuple(row) for row in spark.sql("select key, n, total, last from told_columns").collect()]
    assert sorted(found) == sorted(model.told)
    some = (
        spark.read.format("cairn")
        .options(**{"kafka.bootstrap.servers": world.address, "subscribe": world.topic})
        .options(resultFormat="avro", columns="key string, total double, extra int")
        .load()
    )
    assert sorted((row["key"], int(row["total"])) for row in some.collect() if row["extra"] is None) == sorted(
        (key, total) for key, _, total, _ in model.told
    )
