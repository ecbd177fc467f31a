"""A runner's log that begins behind a checkpoint: its state is read from the checkpoint and the log behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from spe_adapter.cec.policy import Targets
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.whole_state import whole_state
from spe_adapter.continuous.fragment import EpochLimits
from spe_adapter.continuous.loop import Event, FragmentProgress
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.epochs.lookup import only_query
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import StateTrimmed
from tests.continuous.processes import WINDOW, Work, create, described, produce
from tests.support.sidecar import Sidecar

KEYS = 40
RECORDS = 4000
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
        produce(sidecar.address, "in", [value(record) for record in range(RECORDS)])
        run(sidecar.address, settings)
        stream = TopicPartition("out-sums", 0)
        query = only_query(client, "out-sums", None)
        (newest, *_) = Finder(DirectorySink(tmp_path / "sink")).checkpoints(Unit("sums", 0))
        behind = [offset for end, offset in ends(client, stream) if end.epoch < newest.header.epoch]
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


def run(servers: str, settings: CheckpointSettings) -> None:
    """Process all records, in many epochs."""
    committed = 0

    def observe(event: Event) -> None:
        nonlocal committed
        if isinstance(event, FragmentProgress):
            committed = event.figures.records

    limits = EpochLimits(epoch_records=100, epoch_ms=20, run_records=50)
    options = Options(servers, lambda: Targets(10**6, 10**6), limits, checkpoints=settings)
    Runner(described(Work(servers, "sums", RECORDS)), 0, options, observe=observe).run(lambda: committed >= RECORDS)
