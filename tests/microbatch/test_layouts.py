"""What happens between runs: other numbers of partitions, resets, trimmed logs, other operators."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import LATEST
from logstore.errors import InvalidConfig, InvalidPartitions
from spe_adapter.errors import SchemaRefused
from spe_adapter.microbatch.errors import ResetRefused
from spe_adapter.operators.stateless import Filter, Map, Pipeline
from spe_adapter.state.errors import StateSchemaRefused
from spe_adapter.tools.reset import reset
from tests.microbatch.operators import Model, Row, Visits, rows_of
from tests.microbatch.world import World, by_key
from tests.support.limits import PATIENCE_S
from tests.support.streams import create_topic

pytestmark = [pytest.mark.spark]


def test_other_numbers_of_partitions(world: World) -> None:
    """2, then 3, then 1, then 2 partitions: each time the state is moved from the log, and results go on. The topic,
    which is the query's own, gets its third partition by itself.
    """
    epochs = rows_of(8, 40, 20)
    model = Model()
    for life, partitions in enumerate((2, 3, 1, 2)):
        for rows in epochs[2 * life : 2 * life + 2]:
            world.feed(rows)
            model.epoch(rows)
        model.pause()
        query = world.run(world.query(rows_per_batch=40, partitions=partitions))
        assert query.partitions == partitions
        assert query.progress is not None
        assert query.progress.windows == len(model.open)
    told = by_key(world.told())
    assert {key: sorted(values) for key, values in told.items()} == {
        key: sorted(values) for key, values in by_key(model.told).items()
    }


def test_a_reset_runs_batches_again_from_older_state(world: World) -> None:
    """After a reset to batch 2 of 5, batches 3 to 5 run again and tell the same; so they do after another one."""
    epochs = rows_of(6, 40, 20)
    for rows in epochs:
        world.feed(rows)
    query = world.run(world.query(rows_per_batch=40))
    first = by_key(world.told())
    back = {}
    for batch in (2, 3):
        done = reset(
            topic=world.topic, query=query.id, batch=batch, checkpoint=world.checkpoint,
            options={"kafka.bootstrap.servers": world.address},
        )  # fmt: skip
        assert done.batch == batch
        assert {Path(name).name for name in done.files} == {str(n) for n in range(batch + 1, 6)}
        back[batch] = len(world.told())
        again = world.run(world.query(rows_per_batch=40))
        assert again.id == query.id
    model = Model()
    for rows in epochs[:3]:
        model.epoch(rows)
    early = by_key(model.told)
    for rows in epochs[3:]:
        model.epoch(rows)
    model.pause()
    assert first == by_key(model.told)
    twice = {key: values + values[len(early.get(key, [])) :] for key, values in first.items()}
    found = by_key(world.told())
    assert {key: values[: len(twice[key])] for key, values in found.items()} == twice
    with pytest.raises(ResetRefused, match="batch 99"):
        reset(topic=world.topic, query=query.id, batch=99, options={"kafka.bootstrap.servers": world.address})
    with pytest.raises(ResetRefused, match="not known"):
        reset(topic=world.topic, query="nobody", batch=1, options={"kafka.bootstrap.servers": world.address})


def test_a_rewound_checkpoint_is_told_the_way_out(world: World, tmp_path: Path) -> None:
    """An older copy of the checkpoint is refused, and the message says how to reset; a lost topic is refused too."""
    epochs = rows_of(3, 20, 5)
    world.feed(epochs[0])
    world.run(world.query())
    shutil.copytree(world.checkpoint, tmp_path / "copy")
    for rows in epochs[1:]:
        world.feed(rows)
        world.run(world.query())
    shutil.rmtree(world.checkpoint)
    shutil.move(tmp_path / "copy", world.checkpoint)
    with pytest.raises(Exception, match=r"StaleEpoch.*batch 1 is older.*reset\(.*batch=0"):
        world.run(world.query())
    with pytest.raises(Exception, match="BatchesMissing"):
        query = world.query().trigger(availableNow=True)
        query.start(topic=f"{world.topic}-other", checkpointLocation=str(world.checkpoint)).awaitTermination(PATIENCE_S)


def test_what_start_refuses(world: World) -> None:
    """Schema, key, topic and options are checked before anything starts, and the message names what is wrong."""
    world.feed([Row("k", 100_000, 1)])
    create_topic(world.address, f"{world.topic}-trims", 2, {"retention.ms": "60000"})
    with pytest.raises(InvalidPartitions, match=r"5 state partitions, but topic .* has 2.*\(see retention.ms\)"):
        world.query(partitions=5).start(topic=f"{world.topic}-trims")
    with pytest.raises(InvalidConfig, match=r"withWatermark\('ts', 60000 ms\).*Visits uses 'ts' with a delay of 2"):
        world.over(world.frame().withWatermark("ts", "1 minute"), Visits()).start(topic=world.topic)
    with pytest.raises(SchemaRefused, match=r"'key' is missing; there is missing,"):
        world.over(world.frame().withColumnRenamed("key", "missing"), Visits()).start(topic=world.topic)
    with pytest.raises(SchemaRefused, match="'ts'"):
        world.over(world.frame().drop("ts"), Visits()).start(topic=world.topic)
    listed = Visits()
    listed.state = {"n": pa.int64(), "seen": pa.map_(pa.int64(), pa.int64())}
    with pytest.raises(StateSchemaRefused, match=r"state column 'seen' has type map<.*>; state can hold integers,"):
        world.query(listed).start(topic=world.topic)
    listed.state = {"n": int}
    with pytest.raises(StateSchemaRefused, match="state column 'n' is declared as <class 'int'>; give an Arrow type"):
        world.query(listed).start(topic=world.topic)
    with pytest.raises(InvalidConfig, match="'nonsense'"):
        world.query().option("nonsense", 1).start(topic=world.topic)
    with pytest.raises(InvalidConfig, match="not streaming"):
        world.over(world.spark.range(1).selectExpr("'k' key", "now() ts", "1 amount"), Visits()).start(topic="t")


def test_state_beyond_its_limit_is_refused_in_time(world: World) -> None:
    """A query whose state outgrows the limit fails with the limit's name; with more it goes on."""
    world.feed([Row(f"key-{number:060}", 100_000, 1) for number in range(5000)])
    with pytest.raises(Exception, match=r"StateTooLarge.*stateLimit"):
        world.run(world.query().option("stateLimit", "200k"))
    query = world.run(world.query().option("stateLimit", "100m"))
    assert query.progress is not None
    assert query.progress.windows == 5000


