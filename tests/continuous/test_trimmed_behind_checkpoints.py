"""A runner's log that begins behind a checkpoint: its state is read from the checkpoint and the log behind it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.network import Network
from spe_adapter.cec.policy import Targets
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.refusals import Refusals
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.whole_state import whole_state
from spe_adapter.continuous import checkpoints as runner_checkpoints
from spe_adapter.continuous.fragment import EpochLimits
from spe_adapter.continuous.loop import Event as RunnerEvent
from spe_adapter.continuous.loop import FragmentProgress, Recovered
from spe_adapter.continuous.paged_state import NO_CHECKPOINT, CheckpointStatus
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.epochs.lookup import only_query
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import StateAway, StateTrimmed
from tests.continuous.processes import WINDOW, Work, create, described, produce
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

KEYS = 40
RECORDS = 4000
ROUNDS = 50
"""Of so many records each, at most, until a checkpoint is there: a thread writes it when it gets time."""
OFTEN = PolicySettings(every_s=0.0, min_every_s=0.0, min_state_bytes=0)


def value(record: int) -> tuple[bytes, int]:
    """Keys that come once at the start and stay open; later the other ones in turn."""
    if record < KEYS:
        return b"once-%d" % record, record
    return b"key-%d" % (record % KEYS), record


@pytest.fixture
def settings(tmp_path: Path) -> CheckpointSettings:
    """Where checkpoints go, as often as can be."""
    (tmp_path / "sink").mkdir()
    return CheckpointSettings((tmp_path / "sink").as_uri(), policy=OFTEN)


def test_windows_are_those_of_their_epochs(tmp_path: Path, settings: CheckpointSettings) -> None:
    """Each open window is there once, with the rows that its epoch had seen; the log alone is refused."""
    with Sidecar(tmp_path / "data") as sidecar, Client(parse_addresses(sidecar.address)) as client:
        create(sidecar.address, "in")
        stream = TopicPartition("out-sums", 0)
        newest, behind = run_to_a_checkpoint(sidecar.address, settings, client)
        query = only_query(client, "out-sums", None)
        sought = whole_state(client, stream, query)
        wanted = {row["key"] for group in sought.groups for batch in group.batches for row in batch.to_pylist()}
        client.delete_records(stream, behind[0])
        with pytest.raises(StateTrimmed, match="option 'checkpoints'"):
            whole_state(client, stream, query)
        state = whole_state(client, stream, query, checkpoints=settings)
    assert state.checkpoint is not None
    assert state.checkpoint.seq == newest.seq
    found: set[bytes] = set()
    for group in state.groups:
        for batch in group.batches:
            for row in batch.to_pylist():
                assert row["key"] not in found
                found.add(row["key"])
                seen = [number for key, number in map(value, range(group.mark.seen)) if key == row["key"]]
                open_rows = seen[len(seen) // WINDOW * WINDOW :]
                assert open_rows
                assert any(sum(open_rows) == content for name, content in row.items() if name.startswith("s_"))
    assert found == wanted


def test_a_sink_that_cannot_be_read_is_no_lost_state(
    tmp_path: Path, settings: CheckpointSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is not mounted: the runner waits for it, and then names it. Emptied: the error says that there
    is no checkpoint, and blames no release of the reader, which still holds the stream.
    """
    sink = tmp_path / "sink"
    with Sidecar(tmp_path / "data") as sidecar, Client(parse_addresses(sidecar.address)) as client:
        create(sidecar.address, "in")
        newest, behind = run_to_a_checkpoint(sidecar.address, settings, client)
        client.delete_records(TopicPartition("out-sums", 0), behind[0])
        sink.rename(tmp_path / "elsewhere")
        with monkeypatch.context() as at_once:
            at_once.setattr(runner_checkpoints, "AWAY_S", 0.0)
            with pytest.raises(
                StateAway, match=rf"checkpoints at {sink.as_uri()}.* cannot be read: .*no such dir"
            ) as raised:
                recovered(sidecar.address, settings)
        assert "reader" not in str(raised.value)
        asked = Event()

        class Waiting(Refusals):
            def wait_for_sink(self, lost: StateTrimmed, network: Network, patience_s: float) -> None:
                asked.set()
                super().wait_for_sink(lost, network, patience_s)

        def mount() -> None:
            assert asked.wait(PATIENCE_S)
            (tmp_path / "elsewhere").rename(sink)

        with monkeypatch.context() as waiting:
            waiting.setattr(runner_checkpoints, "Refusals", Waiting)
            thread = Thread(target=mount)
            thread.start()
            assert recovered(sidecar.address, settings).checkpoint_epoch == newest.header.epoch
            thread.join()
        shutil.rmtree(sink)
        sink.mkdir()
        with pytest.raises(
            StateTrimmed, match=rf"no checkpoint at {sink.as_uri()} has the rest: there is none"
        ) as emptied:
            recovered(sidecar.address, settings)
    assert "holds the stream from offset" in str(emptied.value)
    assert "was released from" not in str(emptied.value)


