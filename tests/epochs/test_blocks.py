"""Small epochs are decided and published by one block of the journal; all others as before, the decision first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.epochs import publisher
from logstore.epochs.epoch_block import EpochBlock
from logstore.epochs.journaled import newer_decisions
from logstore.epochs.ledger_entries import (
    CommitRecord,
    Incarnations,
    LastEpoch,
    decision_entries,
    encode_incarnations,
    encode_last_epoch,
)
from logstore.errors import CorruptFile
from logstore.format.records import Record, encode_batch
from logstore.log.store import Store, StoreSettings
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.verify.directory import verify
from tests.epochs.stage_set import Sidecar, commit, commit_request, segment, stage

STREAMS = 5


def a_query(disk: SimDisk) -> Sidecar:
    """A sidecar whose query has committed an epoch in each of its streams, which have chunks now."""
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", STREAMS)
    commit_epoch(sidecar, 0)
    return sidecar


def commit_epoch(sidecar: Sidecar, epoch: int, size: int = 1, partitions: int = STREAMS) -> None:
    """One record for each partition."""
    stage(sidecar, segment({partition: ["x" * size] for partition in range(partitions)}, epoch=epoch))
    assert commit(sidecar, commit_request((0, "a0", 1), epoch=epoch)).outcome == "committed"


def syncs_until_the_answer(sidecar: Sidecar, disk: SimDisk, epoch: int) -> list[str]:
    """Which files and directories are synced from the request to commit on until its answer."""
    before = len(disk.log)
    ticket = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=epoch), now_ms=sidecar.clock.wall_ms())
    found: list[int] = []
    ticket.add_callback(lambda _: found.append(len(disk.log)))
    sidecar.settle(ticket)
    return [call.path for call in disk.log[before : found[0]] if call.kind.startswith("sync")]


def test_one_sync_decides_and_publishes() -> None:
    """Behind the staging, an epoch of small groups makes one sync until its answer, of the journal; the ledger learns
    of it behind the answer.
    """
    disk = SimDisk()
    sidecar = a_query(disk)
    commit_epoch(sidecar, 1)  # the journal's first file gets its name
    stage(sidecar, segment({partition: ["y"] for partition in range(STREAMS)}, epoch=2))
    before = len(disk.log)
    assert syncs_until_the_answer(sidecar, disk, 2) == ["journal/1.journal"]
    assert [call.path.partition(".")[0] for call in disk.log[before:] if call.kind == "sync"][1:] == ["ledger/epochs"]
    assert sidecar.epochs.describe("query-1").state == "idle"
    assert [sidecar.records("out", partition) for partition in range(STREAMS)] == [["x", "x", "y"]] * STREAMS


def a_large_group(sidecar: Sidecar) -> None:
    """A group that may not be in the journal."""
    commit_epoch(sidecar, 1, size=70_000)


def a_stream_without_a_chunk(sidecar: Sidecar) -> None:
    """Its first batch goes to its chunk."""
    sidecar.settle(sidecar.store.add_partitions("out", STREAMS + 1))
    commit_epoch(sidecar, 1, partitions=STREAMS + 1)


def a_direct_write_under_way(sidecar: Sidecar) -> None:
    """A stream writes to its chunk itself."""
    stage(sidecar, segment({partition: ["x"] for partition in range(STREAMS)}, epoch=1))
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"z" * 200_000)])
    sidecar.store.stream("out", 0).append(batch, now_ms=sidecar.clock.wall_ms())
    write = sidecar.store.queue.next_job()
    assert write is not None
    ticket = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=1), now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    sidecar.store.queue.finished(write, write.run(sidecar.fs))
    assert sidecar.settle(ticket).outcome == "committed"


def a_journal_that_rests(sidecar: Sidecar) -> None:
    """After a failed block, until the next tick."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    disk.fault_for = lambda call: EIO if call.path.startswith("journal") else None
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"z")])
    refused = sidecar.store.stream("out", 0).append(batch, now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert refused.error is not None
    commit_epoch(sidecar, 1)


def a_closed_stream(sidecar: Sidecar) -> None:
    """A topic goes while its groups are being read: the epoch is over without it."""
    stage(sidecar, segment({partition: ["x"] for partition in range(STREAMS)}, epoch=1))
    ticket = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=1), now_ms=sidecar.clock.wall_ms())
    reading = sidecar.store.queue.next_job()
    assert reading is not None
    sidecar.settle(sidecar.store.delete_topic("out"))
    sidecar.store.queue.finished(reading, reading.run(sidecar.fs))
    assert sidecar.settle(ticket).outcome == "committed"


