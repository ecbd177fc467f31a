"""A query's topic may trim itself: what open windows need stays, whatever the retention; without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import EARLIEST, LATEST
from logstore.errors import FencedIncarnation, UnknownReader
from spe_adapter.epochs.retention import NEW_TOPIC, EpochOffsets
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import StateTrimmed
from spe_adapter.microbatch import registration
from spe_adapter.microbatch.epoch import reader_name
from spe_adapter.microbatch.topics import prepare_topic
from spe_adapter.tools.reset import reset
from tests.microbatch.below import EAGER_FLAGS, PARTITIONS, Query
from tests.microbatch.operators import Model, Row, rows_of
from tests.microbatch.world import by_key
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

TRIMMED_AT_ONCE = {"retention.ms": "1", "segment.bytes": "1024"}


@pytest.fixture(autouse=True)
def _acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are acknowledged after every epoch."""
    monkeypatch.setattr(registration, "ACKNOWLEDGE_S", 0.0)


def log_start(client: Client, stream: TopicPartition) -> int:
    """The first offset that is there."""
    return client.offsets({stream: EARLIEST})[stream].offset


def lost_memory(tmp_path: Path) -> None:
    """The host forgets all state."""
    shutil.rmtree(tmp_path / "state", ignore_errors=True)


def test_open_windows_survive_a_retention_of_nothing(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """Chunks go as soon as they may, memory is lost between all runs: each result is right, and the log is trimmed."""
    client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
    query, model = Query(eager.address, "out", tmp_path), Model()
    first = {TopicPartition("out", partition): 0 for partition in range(PARTITIONS)}
    for rows in rows_of(20, 30, 6):
        query.rows += rows
        query.run(rows_per_batch=30, extentLimit="60")
        model.epoch(rows)
        lost_memory(tmp_path)
        for stream, held in first.items():
            start = log_start(client, stream)
            assert start >= held
            first[stream] = start
    until(lambda: all(log_start(client, stream) for stream in first), "the streams are trimmed")
    description = client.describe_reader(reader_name(query.id))
    assert all(
        entry.offset >= log_start(client, TopicPartition("out", entry.partition)) for entry in description.streams
    )
    found, wanted = by_key(query.told()), by_key(model.told)
    assert found
    assert all(wanted[key][-len(values) :] == values for key, values in found.items())


def test_state_that_was_released_is_named_with_its_setting(tmp_path: Path) -> None:
    """A reader that may keep nothing loses the state of a lost host: the error names the reader and the setting."""
    flags = (*EAGER_FLAGS, "--reader-hold-bytes", "0")
    with Sidecar(tmp_path / "eager", *flags) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
        query = Query(sidecar.address, "out", tmp_path)
        quiet = [Row(f"quiet-{number}", 150_000, 1) for number in range(20)]
        query.rows = quiet + [row for rows in rows_of(20, 30, 6) for row in rows]
        query.run(rows_per_batch=30, extentLimit="1000000")
        name = reader_name(query.id)
        until(lambda: "event=reader_released" in sidecar.log(), "the reader's hold is released")
        streams = [TopicPartition("out", partition) for partition in range(PARTITIONS)]
        until(lambda: all(log_start(client, stream) for stream in streams), "the streams are trimmed")
        lost_memory(tmp_path)
        query.rows += rows_of(1, 10, 6)[0]
        with pytest.raises(StateTrimmed, match=rf"{name}.*reader-hold-bytes"):
            query.run()


def test_a_query_that_allows_trimming_holds_nothing(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """`allowTrimming`: no reader is known, and retention goes by the topic's settings alone."""
    client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
    query = Query(eager.address, "out", tmp_path)
    query.rows = rows_of(1, 10, 5)[0]
    query.run(allowTrimming="true")
    with pytest.raises(UnknownReader):
        client.describe_reader(reader_name(query.id))


def test_a_new_topic_keeps_results_for_a_while(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """The settings say so, and more partitions are given to it as to one that keeps all."""
    assert prepare_topic(client, "new", None, 2) == 2
    settings = client.topic_configs("new")
    assert {name: settings[name] for name in NEW_TOPIC} == dict(NEW_TOPIC)
    assert prepare_topic(client, "new", 3, 2) == 3


def test_a_new_query_holds_from_its_first_epoch_on(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """Records of others before it are not held."""
    prepare_topic(client, "out", PARTITIONS, PARTITIONS)
    other = Query(eager.address, "out", tmp_path / "other")
    other.rows = rows_of(1, 10, 5)[0]
    other.run()
    query = Query(eager.address, "out", tmp_path)
    query.rows = rows_of(1, 10, 5)[0]
    ends_before = {
        partition: client.offsets({TopicPartition("out", partition): LATEST})[TopicPartition("out", partition)].offset
        for partition in range(PARTITIONS)
    }
    query.run(allowOtherQueries="true")
    found = client.describe_reader(reader_name(query.id)).streams
    assert {entry.partition: entry.offset for entry in found} == ends_before


def test_positions_of_epochs(eager: Sidecar, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever an epoch is asked for, as epochs go on: the offset lies before its group and behind an older one, also
    when most of what was found is forgotten.
    """
    monkeypatch.setattr("spe_adapter.epochs.retention.MAX_KNOWN_EPOCHS", 4)
    prepare_topic(client, "out", PARTITIONS, PARTITIONS)
    query, stream = Query(eager.address, "out", tmp_path), TopicPartition("out", 0)
    offsets: EpochOffsets | None = None
    for at, rows in enumerate(rows_of(24, 4, 5)):
        query.rows += rows
        query.run(rows_per_batch=4)
        offsets = offsets or EpochOffsets(stream, query.id)
        after = sorted((end.epoch, offset) for end, offset in ends(client, stream))
        wanted = after[max(0, at // 2)][0]
        found = offsets.before(client, wanted)
        older = [offset for epoch, offset in after if epoch < wanted]
        assert found is None if not older else found in older


def test_an_old_driver_that_idles_ends_beside_the_new_one(
    eager: Sidecar, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset, and after the restart behind it, the driver from before gets an error that names its incarnation;
    what the reader holds is what the reset and the new driver say.
    """
    monkeypatch.setattr(registration, "KEEP_ALIVE_S", 0.0)
    prepare_topic(client, "out", PARTITIONS, PARTITIONS)
    query = Query(eager.address, "out", tmp_path)
    query.rows = [row for rows in rows_of(4, 30, 6) for row in rows]
    query.run(rows_per_batch=30)
    query.rows += rows_of(5, 30, 6)[-1]
    fixed = query.fixed({"extentLimit": "60"})
    old = query.driver(fixed)
    query.plan(4, len(query.rows))
    query.batch(old, fixed, 4)
    query.write("commits/4", "v1\n{}")
    query.close_due(old, fixed)
    assert not query.close_due(old, fixed)  # it idles, and keeps its reader alive
    name = reader_name(query.id)
    number = client.describe_reader(name).incarnation_number
    assert number
    options = {"kafka.bootstrap.servers": eager.address, "stateDirectory": str(tmp_path / "state")}
    reset(topic="out", query=query.id, batch=1, checkpoint=query.checkpoint, options=options)
    for later in (1, 2):
        held = client.describe_reader(name)
        assert held.incarnation_number == number + later
        with pytest.raises(FencedIncarnation, match=f"incarnation {number + later}.*incarnation {number}; stop"):
            query.close_due(old, fixed)
        assert client.describe_reader(name).streams == held.streams
        query.run(rows_per_batch=30)  # the restart behind the reset, then another one
