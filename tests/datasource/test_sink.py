"""The sink under a real Spark: each epoch once, from one execution, over all streams."""

from __future__ import annotations

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from logstore.cli import main
from logstore.client.blocking import Client, parse_addresses
from logstore.format.epoch_api import EPOCH_COMMIT, STAGE, DescribeRequest
from tests.datasource.proxy import Proxy, Trap
from tests.support.sidecar import Sidecar
from tests.support.spark_session import last_line, read_stream, write_stream
from tests.support.streams import Row, assert_exactly_once, create_topic, produce, read_all

pytestmark = pytest.mark.spark

WIDE = b"x" * 4000


def keys(first: int, end: int) -> list[bytes]:
    """Values of the input, which become keys of the output."""
    return [b"%06d" % number for number in range(first, end)]


def signed(frame: DataFrame, *, fail: str = "never") -> DataFrame:
    """key, value and headers of an output that differs with every execution: `epoch/task/who executed it`.

    `fail` makes the first try of every task end in the middle: by an exception, or with its worker killed.
    """

    def sign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        name = f"{context.getLocalProperty('streaming.sql.batchId')}/{context.partitionId()}/{os.urandom(6).hex()}"
        first_try = context.attemptNumber() == 0
        for batch in batches:
            rows = batch.num_rows
            value = pa.array([name.encode() + b" " + WIDE] * rows, pa.binary())
            yield pa.RecordBatch.from_arrays([batch.column("value"), value], names=["key", "value"])
            if first_try and rows and fail == "exception":
                raise RuntimeError("the first try fails")
            if first_try and rows and fail == "kill":
                os.kill(os.getpid(), 9)

    return frame.select("value").mapInArrow(sign, "key binary, value binary")


def assert_one_execution_per_task(rows: list[Row]) -> None:
    """All records of a task of an epoch were written by the same execution of it."""
    executions: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        assert row.value is not None
        epoch, task, who = row.value.split()[0].decode().split("/")
        executions[f"{epoch}/{task}"].add(who)
    assert {task: len(who) for task, who in executions.items() if len(who) > 1} == {}


@pytest.mark.parametrize("fail", ["never", "exception", "kill"])
def test_tasks_that_fail_leave_no_trace(
    spark: SparkSession, address: str, topic: str, checkpoint: Path, fail: str
) -> None:
    """A first try that has staged megabytes and dies counts for nothing: each record once, from one execution."""
    create_topic(address, f"{topic}-in", partitions=2)
    create_topic(address, f"{topic}-out", partitions=3)
    for partition in range(2):
        produce(address, f"{topic}-in", keys(2000 * partition, 2000 * partition + 2000), partition=partition)
    frame = signed(read_stream(spark, address, subscribe=f"{topic}-in", maxOffsetsPerTrigger="3000"), fail=fail)
    write_stream(frame, address, checkpoint, topic=f"{topic}-out")
    rows = read_all(address, f"{topic}-out")
    assert_exactly_once((row.key for row in rows), keys(0, 4000))
    assert_one_execution_per_task(rows)
    for row in rows:
        assert row.key is not None
        assert row.partition == (murmur2(row.key) & 0x7FFFFFFF) % 3


