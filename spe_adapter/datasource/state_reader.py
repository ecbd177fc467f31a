"""The state of a query as a data frame: `spark.read.format("cairn").option("state", TOPIC).load()`.

| column | type | meaning |
|---|---|---|
| key | binary | the key's bytes, null for the null key |
| number | bigint | the window's number: its start in µs for a window by event time, 0 for plain state per key |
| expires_ms | bigint | when the window is due, in ms since 1970, null if it never is |
| the state's columns | | by their names; `s_NAME` for a name that another column has, capital letters or not |
| partition | int | the partition of the topic, and of the state |
| epoch | bigint | the epoch of the footprint that the row is made of |

Of an operator with named states a row is an entry (see `operators.states.identity`, which has their numbers): a value,
an element of a list, an entry of a map, a timer. `#key` is the map's key, `expires_ms` a time of the clock that the
timer or TTL goes by.

Invariants:
* The epoch is chosen once, when the plan is made: all partitions are read as of it, whatever is committed meanwhile.
* A row is an open window. A partition whose windows cannot all be found is an error, never fewer rows.
* Nothing is changed: the reader fences nobody, and a query may run while its state is read.
* The state of a micro-batch query is as of the epoch's end. The continuous runner writes footprints of some windows in
  an epoch; there a row is as of the end of the epoch in its column `epoch`.

Source: CEC paper, section II.B ("Constructing an EC").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from logstore.base.addresses import Address
from logstore.client.blocking import Client, TopicPartition
from logstore.client.network import HostNetwork, Network
from logstore.client.security import PLAINTEXT, ClientSecurity
from logstore.errors import CairnError, InvalidConfig
from spe_adapter.cec.control import STATE_PREFIX
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.whole_state import WindowsOfEpoch, place_of, whole_state
from spe_adapter.codec.kernels import Int64s
from spe_adapter.datasource.options import DEFAULT_SOURCE_LIMIT_MS, SECURITY_OPTIONS, SOURCE_NAME, OptionReader
from spe_adapter.epochs.client import connect
from spe_adapter.epochs.lookup import StandingEpoch, only_query, standing_epoch, state_columns
from spe_adapter.errors import StateTrimmed
from spe_adapter.operators.clock import WALL, is_wall
from spe_adapter.operators.states.declared import KEY
from spe_adapter.operators.states.identity import are_joined, split_keys
from spe_adapter.state.layout import NEVER
from spe_adapter.workers.collector import spare_loaded_code

STATE_OPTION: Final = "state"
"""The option that makes a batch query read state; its value is the query's output topic."""
READER_OPTIONS: Final = frozenset(
    (
        STATE_OPTION,
        "query",
        "epoch",
        "batch",
        "checkpoints",
        "checkpointUser",
        "kafka.bootstrap.servers",
        "kafka.client.id",
        "kafka.default.api.timeout.ms",
        *SECURITY_OPTIONS,
    )
)
_FIRST: Final = (("key", pa.binary()), ("number", pa.int64()), ("expires_ms", pa.int64()))
_LAST: Final = (("partition", pa.int32()), ("epoch", pa.int64()))
_TAKEN: Final = frozenset(name for name, _ in (*_FIRST, *_LAST))
_IDENTITY_COLUMNS: Final = 3
"""The columns of a footprint before the state's: key, number, expires."""
_UNSIGNED: Final = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Which state to read: of `query` (None: the topic's only one) in `topic`, as of an epoch of the log or a batch of
    Spark's (both None: the newest epoch). `checkpoints`: where those of the query are (None: the log alone is read).
    """

    servers: tuple[Address, ...]
    topic: str
    query: str | None
    epoch: int | None
    batch: int | None
    limit_s: float
    client_id: str
    checkpoints: CheckpointSettings | None = None
    security: ClientSecurity = PLAINTEXT


def reads_state(options: Mapping[str, str]) -> bool:
    """Whether the options ask for a query's state instead of a topic's records."""
    return OptionReader(options).text(STATE_OPTION) is not None


def parse_state(options: Mapping[str, str]) -> StateOptions:
    """The options of a state reader. Raises InvalidConfig, which names the option and what is allowed."""
    reader = OptionReader(options)
    reader.refuse_unknown(READER_OPTIONS, {}, "reader of state")
    topic = (reader.text(STATE_OPTION) or "").strip()
    if not topic:
        raise InvalidConfig(f"option {STATE_OPTION!r} is empty; write the query's output topic")
    epoch, batch = reader.number("epoch", minimum=0), reader.number("batch", minimum=0)
    if epoch is not None and batch is not None:
        raise InvalidConfig(f"options 'epoch' ({epoch}) and 'batch' ({batch}) are both set; set only one of them")
    return StateOptions(
        servers=reader.servers(),
        security=reader.security(),
        topic=topic,
        query=reader.text("query"),
        epoch=epoch,
        batch=batch,
        limit_s=(reader.number("kafka.default.api.timeout.ms") or DEFAULT_SOURCE_LIMIT_MS) / 1000,
        client_id=reader.text("kafka.client.id") or SOURCE_NAME,
        checkpoints=_checkpoints(reader),
    )


def _checkpoints(reader: OptionReader) -> CheckpointSettings | None:
    try:
        return place_of(reader.text("checkpoints"), reader.text("checkpointUser"))
    except CairnError as error:
        raise InvalidConfig(f"option 'checkpoints': {error}") from error


def state_schema(options: StateOptions, network: Network | None = None) -> StructType:
    """The columns of the state, from the log; a state without any open window has none of its own.

    Raises QueryNotFound, EpochNotFound, StateTrimmed and the client's errors.
    """
    lost: StateTrimmed | None = None
    with connect(options, network or HostNetwork()) as client:
        query, at = _chosen(client, options)
        for partition in range(at.progress.partitions):
            try:
                columns = state_columns(client, TopicPartition(options.topic, partition), query, at.epoch)
            except StateTrimmed as error:
                lost = lost or error
                continue
            if columns is not None:
                return from_arrow_schema(_arrow_schema(columns))
    if lost is not None:
        raise lost
    return from_arrow_schema(_arrow_schema(pa.schema([])))


def _chosen(client: Client, options: StateOptions) -> tuple[str, StandingEpoch]:
    query = only_query(client, options.topic, options.query)
    first = TopicPartition(options.topic, 0)
    return query, standing_epoch(client, first, query, epoch=options.epoch, batch=options.batch)


def _arrow_schema(state: pa.Schema) -> pa.Schema:
    taken, named = set(_TAKEN), []
    for field in state:
        name = field.name
        # Spark takes names that differ in capital letters alone for one.
        while name.lower() in taken:
            name = STATE_PREFIX + name
        taken.add(name.lower())
        named.append((name, _readable(field.type)))
    return pa.schema([*_FIRST, *named, *_LAST])


def _readable(kind: pa.DataType) -> pa.DataType:
    """The type in which Spark can have a column of state, without loss."""
    if pa.types.is_unsigned_integer(kind):
        return _UNSIGNED[kind.bit_width]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit != "ns":
        return pa.duration("us")
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


class StatePartitionToRead(InputPartition):
    """The input of one task: the state of a query in one stream, as of an epoch."""

    def __init__(self, stream: TopicPartition, query: str, epoch: int) -> None:
        super().__init__(stream.partition)
        self.stream = stream
        self.query = query
        self.epoch = epoch


class StateReader(DataSourceReader):
    """Reads the open windows of a query, one task for each partition of its state."""

    def __init__(self, options: StateOptions, schema: StructType, network: Network | None = None) -> None:
        self._options = options
        self._names = list(schema.names)
        self._network: Network = network or HostNetwork()

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the state, all as of one epoch. Raises QueryNotFound, EpochNotFound, StateTrimmed."""
        options = self._options
        with connect(options, self._network) as client:
            query, at = _chosen(client, options)
        streams = [TopicPartition(options.topic, partition) for partition in range(at.progress.partitions)]
        return [StatePartitionToRead(stream, query, at.epoch) for stream in streams]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The open windows of a partition, in a task. Raises StateTrimmed and StateInconsistent."""
        if not isinstance(partition, StatePartitionToRead):
            return
        spare_loaded_code()
        with connect(self._options, self._network) as client:
            state = whole_state(client, partition.stream, partition.query, partition.epoch, self._options.checkpoints)
        for windows in state.groups:
            yield from self._readable(windows, partition.stream.partition)

    def _readable(self, windows: WindowsOfEpoch, partition: int) -> Iterator[pa.RecordBatch]:
        for batch in windows.batches:
            rows = batch.drop_columns(["kind"]) if "kind" in batch.schema.names else batch
            state = pa.schema([field.with_name(field.name.removeprefix(STATE_PREFIX)) for field in rows.schema])
            schema = _arrow_schema(pa.schema(list(state)[_IDENTITY_COLUMNS:]))
            given = _with_map_keys(rows)
            columns = [
                *given[:2],
                _due_ms(given[2].to_numpy()),
                *(_cast(column, schema.field(at).type) for at, column in enumerate(given) if at > 2),
                pa.array(np.full(rows.num_rows, partition, np.int32)),
                pa.array(np.full(rows.num_rows, windows.mark.epoch, np.int64)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema).select(self._names)


def _with_map_keys(rows: pa.RecordBatch) -> list[pa.Array]:
    """The columns of a batch, in which entries of maps have the key of their operator's rows as others have, and the
    map's key in KEY.
    """
    columns = list(rows.columns)
    at, joined = rows.schema.get_field_index(STATE_PREFIX + KEY), are_joined(columns[1].to_numpy())
    if at < 0 or not joined.any():
        return columns
    where = pa.array(joined)
    split = split_keys(columns[0].filter(where))
    columns[0] = pc.replace_with_mask(columns[0], where, split.routing)
    columns[at] = pc.replace_with_mask(columns[at], where, split.suffix)
    return columns


def _due_ms(expires: Int64s) -> pa.Array:
    return pa.array(np.where(is_wall(expires), expires - WALL, expires), mask=expires == NEVER)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_uint64(column.type):
        return column.cast(pa.decimal128(20, 0))
    return column if column.type == kind else column.cast(kind)
