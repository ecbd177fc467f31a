"""Staged output beside a ledger in one stream: what an owner reads, what is under way, and what tidying keeps."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from logstore.cluster import epochs_home, replicated_ledger, staged_records
from logstore.cluster.chunk_reads import ChunkReads
from logstore.cluster.epochs_home import EpochLimits, EpochsLedger, StagingRoom
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.replicated_ledger import LedgerServices
from logstore.engine import StoreEngine
from logstore.epochs import replicated_staging
from logstore.errors import NotEnoughReplicas, StorageFailed
from logstore.format.epoch_api import Part
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import start
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket
from tests.cluster.support import Front, MemoryOwner, NoFiles

KEY = AttemptKey("q", "run", 3, 0, "a")
NOW_MS = 1_700_000_000_000
PIECE_BYTES = 1000


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few bytes have several pieces, of which few are under way."""
    monkeypatch.setattr(replicated_staging, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(staged_records, "MAX_UNDER_WAY_BYTES", 2 * PIECE_BYTES)


async def lead(owner: MemoryOwner, first_offset: int = 0) -> EpochsLedger:
    """A host that owns the stream from now on, and has read it."""
    front = Front(owner)
    owner.own(front.stream)
    await front.tasks.run()
    reads = ChunkReads(cast(StoreEngine, None), owner, cast(ReplicaFiles, NoFiles()), front.clock, front.reports)
    services = LedgerServices(cast(Any, None), reads, cast(Any, None), front.clock, front.reports)
    ledger = EpochsLedger(front.stream, services, EpochLimits())
    await ledger.load(reads, first_offset)
    return ledger


def stage(ledger: EpochsLedger, position: int, data: bytes, key: AttemptKey = KEY) -> Ticket[int]:
    """Stage a segment."""
    return ledger.staging.stage(key, position, (Part("out", 0, len(data), 1, 1),), data, now_ms=NOW_MS)


async def test_pieces_have_their_turns_and_entries_find_room() -> None:
    """Few pieces are given to the stream at a time; an entry of the ledger goes between them, and waits for none."""
    owner = MemoryOwner()
    ledger = await lead(owner)
    data = bytes(range(250)) * 20
    staged = stage(ledger, 0, data)
    assert len(owner.window) == 2
    put = ledger.put({"a": b"1"})
    assert len(owner.window) == 3
    while owner.window:
        owner.ack()
    assert (staged.result(), put.error) == (1, None)
    other = await lead(owner)
    assert dict(other.items()) == {"a": b"1"}
    attempt = other.staging.get(KEY)
    assert attempt is not None
    async with trio.open_nursery() as nursery:
        other.records.nursery = nursery
        read = start(other.staging.data(attempt.segments[0]))
        await trio.testing.wait_all_tasks_blocked()
        assert read.result() == data, "the entry between its pieces is passed over"


async def test_what_waits_is_bounded_whoever_has_dropped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged output that was dropped, or whose client is gone, waits for the stream all the same: no more is admitted
    than may wait, and more when it has left.
    """
    monkeypatch.setattr(epochs_home, "MAX_WAITING_BYTES", 20 * PIECE_BYTES)
    owner = MemoryOwner()
    ledger = await lead(owner)
    room = StagingRoom(ledger)
    with pytest.raises(NotEnoughReplicas, match="retry"):
        for number in range(50):
            key = KEY._replace(attempt=f"a{number}")
            room.admit(PIECE_BYTES)
            stage(ledger, 0, bytes(PIECE_BYTES), key)
            ledger.staging.drop([key])
    assert 10 * PIECE_BYTES < ledger.records.waiting_bytes < 40 * PIECE_BYTES
    while owner.window:
        owner.ack()
    assert ledger.records.waiting_bytes == 0
    room.admit(PIECE_BYTES)


async def test_what_waits_fails_when_another_host_takes_over() -> None:
    """Pieces that are under way, and those that have no turn yet; nothing is left that could be appended later."""
    owner = MemoryOwner()
    ledger = await lead(owner)
    staged = [stage(ledger, position, bytes(3 * PIECE_BYTES)) for position in range(2)]
    owner.ack()
    ledger.stream.deposed(9)
    assert all(isinstance(ticket.error, StorageFailed) for ticket in staged)
    assert not ledger.is_current
    late = stage(ledger, 2, b"late")
    assert isinstance(late.error, StorageFailed)
    other = await lead(owner)
    assert (other.is_current, other.staging.all_attempts()) == (True, [])


async def test_tidying_keeps_what_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner reads from the first live segment on, or from where the entries were written anew."""
    monkeypatch.setattr(replicated_ledger, "TIDY_BYTES", 100)
    owner = MemoryOwner()
    ledger = await lead(owner)

    async def settled(ticket: AppendTicket) -> None:
        await trio.lowlevel.checkpoint()
        owner.ack(len(owner.window))
        assert ticket.done

    for number in range(5):
        ledger.put({"a": b"%d" % number})
    stage(ledger, 0, b"data")
    for number in range(50):
        ledger.put({"b": b"%d" % number * 10})
    owner.ack(len(owner.window))
    assert ledger.is_untidy
    assert await ledger.tidy(settled) == 5
    other = await lead(owner, 5)
    assert dict(other.items()) == dict(ledger.items()) == {"a": b"4", "b": b"49" * 10}
    assert [attempt.key for attempt in other.staging.all_attempts()] == [KEY]
    other.staging.drop([KEY])
    owner.ack(len(owner.window))
    offset = await other.tidy(settled)
    assert offset > 50
    last = await lead(owner, offset)
    assert (dict(last.items()), last.staging.all_attempts()) == (dict(other.items()), [])