def test_columns_choose_topic_partition_headers_and_time(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """One epoch may write to several topics; a partition column wins over the key, a null in it does not."""
    for name in ("in", "even", "odd"):
        create_topic(address, f"{topic}-{name}", partitions=2)
    produce(address, f"{topic}-in", keys(0, 40))
    frame = read_stream(spark, address, subscribe=f"{topic}-in").selectExpr(
        "cast(value as string) as key",
        "cast(null as string) as value",
        f"concat('{topic}-', if(offset % 2 = 0, 'even', 'odd')) as topic",
        "if(offset < 20, cast(offset % 4 div 2 as int), null) as partition",
        "if(offset = 7, array(named_struct('key', 'h', 'value', cast('x' as binary))), null) as headers",
        "'not written' as note",
    )
    write_stream(frame, address, checkpoint)
    even, odd = read_all(address, f"{topic}-even"), read_all(address, f"{topic}-odd")
    assert_exactly_once((row.key for row in even), keys(0, 40)[::2])
    assert_exactly_once((row.key for row in odd), keys(0, 40)[1::2])
    assert {row.value for row in even + odd} == {None}
    for row in even + odd:
        assert row.key is not None
        number = int(row.key)
        expected = number % 4 // 2 if number < 20 else (murmur2(row.key) & 0x7FFFFFFF) % 2
        assert row.partition == expected
        assert row.headers == ((("h", b"x"),) if number == 7 else ())


def test_a_batch_query_writes_all_or_nothing(spark: SparkSession, address: str, topic: str) -> None:
    """A job whose last task fails for good leaves no record; run again, each is there once."""
    create_topic(address, topic, partitions=2)

    def numbers(broken: bool) -> DataFrame:
        def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            context = TaskContext.get()
            if broken and context is not None and context.partitionId() == 1:
                raise RuntimeError("this task always fails")

        frame = spark.range(0, 2000, numPartitions=2)
        return frame.selectExpr("lpad(id, 6, '0') as value").mapInArrow(check, "value string")

    with pytest.raises(PySparkException):
        write_batch(numbers(broken=True), address, topic)
    assert read_all(address, topic) == []
    write_batch(numbers(broken=False), address, topic)
    assert_exactly_once((row.value for row in read_all(address, topic)), keys(0, 2000))


def write_batch(frame: DataFrame, address: str, topic: str, **options: str) -> None:
    """A batch query into the sink."""
    writer = frame.write.format("cairn").mode("append").option("kafka.bootstrap.servers", address)
    writer.options(topic=topic, **options).save()


def test_complete_mode_appends_each_result_whole(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """An aggregation in complete mode writes all its rows each epoch, as with Spark's Kafka sink."""
    create_topic(address, f"{topic}-in")
    create_topic(address, f"{topic}-out")
    for first, expected in ((0, [b"5", b"5"]), (10, [b"5", b"5", b"10", b"10"])):
        produce(address, f"{topic}-in", keys(first, first + 10))
        frame = (
            read_stream(spark, address, subscribe=f"{topic}-in").selectExpr("offset % 2 as odd").groupBy("odd").count()
        )
        write_stream(
            frame.selectExpr("cast(count as string) as value"),
            address,
            checkpoint,
            mode="complete",
            topic=f"{topic}-out",
        )
        assert [row.value for row in read_all(address, f"{topic}-out")] == expected


def test_a_record_above_the_topics_limit_fails_the_query_by_name(spark: SparkSession, address: str, topic: str) -> None:
    """Refused when staged, so that no epoch is half published; the error says which setting."""
    create_topic(address, topic, config={"max.message.bytes": "2000"})
    frame = spark.range(1).selectExpr("repeat('x', 3000) as value")
    with pytest.raises(PySparkException) as caught:
        write_batch(frame, address, topic)
    assert "max.message.bytes 2000" in str(caught.value)
    assert "'kafka.batch.size'" in str(caught.value)
    write_batch(
        spark.range(300).selectExpr("repeat('x', 100) as value"), address, topic, **{"kafka.batch.size": "1500"}
    )
    assert len(read_all(address, topic)) == 300


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ("id as value", {"topic": "t"}, "column 'value' is bigint; allowed: string or binary"),
        ("cast(id as string) as text", {"topic": "t"}, "column 'value' (string or binary) is missing"),
        ("'v' as value", {}, "no topic: set the option 'topic', or add a column 'topic'"),
        ("'v' as value", {"topic": "t", "kafka.acks": "0"}, "option 'kafka.acks' is '0'; allowed: all, -1, 1"),
        ("'v' as value", {"topic": "t", "compress": "1"}, "option 'compress' is not one of the cairn sink's"),
        ("'v' as value", {"topic": "t", "rewoundCheckpoint": "no"}, "allowed: error, skip"),
    ],
)
def test_what_cannot_be_written_is_refused_at_planning(
    spark: SparkSession, address: str, columns: str, options: dict[str, str], what: str
) -> None:
    """The error names the column or the option and what is allowed, and no task runs."""
    frame = spark.range(5).selectExpr(columns)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("cairn").mode("append").option("kafka.bootstrap.servers", address).options(**options).save()
    assert what in last_line(caught.value)


