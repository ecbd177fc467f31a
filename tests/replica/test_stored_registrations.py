"""Registrations on every metadata store: races, lost answers, thousands of chunks, damage, and what they cost."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast
from urllib.request import ProxyHandler, Request, build_opener

import pytest
import trio
import trio.testing

from logstore.base.metadata.errors import InvalidMetadataCall, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import ABSENT, Committed, ConditionFailed, Delete, MetadataStore, Put, Transaction
from logstore.errors import CorruptRegister
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import (
    HEAD,
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
    TieredCopy,
    encode_registration,
)
from logstore.replica.stored_registrations import (
    MAX_CHANGED_CHUNKS,
    MOST_CHUNKS,
    READ_TRIES,
    StoredRegistrations,
    chunks_prefix,
    head_key,
    swap_transaction,
)
from logstore.testing.metadata_contract import StoreUnderTest, committed
from tests.metadata.support import (
    EtcdMember,
    Make,
    etcd_members,
    etcd_store,
    needs_etcd,
)
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
STREAM = "0123456789abcdef0123456789abcdef/7"
A, B, C = Member("host-001", "disk-001"), Member("host-002", "disk-002"), Member("host-003", "disk-003")
NEW = StreamRegistration(3, 2)
FIRST = NEW.claimed(OwnerId("host-001", "start-01")).opened((A, B, C), 0)
THOUSANDS = 4_095


def chunks(number: int) -> tuple[ChunkRegistration, ...]:
    """Sealed chunks that follow each other."""
    return tuple(ChunkRegistration(n + 1, n * 10, (A, B, C), Prefix(64 << 20, n * 10 + 10, n)) for n in range(number))


def registration_of(number: int) -> StreamRegistration:
    """A registration with many sealed chunks and an open one."""
    sealed = replace(NEW, epoch=number, owner=OwnerId("host-001", "start-01"), chunks=chunks(number))
    return sealed.opened((A, B, C), number * 10)


def dropping(registration: StreamRegistration, count: int) -> StreamRegistration:
    """A registration without its first chunks."""
    chunks = registration.chunks[count:]
    return replace(registration, chunks=chunks, log_start=chunks[0].base_offset)


def entries_of(registration: StreamRegistration) -> list[Put]:
    """All entries as changes, without the adapter's limit: as many swaps would have left them."""
    prefix = chunks_prefix(STREAM)
    found = encode_registration(registration).items()
    return [Put(head_key(STREAM) if name == HEAD else prefix + name, value) for name, value in found]


async def plant(store: MetadataStore, registration: StreamRegistration) -> None:
    """Store a whole registration."""
    puts = entries_of(registration)
    for begin in range(0, len(puts), 64):
        await committed(store, Transaction((), tuple(puts[begin : begin + 64])))


async def read(registrations: StoredRegistrations) -> RegistrationRead:
    """The stream's registration."""
    return await registrations.read(ReadRegistration(STREAM))


async def swap(registrations: StoredRegistrations, revision: int, wanted: StreamRegistration) -> SwapAnswer:
    """Swap the stream's registration."""
    return await registrations.swap(SwapRegistration(STREAM, revision, wanted))


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[StoreUnderTest]:
    """A store, with a limit for the test."""
    with trio.fail_after(PATIENCE_S):
        async with make() as stores:
            yield stores


async def test_a_registration_is_made_changed_and_read(make: Make) -> None:
    """Every step is one swap: the next reader, on another host, finds exactly the registration that was swapped in."""
    async with opened(make) as stores:
        mine, other = StoredRegistrations(stores.store), StoredRegistrations(stores.other)
        assert await read(mine) == RegistrationRead(STREAM, ABSENT, None)
        revision, registration = ABSENT, FIRST
        rolled = FIRST.rolled(Prefix(100, 7, 1), (A, B), (C,), (A, B))
        copied = rolled.with_copies(1, (A, B, C))
        for registration in (
            FIRST,
            rolled,
            copied,
            copied.trimmed(5, keeps_last=False),
            copied.trimmed(7, keeps_last=False),
        ):
            answer = await swap(mine, revision, registration)
            assert answer.is_done
            revision = answer.revision
            assert await read(other) == RegistrationRead(STREAM, revision, registration)