@pytest.mark.parametrize(
    "story",
    [a_large_group, a_stream_without_a_chunk, a_direct_write_under_way, a_journal_that_rests, a_closed_stream],
    ids=lambda story: story.__name__,
)
def test_what_does_not_fit_is_decided_by_the_ledger(
    story: Callable[[Sidecar], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch is committed all the same, in all its streams, by no block; and a restart finds that."""
    monkeypatch.setattr(EpochBlock, "journaled", lambda *_: pytest.fail("decided by a block"))
    disk = SimDisk()
    sidecar = a_query(disk)
    story(sidecar)
    assert sidecar.epochs.describe("query-1").state == "idle"
    assert sidecar.epochs.describe("query-1").last_epoch == 1
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.epochs.describe("query-1").last_epoch == 1
    if "out" in revived.store.topics:
        assert [value for value in revived.values("out", 1) if "1" in value] == ["<Begin 1>", "<End 1>"]
    else:
        assert story is a_closed_stream


def test_a_group_goes_in_front_of_what_waits() -> None:
    """An append that waits for its block does not hold up the epoch, and gets the place behind it."""
    disk = SimDisk()
    sidecar = a_query(disk)
    stage(sidecar, segment({partition: ["y"] for partition in range(STREAMS)}, epoch=1))
    ticket = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=1), now_ms=sidecar.clock.wall_ms())
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"z")])
    append = sidecar.store.stream("out", 0).append(batch, now_ms=sidecar.clock.wall_ms())
    sidecar.settle(ticket)
    append.result()
    assert sorted(sidecar.records("out", 0)) == ["x", "y", "z"]


def test_quiet_streams_are_woken_for_it() -> None:
    """Streams at rest wake together while the staged output is read, and the epoch is still one block."""
    disk = SimDisk()
    sidecar = a_query(disk)
    sidecar.store.quiet.rest(at_once=True)
    sidecar.run()
    assert not any(stream.is_awake for stream in sidecar.store.streams())
    before = sidecar.store.journal.blocks
    commit_epoch(sidecar, 1)
    assert sidecar.store.journal.blocks == before + 1
    assert all(stream.is_awake for stream in sidecar.store.streams())


def test_a_full_memory_is_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that together are larger than a block are published behind their decision."""
    sidecar = a_query(SimDisk())
    monkeypatch.setattr(publisher, "MAX_BLOCK_BYTES", 1000)
    commit_epoch(sidecar, 1)
    assert sidecar.records("out", 0) == ["x", "x"]
    assert sidecar.epochs.describe("query-1").last_epoch == 1


def killed_behind_the_answer() -> SimDisk:
    """What a kill leaves between the answer and the ledger's sync: only the journal has the decision."""
    disk = SimDisk()
    sidecar = a_query(disk)
    disk.fault_for = lambda call: EIO if call.path.startswith("ledger/epochs") else None
    commit_epoch(sidecar, 1)
    return disk.kill_state()


def test_a_decision_in_the_journal_is_seen_by_all() -> None:
    """A check of the directory finds nothing wrong; a start takes the decision over, and removes the journal."""
    left = killed_behind_the_answer()
    assert verify(left).found == []
    revived = Sidecar(left, ManualClock())
    assert left.list_directory("journal") == []
    revived.roll_forward()
    assert revived.epochs.describe("query-1").last_epoch == 1
    assert revived.epochs.describe("query-1").positions == "positions of 1"
    again = commit(revived, commit_request(epoch=1))
    assert (again.outcome, again.last_epoch) == ("duplicate", 1)
    assert revived.records("out", 0) == ["x", "x"]


def test_an_epoch_whose_topic_went_is_over() -> None:
    """All streams had it, its staged output is removed, and its topic is deleted before the ledger knows: the next life
    has nothing left to publish.
    """
    disk = SimDisk()
    sidecar = a_query(disk)
    disk.fault_for = lambda call: EIO if call.path.startswith("ledger/epochs") else None
    commit_epoch(sidecar, 1)
    sidecar.settle(sidecar.store.delete_topic("out"))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.epochs.describe("query-1").state == "idle"
    assert revived.epochs.describe("query-1").last_epoch == 1


def test_a_store_that_knows_no_epochs_refuses_it() -> None:
    """Opened without the part that understands decisions, the directory is refused and left as it is."""
    left = killed_behind_the_answer()
    with pytest.raises(CorruptFile, match="ledger 'epochs'"):
        Store.open(left, ManualClock(), StoreSettings(), new_id=lambda: pytest.fail("no id"), report=RecordedReports())
    assert left.list_directory("journal") != []


def test_only_newer_decisions_of_known_incarnations_count() -> None:
    """Not those that the ledger has gone beyond, of a query that it has forgotten, or of a run it does not know."""

    def decision(epoch: int, run: str = "run-1") -> dict[str, bytes]:
        return decision_entries(CommitRecord("q", run, 1, epoch, "", (), ()), LastEpoch(epoch, 0, forget=False))

    known = {"runs/q": encode_incarnations(Incarnations(("run-1", "run-2"), 2, 0))}
    last = {"last/q": encode_last_epoch(LastEpoch(3, 0, forget=False))}
    assert newer_decisions(known | last, [decision(4)]) == decision(4)
    assert newer_decisions(known, [decision(0)]) == decision(0)
    assert newer_decisions(known | last, [decision(4), decision(5)]) == decision(5)
    assert newer_decisions(known | last, [decision(2), decision(3)]) == {}
    assert newer_decisions(known | last, [decision(4, "run-0")]) == {}
    assert newer_decisions({}, [decision(4)]) == {}
