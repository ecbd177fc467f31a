"""The ledger of groups over several owners of its stream."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from logstore.cluster.epochs.entry_map import EntryMap
from logstore.cluster.epochs.replicated_ledger import BATCH_BYTES, STEP_BYTES, TIDY_BYTES, TIDY_FACTOR, ReplicatedLedger
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.own_topics import INTERNAL_MESSAGE_BYTES
from logstore.engine import StoreEngine
from logstore.errors import StorageFailed
from logstore.format.records import Record
from logstore.log.stream_state import AppendTicket
from logstore.log.topics import TopicConfig
from tests.cluster.support import Front, MemoryOwner, NoFiles
from tests.kafka.turns import counted_turns


class Owners:
    """Hosts that own the stream one after the other, without chunks of their own."""

    def __init__(self) -> None:
        self.owner = MemoryOwner()
        self.first_offset = 0

    async def lead(self, kept: int = 0) -> tuple[Front, ReplicatedLedger]:
        """Another host takes over, and reads the ledger."""
        front = Front(self.owner, config=TopicConfig(max_message_bytes=INTERNAL_MESSAGE_BYTES))
        self.owner.own(front.stream, kept=kept)
        await front.tasks.run()
        nothing_here = cast(StoreEngine, None), cast(ReplicaFiles, NoFiles())
        reads = ChunkReads(nothing_here[0], self.owner, nothing_here[1], front.clock, front.reports)
        ledger = ReplicatedLedger(front.stream, front.clock)
        await ledger.load(reads, self.first_offset)
        return front, ledger

    async def tidy(self, ledger: ReplicatedLedger) -> None:
        """Live entries are written anew, and the metadata store has where that began."""
        read_from = await ledger.tidy(self.acknowledged)
        ledger.noted(read_from)
        assert read_from.named_offset == read_from.whole_offset
        self.first_offset = read_from.named_offset

    async def acknowledged(self, ticket: AppendTicket) -> None:
        """The members confirm what is under way."""
        self.owner.ack(len(self.owner.window))
        assert ticket.done


def content(ledger: ReplicatedLedger) -> dict[str, bytes]:
    """All entries."""
    return dict(ledger.items())


async def test_entries_survive_their_host() -> None:
    """What was put and acknowledged is what the next owner reads; deletions too."""
    owners = Owners()
    _, ledger = await owners.lead()
    tickets = [ledger.put({"a/1": b"1", "b": b"2"}), ledger.put({"a/1": None, "a/2": b"3"})]
    assert not any(ticket.done for ticket in tickets)
    owners.owner.ack(2)
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    _, other = await owners.lead()
    assert content(other) == content(ledger) == {"b": b"2", "a/2": b"3"}
    assert dict(other.items("a/")) == {"a/2": b"3"}


async def test_a_put_that_is_not_acknowledged_fails_when_another_host_takes_over() -> None:
    """The client asks the next coordinator; there the put may be, or not, as a whole."""
    owners = Owners()
    front, ledger = await owners.lead()
    lost = [ledger.put({"a": b"1", "b": b"1"}), ledger.put({"c": b"1"})]
    _, other = await owners.lead(kept=1)
    front.stream.deposed(9)
    assert all(isinstance(ticket.error, StorageFailed) for ticket in lost)
    assert content(other) == {"a": b"1", "b": b"1"}
    refused = ledger.put({"d": b"1"})
    assert isinstance(refused.error, StorageFailed)


async def test_a_ledger_takes_nothing_in_a_later_ownership_of_its_host() -> None:
    """Another host may have changed the entries in between: what is put then would rest on what is no longer true."""
    owners = Owners()
    front, ledger = await owners.lead()
    owners.owner.own(front.stream)
    await front.tasks.run()
    assert front.stream.is_leader
    refused = ledger.put({"a": b"1"})
    assert isinstance(refused.error, StorageFailed)
    assert (owners.owner.window, content(ledger)) == ([], {})


async def test_live_entries_of_any_size_are_written_anew() -> None:
    """Many large ones in several batches: one batch with all of them would be larger than a stream takes."""
    owners = Owners()
    _, ledger = await owners.lead()
    value = bytes(1_000_000)
    for number in range(40):
        ledger.put({f"k{number}": value})
        owners.owner.ack()
    await owners.tidy(ledger)
    _, other = await owners.lead()
    assert content(other) == content(ledger)
    assert len(content(other)) == 40


async def test_live_entries_are_written_anew_when_much_more_was_put() -> None:
    """An owner reads from where that began, and has everything; a change that came meanwhile is not undone."""
    owners = Owners()
    _, ledger = await owners.lead()
    value = bytes(100_000)
    for number in range(3 * TIDY_BYTES // len(value)):
        ledger.put({f"k{number % 7}": value + b"%d" % number})
        owners.owner.ack()
    assert ledger.is_untidy
    before = owners.owner.acked_offset
    await owners.tidy(ledger)
    assert (owners.first_offset, ledger.is_untidy) == (before, False)
    ledger.put({"k1": b"new", "k2": None})
    owners.owner.ack()
    _, other = await owners.lead()
    assert content(other) == content(ledger)
    assert content(other)["k1"] == b"new"
    assert len(content(other)) == 6


async def test_owners_begin_to_read_at_what_is_acknowledged() -> None:
    """The last entry is being deleted while the ledger is written anew, and both are lost with the host: the next owner
    puts its entries at the same offsets, and the one behind it finds them.
    """
    owners = Owners()
    _, ledger = await owners.lead()
    ledger.put({"a": b"1"})
    owners.owner.ack()
    deleted = ledger.put({"a": None})
    await owners.tidy(ledger)
    assert deleted.done
    assert owners.first_offset < owners.owner.acked_offset
    _, other = await owners.lead()
    other.put({"b": b"2"})
    owners.owner.ack()
    _, last = await owners.lead()
    assert content(last) == content(other) == {"b": b"2"}


@pytest.mark.parametrize("seed", range(5))
async def test_random_histories_of_owners_keep_what_was_acknowledged(seed: int) -> None:
    """Puts, acknowledgements, takeovers, entries written anew: the map is a plain one's."""
    random, owners = Random(seed), Owners()
    model: dict[str, bytes] = {}
    _, ledger = await owners.lead()
    for step in range(200):
        action = random.random()
        if action < 0.7:
            changes = {
                f"k{random.randrange(20)}": None if random.random() < 0.2 else b"%d" % step
                for _ in range(random.randint(1, 3))
            }
            ledger.put(changes)
            if random.random() < 0.8:
                owners.owner.ack(len(owners.owner.window))
                model = content(ledger)
        elif action < 0.85:
            owners.owner.ack(len(owners.owner.window))
            model = content(ledger)
            await owners.tidy(ledger)
        else:
            owners.owner.ack(len(owners.owner.window))
            model = content(ledger)
            _, ledger = await owners.lead()
            assert content(ledger) == model