async def test_of_two_swappers_one_wins_and_both_know(make: Make) -> None:
    """Two hosts claim at the same revision, with and without having read it: one is the owner, the other sees whom."""
    async with opened(make) as stores:
        hosts = [StoredRegistrations(stores.store), StoredRegistrations(stores.other)]
        revision = (await swap(hosts[0], ABSENT, FIRST)).revision
        for number in range(5):
            seen = await read(hosts[0])
            assert seen.registration is not None
            answers: dict[int, SwapAnswer] = {}
            wanted = [seen.registration.claimed(OwnerId(f"h{host}", f"{number}")) for host in range(2)]

            async def claim(
                host: int, wanted: list[StreamRegistration], answers: dict[int, SwapAnswer], revision: int
            ) -> None:
                answers[host] = await swap(hosts[host], revision, wanted[host])

            async with trio.open_nursery() as nursery:
                for host in range(2):
                    nursery.start_soon(claim, host, wanted, answers, revision)
            (winner,) = [host for host in range(2) if answers[host].is_done]
            assert answers[0].revision == answers[1].revision
            assert answers[1 - winner].registration == wanted[winner]
            revision = answers[0].revision


@dataclass
class Unreliable:
    """A store whose answers to transactions are lost, or whose transactions are, as `fates` say: `made`, `lost`."""

    store: MetadataStore
    fates: list[str]
    before_page: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        fate = self.fates.pop(0) if self.fates else ""
        if fate != "lost":
            outcome = await self.store.commit(transaction)
        if fate:
            raise OutcomeUnknown(fate)
        return outcome

    async def page(self, prefix: str, **arguments: Any) -> Any:
        """See MetadataStore."""
        if self.before_page is not None:
            await self.before_page()
        return await self.store.page(prefix, **arguments)


@pytest.mark.parametrize("fates", [["made"], ["lost"], ["lost", "made"], ["made", "lost"]])
async def test_a_lost_answer_is_settled(make: Make, fates: list[str]) -> None:
    """A swap is made once, and known to be made; also a swap that changes no byte of the head."""
    async with opened(make) as stores:
        mine: Any = Unreliable(stores.store, [])
        registrations = StoredRegistrations(mine)
        rolled = FIRST.rolled(Prefix(100, 7, 1), (A, B), (C,), (A, B))
        revision = (await swap(registrations, ABSENT, rolled)).revision
        copied = rolled.with_copies(1, (A, B, C))
        assert encode_registration(copied)[HEAD] == encode_registration(rolled)[HEAD]
        mine.fates = [*fates]
        answer = await swap(registrations, revision, copied)
        assert answer.is_done
        assert answer.revision == (await stores.other.get(head_key(STREAM))).entry_revision == revision + 1
        assert (await read(StoredRegistrations(stores.other))).registration == copied


async def test_a_lost_swap_that_another_replaced_is_not_done(make: Make) -> None:
    """The swap never arrived and another host changed the stream: not done, although the head might look alike."""
    async with opened(make) as stores:
        mine: Any = Unreliable(stores.store, [])
        registrations, other = StoredRegistrations(mine), StoredRegistrations(stores.other)
        rolled = FIRST.rolled(Prefix(100, 7, 1), (A, B), (C,), (A, B))
        revision = (await swap(registrations, ABSENT, rolled)).revision
        later = await swap(other, revision, rolled.with_copies(1, (A,)))
        mine.fates = ["lost"]
        answer = await swap(registrations, revision, rolled.with_copies(1, (A, B, C)))
        assert not answer.is_done
        assert (answer.revision, answer.registration) == (later.revision, later.registration)


async def test_an_outcome_that_stays_unknown_is_asked_for_again(make: Make) -> None:
    """When no answer comes at all the swap raises OutcomeUnknown, and the same call later finds what became of it."""
    async with opened(make) as stores:
        mine: Any = Unreliable(stores.store, ["made", "lost", "lost"])
        registrations = StoredRegistrations(mine)
        with pytest.raises(OutcomeUnknown):
            await swap(registrations, ABSENT, FIRST)
        assert (await swap(registrations, ABSENT, FIRST)).is_done


async def test_thousands_of_chunks(make: Make) -> None:
    """A stream of thousands of chunks is read in pages; a change of it is still a transaction of two entries."""
    async with opened(make) as stores:
        whole = registration_of(THOUSANDS)
        await plant(stores.store, whole)
        registrations = StoredRegistrations(stores.store)
        seen = await read(registrations)
        assert seen.registration == whole
        copied = whole.with_copies(2000, (A, B))
        assert len(swap_transaction(whole, SwapRegistration(STREAM, seen.revision, copied)).changes) == 2
        transactions = stores.store.statistics.transactions
        answer = await swap(registrations, seen.revision, copied)
        assert answer.is_done
        assert stores.store.statistics.transactions == transactions + 1
        assert (await read(StoredRegistrations(stores.other))).registration == copied
        with pytest.raises(InvalidMetadataCall, match=f"{MOST_CHUNKS + 1} chunks"):
            await swap(registrations, answer.revision, registration_of(MOST_CHUNKS))


