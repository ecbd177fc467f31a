"""Staged output beside a ledger in one stream: what an owner reads, what is under way, and what tidying keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from logstore.base.failures import leaves
from logstore.cluster.epochs import epochs_home, staged_records
from logstore.cluster.epochs.epochs_home import EpochsLedger, StagingLimits, StagingRoom
from logstore.cluster.epochs.replicated_ledger import LedgerServices, ReadFrom
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams import replicated_stream
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.engine import StoreEngine
from logstore.epochs import replicated_staging
from logstore.epochs.replicated_staging import ReplicatedStaging
from logstore.errors import CairnError, NotEnoughReplicas, StorageFailed
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
    ledger = EpochsLedger(front.stream, services, StagingLimits())
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


async def data_of(ledger: EpochsLedger, key: AttemptKey) -> list[bytes]:
    """The data of an attempt's durable segments, read back from the stream."""
    attempt = ledger.staging.get(key)
    if attempt is None:
        return []
    found: list[bytes] = []
    async with trio.open_nursery() as nursery:
        ledger.records.nursery = nursery
        for segment in attempt.segments[: attempt.durable_segments]:
            read = start(ledger.staging.data(segment))
            while not read.done:
                await trio.testing.wait_all_tasks_blocked()
            found.append(read.result())
    return found


async def settled(ticket: AppendTicket) -> None:
    """Wait until a ticket has settled."""
    done = trio.Event()
    ticket.add_callback(lambda _: done.set())
    await done.wait()


async def tidied(ledger: EpochsLedger, owner: MemoryOwner) -> ReadFrom:
    """Tidy, while the members confirm what comes."""
    found: list[ReadFrom] = []

    async def tidy() -> None:
        found.append(await ledger.tidy(settled))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy)
        while not found:
            await trio.testing.wait_all_tasks_blocked()
            owner.ack(len(owner.window))
    ledger.noted(found[0])
    return found[0]


