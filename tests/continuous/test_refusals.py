"""What cannot work is refused with a message that says what to do, and nothing is written."""

from __future__ import annotations

import zlib
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from logstore.errors import CairnError
from logstore.format.records import Record
from spe_adapter.cec.policy import NoChecks, Targets
from spe_adapter.codec.decode import SCHEMA
from spe_adapter.continuous.core import Core, FragmentInstance
from spe_adapter.continuous.errors import FragmentRefused, InputTrimmed, ReplayDiverged, WrongPartition
from spe_adapter.continuous.fragment import EpochLimits, Fragment, TopicSource, plan
from spe_adapter.continuous.inputs import RecordRun
from spe_adapter.continuous.loop import Loop
from spe_adapter.continuous.port import Fetch
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Counting
from spe_adapter.state.errors import StateTooLarge
from tests.continuous.fragments import START_MS, batches, fragment, parse
from tests.continuous.world import Faults, SimPort, World, run_story, start_runner

LIMITS = EpochLimits(epoch_records=40, epoch_ms=10**9)


def counting(size: int = 5) -> Aggregate:
    """Sums of so many values."""
    return Aggregate(Counting(size), total=agg.sum("v"))


def a_world(seed: int = 3) -> World:
    """Input in two topics, an empty target."""
    world = World(seed)
    for topic in ("in", "other", "out", "elsewhere"):
        world.create(topic)
    world.produce("in", batches(Random(seed), 20, 40))
    return world


def run_all(world: World, described: Fragment) -> None:
    """Process all input."""
    run_story(world, plan(described), NoChecks, LIMITS)


def recover(world: World, described: Fragment) -> None:
    """Start a runner once more."""
    start_runner(world, plan(described), NoChecks, LIMITS, "again").loop.recover()


# ---- descriptions


def without_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A step that drops the key column."""
    return batch.drop_columns(["k"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sources": ()}, FragmentRefused, "no source"),
        ({"key": ()}, FragmentRefused, "no key"),
        (
            {"sources": (TopicSource("in", (parse,)), TopicSource("in", (parse,)))},
            FragmentRefused,
            "reads a topic twice",
        ),
        ({"key": ("customer",)}, SchemaRefused, "'customer' is missing"),
        ({"sources": (TopicSource("in", (parse,)), TopicSource("other"))}, FragmentRefused, "same columns"),
        ({"sources": (TopicSource("in", (lambda batch: None,)),)}, FragmentRefused, "NoneType"),
        ({"after": (without_key,)}, FragmentRefused, "drop key column 'k'"),
    ],
)
def test_a_fragment_that_cannot_run_is_refused(
    changes: dict[str, object], error: type[CairnError], message: str
) -> None:
    """Before anything is read: the message names the column, the source or the step."""
    with pytest.raises(error, match=message):
        plan(replace(fragment(counting()), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"epoch_ms": 0}, {"run_records": 0}, {"in_flight": 3}, {"in_flight": 0}])
def test_limits_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    """The message names the limit."""
    with pytest.raises(FragmentRefused, match=next(iter(changes))):
        EpochLimits(**changes)


# ---- another query than the log's


def test_a_changed_operator_is_refused() -> None:
    """State of another operator, or of other settings, is never loaded."""
    world = a_world()
    run_all(world, fragment(counting(5)))
    with pytest.raises(FragmentRefused, match="now Aggregate"):
        recover(world, fragment(counting(6)))


def test_other_sources_are_refused() -> None:
    """A query keeps its sources."""
    world = a_world()
    run_all(world, fragment(counting()))
    with pytest.raises(FragmentRefused, match="has read in so far, not other"):
        recover(world, fragment(counting(), ["other"]))


def test_another_target_is_refused() -> None:
    """The log says that epochs were committed, the stream holds none of them."""
    world = a_world()
    run_all(world, fragment(counting()))
    with pytest.raises(FragmentRefused, match="holds nothing of it"):
        recover(world, replace(fragment(counting()), topic="elsewhere"))


def test_a_query_without_checkpoints_cannot_go_on() -> None:
    """It says so, instead of counting some windows twice."""
    world = a_world()
    bare = replace(fragment(counting()), checkpoints=False)
    world.faults = Faults()
    life = start_runner(world, plan(bare), NoChecks, LIMITS, "first")
    life.loop.recover()
    while life.loop.step():
        pass
    life.loop.finish()
    with pytest.raises(FragmentRefused, match="without checkpoints"):
        recover(world, bare)


def test_other_partitions_are_refused() -> None:
    """Keys would have moved."""
    world = a_world()
    described = fragment(counting())
    run_all(world, described)
    life = start_runner(world, plan(described), NoChecks, LIMITS, "again")
    core = Core(plan(described), FragmentInstance(0, 4, "again"), NoChecks(), lambda: 0.0)
    life.loop._core = core
    with pytest.raises(FragmentRefused, match="keys have moved"):
        life.loop.recover()


# ---- input that is not what it was


def trim(world: World, topic: str, before_offset: int) -> None:
    """Delete records."""
    world.life.settle(world.life.store.stream(topic, 0).delete_records(before_offset))


def test_upstream_may_trim_what_is_not_needed_and_no_more() -> None:
    """Up to `needed_offsets` recovery works; one record further it names stream, offset and what to do."""
    described = fragment(counting())
    for excess in (0, 1):
        world = a_world()
        life = start_runner(world, plan(described), lambda: Targets(u_limit=100), LIMITS, "first")
        life.loop.recover()
        while life.loop.step():
            pass
        life.loop.finish()
        needed = life.loop.needed_offsets()["in"]
        assert 0 < needed < world.life.store.stream("in", 0).high_watermark
        trim(world, "in", needed + excess)
        if excess:
            with pytest.raises(InputTrimmed, match=f"in-0 is needed from offset {needed} on.*needed_offsets"):
                recover(world, described)
        else:
            recover(world, described)


def test_a_source_that_lost_records_is_noticed() -> None:
    """A source that ends before what was read from it is another one."""
    described = fragment(counting(1000))
    world = a_world()
    run_all(world, described)
    world.life.settle(world.life.store.delete_topic("in"))
    world.create("in")
    world.produce("in", batches(Random(3), 2, 40))
    with pytest.raises(InputTrimmed, match="are lost"):
        recover(world, described)


def test_a_source_that_shows_less_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that lacks others shows less than was read before; where the source ends is another question."""
    described = fragment(counting(1000))
    world = a_world()
    run_all(world, described)
    loop = start_runner(world, plan(described), NoChecks, LIMITS, "again").loop
    port, fetched, hidden = loop._port, loop._port.fetched, list[Fetch]()
    assert isinstance(port, SimPort)

    def shown(wait_ms: float) -> Fetch | None:
        if hidden:
            return fetched(wait_ms)
        source, offset = port._wanted.popleft()
        hidden.append(Fetch(source, 0, offset, 0, b""))
        return hidden[0]

    monkeypatch.setattr(port, "fetched", shown)
    loop.recover()
    assert hidden