def test_another_operator_does_not_get_the_state(world: World) -> None:
    """State with a column that the operator has not, and does not declare as dropped, is refused by name."""
    world.feed([Row("k", 100_000, 1)])
    world.run(world.query())

    other = Visits()
    other.state = {"n": Visits.state["n"], "last": Visits.state["last"]}
    world.feed([Row("k", 101_000, 1)])
    with pytest.raises(Exception, match=r"OperatorChanged.*column 'total' \(int64\) is gone"):
        world.run(world.query(other))


def test_trimming_keeps_what_is_needed(world: World, tmp_path: Path) -> None:
    """With a retention of nothing the driver trims all that no open window needs: a lost host still finds its state."""
    epochs = rows_of(12, 40, 20)
    for rows in epochs[:11]:
        world.feed(rows)
    create_topic(
        world.address, world.topic, 2, {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": "4096"}
    )
    query = world.query(rows_per_batch=40).option("retention", "1ms").option("extentLimit", 60)
    world.run(query)
    with Client(parse_addresses(world.address)) as client:
        stream = TopicPartition(world.topic, 0)
        start = client.offsets({stream: -2})[stream].offset
        assert 0 < start < client.offsets({stream: LATEST})[stream].offset
    shutil.rmtree(world.state)
    world.feed(epochs[11])
    again = world.run(world.query(rows_per_batch=40))
    model = Model()
    for rows in epochs[:11]:
        model.epoch(rows)
    model.pause()
    model.epoch(epochs[11])
    model.pause()
    assert again.progress is not None
    assert again.progress.windows == len(model.open)
    found, wanted = by_key(world.told()), by_key(model.told)
    assert found
    assert all(wanted[key][-len(values) :] == values for key, values in found.items())


def test_steps_in_front_of_an_operator(world: World) -> None:
    """A filter in front, inside the operator, gives what a filter in the data frame would; one that makes the key is
    refused.
    """
    epochs = rows_of(3, 40, 20)
    model = Model()
    for rows in epochs:
        world.feed(rows)
        model.epoch([row for row in rows if row.amount > 30])
    model.pause()
    dear = Filter(pc.field("amount") > 30)
    with pytest.raises(SchemaRefused, match="may change key column 'key'"):
        world.query(Pipeline(Map(key=pc.field("amount")), Visits())).start(topic=world.topic)
    query = world.run(world.query(Pipeline(dear, Visits()), rows_per_batch=40))
    assert query.progress is not None
    told = world.told()
    assert {key for key, *_ in told} == {key for key, *_ in model.told}
    assert by_key(told) == by_key(model.told)