async def test_an_owner_reads_what_lives_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far in front what is staged lies: where entries were written anew it is named, and an owner that begins
    there has it, byte for byte. The stream is kept from it on; when it is dropped, it goes.
    """
    monkeypatch.setattr(epochs_home, "TIDY_BYTES", 100)
    owner = MemoryOwner()
    ledger = await lead(owner)
    for number in range(5):
        ledger.put({"a": b"%d" % number})
    data = bytes(range(250)) * 20
    stage(ledger, 0, data)
    stage(ledger, 1, b"more")
    for number in range(50):
        ledger.put({"b": b"%d" % number * 10})
    while owner.window:
        owner.ack(len(owner.window))
    assert ledger.is_untidy
    read_from = await tidied(ledger, owner)
    assert read_from.whole_offset == 5
    assert read_from.named_offset == 5 + 6 + 50 + 1
    assert ledger.span_bytes < 1000
    other = await lead(owner, read_from.named_offset)
    assert other.span_bytes == ledger.span_bytes
    assert dict(other.items()) == dict(ledger.items()) == {"a": b"4", "b": b"49" * 10}
    assert await data_of(other, KEY) == [data, b"more"]
    assert (other.staging.used_bytes, other.staging.first_offset) == (ledger.staging.used_bytes, 5)
    stage(other, 2, b"behind it")
    owner.ack(len(owner.window))
    assert await data_of(await lead(owner, read_from.named_offset), KEY) == [data, b"more", b"behind it"]
    other = await lead(owner, read_from.named_offset)
    other.staging.drop([KEY])
    assert other.staging.first_offset == 5, "that it is dropped is not acknowledged"
    owner.ack(len(owner.window))
    read_from = await tidied(other, owner)
    assert read_from.whole_offset == read_from.named_offset > 50
    last = await lead(owner, read_from.named_offset)
    assert (dict(last.items()), last.staging.all_attempts()) == (dict(other.items()), [])


async def test_no_segment_lies_on_both_sides_of_where_an_owner_begins() -> None:
    """A segment whose pieces are under way is whole before what lives is named; the next one waits until then, and is
    not refused.
    """
    owner = MemoryOwner()
    ledger = await lead(owner)
    first, second = bytes(range(250)) * 20, bytes(range(200)) * 20
    stage(ledger, 0, first)
    found: list[ReadFrom] = []

    async def tidy() -> None:
        found.append(await ledger.tidy(settled))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy)
        await trio.testing.wait_all_tasks_blocked()
        staged = stage(ledger, 1, second)
        behind = 0
        while not found:
            await trio.testing.wait_all_tasks_blocked()
            owner.ack()
            behind = max(behind, ledger.records.waiting_bytes)
    assert behind > len(second), "it waits as a whole"
    while owner.window:
        owner.ack()
    assert staged.result() == 2
    assert found[0].named_offset == 6
    assert await data_of(await lead(owner, found[0].named_offset), KEY) == [first, second]


async def test_what_is_dropped_and_not_named_begins_anew_for_owners_that_begin_earlier() -> None:
    """An attempt is dropped while what lives is being named, and its host is lost before the stream says so: the next
    owner does not know the attempt, and takes its name anew. A host of an earlier version, which passes names over and
    begins where all lies, finds what is new.
    """
    owner = MemoryOwner()
    ledger = await lead(owner)
    stage(ledger, 0, b"old")
    owner.ack()
    stage(ledger, 0, b"lives", KEY._replace(attempt="b"))
    found: list[ReadFrom] = []

    async def tidy() -> None:
        found.append(await ledger.tidy(settled))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy)
        await trio.testing.wait_all_tasks_blocked()
        stage(ledger, 1, bytes(10 * PIECE_BYTES))
        ledger.staging.drop([KEY])
        while not found:
            owner.ack()
            await trio.testing.wait_all_tasks_blocked()
    assert ledger.records.waiting_bytes, "the record of the drop among them"
    other = await lead(owner, found[0].named_offset)
    assert other.staging.get(KEY) is None
    stage(other, 0, b"new")
    owner.ack(len(owner.window))
    assert await data_of(await lead(owner, found[0].named_offset), KEY) == [b"new"]
    assert await data_of(await lead(owner, found[0].whole_offset), KEY) == [b"new"]


async def test_what_an_earlier_version_has_dropped_and_trimmed_is_not_found_by_its_name() -> None:
    """A home of an earlier version, which passes names over, drops an attempt that was named, trims the stream behind
    it, and is lost before the stream says so. The next owner, which begins at the names, does not know the attempt: a
    commit of it would be decided, and could never be published. What lives is there.
    """
    owner, lives = MemoryOwner(), KEY._replace(attempt="b")
    ledger = await lead(owner)
    stage(ledger, 0, b"dropped")
    owner.ack()
    stage(ledger, 0, b"lives", lives)
    owner.ack()
    stage(ledger, 1, b"dropped too")
    owner.ack()
    read_from = await tidied(ledger, owner)
    earlier = await lead(owner, read_from.whole_offset)
    first = earlier.staging.get(lives)
    assert first is not None
    earlier.stream.trim(first.first_offset)
    owner.carry_out_trims()
    other = await lead(owner, read_from.named_offset)
    assert other.staging.get(KEY) is None
    assert await data_of(other, lives) == [b"lives"]
    assert other.staging.first_offset == first.first_offset > read_from.whole_offset
    stage(other, 0, b"new")
    owner.ack(len(owner.window))
    assert await data_of(await lead(owner, read_from.named_offset), KEY) == [b"new"]


async def test_an_attempt_that_has_failed_is_named_as_far_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream has not taken a segment of it: the next owner finds those in front, wherever it begins."""
    monkeypatch.setattr(replicated_stream, "MAX_WAITING_BYTES", 0)
    owner = MemoryOwner()
    ledger = await lead(owner)
    stage(ledger, 0, b"first")
    owner.ack()
    owner.max_in_flight = 0
    ledger.put({"a": b"1"})
    failed = stage(ledger, 1, b"refused")
    assert isinstance(failed.error, StorageFailed)
    owner.max_in_flight = 100
    ledger.stream.room()
    stage(ledger, 2, b"behind the gap")
    owner.ack(len(owner.window))
    read_from = await tidied(ledger, owner)
    for offset in read_from[:2]:
        assert await data_of(await lead(owner, offset), KEY) == [b"first"]


