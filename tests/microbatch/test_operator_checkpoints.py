"""State is recovered from checkpoints and the log behind them, and the log in front of them may go; without Spark."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import uuid
from pathlib import Path
from threading import Event

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import InvalidConfig
from spe_adapter.checkpoint.bases import freezing
from spe_adapter.checkpoint.datagram import MAX_DATAGRAM_BYTES, EpochNote, decode_note
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools, Outcome
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.service import read_status
from spe_adapter.checkpoint.service_place import listen, place_of
from spe_adapter.checkpoint.settings import settings_of
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import StateTrimmed
from spe_adapter.host import host_name
from spe_adapter.microbatch.committed import EpochProgress, progress_of, read_committed
from spe_adapter.microbatch.driver import QueryDriver
from spe_adapter.microbatch.epoch import QueryDefinition, log_epoch, reader_name
from spe_adapter.microbatch.epoch_end import NOT_COVERED
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.state_loader import committed_state
from spe_adapter.microbatch.topics import prepare_topic
from spe_adapter.tools.reset import reset
from tests.microbatch.below import PARTITIONS, Query
from tests.microbatch.operators import Model, rows_of
from tests.microbatch.world import by_key
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

TRIMMED_AT_ONCE = {"retention.ms": "1", "segment.bytes": "1024"}
ROWS = 30


class Checkpointed(Query):
    """A query whose checkpoints are written when the test says so, by a manager as the I/O service has it."""

    def __init__(self, address: str, topic: str, directory: Path) -> None:
        super().__init__(address, topic, directory)
        self.root = directory / "state"
        self.sink = directory / "sink"
        self.sink.mkdir()
        self.managers: dict[int, CheckpointManager] = {}
        self.last: QueryDriver | None = None

    def driver(self, fixed: QueryDefinition, *more: object) -> QueryDriver:
        """The driver, which is kept to ask it for the progress."""
        self.last = super().driver(fixed, *more)  # type: ignore[arg-type]
        return self.last

    def go(self, **options: str) -> EpochProgress:
        """A run over the rows that there are; the figures of the last epoch."""
        given = {"checkpoints": self.sink.as_uri(), "checkpointWeight": "0", "checkpointEvery": "1d", **options}
        self.run(rows_per_batch=ROWS, dies_before_commit=False, extentLimit="1000000", **given)
        assert self.last is not None
        assert self.last.committed is not None
        if self.last._watch is not None:
            self.last._watch.join(PATIENCE_S)
        return progress_of(self.last.committed)

    def write_checkpoint(self, partition: int) -> Outcome:
        """Write a checkpoint of a partition now."""
        if partition not in self.managers:
            unit = Unit(self.id, partition)
            tools = ManagerTools(DirectorySink(self.sink))
            self.managers[partition] = CheckpointManager(unit, freezing(self.root)(unit), tools)
        return self.managers[partition].checkpoint()

    def lose_memory(self) -> None:
        """The host forgets all state. The I/O service, which may be writing there, ends without its directory."""
        gone = self.root.with_name(f"gone-{uuid.uuid4().hex}")
        self.root.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        self.managers.clear()


pytestmark = pytest.mark.usefixtures("checkpoints_at_once")


def ended(client: Client, partition: int) -> list[tuple[int, int]]:
    """The offsets behind the epochs that are there, and their numbers."""
    return [(offset, end.epoch) for end, offset in ends(client, TopicPartition("out", partition))] or [(0, -1)]


def assert_exact(query: Query, model: Model) -> None:
    """The results that are there are the newest ones of the model, key by key."""
    found, wanted = by_key(query.told()), by_key(model.told)
    assert found
    assert all(wanted[key][-len(values) :] == values for key, values in found.items())


def test_a_lost_host_loads_checkpoints_and_the_log_behind_them(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """With two checkpoints of a partition the log goes up to the older one; either of them brings the state back."""
    client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
    query, model, epochs = Checkpointed(eager.address, "out", tmp_path), Model(), iter(rows_of(15, ROWS, 10))

    def go(count: int) -> EpochProgress:
        for rows in (next(epochs) for _ in range(count)):
            query.rows += rows
            model.epoch(rows)
        return query.go()

    for _ in range(3):
        go(2)
        assert all(query.write_checkpoint(partition).is_complete for partition in range(PARTITIONS))
    progress = go(3)
    assert progress.checkpoint_epoch is not None
    before_an_epoch = progress_of(read_committed(client, query.topic, query.id, progress.epoch))
    assert before_an_epoch.windows == progress.windows > 0
    query.lose_memory()
    progress = go(1)
    assert dict(progress.how) == {"checkpoint": PARTITIONS}
    assert progress.checkpoint_bytes > 0
    assert progress.log_bytes > 0
    for partition in range(PARTITIONS):  # the newest checkpoint is damaged
        newest = max(path for path in query.sink.glob(f"*.{partition}-*"))
        (newest / "000").write_bytes(b"nothing of this is right")
    query.lose_memory()
    assert dict(go(1).how) == {"checkpoint": PARTITIONS}
    held = client.describe_reader(reader_name(query.id)).streams
    assert len(held) == PARTITIONS
    for entry in held:
        older = [offset for offset, epoch in ended(client, entry.partition) if epoch < log_epoch(0, 2, closing=False)]
        behind = max(older, default=0)
        assert entry.offset >= behind, "the log is held in front of the older checkpoint"
    assert_exact(query, model)


def test_checkpoints_that_a_reset_has_undone_are_not_used(eager: Sidecar, client: Client, tmp_path: Path) -> None:
    """Batches run again with other input: a lost host takes the log, not the checkpoint of an epoch that is no more."""
    client.create_topic("out", PARTITIONS, {"retention.ms": "-1"})
    query, epochs = Checkpointed(eager.address, "out", tmp_path), rows_of(12, ROWS, 10)
    query.rows = [row for rows in epochs[:6] for row in rows]
    query.go()
    assert all(query.write_checkpoint(partition).is_complete for partition in range(PARTITIONS))
    options = {"kafka.bootstrap.servers": eager.address, "stateDirectory": str(query.root)}
    reset(topic="out", query=query.id, batch=2, checkpoint=query.checkpoint, options=options)
    before = {key: len(values) for key, values in by_key(query.told()).items()}
    query.lose_memory()
    query.rows = query.rows[: 3 * ROWS] + [row for rows in epochs[8:12] for row in rows]
    query.go()
    model = Model()
    for rows in epochs[:3]:
        model.epoch(rows)
    told_before = len(model.told)
    for rows in epochs[8:12]:
        model.epoch(rows)
    found = {key: values[before.get(key, 0) :] for key, values in by_key(query.told()).items()}
    assert {key: values for key, values in found.items() if values} == by_key(model.told[told_before:])


def test_checkpoints_that_are_gone_cover_nothing(sidecar: Sidecar, tmp_path: Path) -> None:
    """A sink that was emptied: the driver says so at its next look, and the log counts again."""
    query = Checkpointed(sidecar.address, "emptied", tmp_path)
    with Client(parse_addresses(sidecar.address)) as connected:
        prepare_topic(connected, query.topic, PARTITIONS, PARTITIONS)
        for rows in rows_of(4, ROWS, 10):
            query.rows += rows
            query.go()
            assert all(query.write_checkpoint(partition).state.value for partition in range(PARTITIONS))
        assert query.last is not None
        watch, committed = query.last._watch, query.last.committed
        assert watch is not None
        assert committed is not None

        def look() -> None:
            for _ in range(2):  # what a look has found counts at the next call
                watch.note(connected, committed.progress)
                watch.join(PATIENCE_S)

        look()
        assert all(watch.covering())
        for path in query.sink.iterdir():
            shutil.rmtree(path)
        look()
        watch.note(connected, committed.progress)
        assert not any(watch.covering())
        assert set(watch.covered_emitted()) == {NOT_COVERED}


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_lost_results_are_exact(eager: Sidecar, client: Client, tmp_path: Path, seed: int) -> None:
    """Batches, checkpoints of single partitions, lost memory, damaged, missing and torn files of the newest checkpoint,
    a sink that is away for a while, in any order, over a log that is trimmed at once: results are exact.
    """
    chance = random.Random(seed)
    print(f"seed {seed}")
    client.create_topic("out", PARTITIONS, TRIMMED_AT_ONCE)
    query, model = Checkpointed(eager.address, "out", tmp_path), Model()
    hows: set[str] = set()
    damaged = 0
    for rows in rows_of(30, ROWS, 10, seed):
        query.rows += rows
        model.epoch(rows)
        progress = query.go()
        hows |= set(progress.how)
        for partition in range(PARTITIONS):
            if chance.random() < 0.4:
                query.write_checkpoint(partition)
            elif chance.random() < 0.2:
                damaged += damage_newest(query, partition, chance)
        if chance.random() < 0.4:
            query.lose_memory()
    assert_exact(query, model)
    assert "checkpoint" in hows
    print(f"{damaged} checkpoints damaged; state was obtained as {sorted(hows)}")


def damage_newest(query: Checkpointed, partition: int, chance: random.Random) -> int:
    """Damage the newest checkpoint of a partition, if there are two that are whole; how many were damaged."""
    whole = sorted(path for path in query.sink.glob(f"*.{partition}-*") if (path / "MANIFEST").exists())
    if len(whole) < 2:
        return 0
    name = chance.choice(["MANIFEST", "000"])
    file = whole[-1] / name
    if not file.exists():
        return 0
    content = file.read_bytes()
    match chance.choice(["gone", "torn", "flipped"]):
        case "gone":
            file.unlink()
        case "torn":
            file.write_bytes(content[: len(content) // 2])
        case _:
            at = chance.randrange(len(content))
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    # The manager must not build on it: in production it would not know, and the next damage would hit two of two.
    query.managers.pop(partition, None)
    return 1


@pytest.mark.parametrize(
    "options", [{"checkpoints": "file:///nowhere/at/all"}, {"checkpoints": "hdfs://127.0.0.1:1/x"}]
)
def test_a_sink_that_is_away_costs_no_epoch(
    sidecar: Sidecar, request: pytest.FixtureRequest, tmp_path: Path, options: dict[str, str]
) -> None:
    """State is read from the log."""
    query, model = Checkpointed(sidecar.address, f"away-{options['checkpoints'][:4]}", tmp_path), Model()
    with Client(parse_addresses(sidecar.address)) as connected:
        prepare_topic(connected, query.topic, PARTITIONS, PARTITIONS)
    for rows in rows_of(3, ROWS, 10):
        query.rows += rows
        model.epoch(rows)
        query.go(**options)
        query.lose_memory()
    assert by_key(query.told()) == by_key(model.told)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"checkpointEvery": "1m"}, "'checkpointEvery' is '1m', without a place"),
        ({"checkpointEvry": "1m"}, "option 'checkpointEvry' is not one of"),
        ({"checkpoints": "s3://bucket"}, "'s3://bucket' names no place"),
        ({"checkpoints": "file:///x", "checkpointReplicas": "0"}, "'checkpointReplicas'.*'0'"),
        ({"checkpoints": "file:///x", "checkpointReplicas": "65"}, "replicas=65"),
        ({"checkpoints": "file:///x", "checkpointWeight": "much"}, "'checkpointWeight' is 'much'"),
        ({"checkpoints": "file:///x", "checkpointEvery": "5s", "checkpointMinEvery": "6s"}, "min_every_s=6"),
        ({"checkpoints": "file:///x", "checkpointRate": "fast"}, "'checkpointRate' is 'fast'"),
        ({"checkpoints": "file:///x", "checkpointEvery": "5"}, "'checkpointEvery' is '5', without a unit; write 5s"),
        ({"checkpoints": "file:///x", "checkpointEvery": "999ms"}, "'checkpointEvery' is '999ms'.*at least 1s"),
        ({"checkpoints": "file:///x", "checkpointMinEvery": "5"}, "'checkpointMinEvery' is '5', without a unit"),
        ({"checkpoints": "file:///x", "checkpointCoordinator": "coordinator:9"}, "'coordinator:9' is not an address"),
        ({"checkpoints": "file:///x", "checkpointCoordinator": "http://c:port"}, "'http://c:port' is not an address"),
        (
            {"checkpoints": "hdfs://h:1/x", "checkpointPlans": "namenode:9875"},
            "plans='namenode:9875'.*http://HOST:PORT",
        ),
        (
            {"checkpoints": "hdfs://h:1/x", "checkpointPlans": "http://n:port"},
            "plans='http://n:port'.*http://HOST:PORT",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    """The message names the option and its value."""
    with pytest.raises(InvalidConfig, match=said):
        parse_stateful({"kafka.bootstrap.servers": "127.0.0.1:1", **options}, "out")


def test_options_of_checkpoints_are_taken() -> None:
    """All of them, as texts; what they become can be told to the I/O service."""
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "checkpoints": "hdfs://namenode:9870/cairn",
        "checkpointCoordinator": "http://peace:8080",
        "checkpointCoordinatorToken": "/etc/token",
        "checkpointCoordinatorCa": "/etc/ca.pem",
        "checkpointCoordinatorCertificate": "/etc/host.pem",
        "checkpointHost": "h1",
        "checkpointReplicas": "2",
        "checkpointPlans": "http://namenode:9871",
        "checkpointPlansToken": "/etc/plans",
        "checkpointEvery": "5m",
        "checkpointMinEvery": "30s",
        "checkpointMinState": "1m",
        "checkpointWeight": "2.5",
        "checkpointRate": "10m",
        "checkpointUser": "somebody",
    }
    settings = parse_stateful(given, "out").checkpoints
    assert settings is not None
    assert settings_of(settings.described()) == settings
    assert (settings.replicas, settings.host, settings.max_bytes_per_s) == (2, "h1", 10 << 20)
    assert (settings.coordinator_ca_file, settings.coordinator_certificate_file) == ("/etc/ca.pem", "/etc/host.pem")
    assert settings.policy == PolicySettings(300.0, 30.0, 1 << 20, 2.5)


def test_the_service_writes_what_a_lost_host_needs(sidecar: Sidecar, tmp_path: Path) -> None:
    """Tasks start the I/O service of their host, which writes checkpoints by itself: a lost host loads them."""
    query, model = Checkpointed(sidecar.address, "served", tmp_path), Model()
    with Client(parse_addresses(sidecar.address)) as connected:
        prepare_topic(connected, query.topic, PARTITIONS, PARTITIONS)
    options = {"checkpointMinState": "0", "checkpointEvery": "1s", "checkpointMinEvery": "0ms"}
    epochs = iter(rows_of(1_000, ROWS, 10))
    progress = None
    while progress is None or progress.checkpoint_epoch is None:
        rows = next(epochs)  # ends if no checkpoint comes
        query.rows += rows
        model.epoch(rows)
        progress = query.go(**options)
        Event().wait(0.1)
    until(lambda: read_status(query.root) is not None, "the status of the service")
    status = read_status(query.root)
    assert status is not None
    kill_service(int(status["process"]))
    query.lose_memory()
    rows = next(epochs)
    query.rows += rows
    model.epoch(rows)
    assert dict(query.go(**options).how) == {"checkpoint": PARTITIONS}
    assert by_key(query.told()) == by_key(model.told)
    shutil.rmtree(query.root)  # ends the service


def test_the_rate_of_the_log_is_measured_where_the_log_alone_was_read(sidecar: Sidecar, tmp_path: Path) -> None:
    """The service hears the time of a load from the log; not that of a checkpoint, with some log behind it."""
    query = Checkpointed(sidecar.address, "measured", tmp_path)
    with Client(parse_addresses(sidecar.address)) as connected:
        prepare_topic(connected, query.topic, PARTITIONS, PARTITIONS)
    epochs = iter(rows_of(5, ROWS, 10))

    def heard() -> tuple[dict[str, int], list[EpochNote]]:
        place_of(query.root).mkdir(parents=True, exist_ok=True)
        query.root.chmod(0o700)
        with listen(query.root) as service:
            query.rows += next(epochs)
            progress = query.go()
            service.setblocking(False)
            notes = [decode_note(service.recv(MAX_DATAGRAM_BYTES)) for _ in range(PARTITIONS)]
        return dict(progress.how), notes

    heard(), heard()
    query.lose_memory()
    how, notes = heard()
    assert how == {"loaded": PARTITIONS}
    assert all(note.loaded_bytes > 0 and note.loaded_s > 0 for note in notes)
    assert all(query.write_checkpoint(partition).is_complete for partition in range(PARTITIONS))
    heard()
    query.lose_memory()
    how, notes = heard()
    assert how == {"checkpoint": PARTITIONS}
    assert all(note.loaded_bytes > 0 and note.loaded_s == 0 for note in notes)


def test_a_host_that_cannot_write_checkpoints_says_so(sidecar: Sidecar, tmp_path: Path) -> None:
    """A token file that only some hosts have: the progress names the host, the partition and the file."""
    query, token = Checkpointed(sidecar.address, "troubled", tmp_path), tmp_path / "no such token"
    with Client(parse_addresses(sidecar.address)) as connected:
        prepare_topic(connected, query.topic, PARTITIONS, PARTITIONS)
    options = {"checkpointCoordinator": "http://127.0.0.1:1", "checkpointCoordinatorToken": str(token)}
    epochs = iter(rows_of(1_000, ROWS, 10))
    error = ""
    while not error:
        query.rows += next(epochs)  # ends if nothing is said
        error = query.go(**options).checkpoint_error
        Event().wait(0.1)
    assert re.match(rf"partition \d, host {re.escape(host_name())}: CheckpointUrlRefused: .*{token}", error)
    shutil.rmtree(query.root)  # ends the service


def kill_service(process: int) -> None:
    """End the service as a crash would, and wait until it is gone: it holds a lock in the state directory."""
    os.kill(process, signal.SIGKILL)
    until(lambda: is_gone(process), f"process {process} is gone")


def is_gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("partitions", [1, 3])
def test_another_number_of_partitions_with_a_log_behind_checkpoints(
    eager: Sidecar, client: Client, tmp_path: Path, partitions: int
) -> None:
    """The state is redistributed from the checkpoints and what came after them: the log alone has not all of it."""
    client.create_topic("out", max(partitions, PARTITIONS), TRIMMED_AT_ONCE)
    query, model, epochs = Checkpointed(eager.address, "out", tmp_path), Model(), iter(rows_of(30, ROWS, 40))

    def go(count: int) -> EpochProgress:
        for rows in (next(epochs) for _ in range(count)):
            query.rows += rows
            model.epoch(rows)
        return query.go()

    def is_trimmed() -> bool:
        """Whether some window of each partition is in a checkpoint alone."""
        assert query.last is not None
        last = query.last.committed
        assert last is not None
        for partition in range(PARTITIONS):
            try:
                committed_state(client, TopicPartition("out", partition), query.id, last.epoch)
            except StateTrimmed:
                continue
            return False
        return True

    for _ in range(10):
        go(1)
        assert all(query.write_checkpoint(partition).state for partition in range(PARTITIONS))
        if is_trimmed():
            break
    until(is_trimmed, "some window of each partition is in a checkpoint alone")
    query.partitions = partitions
    query.lose_memory()
    assert dict(go(1).how) == {"moved": partitions}
    go(2)
    found, wanted = by_key(query.told()), by_key(model.told)
    assert found
    assert all(wanted[key][-len(values) :] == values for key, values in found.items())
    assert not list(query.root.glob("*before*/p*"))
