"""Several stateful operators with the same key in a query: the results of each operator are the rows of the next one.

    Chain(Aggregate(Tumbling("1 minute", time="at"), clicks=agg.count()), Alarms())

Results stay with the key of the rows that they come from, so that all links of a chain work in the same task. A link
gets the columns that the link before declares in `output`, without the key's.

Invariants:
* Each link has states of its own: its windows and entries have the link's number in their identities, its columns have
  it in their names.
* An epoch goes from link to link: rows first, then what is due, in the order of the links, so that results of a window
  that closes reach the next link before its windows close. One watermark holds for all links: that of the first.
* Each epoch writes all its changes to the log, and recovery replays nothing.

Source: Spark's watermark propagation among stateful operators (SPARK-42376: what one operator closes by a watermark is
not late for the next).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators.base import (
    Assignment,
    Combining,
    Emitted,
    Input,
    Operator,
    Overlapping,
    Rows,
    State,
    Times,
)
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output
from spe_adapter.operators.processor import Processor
from spe_adapter.operators.replay import Replay
from spe_adapter.operators.states.identity import joined_keys, split_keys
from spe_adapter.operators.succession import split_outside
from spe_adapter.state.columns import Values
from spe_adapter.state.evolution import Evolution
from spe_adapter.state.store import StateStore, WindowChanges

_MAX_LINKS: Final = 16
_LINKED: Final = " > "
"""The separator between the descriptions of links."""


class Chain(Operator):
    """Several operators in a row, each with its own state. Raises InvalidConfig."""

    keeps_entries = True

    def __init__(self, *links: Operator) -> None:
        if not 2 <= len(links) <= _MAX_LINKS or not all(isinstance(link, Operator) for link in links):
            raise InvalidConfig(f"a Chain of {len(links)} links; give 2 to {_MAX_LINKS} operators")
        for link in links[1:]:
            if len(link.inputs()) > 1 or link.prepare.__func__ is not Operator.prepare:  # type: ignore[attr-defined]
                raise InvalidConfig(
                    f"{link.name} cannot come after another operator: joins come first in a Chain, and steps after "
                    "the link whose results they change"
                )
        self.links = links
        self.event_time = links[0].event_time
        self.delay_ms = links[0].delay_ms

    @property
    def name(self) -> str:
        """The names of the links."""
        return " > ".join(link.name for link in self.links)

    @property
    def description(self) -> str:
        """The descriptions of the links."""
        return _LINKED.join(link.description for link in self.links)

    def follows(self, former: str) -> str | None:
        """As in `Operator`. The chains must have as many links, and each link must follow the link in its place."""
        if super().follows(former) is None:
            return None
        before = split_outside(former, _LINKED)
        if len(before) != len(self.links):
            return f"it was {former}; a Chain follows one of as many links ({len(self.links)})"
        for at, (link, description) in enumerate(zip(self.links, before, strict=True)):
            problem = link.follows(description)
            if problem is not None:
                return f"link {at + 1}, {link.name}: {problem}"
        return None

    def state_evolution(self, schema: pa.Schema, former: pa.Schema) -> Evolution:
        """Changes are declared at the links, with each link's names of its columns."""
        renamed, defaults = dict(self.evolution.renamed), dict(self.evolution.defaults)
        dropped = list(self.evolution.dropped)
        for at, (link, own) in enumerate(zip(self.links, self.schemas(schema), strict=True)):
            mark = _name(at, "")
            columns = [column.with_name(column.name.removeprefix(mark)) for column in former if _is_of(at, column)]
            declared = link.state_evolution(own, pa.schema(columns))
            renamed |= {_name(at, source): _name(at, name) for source, name in declared.renamed.items()}
            defaults |= {_name(at, name): value for name, value in declared.defaults.items()}
            dropped += [_name(at, name) for name in declared.dropped]
        return Evolution(renamed=renamed, dropped=tuple(dropped), defaults=defaults, formerly=self.evolution.formerly)

    def schemas(self, schema: pa.Schema) -> list[pa.Schema]:
        """The input of each link, for an input of this schema. Raises SchemaRefused."""
        found = [schema]
        for link in self.links[:-1]:
            found.append(link.output(found[-1]))
        return found

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the last link."""
        return self.links[-1].output(self.schemas(schema)[-1])

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of all links, by link."""
        fields: list[pa.Field] = []
        for at, (link, own) in enumerate(zip(self.links, self.schemas(schema), strict=True)):
            fields += [pa.field(_name(at, field.name), field.type) for field in link.state_schema(own)]
        return pa.schema(fields)

    def routing_keys(self, keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
        """The keys that decided the partition of the rows of these entries."""
        routing, suffix = split_keys(keys)
        for at, link in enumerate(self.links):
            here = np.flatnonzero(pc.equal(suffix, _tag(at)).to_numpy(zero_copy_only=False))
            if link.keeps_entries and len(here):
                own = link.routing_keys(routing.take(pa.array(here)), numbers[here])
                place = np.arange(len(keys))
                place[here] = len(keys) + np.arange(len(here))
                routing = pa.concat_arrays([routing, own]).take(pa.array(place))
        return routing

    @property
    def has_wall_time(self) -> bool:
        """Whether a link uses processing time."""
        return any(link.has_wall_time for link in self.links)

    # ---- the first link, which takes the query's rows

    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the first link."""
        return self.links[0].inputs()

    def times(self, batch: pa.RecordBatch) -> Times | None:
        """The event times of the first link."""
        return self.links[0].times(batch)

    def sources(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """The inputs of rows, by the first link."""
        return self.links[0].sources(batch)

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment | Overlapping:
        """The windows of the first link."""
        return self.links[0].assign(batch, times, sequence)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that the first link reads."""
        return self.links[0].columns(schema)

    def prepared(self, schema: pa.Schema) -> pa.Schema:
        """The prepared schema of the first link."""
        return self.links[0].prepared(schema)

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch that the first link prepares."""
        return self.links[0].prepare(batch)

    def combining(self, schema: pa.Schema) -> Combining | None:
        """How the first link combines rows."""
        return self.links[0].combining(schema)

    def changes(self, column: str) -> bool:
        """Whether the steps before the first link change this column."""
        return self.links[0].changes(column)

    def process(self, rows: Rows, state: State) -> Emitted:
        """Never called: a chain runs by `processor_of`."""
        raise InvalidConfig("a Chain is run by processor_of, link by link")


class LinkStore:
    """The part of a store that belongs to a link, as a `StateStore`."""

    def __init__(self, store: StateStore, at: int, schema: pa.Schema) -> None:
        self.schema = schema
        self._store = store
        self._at = at
        self._tag = _tag(at)

    @property
    def live(self) -> int:
        """The number of open windows of the link."""
        return len(self.all_rows())

    @property
    def size_bytes(self) -> int:
        """The memory of the whole store."""
        return self._store.size_bytes

    @property
    def seed(self) -> int:
        """The key of the store's hash function."""
        return self._store.seed

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The id of each window, -1 where it is not open."""
        return self._store.find(self._joined(keys), numbers)

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The id of each window, and whether it is new."""
        return self._store.ensure(self._joined(keys), numbers)

    def close(self, ids: Int64s) -> None:
        """Close windows."""
        self._store.close(ids)

    def renew(self, ids: Int64s) -> None:
        """Mark open windows as new."""
        self._store.renew(ids)

    def get(self, name: str, ids: Int64s) -> Values:
        """Values of a column of fixed width, 0 where null."""
        return self._store.get(_name(self._at, name), ids)

    def nulls(self, name: str, ids: Int64s) -> Bools:
        """Where a column is null."""
        return self._store.nulls(_name(self._at, name), ids)

    def set(self, name: str, ids: Int64s, values: Any, nulls: Bools | None = None) -> None:
        """Store values of fixed width."""
        self._store.set(_name(self._at, name), ids, values, nulls)

    def get_arrow(self, name: str, ids: Int64s) -> pa.Array:
        """A column of any type."""
        return self._store.get_arrow(_name(self._at, name), ids)

    def set_arrow(self, name: str, ids: Int64s, values: pa.Array) -> None:
        """Store a column of any type."""
        self._store.set_arrow(_name(self._at, name), ids, values)

    def keys(self, ids: Int64s) -> pa.BinaryArray:
        """The key of each window, as the link knows it."""
        return split_keys(self._store.keys(ids)).routing

    def numbers(self, ids: Int64s) -> Int64s:
        """The number of each window."""
        return self._store.numbers(ids)

    def expires(self, ids: Int64s) -> Int64s:
        """The times at which windows expire."""
        return self._store.expires(ids)

    def set_expires(self, ids: Int64s, expires_ms: Int64s | int) -> None:
        """Set the times at which windows expire."""
        self._store.set_expires(ids, expires_ms)

    def due(self, watermark_ms: int) -> Int64s:
        """The link's windows that are due."""
        return self._own(self._store.due(watermark_ms))

    def all_rows(self) -> Int64s:
        """The link's open windows."""
        return self._own(self._store.all_rows())

    def oldest(self, count: int) -> Int64s:
        """Not available for a link: raises InvalidConfig."""
        raise InvalidConfig("footprints are chosen in the whole store, not in that of a link")

    def window_versions(self, ids: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Epochs, ordinals and counts of seen records of windows' last footprints."""
        return self._store.window_versions(ids)

    def touch(self, ids: Int64s) -> None:
        """Write footprints of these windows, too."""
        self._store.touch(ids)

    def changes(self) -> WindowChanges:
        """Not available for a link: raises InvalidConfig."""
        raise InvalidConfig("changes are those of the whole store, not of a link's")

    def _joined(self, keys: pa.Array) -> pa.BinaryArray:
        return joined_keys(keys.cast(pa.binary()), pa.repeat(self._tag, len(keys)))

    def _own(self, ids: Int64s) -> Int64s:
        if not len(ids):
            return ids
        mine = pc.equal(split_keys(self._store.keys(ids)).suffix, self._tag)
        return ids[mine.to_numpy(zero_copy_only=False)]


class ChainProcessor(Processor):
    """A state partition of a chain: a Processor for each link."""

    def __init__(
        self,
        operator: Chain,
        codec: KeyCodec,
        schema: pa.Schema,
        store: StateStore,
        sequence: int = 0,
        seen: int = 0,
        epoch: int = 0,
    ) -> None:
        super().__init__(operator, codec, schema, store, sequence, seen, epoch)
        self._links = [
            Processor(link, codec, own, LinkStore(store, at, link.state_schema(own)), sequence, seen, epoch)
            for at, (link, own) in enumerate(zip(operator.links, operator.schemas(schema), strict=True))
        ]

    def process(
        self,
        batch: pa.RecordBatch,
        *,
        late_watermark_ms: int = 0,
        replay: Replay | None = None,
        keys: pa.BinaryArray | None = None,
    ) -> Output | None:
        """See Processor."""
        first = self._first()
        output = first.process(batch, late_watermark_ms=late_watermark_ms, replay=replay, keys=keys)
        self._note(first)
        return self._through(1, output, late_watermark_ms)

    def process_combined(self, batch: pa.RecordBatch, *, late_watermark_ms: int = 0) -> Output | None:
        """See Processor."""
        first = self._first()
        output = first.process_combined(batch, late_watermark_ms=late_watermark_ms)
        self._note(first)
        return self._through(1, output, late_watermark_ms)

    def start(self, batch: pa.RecordBatch, codec: KeyCodec) -> None:
        """The initial state belongs to the first link."""
        self._first().start(batch, codec)

    def expire(self, watermark_ms: int, *, replay: Replay | None = None) -> Output | None:
        """See Processor."""
        outputs = []
        for at in range(len(self._links)):
            link = self._ready(at)
            output = self._through(at + 1, link.expire(watermark_ms, replay=replay), self.clock.late_ms)
            if output is not None:
                outputs.append(output)
        return _joined(outputs)

    def take_late(self) -> list[Output]:
        """See Processor: rows that were late for the first link. What is late for a later link is a result, not a row
        of the input, and is counted only.
        """
        return self._links[0].take_late()

    @property
    def next_wall_ms(self) -> int | None:
        """The earliest processing time of the links."""
        known = [link.next_wall_ms for link in self._links]
        return min((moment for moment in known if moment is not None), default=None)

    def _ready(self, at: int) -> Processor:
        link = self._links[at]
        link.epoch, link.batch, link.clock = self.epoch, self.batch, self.clock
        return link

    def _first(self) -> Processor:
        first = self._ready(0)
        first.keeps_late = self.keeps_late
        first.sequence, first.seen, first.max_events_ms = self.sequence, self.seen, self.max_events_ms
        return first

    def _note(self, first: Processor) -> None:
        self.sequence, self.seen = first.sequence, first.seen
        self.late = sum(link.late for link in self._links)
        self.windows = sum(link.windows for link in self._links)

    def _through(self, at: int, output: Output | None, late_ms: int) -> Output | None:
        """Pass results through the links from `at` on."""
        while output is not None and at < len(self._links):
            before, link = self._links[at - 1], self._ready(at)
            rows = output.rows.select(before.inner.names)
            output = link.process(rows, late_watermark_ms=late_ms, keys=output.keys)
            at += 1
        self._note(self._links[0])
        return output


def processor_of(
    operator: Operator,
    codec: KeyCodec,
    schema: pa.Schema,
    store: StateStore,
    sequence: int = 0,
    seen: int = 0,
    epoch: int = 0,
) -> Processor:
    """The Processor for an operator. Raises SchemaRefused for an unsuitable input."""
    kind: Any = ChainProcessor if isinstance(operator, Chain) else Processor
    made: Processor = kind(operator, codec, schema, store, sequence, seen, epoch)
    return made


def _joined(outputs: Sequence[Output]) -> Output | None:
    if len(outputs) <= 1:
        return outputs[0] if outputs else None
    times = [output.times_ms for output in outputs if output.times_ms is not None]
    return outputs[0]._replace(
        keys=pa.concat_arrays([output.keys for output in outputs]),
        rows=pa.concat_batches([output.rows for output in outputs]),
        times_ms=np.concatenate(times) if len(times) == len(outputs) else None,
    )


def _name(at: int, name: str) -> str:
    return f"{at}:{name}"


def _is_of(at: int, column: pa.Field) -> bool:
    return bool(column.name.startswith(_name(at, "")))


def _tag(at: int) -> pa.Scalar:
    return pa.scalar(bytes([at]), pa.binary())
