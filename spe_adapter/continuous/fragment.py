"""The description of a fragment: source topics, stateless steps, one stateful operator, stateless steps, a target
topic.

Invariants:
* A fragment is immutable. It can be pickled if its steps and its operator can.
* A runner processes one partition: it reads partition p of every source and writes partition p of the target. Rows are
  not exchanged between partitions, so **the keys must have been partitioned upstream**, into the same number of
  partitions and by one partitioner of the key alone, as Kafka's producers do by default. `check_keys` verifies it.

Source: CEC paper, section II (queries as fragments between queues).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from spe_adapter.codec.decode import SCHEMA
from spe_adapter.codec.partitioner import PARTITIONERS, Partitioner
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.operators import stateless
from spe_adapter.operators.base import Operator
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import output_schema

Step = stateless.Function | stateless.Step
"""A stateless step: a Filter, a Map, or a function from record batch to record batch. Its result for a row must depend
on the row alone, or a replay would differ.
"""

MAX_IN_FLIGHT: Final = 2
DEFAULT_STATE_BYTES: Final = 2 * 1024 * 1024 * 1024
"""About ten million windows with a few numbers each. While a table grows, it takes half as much memory again."""


@dataclass(frozen=True)
class TopicSource:
    """A topic to read, and the steps that its records pass through before the operator.

    The first step gets records in the schema of Spark's Kafka source (`key`, `value`, `topic`, `partition`, `offset`,
    `timestamp`, `timestampType`). After the steps, all sources of a fragment must have the same columns.
    """

    topic: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class EpochLimits:
    """The limits of an epoch, and of the memory of a runner.

    An epoch is committed as a whole. It ends `epoch_ms` milliseconds after its first record arrived, or with
    `epoch_records` input records, or with `epoch_bytes` bytes of results. One call of the operator processes at most
    `run_records` records. While an epoch is processed, at most `in_flight` earlier epochs are being committed. One
    request fetches at most `fetch_bytes` bytes of a source. A state of more than `state_bytes` bytes ends the runner
    with StateTooLarge. Raises FragmentRefused for a value out of range.
    """

    epoch_ms: int = 50
    epoch_records: int = 1_000_000
    epoch_bytes: int = 8 * 1024 * 1024
    run_records: int = 65_536
    in_flight: int = 1
    fetch_bytes: int = 4 * 1024 * 1024
    state_bytes: int = DEFAULT_STATE_BYTES

    def __post_init__(self) -> None:
        for name in ("epoch_ms", "epoch_records", "epoch_bytes", "run_records", "fetch_bytes", "state_bytes"):
            if getattr(self, name) < 1:
                raise FragmentRefused(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 1 <= self.in_flight <= MAX_IN_FLIGHT:
            raise FragmentRefused(f"in_flight is {self.in_flight}; it must be 1 to {MAX_IN_FLIGHT}")


@dataclass(frozen=True)
class Fragment:
    """A stateful operator between topics.

    `query` names the state in the output stream: a fragment with the same name continues where the last runner of that
    name ended. `key` names the operator's key columns, which become the record key of the results. `after` are steps on
    the results, whose first columns are the key. `start` is the position at which a new query begins to read. Without
    `checkpoints` the target holds only results, and the query cannot continue after a crash; this serves to measure the
    cost of checkpoints. `check_keys` refuses records in a partition to which `partitioner` does not assign their key:
    murmur2_random is the default of the Java client, consistent_random (CRC-32) the default of librdkafka,
    confluent-kafka and kcat. `allow_trimming` accepts a target with retention by age or size, which may lose the state
    of windows that stay open longer. `allow_other_queries` lets a new query write after another query's state. Raises
    FragmentRefused.
    """

    query: str
    sources: tuple[TopicSource, ...]
    key: tuple[str, ...]
    operator: Operator
    topic: str
    after: tuple[Step, ...] = ()
    start: Literal["earliest", "latest"] = "earliest"
    checkpoints: bool = True
    check_keys: bool = False
    partitioner: Partitioner = "murmur2_random"
    allow_trimming: bool = False
    allow_other_queries: bool = False

    def __post_init__(self) -> None:
        if self.partitioner not in PARTITIONERS:
            raise FragmentRefused(
                f"query {self.query!r}: partitioner {self.partitioner!r}; allowed are {', '.join(PARTITIONERS)}"
            )
        if not self.sources:
            raise FragmentRefused(f"query {self.query!r} has no source; give it one, or two for a join")
        topics = [source.topic for source in self.sources]
        if len(set(topics)) < len(topics):
            raise FragmentRefused(
                f"query {self.query!r} reads a topic twice ({', '.join(topics)}); give each source a topic of its own"
            )
        if not self.key:
            raise FragmentRefused(f"query {self.query!r} has no key; name the columns its windows belong to")

    def name_in(self, partition: int) -> str:
        """The query name in the log for one partition: each partition commits its own epochs."""
        return f"{self.query}.{partition}"


@dataclass(frozen=True)
class CheckedFragment:
    """A checked fragment, with the columns that its steps give."""

    fragment: Fragment
    input_schema: pa.Schema
    output_schema: pa.Schema
    key_codec: KeyCodec
    output_keys: KeyCodec | None
    """Encodes the keys of results after the last step; None without steps, when the operator's keys are kept."""


def plan(fragment: Fragment) -> CheckedFragment:
    """Check a fragment by passing empty batches through it. Raises FragmentRefused and the errors of the operator."""
    schemas = [_through(source.steps, SCHEMA, f"source {source.topic!r}") for source in fragment.sources]
    for source, schema in zip(fragment.sources[1:], schemas[1:], strict=True):
        if not schema.equals(schemas[0]):
            raise FragmentRefused(
                f"query {fragment.query!r}: source {source.topic!r} reaches the operator as {_columns(schema)}, "
                f"source {fragment.sources[0].topic!r} as {_columns(schemas[0])}; give both the same columns and types"
            )
    codec = KeyCodec(fragment.operator.prepared(schemas[0]), fragment.key)
    results = output_schema(codec.fields, fragment.operator.output(schemas[0]))
    if not fragment.after:
        return CheckedFragment(fragment, schemas[0], results, codec, None)
    output = _through(fragment.after, results, "a step after the operator")
    lost = [name for name in fragment.key if name not in output.names]
    if lost:
        raise FragmentRefused(
            f"query {fragment.query!r}: the steps after the operator drop key column {lost[0]!r}; keep it, results "
            "need their key"
        )
    return CheckedFragment(fragment, schemas[0], output, codec, KeyCodec(output, fragment.key))


def apply(steps: tuple[Step, ...], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pass a batch through steps."""
    for step in steps:
        batch = step.apply(batch)[0] if isinstance(step, stateless.Step) else step(batch)
    return batch


def _through(steps: tuple[Step, ...], schema: pa.Schema, where: str) -> pa.Schema:
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    came = apply(steps, empty)
    if not isinstance(came, pa.RecordBatch):
        raise FragmentRefused(f"{where}: a step returned {type(came).__name__}; it must return a pyarrow.RecordBatch")
    return came.schema


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def fingerprint(plan: CheckedFragment) -> str:
    """A description of all that must stay the same from one incarnation of a query to the next: the operator with its
    settings, its key and the columns of its state.
    """
    operator = plan.fragment.operator
    state = _described(operator.state_schema(plan.input_schema))
    return f"{operator.description} by {_described(plan.key_codec.fields)} with state ({state})"


def _described(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)