class History:
    """Owners one after the other; what clients were told. Raises AssertionError if the next one has something else."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.owner = MemoryOwner()
        self.whole_offset = self.named_offset = 0
        """What the metadata store has."""
        self.staged: dict[AttemptKey, list[bytes]] = {}
        """By attempt, what was staged in this life of its name."""
        self.acked: dict[AttemptKey, int] = {}
        self.before: dict[AttemptKey, list[list[bytes]]] = {}
        """The lives before, of attempts that were dropped in this ownership."""
        self.is_due = trio.Event()
        """The ledger is to be tidied."""

    async def run(self, owners: int) -> None:
        """So many ownerships."""
        for _ in range(owners):
            ledger = await lead(self.owner, max(self.whole_offset, self.named_offset))
            await self._check(ledger)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tidy, ledger)
                for _ in range(self.random.randint(1, 60)):
                    self._act(ledger)
                    await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            lost = self.random.randint(0, len(self.owner.window))
            kept = len(self.owner.window) - lost
            for entry in self.owner.window[:kept]:
                self.owner._keep(entry)
            self.owner.window.clear()

    async def _tidy(self, ledger: EpochsLedger) -> None:
        while True:
            self.is_due = trio.Event()
            await self.is_due.wait()
            read_from = await ledger.tidy(settled)
            self.whole_offset, self.named_offset = read_from.whole_offset, read_from.named_offset
            ledger.noted(read_from)
            await trio.lowlevel.checkpoint()
            ledger.stream.trim(self.whole_offset)
            self.owner.carry_out_trims()

    def _act(self, ledger: EpochsLedger) -> None:
        key, action = KEY._replace(attempt=self.random.choice("abc")), self.random.random()
        if action < 0.35:
            position = len(self.staged.setdefault(key, []))
            data = self.random.randbytes(self.random.choice((10, PIECE_BYTES, 3 * PIECE_BYTES)))
            self.staged[key].append(data)
            stage(ledger, position, data, key).add_callback(partial(self._note, key, self.staged[key]))
        elif action < 0.45:
            if ledger.staging.drop([key]):
                self.before.setdefault(key, []).append(self.staged.pop(key))
                self.acked.pop(key, None)
        elif action < 0.55:
            ledger.put({self.random.choice("xyz"): b"%d" % self.random.randrange(100)})
        elif action < 0.6:
            self.owner.roll()
        elif action < 0.7:
            self.is_due.set()
        else:
            self.owner.ack(self.random.randint(0, len(self.owner.window)))

    def _note(self, key: AttemptKey, life: list[bytes], staged: Ticket[int]) -> None:
        if staged.error is None and self.staged.get(key) is life:
            self.acked[key] = staged.result()

    async def _check(self, ledger: EpochsLedger) -> None:
        """What was acknowledged is there; what was dropped may be, as it was, if that is all that there is of it."""
        for key in {*self.staged, *self.before}:
            found, staged, acked = await data_of(ledger, key), self.staged.get(key, []), self.acked.get(key, 0)
            if not (acked <= len(found) and found == staged[: len(found)]):
                lives = [life for life in self.before.get(key, []) if found == life[: len(found)]]
                is_known = bool(lives) and not acked
                assert is_known, f"{key.attempt}: {acked} acknowledged, {len(found)} found"
            self.staged[key], self.acked[key] = found, len(found)
        self.before.clear()


async def run_histories(seeds: range) -> None:
    """Histories of several owners each."""
    for seed in seeds:
        await History(seed).run(8)


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 400), marks=pytest.mark.slow)], ids=["few", "many"])
async def test_random_histories_of_owners_that_tidy(seeds: range) -> None:
    """Segments, drops, entries, and tidying all the time; owners end at any step of it: what was acknowledged is there
    for the next owner, once, whole and in order, wherever it begins to read, and can be read.
    """
    await run_histories(seeds)


Plant = Callable[[pytest.MonkeyPatch], None]


def segments_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A segment lies on both sides of where an owner begins."""

    @asynccontextmanager
    async def held(_: object) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        yield

    patch.setattr(staged_records.StagedRecords, "held", held)


def nothing_is_named(patch: pytest.MonkeyPatch) -> None:
    """Owners begin behind what is staged."""
    patch.setattr(ReplicatedStaging, "named", lambda self: iter(()))


def told_drops_count_at_once(patch: pytest.MonkeyPatch) -> None:
    """The stream is trimmed behind what a next owner still finds named, and takes without its data."""
    patch.setattr(staged_records.StagedRecords, "log_start", 0)
    patch.setattr(ReplicatedStaging, "_note_untold", lambda self, keys: self._untold.update(dict.fromkeys(keys, 2**63)))


@pytest.mark.parametrize("plant", [segments_not_waited_for, nothing_is_named, told_drops_count_at_once])
async def test_a_planted_bug_of_tidying_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    """By the histories above."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, CairnError, ExceptionGroup)) as found:
        await run_histories(range(60))
    errors = leaves(found.value) if isinstance(found.value, ExceptionGroup) else [found.value]
    assert all(isinstance(error, AssertionError | CairnError) for error in errors), found.value
