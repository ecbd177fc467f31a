"""The results of a query as columns: `.option("resultFormat", "avro")` or `"arrow"` on `spark.read` and `readStream`.

    spark.readStream.format("cairn").option("subscribe", "averages").option("resultFormat", "avro").load()

Invariants:
* Which records are read, and how often, is decided as for any source of records; this module only takes values apart.
* The columns of the data frame are those that the newest epoch of the first topic tells, or those of the option
  `columns`; they do not change while the query runs.
* A value is decoded by the columns that it was written with. A column that the data frame has and the value has not is
  null; a column that the data frame has not is left out; a type that does not fit is an error that names the column.
* A record in another format is an error that names its stream and offset.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from logstore.client.blocking import Client
from logstore.client.network import HostNetwork, Network
from logstore.client.wire import TopicPartition
from logstore.errors import CorruptBatch
from spe_adapter.cec.control import EndPositions, holds_progress
from spe_adapter.codec import avro
from spe_adapter.datasource.catalogue import Catalogue
from spe_adapter.datasource.options import SECURITY_OPTIONS, SUBSCRIPTIONS, OptionReader, SourceOptions, parse_source
from spe_adapter.epochs.client import connect
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.formats import ResultColumns, stream_rows

FORMAT_OPTION: Final = "resultFormat"
COLUMNS_OPTION: Final = "columns"
_FORMATS: Final = ("records", "avro", "arrow")
"""The values of the option, the default (records as they are) first."""
_ZONE: Final = "UTC"
_FOR_LOOKUP: Final = frozenset(
    name.lower()
    for name in (
        *SUBSCRIPTIONS,
        *SECURITY_OPTIONS,
        "kafka.bootstrap.servers",
        "kafka.client.id",
        "kafka.default.api.timeout.ms",
    )
)
"""The options that say where the columns are told; whether the query is streaming is not known then."""


def reads_results(options: Mapping[str, str]) -> bool:
    """Whether the options ask for results as columns instead of records. Raises InvalidConfig."""
    return OptionReader(options).choice(FORMAT_OPTION, _FORMATS, _FORMATS[0]) != _FORMATS[0]


def without_results(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the source of records below."""
    own = (FORMAT_OPTION.lower(), COLUMNS_OPTION)
    return {name: value for name, value in options.items() if name.lower() not in own}


def result_schema(options: Mapping[str, str], network: Network | None = None) -> StructType | str:
    """The columns of the data frame: the option `columns` (DDL), or what the newest epoch tells.

    Raises SchemaRefused if no epoch tells columns, and the client's errors.
    """
    given = OptionReader(options).text(COLUMNS_OPTION)
    if given is not None:
        return given
    wanted = OptionReader(options).choice(FORMAT_OPTION, _FORMATS, _FORMATS[0])
    named = {name: value for name, value in options.items() if name.lower() in _FOR_LOOKUP}
    parsed = parse_source(named, streaming=True)
    with connect(parsed, network or HostNetwork()) as client:
        streams = Catalogue(client, parsed.subscription).streams()
        for stream in streams:
            for told in result_columns(client, stream):
                if told.format == wanted:
                    return from_arrow_schema(_readable(told.schema))
    raise SchemaRefused(
        f"no epoch in {', '.join(sorted({stream.topic for stream in streams}))} tells columns of results in the format "
        f"{wanted!r}: no query has written such results there yet; name them with the option {COLUMNS_OPTION!r}"
    )


def result_columns(client: Client, stream: TopicPartition) -> Iterator[ResultColumns]:
    """The formats and columns of the results in a stream, newest epoch first, each once in a row."""
    last: Any = None
    with closing(ends(client, stream)) as found:
        for end, _ in found:
            if not holds_progress(end):
                continue
            fields = EndPositions.from_json(end.positions).results
            if fields is not None and fields != last:
                last = fields
                yield ResultColumns.from_fields(fields)


def _readable(schema: pa.Schema) -> pa.Schema:
    """Columns in types that Spark has: timestamps with a zone are Spark's, whatever their zone is called."""
    return pa.schema([field.with_type(_zoned(field.type)) for field in schema])


def _zoned(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and _ZONE)
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(at).with_type(_zoned(kind.field(at).type)) for at in range(kind.num_fields)])
    return pa.list_(_zoned(kind.value_type)) if pa.types.is_list(kind) else kind


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """The format in which the values are, and the columns of the data frame."""

    format: str
    schema: StructType


def parse_results(options: Mapping[str, str], schema: StructType) -> ResultOptions | None:
    """The options of a reader of results; None where records are asked for. Raises InvalidConfig."""
    if not reads_results(options):
        return None
    wanted = OptionReader(options).choice(FORMAT_OPTION, _FORMATS, _FORMATS[0])
    return ResultOptions(wanted, schema)


def read_results(
    records: Iterator[pa.RecordBatch],
    stream: TopicPartition,
    wanted: ResultOptions,
    source: SourceOptions,
    network: Network,
) -> Iterator[pa.RecordBatch]:
    """The rows of the records of a stream, in their order. Raises CorruptBatch, SchemaRefused and the errors of
    `records`.
    """
    decoder = _ResultDecoder(stream, wanted, source, network)
    for batch in records:
        yield from decoder.decode(batch)


class _ResultDecoder:
    """Takes the values of one stream's records apart."""

    def __init__(self, stream: TopicPartition, wanted: ResultOptions, source: SourceOptions, network: Network) -> None:
        self._stream = stream
        self._format = wanted.format
        self._schema = to_arrow_schema(wanted.schema, timezone=_ZONE)
        self._source = source
        self._network = network
        self._known: dict[bytes, dict[str, Any]] = {}

    def decode(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values = records.column("value").cast(pa.binary())
        try:
            if self._format == "arrow":
                for value in values:
                    if not value.is_valid:
                        raise CorruptBatch("a record without a value")
                    yield from map(self._as_wanted, stream_rows(value.as_buffer()).combine_chunks().to_batches())
            else:
                yield from self._avro(values)
        except CorruptBatch as error:
            first, last = (records.column("offset")[at].as_py() for at in (0, records.num_rows - 1))
            raise CorruptBatch(
                f"{self._stream}, offsets {first} to {last}: records that are not results in the format "
                f"{self._format!r}: {error}. Start after them "
                f"(startingOffsets), or read the topic without {FORMAT_OPTION!r}"
            ) from error

    def _avro(self, values: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Rows by runs of records with one schema."""
        heads = avro.fingerprints(values)
        if heads.null_count:
            raise CorruptBatch(f"{heads.null_count} of {len(heads)} have no fingerprint of a schema")
        runs = pc.run_end_encode(heads)
        start = 0
        for end, head in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            yield self._as_wanted(avro.decode(values.slice(start, end - start), self._described(head)))
            start = end

    def _described(self, head: bytes) -> dict[str, Any]:
        """The Avro schema with a fingerprint, from the epochs of the stream."""
        if head not in self._known:
            with connect(self._source, self._network) as client:
                for told in result_columns(client, self._stream):
                    if told.format == "avro":
                        described = avro.avro_schema(told.schema)
                        self._known[avro.fingerprint(described)] = described
                        if head in self._known:
                            break
        if head not in self._known:
            raise CorruptBatch(f"no epoch in {self._stream} tells the schema with fingerprint {head.hex()}")
        return self._known[head]

    def _as_wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            index = rows.schema.get_field_index(field.name)
            if index < 0:
                columns.append(pa.nulls(rows.num_rows, field.type))
                continue
            column = rows.column(index)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaRefused(
                    f"result column {field.name!r} is {column.type} and does not fit {field.type}: {error}"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
