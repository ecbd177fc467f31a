"""The `cairn` data source for Spark, a replacement for Spark's Kafka source.

Invariants:
* Columns, options, offsets and their meaning are those of Spark's Kafka source. Records are Arrow batches throughout.
* Spark pickles these objects between its driver, its planning worker and its tasks, so they hold options, never
  connections.
* The offsets given to Spark only grow, unless data is lost and the query's options accept the loss.

Source: pyspark.sql.datasource; Spark's Structured Streaming + Kafka Integration Guide.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logstore.client.network import HostNetwork, Network
from logstore.errors import InvalidConfig
from spe_adapter.datasource.catalogue import Catalogue
from spe_adapter.datasource.offsets import JsonOffsets, Offsets, TopicPartition, began_of, from_json, names, to_json
from spe_adapter.datasource.options import SOURCE_NAME, SourceOptions, include_headers, parse_sink, parse_source
from spe_adapter.datasource.ranges import StreamRange, available, limited, split
from spe_adapter.datasource.reading import read_range, refuse_loss
from spe_adapter.datasource.registration import Registration
from spe_adapter.datasource.result_reader import (
    ResultOptions,
    parse_results,
    read_results,
    reads_results,
    result_schema,
    without_results,
)
from spe_adapter.datasource.sink import BatchWriter, StreamWriter, check_schema
from spe_adapter.datasource.state_reader import StateReader, parse_state, reads_state, state_schema
from spe_adapter.epochs.client import connect
from spe_adapter.errors import SchemaRefused
from spe_adapter.workers.collector import spare_loaded_code

MIN_LOOKUP_INTERVAL_S: Final = 0.02
"""Spark asks an idle source about 70 times a second; a lookup that changed nothing is not repeated sooner than this."""

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_FIELDS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)


def source_schema(*, with_headers: bool) -> StructType:
    """The columns of Spark's Kafka source."""
    return StructType([*_FIELDS, *([StructField("headers", _HEADERS)] if with_headers else [])])


class CairnDataSource(DataSource):
    """`format("cairn")`: streams of a sidecar as a source and an exactly-once sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given: dict[str, str] = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return SOURCE_NAME

    def schema(self) -> StructType | str:
        """The columns of Spark's Kafka source, or those of a query's state (option `state`) or of its results (option
        `resultFormat`).
        """
        if reads_state(self._given):
            return state_schema(parse_state(self._given))
        if reads_results(self._given):
            return result_schema(self._given)
        return source_schema(with_headers=include_headers(self._given))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query. Raises InvalidConfig and SchemaRefused."""
        if reads_state(self._given):
            return StateReader(parse_state(self._given), schema)
        results = self._results(schema)
        return BatchReader(parse_source(without_results(self._given), streaming=False), results=results)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query. Raises InvalidConfig and SchemaRefused."""
        if reads_state(self._given):
            raise InvalidConfig("option 'state' is set, but only batch queries read state; use spark.read")
        results = self._results(schema)
        return StreamReader(parse_source(without_results(self._given), streaming=True), results=results)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer of a batch query. Raises InvalidConfig and SchemaRefused."""
        options = parse_sink(self._given)
        if overwrite:
            raise SchemaRefused("mode 'overwrite' is not supported: a stream only grows; use append")
        check_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """The exactly-once writer of a streaming query. Raises InvalidConfig and SchemaRefused.

        `overwrite` is set in the output mode "complete": each epoch then appends the whole result, as with Spark's
        Kafka sink.
        """
        options = parse_sink(self._given)
        check_schema(schema, options)
        return StreamWriter(options)

    def _results(self, schema: StructType) -> ResultOptions | None:
        """How values become columns; None if records are read, whose schema is fixed. Raises SchemaRefused."""
        results = parse_results(self._given, schema)
        expected = source_schema(with_headers=include_headers(self._given))
        if results is None and schema != expected:
            raise SchemaRefused(
                f"the cairn source has a fixed schema, {expected.simpleString()}; {schema.simpleString()} was given"
            )
        return results


class RangePartition(InputPartition):
    """The input of one task: a range of one stream."""

    def __init__(self, piece: StreamRange) -> None:
        super().__init__(None)
        self.piece = piece