async def test_a_change_too_large_is_refused_whole(make: Make) -> None:
    """A trim of more chunks than a transaction holds changes nothing; in several swaps each state is valid."""
    async with opened(make) as stores:
        whole = registration_of(2 * MAX_CHANGED_CHUNKS)
        await plant(stores.store, whole)
        registrations = StoredRegistrations(stores.store)
        seen = await read(registrations)
        too_many = dropping(whole, MAX_CHANGED_CHUNKS + 1)
        with pytest.raises(InvalidMetadataCall, match=r"changes 64 sealed chunks, at most 63 .* several swaps"):
            await swap(registrations, seen.revision, too_many)
        assert await read(registrations) == seen
        for _ in range(2):
            whole = dropping(whole, MAX_CHANGED_CHUNKS)
            answer = await swap(registrations, seen.revision, whole)
            assert answer.is_done
            seen = await read(registrations)
            assert seen.registration == whole


@pytest.mark.parametrize("number", [0, 5, 299, None])
async def test_a_missing_or_damaged_entry_is_named(make: Make, number: int | None) -> None:
    """An entry of a chunk, or the head (None), that is gone or damaged is CorruptRegister, with the stream's name."""
    async with opened(make) as stores:
        await plant(stores.store, registration_of(300))
        key = head_key(STREAM) if number is None else f"{chunks_prefix(STREAM)}{number * 10:020d}"
        entry = (await stores.store.get(key)).entry
        assert entry is not None
        damaged = bytes([*entry.value[:20], entry.value[20] ^ 1, *entry.value[21:]])
        for change in (Put(key, damaged), Put(key, b""), Delete(key)):
            await committed(stores.store, Transaction((), (change,)))
            with pytest.raises(CorruptRegister, match=STREAM):
                await read(StoredRegistrations(stores.other))
            with pytest.raises(CorruptRegister, match=STREAM):
                await swap(StoredRegistrations(stores.other), entry.revision, FIRST)
        await committed(stores.store, Transaction((), (Put(key, entry.value),)))
        assert (await read(StoredRegistrations(stores.other))).registration == registration_of(300)


async def test_a_read_never_mixes_two_registrations(make: Make) -> None:
    """A registration that changes between the pages is read again; if it never rests, that is said."""
    async with opened(make) as stores:
        await plant(stores.store, registration_of(600))
        owner, unreliable = StoredRegistrations(stores.other), Unreliable(stores.store, [])
        changes_left = 4

        async def change() -> None:
            nonlocal changes_left
            if changes_left:
                changes_left -= 1
                seen = await read(owner)
                assert seen.registration is not None
                members = (A, B) if changes_left % 2 else (A, B, C)
                await swap(owner, seen.revision, seen.registration.with_copies(1, members).with_copies(599, members))

        unreliable.before_page = change
        reader = StoredRegistrations(unreliable)
        assert await read(reader) == await read(owner)
        changes_left = 1000
        with pytest.raises(MetadataUnavailable, match=f"changed during {READ_TRIES} reads"):
            await read(StoredRegistrations(unreliable))


async def test_a_known_registration_is_read_as_far_as_it_has_changed(make: Make) -> None:
    """Rolls, copies, claims and trims by another host, several between two reads: what is read is what is there, and a
    read costs a page and no more, however many chunks there are.
    """
    random = Random(3)
    async with opened(make) as stores:
        registration = registration_of(600)
        await plant(stores.store, registration)
        owner, store = StoredRegistrations(stores.other), Counting(stores.store)
        reader = StoredRegistrations(cast(MetadataStore, store))
        planted = await read(owner)
        registration = changed_somehow(registration, random)
        seen = await swap(owner, planted.revision, registration)
        assert (await read(reader)).registration == registration
        assert store.pages == 3
        for _ in range(40):
            for _ in range(random.randint(0, 3)):
                registration = changed_somehow(registration, random)
                seen = await swap(owner, seen.revision, registration)
                assert seen.is_done
            store.pages = 0
            found = await read(reader)
            assert (found.revision, found.registration) == (seen.revision, registration)
            assert store.pages <= 1
        keys = [put.key for put in entries_of(registration)]
        for begin in range(0, len(keys), 64):
            await committed(stores.store, Transaction((), tuple(Delete(key) for key in keys[begin : begin + 64])))
        assert await read(reader) == RegistrationRead(STREAM, ABSENT, None)


