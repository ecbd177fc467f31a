"""Replicas in the log: what they cost at rest, what their ledger proves, and how large they may grow."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from logstore.log.replica_chunk import ChunkPrefix, KnownPrefixes
from logstore.log.replicas import MAX_SEALED_LOGS
from logstore.log.store import Store, StoreSettings
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.driver import JobDriver
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from tests.cluster.batches import FIRST_MS, STREAM, ChunkOfOwner


class Host:
    """A store on a disk in memory."""

    def __init__(self, disk: SimDisk, settings: StoreSettings | None = None) -> None:
        self.disk = disk
        self.store = Store.open(
            disk,
            ManualClock(FIRST_MS),
            settings or StoreSettings(),
            new_id=lambda: uuid.UUID(int=7),
            report=RecordedReports(),
        )
        self.driver = JobDriver(self.store.queue, disk)
        self.store.replicas.prepare()
        self.driver.run()

    def write(self, sent: ChunkOfOwner, *, records: int = 1, value: bytes = b"value", is_copy: bool = False) -> None:
        """Append the next entry of a chunk."""
        write = sent.write(records=records, value=value)
        ticket = self.store.replicas.append(
            write.stream, write.epoch, ChunkPrefix(*write.at), write.entries, write.founding, is_copy=is_copy
        )
        self.driver.run()
        ticket.result()

    def seal(self, sent: ChunkOfOwner) -> None:
        """Seal a chunk where it ends."""
        ticket = self.store.replicas.cut(sent.stream, sent.epoch, ChunkPrefix(*sent.end))
        self.driver.run()
        ticket.result()

    def rest(self) -> None:
        """What can rest comes to rest."""
        self.store.quiet.rest(at_once=True)
        self.driver.run()

    def stop(self) -> Host:
        """Stop cleanly, and start again."""
        self.store.close()
        self.driver.run()
        return Host(self.disk.next_life())


def test_a_sealed_replica_at_rest_has_no_stream_in_memory() -> None:
    """However many there are, and however many of them are read: some tens have one, and all can be read."""
    host = Host(SimDisk())
    chunks = [ChunkOfOwner(epoch) for epoch in range(1, 2 * MAX_SEALED_LOGS)]
    for sent in chunks:
        host.write(sent)
        host.seal(sent)
    assert len(host.store.replicas.logs()) == len(chunks)  # they have not come to rest
    host.rest()
    for sent in chunks:
        log = host.store.replicas.log(STREAM, sent.epoch)
        assert log is not None
        assert (log.log_start_offset, log.high_watermark) == (0, 1)
        assert log.producers.entries()
    assert len(host.store.replicas.logs()) == MAX_SEALED_LOGS
    host = host.stop()
    assert not host.store.replicas.logs()
    assert len(host.store.replicas.stored()) == len(chunks)


def test_a_replica_is_one_chunk_however_large() -> None:
    """The settings of topics have nothing to say: neither size nor retention begins a second file."""
    host = Host(SimDisk(), StoreSettings(topic_defaults=TopicConfig(segment_bytes=1024, retention_bytes=1)))
    sent = ChunkOfOwner(1)
    for _ in range(30):
        host.write(sent, value=b"x" * 500)
    host.store.tick()
    host.driver.run()
    log = host.store.replicas.log(STREAM, 1)
    assert log is not None
    assert len(log.chunks) == 1
    assert log.log_start_offset == 0


def test_a_start_reads_only_what_the_ledger_does_not_prove() -> None:
    """After a clean stop it reads nothing of the batches; after a kill, what came behind the last entry, and behind the
    last snapshot of producers.
    """
    host = Host(SimDisk())
    sent = ChunkOfOwner(1)
    for _ in range(60):
        host.write(sent, value=b"x" * 100_000)
    host = host.stop()
    assert read_bytes(host.disk) == 0
    assert host.store.replicas.stored()[STREAM, 1].end == ChunkPrefix(*sent.end)
    host.write(sent, value=b"x" * 100_000)
    host = Host(host.disk.next_life())
    assert 100_000 < read_bytes(host.disk) < 2_000_000
    assert host.store.replicas.stored()[STREAM, 1].end == ChunkPrefix(*sent.end)


def read_bytes(disk: SimDisk) -> int:
    """What was read of batches since the last look."""
    total = sum(call.size_bytes for call in disk.log if call.kind == "read" and call.path.endswith(".log"))
    disk.log.clear()
    return total


def test_what_is_durable_is_noted_once_nothing_is_written() -> None:
    """Not at the first tick behind a write, nor again; a replica that grows by much is noted at once."""
    host = Host(SimDisk())
    sent, replica = ChunkOfOwner(1), host.store.replicas
    host.write(sent)
    host.write(sent)
    found = replica.find(STREAM, 1)
    assert found is not None
    first = found.proven
    replica.tick()
    assert found.proven == first
    replica.tick()
    assert found.proven == ChunkPrefix(*sent.end)
    calls = host.disk.calls
    replica.tick()
    host.driver.run()
    noted = host.disk.calls
    replica.tick()
    host.driver.run()
    assert host.disk.calls == noted > calls
    for _ in range(9):
        host.write(sent, value=b"x" * (1 << 20))
    replica.tick()
    assert found.proven == ChunkPrefix(*sent.end)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_copy_has_an_entry_when_it_is_sealed(*, is_killed: bool) -> None:
    """And none for its first piece: a sync less beside appends. A start in between finds what there is of it."""
    host, sent = Host(SimDisk()), ChunkOfOwner(1)
    host.write(sent, is_copy=True)
    host.write(sent, value=b"x" * 1_000, is_copy=True)
    assert entry_syncs(host.disk) == 0
    if is_killed:
        host = Host(host.disk.crash(Random(1)))
        assert host.store.replicas.stored()[STREAM, 1].end == ChunkPrefix(*sent.end)
        host.disk.log.clear()
        host.write(sent, is_copy=True)
    host.seal(sent)
    assert entry_syncs(host.disk) == 1
    host = Host(host.disk.crash(Random(1)))
    found = host.store.replicas.stored()[STREAM, 1]
    assert (found.end, found.is_sealed) == (ChunkPrefix(*sent.end), True)


def test_a_copy_that_rests_or_grows_has_an_entry() -> None:
    """So a start reads little of it, and knows what was there."""
    host, sent = Host(SimDisk()), ChunkOfOwner(1)
    host.write(sent, is_copy=True)
    found = host.store.replicas.find(STREAM, 1)
    assert found is not None
    host.store.replicas.tick()
    host.store.replicas.tick()
    assert found.proven == ChunkPrefix(*sent.end)
    host.driver.run()
    host.write(sent, is_copy=True)
    host.write(sent)
    host.driver.run()
    assert entry_syncs(host.disk) == 2, "an append is confirmed behind an entry"


def entry_syncs(disk: SimDisk) -> int:
    """Syncs of the ledger of replicas."""
    return sum(call.kind == "sync" and call.path.startswith("ledger/replicas") for call in disk.log)


def test_known_prefixes_are_few_and_right() -> None:
    """Noted in any order, they stay a MiB apart; the longest that fits is found."""
    known = KnownPrefixes(5)
    mib = 1 << 20
    for length in (40 * mib, 3 * mib, 39 * mib + 7, 8 * mib, 8 * mib + 1, 2 * mib + 5):
        known.note(ChunkPrefix(length, 5 + length, length % 97))
    kept = [known.before_length(length) for length in (mib, 3 * mib, 7 * mib, 8 * mib + 1, 50 * mib)]
    assert [prefix.length_bytes for prefix in kept] == [0, 3 * mib, 3 * mib, 8 * mib, 40 * mib]
    assert known.before_offset(4) == ChunkPrefix(0, 5, 0)
    assert known.before_offset(5 + 8 * mib) == ChunkPrefix(8 * mib, 5 + 8 * mib, 8 * mib % 97)
    known.cut(8 * mib)
    assert known.before_length(50 * mib).length_bytes == 8 * mib