class BatchReader(DataSourceReader):
    """Reads the records between two positions, which are resolved to offsets once."""

    def __init__(
        self, options: SourceOptions, network: Network | None = None, results: ResultOptions | None = None
    ) -> None:
        self._options = options
        self._results = results
        self._network: Network = network or HostNetwork()

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read."""
        options = self._options
        with connect(options, self._network) as client:
            catalogue = Catalogue(client, options.subscription)
            streams = catalogue.streams()
            start = catalogue.resolve(options.starting, streams, options.strategy)
            end = catalogue.resolve(options.ending, streams, "latest")
        ranges = [StreamRange(stream, start[stream], end[stream]) for stream in sorted(streams)]
        pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range, in a task."""
        if isinstance(partition, RangePartition):  # without any range, Spark calls this with a partition of its own
            spare_loaded_code()
            yield from _rows(partition.piece, self._options, self._results, self._network)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver's planning worker, reads them in tasks."""

    def __init__(
        self, options: SourceOptions, network: Network | None = None, results: ResultOptions | None = None
    ) -> None:
        self._options = options
        self._results = results
        self._network: Network = network or HostNetwork()
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_planner": None}

    @property
    def _plan(self) -> "_Planner":
        if self._planner is None:
            self._planner = _Planner(self._options, self._network)
        return self._planner

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
        """The offsets where a query without a checkpoint starts."""
        initial = self._plan.initial()
        return to_json(initial, initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit that the options set per trigger."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        return ReadMinRows(limits.min_offsets) if limits.min_offsets is not None else ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        """The end of the next micro-batch, or `start` if there is nothing to read. The end of the first batch includes
        its start.
        """
        position, began = from_json(start), began_of(start)
        end = self._plan.next_end(position, limit)
        return to_json(end, began if began == position or end == position else None)

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802 - Spark's name
        """The newest offsets that the sidecar has reported. Spark's progress derives the query's lag from them."""
        return to_json(self._plan.seen) if self._plan.seen else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query at the newest offsets."""
        self._plan.stop_at_latest()

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """The ranges of a micro-batch. Raises DataLost for lost records, unless the options accept the loss."""
        position, began = from_json(start), began_of(end)
        if began is not None and began_of(start) == position:
            # The first batch runs again after a crash. `initialOffset` may have changed since, above all with "latest".
            position = began
        return [RangePartition(piece) for piece in self._plan.ranges(position, from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range, in a task."""
        if isinstance(partition, RangePartition):
            spare_loaded_code()
            yield from _rows(partition.piece, self._options, self._results, self._network)

    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        """Acknowledge the position if the query is a registered reader; Spark's checkpoint keeps it in any case."""
        self._plan.committed(from_json(end))

    def stop(self) -> None:
        """Close the connection."""
        if self._planner is not None:
            self._planner.close()


def _rows(
    piece: StreamRange, options: SourceOptions, results: ResultOptions | None, network: Network
) -> Iterator[pa.RecordBatch]:
    records = read_range(piece, options, network)
    return records if results is None else read_results(records, piece.stream, results, options, network)


class _Planner:
    """The driver's side of a streaming query: one client, and the state that lasts from trigger to trigger."""

    def __init__(self, options: SourceOptions, network: Network) -> None:
        self._options = options
        self._network = network
        self._client = connect(options, network)
        self._catalogue = Catalogue(self._client, options.subscription)
        self._last_lookup_s = -MIN_LOOKUP_INTERVAL_S
        self._last_trigger_s: float | None = None
        self._target: Offsets | None = None
        self.seen: Offsets = {}
        self._registration = (
            None if options.reader is None
            else Registration(self._client, self._catalogue, options.reader, self._lost)
        )  # fmt: skip

    def _begin(self, position: Offsets) -> None:
        if self._registration is not None:
            self._registration.begin(position)

    def _add(self, found: Offsets, position: Offsets) -> None:
        if self._registration is not None:
            self._registration.add(found, position)

    def committed(self, end: Offsets) -> None:
        if self._registration is not None:
            self._registration.acknowledge(end)

    def close(self) -> None:
        self._client.close()

    def initial(self) -> Offsets:
        return self._catalogue.resolve(self._options.starting, self._catalogue.streams(), self._options.strategy)

    def stop_at_latest(self) -> None:
        self._target = self.seen = self._catalogue.latest(self._catalogue.streams())

    def next_end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        self._begin(start)
        latest = self._latest(start)
        self._check_not_lost(start, latest)
        new = self._catalogue.earliest(set(latest) - set(start))
        self._add(new, start)
        position = {**new, **start}
        if not isinstance(limit, ReadAllAvailable) and self._held_back(position, latest):
            return start
        if isinstance(limit, ReadMaxRows):
            return limited(position, latest, limit.max_rows)
        return latest

    def _latest(self, start: Offsets) -> Offsets:
        """The newest offsets. While no record arrives, the sidecar is asked once per MIN_LOOKUP_INTERVAL_S."""
        if self._target is not None:
            return self._target
        wait_s = self._last_lookup_s + MIN_LOOKUP_INTERVAL_S - self._network.monotonic_s()
        if self.seen == start and wait_s > 0:
            self._network.sleep(wait_s)
        latest = self._catalogue.latest(self._catalogue.streams(start))
        self._last_lookup_s = self._network.monotonic_s()
        self.seen = latest
        return latest

    def _held_back(self, position: Offsets, latest: Offsets) -> bool:
        """Whether there are fewer offsets than `minOffsetsPerTrigger`, and `maxTriggerDelay` allows waiting."""
        min_offsets = self._options.limits.min_offsets
        # A query that ends at a fixed offset must reach it, however few records are left.
        if min_offsets is None or self._target is not None:
            return False
        now_s = self._network.monotonic_s()
        due = self._last_trigger_s is None or (now_s - self._last_trigger_s) * 1000 >= self._options.limits.max_delay_ms
        if not due and available(position, latest) < min_offsets:
            return True
        self._last_trigger_s = now_s
        return False

    def ranges(self, start: Offsets, end: Offsets) -> list[StreamRange]:
        self._begin(start)
        self._check_not_lost(start, end)
        added = sorted(set(end) - set(start))
        first = self._catalogue.earliest(added)
        self._add(first, start)
        for stream in added:
            if first[stream] > 0:
                self._lost(f"{stream} is new but starts at offset {first[stream]}; the records before it are gone")
        position = {**first, **start}
        ranges = [StreamRange(stream, position[stream], end[stream]) for stream in sorted(end)]
        return split(ranges, self._options.min_partitions, self._options.max_records_per_partition)

    def _check_not_lost(self, start: Offsets, end: Offsets) -> None:
        gone: list[TopicPartition] = sorted(set(start) - set(end))
        if gone:
            self._lost(f"{names(gone)} existed and does not any more; what was not read of it is gone")
        for stream in sorted(set(start) & set(end)):
            if end[stream] < start[stream]:
                self._lost(
                    f"{stream} ends at offset {end[stream]}, below {start[stream]} where this query stands: it was "
                    "deleted and created again, or lost its end; records are gone"
                )

    def _lost(self, what: str) -> None:
        refuse_loss(self._options, what, self._client.where)