async def test_a_change_that_was_heard_of_costs_one_call(make: Make) -> None:
    """Who has heard that a registration has changed reads what has, with the head; who has not asks for the head first.
    What has not changed is one call, whatever was heard.
    """
    async with opened(make) as stores:
        await plant(stores.store, registration_of(300))
        owner, store = StoredRegistrations(stores.other), Counting(stores.store)
        reader = StoredRegistrations(cast(MetadataStore, store))
        await reader.read(ReadRegistration(STREAM))
        assert (store.pages, store.gets) == (2, 0)
        for is_heard in (True, False):
            seen = await read(owner)
            assert seen.registration is not None
            members = (A, B) if is_heard else (A, C)
            answer = await swap(owner, seen.revision, seen.registration.with_copies(1, members))
            assert answer.is_done
            store.pages = store.gets = 0
            found = await reader.read(ReadRegistration(STREAM, answer.revision if is_heard else 0))
            assert (found.revision, found.registration) == (answer.revision, answer.registration)
            assert (store.pages, store.gets) == (1, 0 if is_heard else 1)
        store.pages = store.gets = 0
        assert await reader.read(ReadRegistration(STREAM, found.revision)) == found
        assert (store.pages, store.gets) == (0, 1)
        assert await reader.read(ReadRegistration(STREAM, found.revision + 1000)) == found


@dataclass
class Counting:
    """A store that counts pages, and reads of single keys."""

    store: MetadataStore
    pages: int = 0
    gets: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def page(self, prefix: str, **arguments: Any) -> Any:
        """See MetadataStore."""
        self.pages += 1
        return await self.store.page(prefix, **arguments)

    async def get(self, key: str) -> Any:
        """See MetadataStore."""
        self.gets += 1
        return await self.store.get(key)


def changed_somehow(registration: StreamRegistration, random: Random) -> StreamRegistration:
    """The next registration, by a step that an owner may take."""
    step = random.choice(("roll", "copy", "trim", "claim"))
    end = registration.chunks[-1].base_offset
    if step == "roll":
        return registration.rolled(Prefix(100, end + 10, 7), (A, B), (), (A, B, C), end)
    if step == "copy":
        epoch = random.choice(registration.chunks[:-1]).epoch
        return registration.with_copies(epoch, (A, B), (Member("d", f"{random.random()}"),))
    if step == "trim":
        return registration.trimmed(
            random.randint(registration.log_start, registration.log_start + 99), keeps_last=True
        )
    return registration.claimed(OwnerId("b", f"{random.random()}"))


@pytest.mark.parametrize("stream", ["s", "a/b", "a/1/2", "a b/1", "x" * 65 + "/1", "a/123456"])
def test_names_that_are_no_streams_are_refused(stream: str) -> None:
    """A name that would lie elsewhere, or below another stream's, makes no key."""
    with pytest.raises(InvalidMetadataCall, match="TOPIC-ID/PARTITION"):
        head_key(stream)


# ---- what it costs


def stated(pattern: str) -> int:
    """A figure of docs/metadata.md."""
    text = " ".join((ROOT / "docs" / "metadata.md").read_text(encoding="utf-8").split())
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1].replace(",", ""))


def sizes(name_characters: int, members: int, *, is_tiered: bool = False) -> tuple[int, int]:
    """The bytes of a head and of a sealed chunk's entry, keys included, with names of a length and large numbers."""
    names = [f"{number}".rjust(name_characters, "h") for number in range(members)]
    hosts = tuple(Member(name, name) for name in names)
    big = (1 << 53) - 2
    registration = replace(NEW, epoch=big - 1, owner=OwnerId(names[0], names[0])).opened(hosts, big - 2)
    registration = registration.rolled(Prefix(1 << 40, big, (1 << 32) - 1), hosts, (), hosts, 1 << 50)
    registration = registration.trimmed(big - 1, keeps_last=True)
    if is_tiered:
        copy = TieredCopy("f" * 16, big, (1 << 40, (1 << 32) - 1), (1 << 40, (1 << 32) - 1))
        registration = registration.with_tiered(registration.chunks[0].epoch, copy)
    topic_id = "f" * min(64, max(32, name_characters))
    transaction = swap_transaction(None, SwapRegistration(f"{topic_id}/9999", 1, registration))
    head, chunk = [len(put.key) + len(put.value) for put in transaction.changes if isinstance(put, Put)]
    return head, chunk


def test_bytes_are_as_stated() -> None:
    """Head and sealed chunk take no more bytes than docs/metadata.md says, also with five names of 64 characters."""
    for characters, members, words in ((8, 3, "8 characters and three"), (64, 5, "64 characters and five")):
        head, chunk = sizes(characters, members)
        print(f"{words}: head {head}, chunk {chunk}")
        assert head <= stated(rf"{words} members \| ([\d,]+)")
        assert chunk <= stated(rf"{words} members \| [\d,]+ \| ([\d,]+)")
        grown = sizes(characters, members, is_tiered=True)[1] - chunk
        print(f"where it lies in the tier: {grown}")
        assert grown <= stated(r"chunk in the tier takes ([\d,]+) bytes more")


