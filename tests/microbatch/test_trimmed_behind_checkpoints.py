"""A log that begins behind a checkpoint: what shows, reads, resets and forks state takes the checkpoint."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from logstore.cli import main
from logstore.client.blocking import Client, TopicPartition
from logstore.client.network import Network
from logstore.errors import InvalidConfig
from spe_adapter.checkpoint.errors import CheckpointUrlRefused
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.refusals import Refusals
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink, open_sink_to_read
from spe_adapter.datasource.state_reader import parse_state
from spe_adapter.errors import StateAway, StateTrimmed
from spe_adapter.host import ThisHost
from spe_adapter.microbatch import checkpoints
from spe_adapter.microbatch.checkpoints import OfferedCheckpoints
from spe_adapter.microbatch.state_loader import committed_state
from spe_adapter.tools.fork import fork
from spe_adapter.tools.reset import reset
from tests.microbatch.below import PARTITIONS, Query
from tests.microbatch.operators import DELAY_MS, QUIET_MS, Model, Row
from tests.microbatch.test_operator_checkpoints import ROWS, TRIMMED_AT_ONCE, Checkpointed
from tests.microbatch.test_state_reader import windows
from tests.microbatch.world import by_key
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic
from tests.support.waiting import until

BATCHES = 8
BEHIND = 2
"""Batches that ran after the last checkpoint was written."""
CHECKPOINT_EPOCH = 2 * (BATCHES - BEHIND - 2)
"""Of the last checkpoint: a base has the epoch before the one that ended last."""
START_MS = 20_000
STEP_MS = 100


pytestmark = pytest.mark.usefixtures("checkpoints_at_once")


@pytest.fixture
def trimmed(eager: Sidecar, client: Client, tmp_path: Path) -> Checkpointed:
    """A query whose log has lost windows that are still open; its last checkpoint is BEHIND batches old."""
    client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
    query = Checkpointed(eager.address, "out", tmp_path)
    for batch, rows in enumerate(input_batches()[:BATCHES]):
        query.rows += rows
        query.go()
        if 0 < batch < BATCHES - BEHIND:
            assert all(query.write_checkpoint(partition).is_complete for partition in range(PARTITIONS))
    assert query.last is not None
    assert query.last.committed is not None
    epoch = query.last.committed.epoch
    until(
        lambda: all(is_trimmed(client, query, partition, epoch) for partition in range(PARTITIONS)),
        "the log has not all windows",
    )
    return query


def input_batches() -> list[list[Row]]:
    """The input, batch by batch: keys that come once and stay open, keys that end one by one, and keys that change."""
    chance = random.Random(5)
    ends_ms = START_MS - DELAY_MS - QUIET_MS
    batches = [[Row(f"old{number}", START_MS, number) for number in range(ROWS // 2)]]
    batches[0] += [Row(f"gone{n}", ends_ms + STEP_MS * n - STEP_MS // 2, n) for n in range(1, ROWS // 2 + 1)]
    for batch in range(1, BATCHES + 2):
        at_ms = START_MS + STEP_MS * batch
        batches.append([Row(f"k{chance.randrange(20)}", at_ms, chance.randrange(100)) for _ in range(ROWS)])
    return batches


def is_trimmed(client: Client, query: Query, partition: int, epoch: int) -> bool:
    """Whether the log alone has not the state of a partition."""
    try:
        committed_state(client, TopicPartition(query.topic, partition), query.id, epoch)
    except StateTrimmed:
        return True
    return False


def by_identity(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of state in a stable order."""
    return sorted(rows, key=lambda row: (row["key"], row["number"]))


def twin_of(eager: Sidecar, directory: Path) -> Query:
    """A query over the same input whose log has everything."""
    create_topic(eager.address, "twin", PARTITIONS, {"retention.ms": "-1"})
    twin = Query(eager.address, "twin", directory / "twin")
    twin.rows = [row for rows in input_batches()[:BATCHES] for row in rows]
    twin.run(rows_per_batch=ROWS, extentLimit="1000000")
    return twin


def test_state_is_read_from_a_checkpoint_and_the_log_behind_it(
    eager: Sidecar, trimmed: Checkpointed, tmp_path: Path
) -> None:
    """Row by row what a log that has everything says, footprints' epochs included; the log alone is refused, and the
    message names the option.
    """
    with pytest.raises(StateTrimmed, match=r"open at epoch .*option 'checkpoints'"):
        windows(eager, "out")
    twin_of(eager, tmp_path)
    found = windows(eager, "out", checkpoints=trimmed.sink.as_uri())
    assert by_identity(found) == by_identity(windows(eager, "twin"))
    newest = 2 * (BATCHES - 1)
    assert {row["epoch"] for row in found} >= {0, newest}
    for epoch in (newest - 2, CHECKPOINT_EPOCH):
        at = {"epoch": str(epoch)}
        found = windows(eager, "out", checkpoints=trimmed.sink.as_uri(), **at)
        assert by_identity(found) == by_identity(windows(eager, "twin", **at))


