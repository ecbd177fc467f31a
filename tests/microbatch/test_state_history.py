"""`stateHistory` = recovery: the log keeps what a recovery needs, and an older state is refused by its name."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition
from logstore.errors import InvalidConfig
from spe_adapter.epochs.lookup import state_columns
from spe_adapter.epochs.scan import ends, reconstruct
from spe_adapter.errors import StateCleaned
from spe_adapter.microbatch import registration
from spe_adapter.microbatch.epoch import reader_name
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.state_loader import LogLoader
from spe_adapter.state.segment import Tag
from spe_adapter.tools.fork import fork
from spe_adapter.tools.reset import reset
from spe_adapter.tools.state_inspector import inspect_state
from tests.microbatch.below import EAGER_FLAGS, PARTITIONS, Query
from tests.microbatch.operators import Model, Row
from tests.microbatch.world import by_key
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

SMALL_CHUNKS = {"retention.ms": "-1", "segment.bytes": "1048576"}
KEYS = 60
EPOCHS = 20
CUT = 3
"""The first epochs, whose state is gone at the end."""


@pytest.fixture(autouse=True)
def _acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are acknowledged after every epoch."""
    monkeypatch.setattr(registration, "ACKNOWLEDGE_S", 0.0)


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar that cleans all the time, and whose log tells of no other test."""
    with Sidecar(tmp_path / "eager", *EAGER_FLAGS) as running:
        yield running


def epochs(count: int) -> list[list[Row]]:
    """Rows of the same few keys in every epoch; the keys are long, so that there are bytes to gain."""
    return [
        [
            Row(f"key-{key}-{hashlib.shake_256(b'%d' % key).hexdigest(6000)}", 100_000 + 100 * epoch, 1)
            for key in range(KEYS)
        ]
        for epoch in range(count)
    ]


def grow(query: Query, rows: list[list[Row]], **options: str) -> None:
    """Run these epochs."""
    query.rows += [row for epoch in rows for row in epoch]
    query.run(rows_per_batch=KEYS, dies_before_commit=False, **options)


def cleaned_streams(sidecar: Sidecar) -> set[str]:
    """The streams of which a chunk was cleaned."""
    lines = [line for line in sidecar.log().splitlines() if "event=chunk_cleaned" in line]
    return {field for line in lines for field in line.split() if field.startswith("stream=")}


def wait_for_cleaning(sidecar: Sidecar) -> None:
    """Wait until each partition is cleaned."""
    until(lambda: len(cleaned_streams(sidecar)) == PARTITIONS, lambda: sidecar.log()[-2000:])


def is_cleaned(client: Client, stream: TopicPartition, query: str, epoch: int) -> bool:
    """Whether the state of an epoch is refused as cleaned."""
    try:
        inspect_state(client, stream, query, epoch)
    except StateCleaned:
        return True
    return False


def test_a_recovery_has_all_and_an_older_state_is_refused(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """Results are all there, a lost host recovers, and whoever asks for cleaned state gets an error with the option."""
    client.create_topic("out", PARTITIONS, SMALL_CHUNKS)
    query, model, rows = Query(eager.address, "out", tmp_path), Model(), epochs(EPOCHS + 1)
    stream = TopicPartition("out", 0)
    grow(query, rows[:CUT], stateHistory="recovery")
    old = reconstruct(client, stream, query.id).mark
    assert old is not None
    grow(query, rows[CUT:EPOCHS], stateHistory="recovery")
    wait_for_cleaning(eager)
    streams = [TopicPartition("out", partition) for partition in range(PARTITIONS)]
    until(
        lambda: all(is_cleaned(client, each, query.id, old.epoch) for each in streams),
        "the chunks of the older state are cleaned, too",
    )
    for epoch in rows:
        model.epoch(epoch)

    for ask in (
        lambda: inspect_state(client, stream, query.id, old.epoch),
        lambda: state_columns(client, stream, query.id, old.epoch),
        lambda: fork(
            topic="out", to="branch", checkpoint=tmp_path / "branch", epoch=old.epoch,
            options={"kafka.bootstrap.servers": eager.address},
        ),
        lambda: reset(
            topic="out", query=query.id, batch=CUT - 1, checkpoint=query.checkpoint,
            options={"kafka.bootstrap.servers": eager.address},
        ),
    ):  # fmt: skip
        with pytest.raises(StateCleaned, match="stateHistory"):
            ask()
    loader = LogLoader(client, stream, query.id, None)
    assert loader.since(Tag(old.epoch, old.attempt)) is None, "a version before what was cleaned leads on"

    shutil.rmtree(tmp_path / "state")
    grow(query, rows[EPOCHS:], stateHistory="recovery")
    assert by_key(query.told()) == by_key(model.told)
    newest = reconstruct(client, stream, query.id)
    assert newest.mark is not None
    assert newest.mark.open_windows == sum(windows.rows for windows in newest.windows) > 0
    assert len([end for end, _ in ends(client, stream) if end.query == query.id]) >= EPOCHS


def test_the_default_keeps_all(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """Without the option the reader names no state; with it the query's; and without it again none."""
    client.create_topic("out", PARTITIONS, SMALL_CHUNKS)
    query = Query(eager.address, "out", tmp_path)
    rows = epochs(3)
    grow(query, rows[:1])
    assert client.describe_reader(reader_name(query.id)).state == ""
    grow(query, rows[1:2], stateHistory="recovery")
    assert client.describe_reader(reader_name(query.id)).state == query.id
    grow(query, rows[2:])
    assert client.describe_reader(reader_name(query.id)).state == ""


def test_without_a_registration_nothing_says_what_a_recovery_needs() -> None:
    """The options exclude each other, and other values are refused."""
    servers = {"kafka.bootstrap.servers": "localhost:1"}
    assert parse_stateful(servers, "out").state_history == "all"
    with pytest.raises(InvalidConfig, match="allowTrimming"):
        parse_stateful({**servers, "stateHistory": "recovery", "allowTrimming": "true"}, "out")
    with pytest.raises(InvalidConfig, match="stateHistory"):
        parse_stateful({**servers, "stateHistory": "some"}, "out")