def test_checkpoints_that_fail_are_said(
    tmp_path: Path, settings: CheckpointSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink that cannot be written: lines in the log, and the cause in the progress of epochs; with a sink that can,
    the progress has the epoch of the newest checkpoint.
    """
    (tmp_path / "file").touch()
    bad = replace(settings, sink=(tmp_path / "file" / "sink").as_uri())
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "in")
        rounds = iter(range(ROUNDS))
        failed: list[CheckpointStatus] = []
        while not any("Not a directory" in status.error for status in failed):
            failed += run_more(sidecar.address, bad, next(rounds))
        assert all(status.epoch == NO_CHECKPOINT for status in failed)
        assert "checkpoint_failed" in caplog.text
        written: list[CheckpointStatus] = []
        while not any(status.epoch > 0 for status in written):
            written += run_more(sidecar.address, settings, next(rounds))
        assert recovered(sidecar.address, settings).checkpoint_epoch > 0


def recovered(servers: str, settings: CheckpointSettings) -> Recovered:
    """What a runner says of its recovery; it does nothing else."""
    events: list[RunnerEvent] = []
    Runner(described(Work(servers, "sums", 0)), 0, options(servers, settings), observe=events.append).run(lambda: True)
    (found,) = (event for event in events if isinstance(event, Recovered))
    return found


def options(servers: str, settings: CheckpointSettings) -> Options:
    """Many epochs, no footprints but the first ones."""
    limits = EpochLimits(epoch_records=100, epoch_ms=20, run_records=50)
    return Options(servers, lambda: Targets(10**6, 10**6), limits, checkpoints=settings)


def run_to_a_checkpoint(servers: str, settings: CheckpointSettings, client: Client) -> tuple[Manifest, list[int]]:
    """Process records until there is a checkpoint with an epoch before it, which a thread writes when it gets time: the
    newest one, and where the epochs before it end.
    """
    sink = DirectorySink(Path(settings.sink.removeprefix("file://")))
    for number in range(ROUNDS):
        run_more(servers, settings, number)
        found = ends(client, TopicPartition("out-sums", 0))
        for newest in Finder(sink).checkpoints(Unit("sums", 0))[:1]:
            if behind := [offset for end, offset in found if end.epoch < newest.header.epoch]:
                return newest, behind
    raise AssertionError(f"no checkpoint behind {ROUNDS * RECORDS} records")


def run_more(servers: str, settings: CheckpointSettings, number: int) -> list[CheckpointStatus]:
    """Produce RECORDS more than so many times as many, and process them."""
    first = number * RECORDS
    produce(servers, "in", [value(record) for record in range(first, first + RECORDS)])
    return run(servers, settings, first + RECORDS)


def run(servers: str, settings: CheckpointSettings, records: int) -> list[CheckpointStatus]:
    """Process so many records, in many epochs; what each epoch said of the checkpoints."""
    said: list[CheckpointStatus] = []
    committed = 0

    def observe(event: RunnerEvent) -> None:
        nonlocal committed
        if isinstance(event, FragmentProgress):
            committed = event.figures.records
            said.append(event.checkpoint)

    fragment = described(Work(servers, "sums", records))
    Runner(fragment, 0, options(servers, settings), observe=observe).run(lambda: committed >= records)
    return said