def test_a_damaged_checkpoint_costs_itself_and_two_are_named(eager: Sidecar, trimmed: Checkpointed) -> None:
    """The one before is taken; without any, the message says what is wrong with each. An empty sink says so too."""
    whole = by_identity(windows(eager, "out", checkpoints=trimmed.sink.as_uri()))
    for partition in range(PARTITIONS):
        newest = max(trimmed.sink.glob(f"*.{partition}-*"))
        (newest / "000").write_bytes(b"nothing of this is right")
    assert by_identity(windows(eager, "out", checkpoints=trimmed.sink.as_uri())) == whole
    for partition in range(PARTITIONS):
        for directory in trimmed.sink.glob(f"*.{partition}-*"):
            (directory / "000").write_bytes(b"nor of this")
    with pytest.raises(StateTrimmed, match=rf"no checkpoint at {trimmed.sink.as_uri()} has the rest: .*000"):
        windows(eager, "out", checkpoints=trimmed.sink.as_uri())
    shutil.rmtree(trimmed.sink)
    trimmed.sink.mkdir()
    with pytest.raises(StateTrimmed, match="has the rest: there is none"):
        windows(eager, "out", checkpoints=trimmed.sink.as_uri())


def test_show_takes_the_checkpoint(eager: Sidecar, trimmed: Checkpointed, capsys: pytest.CaptureFixture[str]) -> None:
    """`cairn state show --checkpoints` counts and lists all windows, and names the checkpoint."""
    command = ["state", "show", "out", "--servers", eager.address, "--json", "--windows", "1000"]
    assert main(command) == 1
    assert "--checkpoints URL" in capsys.readouterr().err
    assert main([*command, "--checkpoints", trimmed.sink.as_uri()]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model = Model()
    for rows in input_batches()[:BATCHES]:
        model.epoch(rows)
    listed = [window for partition in shown for window in partition["windows"]]
    assert {window["key"]: (window["n"], window["total"]) for window in listed} == {
        key: (n, total) for key, (n, total, _) in model.open.items()
    }
    for partition in shown:
        assert partition["open_windows"] == len(partition["windows"])
        assert partition["oldest_epoch"] == min(window["epoch"] for window in partition["windows"])
        assert partition["checkpoint_epoch"] == CHECKPOINT_EPOCH
        assert partition["extent_records"] >= partition["open_windows"]


def test_a_reset_behind_the_checkpoint(eager: Sidecar, trimmed: Checkpointed) -> None:
    """A batch that a checkpoint and the log reach can be gone back to: batches run again with other input, on a host
    that lost its memory, are exact. Without the option nothing is changed.
    """
    batch = BATCHES - 2
    options = {"kafka.bootstrap.servers": eager.address}
    with pytest.raises(StateTrimmed, match="option 'checkpoints'"):
        reset(topic="out", query=trimmed.id, batch=batch, checkpoint=trimmed.checkpoint, options=options)
    options["checkpoints"] = trimmed.sink.as_uri()
    reset(topic="out", query=trimmed.id, batch=batch, checkpoint=trimmed.checkpoint, options=options)
    trimmed.lose_memory()
    kept = trimmed.rows[: (batch + 1) * ROWS]
    other = input_batches()[BATCHES:]
    trimmed.rows = kept + [row for rows in other for row in rows]
    trimmed.go()
    model = Model()
    for start in range(0, len(kept), ROWS):
        model.epoch(kept[start : start + ROWS])
    before = len(model.told)
    for rows in other:
        model.epoch(rows)
    wanted = by_key(model.told[before:])
    found = by_key(trimmed.told())
    assert wanted
    assert all(found[key][-len(values) :] == values for key, values in wanted.items())


def test_a_fork_behind_the_checkpoint(eager: Sidecar, trimmed: Checkpointed, tmp_path: Path) -> None:
    """The new query begins with all windows."""
    create_topic(eager.address, "branch", PARTITIONS, {"retention.ms": "-1"})
    options = {"kafka.bootstrap.servers": eager.address, "checkpoints": trimmed.sink.as_uri()}
    made = fork(topic="out", to="branch", checkpoint=tmp_path / "branch", options=options)
    plain = [
        [{name: row[name] for name in ("key", "number", "n", "total", "last")} for row in by_identity(rows)]
        for rows in (windows(eager, "branch"), windows(eager, "out", checkpoints=trimmed.sink.as_uri()))
    ]
    assert plain[0] == plain[1]
    assert made.windows == len(plain[0])


def test_a_place_that_is_none_is_refused() -> None:
    """The message names the option and its value."""
    with pytest.raises(InvalidConfig, match=r"'checkpoints'.*'s3://bucket' names no place"):
        parse_state({"state": "t", "kafka.bootstrap.servers": "127.0.0.1:1", "checkpoints": "s3://bucket"})


# ---- a sink that cannot be read


def recover(query: Checkpointed, **options: str) -> dict[str, int]:
    """The host has lost its memory, and the query runs one more batch; how its partitions came by their state."""
    query.lose_memory()
    query.rows = [row for rows in input_batches()[: BATCHES + 1] for row in rows]
    return dict(query.go(**options).how)


def test_a_sink_that_is_away_is_named_and_is_no_lost_state(
    trimmed: Checkpointed, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unmounted directory, an HDFS that does not answer, a place that cannot be listed: the error says that the
    checkpoints there cannot be read, and why. A directory that is mounted while tasks wait gives the state.
    """
    (tmp_path / "file").touch()
    trimmed.sink.rename(tmp_path / "elsewhere")
    unlisted = (tmp_path / "file" / "sink").as_uri()
    with monkeypatch.context() as at_once:
        at_once.setattr(checkpoints, "AWAY_S", 0.0)
        for place, cause in (
            (trimmed.sink.as_uri(), "there is no such directory"),
            ("hdfs://127.0.0.1:1/x", "127.0.0.1"),
            (unlisted, "Not a directory"),
        ):
            with pytest.raises(StateAway, match=rf"checkpoints at {place}.* cannot be read: .*{cause}") as raised:
                recover(trimmed, checkpoints=place)
            assert "reader" not in str(raised.value)
    assert "checkpoint_refused" in caplog.text
    found_nothing = Event()

    def mount() -> None:
        assert found_nothing.wait(PATIENCE_S)
        (tmp_path / "elsewhere").rename(trimmed.sink)

    class Waiting(Refusals):
        def wait_for_sink(self, lost: StateTrimmed, network: Network, patience_s: float) -> None:
            found_nothing.set()
            super().wait_for_sink(lost, network, patience_s)

    monkeypatch.setattr(checkpoints, "Refusals", Waiting)
    thread = Thread(target=mount)
    thread.start()
    try:
        assert recover(trimmed) == {"checkpoint": PARTITIONS}
    finally:
        found_nothing.set()
        thread.join()


def test_a_sink_without_the_checkpoint_is_named(trimmed: Checkpointed) -> None:
    """Emptied, or of a longer log: the error names the sink and what is there, and blames no release of the reader."""
    with pytest.raises(StateTrimmed, match=r"\.0-\d+: is of epoch \d+, newer than epoch 3, where the log ends"):
        look_for(trimmed, 3)
    shutil.rmtree(trimmed.sink)
    trimmed.sink.mkdir()
    place = trimmed.sink.as_uri()
    with pytest.raises(StateTrimmed, match=rf"no checkpoint at {place} has the rest: there is none of") as raised:
        recover(trimmed)
    assert "holds the stream from offset" in str(raised.value)
    assert "was released from" not in str(raised.value)


def look_for(query: Checkpointed, epoch: int) -> None:
    """What a task says that looks for the state of an epoch of a log that was restored from a copy."""
    settings = query.fixed({"checkpoints": query.sink.as_uri()}).options.checkpoints
    assert settings is not None
    offered = OfferedCheckpoints(settings, Unit(query.id, 0), epoch)
    assert list(offered()) == []
    offered.wait_for_sink(StateTrimmed("some windows are missing"), ThisHost().network)


def test_a_damaged_file_is_an_event(trimmed: Checkpointed, caplog: pytest.LogCaptureFixture) -> None:
    """A line `checkpoint_refused` names the checkpoint and the file."""
    newest = max(trimmed.sink.glob("*.0-*"))
    (newest / "000").write_bytes(b"nothing of this is right")
    assert recover(trimmed) == {"checkpoint": PARTITIONS}
    lines = [record.getMessage() for record in caplog.records if "checkpoint_refused" in record.getMessage()]
    assert len(lines) == 1
    assert f"checkpoint={newest.name}" in lines[0]
    assert str(newest / "000") in lines[0]


def test_a_reader_needs_no_token_of_the_plan_table() -> None:
    """A task that loads a checkpoint opens the sink without the file of the token, which only writers have."""
    settings = CheckpointSettings("hdfs://127.0.0.1:1/x", plans="http://127.0.0.1:1", plans_token_file="/no/such/file")
    open_sink_to_read(settings).close()
    with pytest.raises(CheckpointUrlRefused, match="/no/such/file"):
        open_sink(settings)