def test_the_bytes_of_the_format() -> None:
    """The bytes are those of docs/format.md."""
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    a, b, c = Member("a", "disk1"), Member("b", "disk2"), Member("c", "disk3")
    first = NEW.claimed(OwnerId("a", "a.1")).opened((a, b, c), 0)
    rolled = first.rolled(Prefix(100, 7, 12345), (a, b), (c,), (a, b), 5000)
    trimmed = rolled.trimmed(3, keeps_last=True)
    copy = TieredCopy("0000000001000000", 1_700_000_000_000, (40, 11), (60, 12))
    for registration in (trimmed, trimmed.with_tiered(1, copy)):
        for value in encode_registration(registration).values():
            assert f"`{value.decode()}`" in text


@needs_etcd
async def test_etcd_grows_as_stated(tmp_path: Path) -> None:
    """Measured on a real etcd: what a roll adds while history is kept, and what is left of it after a compaction."""
    rolls = 1000
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store:
            registrations = StoredRegistrations(store)
            answer = await swap(registrations, ABSENT, FIRST)
            before = await bytes_in_use(members[0])
            calls = store.statistics.transactions
            for number in range(rolls):
                assert answer.registration is not None
                end = Prefix(64 << 20, (number + 1) * 60_000, (1 << 32) - 1)
                rolled = answer.registration.rolled(end, (A, B, C), (), (A, B, C), 1 << 40)
                answer = await swap(registrations, answer.revision, rolled)
                assert answer.is_done
            assert store.statistics.transactions == calls + rolls
            grown = (await bytes_in_use(members[0]) - before) / rolls
            await ask(members[0], "kv/compaction", {"revision": str(answer.revision), "physical": True})
            left = (await bytes_in_use(members[0]) - before) / rolls
            print(f"bytes of etcd's database for a roll: {grown:.0f}, after a compaction {left:.0f}")
            assert grown <= stated(r"A roll adds at most ([\d,]+) bytes")
            assert left <= stated(r"of which at most ([\d,]+) stay")


@needs_etcd
async def test_etcd_stays_small_where_streams_are_trimmed(tmp_path: Path) -> None:
    """With retention, a chunk rolled is two transactions, and what etcd holds of the stream does not grow."""
    kept, rolls = 20, 200
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store:
            registrations = StoredRegistrations(store)
            answer = await swap(registrations, ABSENT, FIRST)
            sizes: list[float] = []
            calls = store.statistics.transactions
            for number in range(kept + 2 * rolls):
                assert answer.registration is not None
                end = Prefix(64 << 20, (number + 1) * 60_000, (1 << 32) - 1)
                rolled = answer.registration.rolled(end, (A, B, C), (), (A, B, C), 1 << 40)
                answer = await swap(registrations, answer.revision, rolled)
                trimmed = rolled.trimmed(max(0, (number + 1 - kept) * 60_000), keeps_last=True)
                if trimmed != rolled:
                    answer = await swap(registrations, answer.revision, trimmed)
                if number in (kept + rolls - 1, kept + 2 * rolls - 1):
                    await ask(members[0], "kv/compaction", {"revision": str(answer.revision), "physical": True})
                    sizes.append(await bytes_in_use(members[0]))
            assert store.statistics.transactions == calls + kept + 2 * 2 * rolls
            entries = (await store.page(chunks_prefix(STREAM))).entries
            print(f"bytes of etcd's database behind compactions: {sizes}, {len(entries)} sealed chunks")
            assert len(entries) == kept
            assert sizes[1] <= sizes[0] + 16_384, "four of etcd's pages"


async def bytes_in_use(member: EtcdMember) -> int:
    """What etcd's database holds, all of it flushed."""
    await ask(member, "maintenance/defragment", {})
    return int((await ask(member, "maintenance/status", {}))["dbSizeInUse"])


async def ask(member: EtcdMember, path: str, body: dict[str, object]) -> dict[str, str]:
    """Ask etcd something that the store does not ask."""
    request = Request(f"{member.client}/v3/{path}", json.dumps(body).encode())

    def answer() -> dict[str, str]:
        with build_opener(ProxyHandler({})).open(request, timeout=PATIENCE_S) as response:
            found: dict[str, str] = json.load(response)
        return found

    return await trio.to_thread.run_sync(answer)
