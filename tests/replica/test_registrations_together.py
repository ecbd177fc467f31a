"""Registrations of several streams in one call, on every metadata store: each fares as if it were alone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logstore.base.metadata.errors import InvalidMetadataCall, OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    MAX_CHANGES,
    MAX_PAGE_ENTRIES,
    Delete,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import OwnerId, Prefix, StreamRegistration
from logstore.replica.stored_registrations import SWAP_TRIES, StoredRegistrations, head_key
from logstore.testing.metadata_contract import committed
from tests.metadata.support import Make
from tests.replica.test_stored_registrations import FIRST, A, B, C, Unreliable, dropping, opened, plant, registration_of
from tests.replica.test_stored_registrations import STREAM as LONG

SEVERAL = [f"0123456789abcdef0123456789abcdef/{number}" for number in range(4)]
BEGUN = FIRST.rolled(Prefix(100, 7, 1), (A, B), (C,), (A, B))
LOST = [["made"], ["lost"], ["lost", "made"], ["made", "lost"], ["lost"] * SWAP_TRIES, ["made"] * SWAP_TRIES]


class Counted:
    """A store that notes which calls are made."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._store, name)


def claim(answer: RegistrationRead | SwapAnswer, host: str) -> SwapRegistration:
    """A host's claim of a stream whose registration it has read."""
    assert answer.registration is not None
    return SwapRegistration(answer.stream, answer.revision, answer.registration.claimed(OwnerId(host, f"{host}.1")))


async def begin(registrations: StoredRegistrations) -> list[RegistrationRead]:
    """Several streams, each with a sealed chunk and an open one."""
    for stream in SEVERAL:
        assert (await registrations.swap(SwapRegistration(stream, ABSENT, BEGUN))).is_done
    return [await registrations.read(ReadRegistration(stream)) for stream in SEVERAL]


async def settle(registrations: StoredRegistrations, swaps: list[SwapRegistration]) -> dict[str, SwapAnswer]:
    """Make swaps together, and alone what is left."""
    answers = {answer.stream: answer for answer in await registrations.swap_together(swaps)}
    for each in swaps:
        if each.stream not in answers:
            answers[each.stream] = await registrations.swap(each)
    return answers


async def test_swaps_of_several_streams_are_one_transaction(make: Make) -> None:
    """If another host has changed one of the streams, nothing is changed; then each is made, or not, by itself."""
    async with opened(make) as stores:
        store = Counted(stores.store)
        mine, other = StoredRegistrations(cast(MetadataStore, store)), StoredRegistrations(stores.other)
        swaps = [claim(each, "host-002") for each in await begin(mine)]
        store.calls.clear()
        answers = await mine.swap_together(swaps)
        assert store.calls == ["commit"]
        assert [(each.stream, each.is_done) for each in answers] == [(stream, True) for stream in SEVERAL]
        for each in answers:
            found = RegistrationRead(each.stream, each.revision, each.registration)
            assert await other.read(ReadRegistration(each.stream)) == found
        winner = claim(answers[1], "host-003")
        assert (await other.swap(winner)).is_done
        again = [claim(each, "host-001") for each in answers]
        assert await mine.swap_together(again) == []
        assert (await other.read(ReadRegistration(SEVERAL[0]))).revision == answers[0].revision
        settled = await settle(mine, again)
        assert [settled[stream].is_done for stream in SEVERAL] == [True, False, True, True]
        assert settled[SEVERAL[1]].registration == winner.registration


@pytest.mark.parametrize("fates", LOST)
async def test_lost_answers_of_several_swaps_are_settled(make: Make, fates: list[str]) -> None:
    """Each swap is made once, and known to be made, also where nobody knows of the first transaction and they are asked
    for again in other company.
    """
    async with opened(make) as stores:
        mine: Any = Unreliable(stores.store, [])
        registrations = StoredRegistrations(mine)
        swaps = [claim(each, "host-002") for each in await begin(registrations)]
        mine.fates = [*fates]
        if len(fates) == SWAP_TRIES:
            with pytest.raises(OutcomeUnknown):
                await registrations.swap_together(swaps)
            assert (await registrations.swap(swaps.pop(0))).is_done
        answers = await settle(registrations, swaps)
        assert all(answer.is_done for answer in answers.values())
        for stream, answer in answers.items():
            assert (await stores.other.get(head_key(stream))).entry_revision == answer.revision
        newest = max(answer.revision for answer in answers.values())
        assert newest == (await stores.other.get("none")).revision, "nothing was written twice"