def test_a_rewound_checkpoint_is_an_error_or_skipped_as_asked(
    spark: SparkSession, address: str, topic: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Epochs that are committed already and come again from an old checkpoint: an error naming both, or no doubles."""
    create_topic(address, f"{topic}-in")
    create_topic(address, f"{topic}-out")

    def run(place: Path, **options: str) -> None:
        frame = read_stream(spark, address, subscribe=f"{topic}-in", maxOffsetsPerTrigger="10").selectExpr("value")
        write_stream(frame, address, place, topic=f"{topic}-out", **options)

    produce(address, f"{topic}-in", keys(0, 10))
    run(checkpoint)
    old = tmp_path / "old"
    shutil.copytree(checkpoint, old)
    produce(address, f"{topic}-in", keys(10, 40))
    run(checkpoint)
    with pytest.raises(StreamingQueryException) as caught:
        run(old)
    assert "StaleEpoch" in str(caught.value)
    assert "epoch 1" in str(caught.value)
    assert "epoch 3" in str(caught.value)
    assert "rewoundCheckpoint" in str(caught.value)
    run(old, rewoundCheckpoint="skip")
    assert_exactly_once((row.value for row in read_all(address, f"{topic}-out")), keys(0, 40))
    produce(address, f"{topic}-in", keys(40, 50))
    run(old, rewoundCheckpoint="skip")
    assert_exactly_once((row.value for row in read_all(address, f"{topic}-out")), keys(0, 50))


def test_a_checkpoint_that_lost_its_newest_batch_is_refused_then_rebuilt(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """The number of the last committed batch, planned anew with more input, is refused and not dropped; with the
    checkpoint made from the log the query goes on, each record once. An empty checkpoint in its place is refused too.
    """
    create_topic(address, f"{topic}-in")
    create_topic(address, f"{topic}-out")

    def run() -> StreamingQuery:
        frame = read_stream(spark, address, subscribe=f"{topic}-in", maxOffsetsPerTrigger="10").selectExpr("value")
        return write_stream(frame, address, checkpoint, topic=f"{topic}-out")

    produce(address, f"{topic}-in", keys(0, 15))
    query = run()
    for name in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc"):
        (checkpoint / name).unlink()
    produce(address, f"{topic}-in", keys(15, 40))
    with pytest.raises(StreamingQueryException, match=r"CheckpointDiffers.*lost batch 1"):
        run()
    rebuild = ["checkpoint", "rebuild", str(checkpoint), "--query", str(query.id), "--servers", address]
    assert main(rebuild) == 0
    run()
    assert_exactly_once((row.value for row in read_all(address, f"{topic}-out")), keys(0, 40))
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match=rf"TopicTaken.*{query.id}"):
        run()
    shutil.rmtree(checkpoint)
    assert main(rebuild) == 0
    produce(address, f"{topic}-in", keys(40, 50))
    run()
    assert_exactly_once((row.value for row in read_all(address, f"{topic}-out")), keys(0, 50))


def test_the_sidecar_learns_who_commits(spark: SparkSession, address: str, topic: str, checkpoint: Path) -> None:
    """Query, incarnation (its run id) and epoch arrive from Spark as they are: the ids that its own progress shows."""
    create_topic(address, f"{topic}-in")
    produce(address, f"{topic}-in", keys(0, 10))
    frame = read_stream(spark, address, subscribe=f"{topic}-in").selectExpr("value")
    query = write_stream(frame, address, checkpoint, topic=f"{topic}-out")
    with Client(parse_addresses(address)) as client:
        known = client.describe(DescribeRequest(str(query.id)))
    assert (known.last_epoch, known.incarnation, known.staged_bytes) == (0, str(query.runId), 0)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("api_key", "moment"), [(STAGE, "before"), (STAGE, "after"), (EPOCH_COMMIT, "before"), (EPOCH_COMMIT, "after")]
)
def test_the_sidecar_killed_at_each_step_of_a_commit(
    spark: SparkSession, tmp_path: Path, checkpoint: Path, api_key: int, moment: str
) -> None:
    """kill −9 before and after staging and committing; the query waits for it and each record is there once."""
    restarted = threading.Event()
    with Sidecar(tmp_path / "data") as own, Proxy(own_port(own)) as proxy:

        def kill_and_restart() -> bool:
            own.kill()
            own.restart()
            restarted.set()
            return False

        create_topic(own.address, "in", partitions=2)
        create_topic(own.address, "out", partitions=2)
        for partition in range(2):
            produce(own.address, "in", keys(1000 * partition, 1000 * partition + 1000), partition=partition)
        frame = signed(read_stream(spark, own.address, subscribe="in", maxOffsetsPerTrigger="700"))
        proxy.set(Trap(api_key, "before" if moment == "before" else "after", kill_and_restart, nth=2))
        write_stream(frame, proxy.address, checkpoint, topic="out")
        assert restarted.is_set()
        rows = read_all(own.address, "out")
        assert_exactly_once((row.key for row in rows), keys(0, 2000))
        assert_one_execution_per_task(rows)


def own_port(sidecar: Sidecar) -> int:
    """The port of a sidecar that runs."""
    return sidecar.port