class MovedMeanwhile:
    """Records beside a ledger that are moved as soon as nothing is held."""

    def __init__(self) -> None:
        self.first_offset: int | None = 0
        self.named_bytes = 0

    def take(self, offset: int, record: Record) -> None:
        """See OtherRecords."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """See OtherRecords."""
        yield
        self.first_offset = 1_000

    def named(self) -> Iterable[tuple[bytes, bytes]]:
        """See OtherRecords."""
        return [(b"staged", b"at 0")]


async def test_the_stream_is_kept_from_where_its_records_were_when_they_were_named() -> None:
    """The next owner finds them where they are named, and nowhere else."""
    owners = Owners()
    front, _ = await owners.lead()
    ledger = ReplicatedLedger(front.stream, front.clock, MovedMeanwhile())
    ledger.put({"a": b"1"})
    read_from = await ledger.tidy(owners.acknowledged)
    assert (read_from.whole_offset, read_from.named_offset) == (0, 1)


async def test_an_owner_that_reads_many_small_entries_does_all_else_as_well() -> None:
    """One read has thousands of batches; others run every few hundred bytes of them, and not behind the last one."""
    owners = Owners()
    _, ledger = await owners.lead()
    for number in range(2_000):
        ledger.put({f"k{number}": b"1"})
        owners.owner.ack(len(owners.owner.window))
    async with counted_turns() as turns:
        _, other = await owners.lead()
        assert turns.count > 2_000 * BATCH_BYTES // STEP_BYTES
    assert content(other) == content(ledger)


class UnwalkedEntries(EntryMap):
    """Entries that nobody may walk through."""

    def key_parts(self) -> Any:
        raise AssertionError("all entries are walked through")

    def items(self, prefix: str) -> Any:
        raise AssertionError("all entries are walked through")


async def test_the_bytes_that_live_are_known_without_a_walk() -> None:
    """Puts, replaced values, deletions, deletions of nothing, and what an owner reads: the limit follows the bytes of
    the entries, and to know it nobody walks through them.
    """
    random, owners = Random(3), Owners()
    _, ledger = await owners.lead()
    for _ in range(300):
        key, size = f"k{random.randrange(30)}", random.randrange(1 << 18)
        ledger.put({key: None if random.random() < 0.3 else bytes(size), "always": bytes(size % 100)})
        owners.owner.ack()
    for each in (ledger, (await owners.lead())[1]):
        live_bytes = sum(len(key) + len(value) for key, value in content(each).items())
        assert TIDY_FACTOR * live_bytes > TIDY_BYTES
        each._entries = UnwalkedEntries()
        assert each.limit_bytes == TIDY_FACTOR * live_bytes
        assert each.is_untidy == (each.span_bytes > TIDY_FACTOR * live_bytes)


async def test_the_stream_of_a_ledger_stays_small() -> None:
    """However much is put, a bounded multiple of the live entries is kept: what is in front of them is trimmed."""
    owners = Owners()
    front, ledger = await owners.lead()
    value, sizes = bytes(100_000), list[int]()
    for number in range(600):
        ledger.put({f"k{number % 5}": value + b"%d" % number})
        owners.owner.ack()
        if number % 40 == 0:
            owners.owner.roll()
        if ledger.is_untidy:
            await owners.tidy(ledger)
            front.stream.trim(owners.first_offset)
            owners.owner.carry_out_trims()
            sizes.append(sum(len(entry.data) for chunk in owners.owner.chunks for entry in chunk.entries))
    assert len(sizes) > 10
    assert max(sizes) < 3 * TIDY_BYTES
    assert front.stream.log_start_offset > 500
    _, other = await owners.lead()
    assert content(other) == content(ledger)