def test_a_source_with_other_records_is_noticed() -> None:
    """Other keys in the place of the old ones open windows that the log knows nothing of."""
    described = fragment(counting(1000))
    world = a_world()
    run_all(world, described)
    world.life.settle(world.life.store.delete_topic("in"))
    world.create("in")
    world.produce("in", [[Record(0, START_MS, b"new-%d-%d" % (at, n), b"1") for n in range(25)] for at in range(40)])
    with pytest.raises(ReplayDiverged, match="windows opened"):
        recover(world, described)


def test_keys_in_the_wrong_partition_are_refused_if_asked() -> None:
    """With `check_keys` the message names the key, where it is and where it belongs; where all keys lie as another
    client's partitioner has them, it says so, and with that partitioner they are taken.
    """
    described = replace(fragment(counting()), check_keys=True)
    core = Core(plan(described), FragmentInstance(0, 8, "run"), NoChecks(), lambda: 0.0)
    core.begin([0])
    keys = [b"key-%d" % number for number in range(30)]
    with pytest.raises(WrongPartition, match=r"key b'key-\d+' is in in-0.*partition [1-7] of 8; let the producer use"):
        core.process(RecordRun(0, len(keys)), _keyed(keys))
    mine = [key for key in keys if zlib.crc32(key) % 8 == 0]
    assert mine
    with pytest.raises(WrongPartition, match="give the fragment partitioner='consistent_random', or the producer part"):
        core.process(RecordRun(0, len(mine)), _keyed(mine))
    core = Core(
        plan(replace(described, partitioner="consistent_random")),
        FragmentInstance(0, 8, "run"),
        NoChecks(),
        lambda: 0.0,
    )
    core.begin([0])
    core.process(RecordRun(0, len(mine)), _keyed(mine))
    assert core.windows == len(mine)
    with pytest.raises(FragmentRefused, match="partitioner 'murmur'; allowed are murmur2_random, consistent_random"):
        replace(described, partitioner="murmur")  # type: ignore[arg-type]


def _keyed(keys: list[bytes]) -> pa.RecordBatch:
    """Records with these keys."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": key,
                "value": b"1",
                "topic": "in",
                "partition": 0,
                "offset": at,
                "timestamp": at,
                "timestampType": 0,
            }
            for at, key in enumerate(keys)
        ],
        schema=SCHEMA,
    )


def test_a_state_that_outgrows_its_limit_ends_the_runner() -> None:
    """The message names the query, the bytes, the limit and what to do; what was committed stays."""
    world = a_world()
    described = fragment(counting(1000))
    port = SimPort(world, plan(described), 0, "run")
    core = Core(
        plan(described), FragmentInstance(0, 1, "run"), NoChecks(), port.monotonic_ms, state_limit_bytes=200_000
    )
    loop = Loop(core, plan(described), port, LIMITS, lambda event: None)
    world.produce("in", [[Record(0, START_MS, b"k-%d-%d" % (at, n), b"1") for n in range(90)] for at in range(40)])
    loop.recover()
    with pytest.raises(StateTooLarge, match=r"'story\.0'.*bytes.*200000\. Raise the limit"):
        while loop.step():
            pass
    run_all(world, described)


def test_a_new_query_behind_anothers_state_is_refused() -> None:
    """A mistyped name would begin anew and tell every result twice: it is refused with the name that is there, unless
    the user says that both shall write.
    """
    world = a_world()
    run_all(world, fragment(counting()))
    mistyped = replace(fragment(counting()), query="stroy")
    with pytest.raises(FragmentRefused, match=r"'stroy' is new.*'story\.0'.*allow_other_queries"):
        recover(world, mistyped)
    recover(world, replace(mistyped, allow_other_queries=True))
    recover(world, fragment(counting()))