async def test_what_does_not_fit_is_made_alone(make: Make) -> None:
    """Swaps of many entries share a transaction as far as there is room; one that no transaction holds says so."""
    async with opened(make) as stores:
        registrations = StoredRegistrations(stores.store)
        seen = await begin(registrations)
        whole = registration_of(2 * MAX_CHANGES)
        await plant(stores.store, whole)
        long = await registrations.read(ReadRegistration(LONG))
        too_many = SwapRegistration(LONG, long.revision, dropping(whole, MAX_CHANGES))
        made = await registrations.swap_together([too_many, *(claim(each, "host-002") for each in seen[:2])])
        assert [answer.stream for answer in made] == SEVERAL[:2]
        with pytest.raises(InvalidMetadataCall, match="several swaps"):
            await registrations.swap(too_many)
        many = SwapRegistration(LONG, long.revision, dropping(whole, MAX_CHANGES - 2))
        made = await registrations.swap_together([many, *(claim(each, "host-002") for each in seen[2:])])
        assert [answer.stream for answer in made] == [LONG, SEVERAL[2]]


async def test_several_registrations_are_read_together(make: Make) -> None:
    """What is as it was kept is one call, and so is what has changed since or was never read; what is gone or damaged
    is left out.
    """
    async with opened(make) as stores:
        store = Counted(stores.other)
        mine, other = StoredRegistrations(stores.store), StoredRegistrations(cast(MetadataStore, store))
        kept = await begin(mine)
        reads = [ReadRegistration(each.stream) for each in kept]
        assert await other.read_changed(reads[:2]) == kept[:2]
        assert await other.read_unchanged(reads) == kept[:2]
        rolled: StreamRegistration = BEGUN.rolled(Prefix(50, 9, 3), (A, B), (), (A, B, C)).with_copies(1, (A, B, C))
        answer = await mine.swap(SwapRegistration(SEVERAL[0], kept[0].revision, rolled))
        changed = RegistrationRead(SEVERAL[0], answer.revision, rolled)
        assert await other.read_unchanged(reads) == kept[1:2]
        assert await other.read_changed(reads) == [changed, *kept[1:]]
        assert [other.known(stream) for stream in SEVERAL] == [changed, *kept[1:]]
        gone, damaged = Delete(head_key(SEVERAL[1])), Put(head_key(SEVERAL[2]), b"?")
        await committed(stores.store, Transaction((), (gone, damaged)))
        for each in (other, StoredRegistrations(cast(MetadataStore, store))):
            assert await each.read_changed(reads) == [changed, kept[3]]
        assert await other.read_unchanged(reads) == [changed, kept[3]]
        assert store.calls == ["pages", "commit", "commit", "pages", "pages", "pages", "commit"]


async def test_a_long_registration_is_read_alone(make: Make) -> None:
    """One that is not kept, of more chunks than its part of the call has entries, is left out; once it is kept, what
    changes of it is read with the others.
    """
    async with opened(make) as stores:
        mine, other = StoredRegistrations(stores.store), StoredRegistrations(stores.other)
        kept = await begin(mine)
        whole = registration_of(MAX_PAGE_ENTRIES)
        await plant(stores.store, whole)
        long = await mine.read(ReadRegistration(LONG))
        reads = [ReadRegistration(LONG), *(ReadRegistration(each.stream) for each in kept)]
        assert await other.read_changed(reads) == kept
        for members in ((A, B), (A, B, C)):
            whole = whole.with_copies(3, members)
            long = RegistrationRead(
                LONG, (await mine.swap(SwapRegistration(LONG, long.revision, whole))).revision, whole
            )
            if members == (A, B):
                assert await other.read(ReadRegistration(LONG)) == long
        assert await other.read_changed(reads) == [long, *kept]
