"""The simulated metadata service: the same seed gives the same run, and under faults no swap is lost or made twice."""

import json
from dataclasses import dataclass, field
from random import Random

import pytest
import trio

from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import ABSENT, MetadataStore
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapRegistration
from logstore.replica.registrations import OwnerId, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations, head_key
from logstore.testing.metadata_contract import committed, put
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

HOSTS = ("h1", "h2", "h3")
SWAPS = 15
STREAM = "t1/0"
NEW = StreamRegistration(3, 2)


@dataclass
class Swaps:
    """What hosts know of their swaps: value and revision of those made, values of those made perhaps."""

    won: list[tuple[str, int]] = field(default_factory=list)
    perhaps: set[str] = field(default_factory=set)


async def swap_often(store: MetadataStore, host: str, swaps: Swaps) -> None:
    """Claim a stream again and again; note what became of each claim."""
    registrations = StoredRegistrations(store)
    for number in range(SWAPS):
        seen, attempt, lost = None, 0, store.statistics.unknown_outcomes
        while True:
            value = f"{host} {number}.{attempt}"
            try:
                seen = seen or await registrations.read(ReadRegistration(STREAM))
                wanted = (seen.registration or NEW).claimed(OwnerId(host, value))
                answer = await registrations.swap(SwapRegistration(STREAM, seen.revision, wanted))
            except (MetadataUnavailable, OutcomeUnknown):
                continue
            if answer.is_done:
                swaps.won.append((value, answer.revision))
                break
            if store.statistics.unknown_outcomes > lost:
                swaps.perhaps.add(value)
            seen = RegistrationRead(STREAM, answer.revision, answer.registration)
            attempt, lost = attempt + 1, store.statistics.unknown_outcomes


async def disturb(service: SimulatedMetadata, random: Random) -> None:
    """Cut off hosts and stop the service now and then, until cancelled."""
    while True:
        await trio.sleep(random.uniform(0, 3))
        host = random.choice(HOSTS)
        if random.random() < 0.3:
            service.stop()
            await trio.sleep(random.uniform(0, 2))
            service.start()
        else:
            service.cut_off(host)
            await trio.sleep(random.uniform(0, 2))
            service.heal(host)


async def history(seed: int) -> tuple[Swaps, list[tuple[str, int]]]:
    """What hosts know of their swaps, and what a watch has seen: value and revision."""
    random = Random(seed)
    service = SimulatedMetadata(random, MetadataFaults(max_delay_s=0.2, lost_requests=0.1, lost_answers=0.1))
    swaps = Swaps()
    seen: list[tuple[str, int]] = []

    async def follow() -> None:
        async with service.store("h3").watch(head_key(STREAM), 1) as watch:
            while True:
                changes = await watch.receive()
                (event,) = changes.events
                assert event.entry is not None
                seen.append((json.loads(event.entry.value[8:])["owner"][1], changes.revision))

    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        nursery.start_soon(disturb, service, random)
        nursery.start_soon(follow)
        async with trio.open_nursery() as clients:
            for host in HOSTS:
                clients.start_soon(swap_often, service.store(host), host, swaps)
        while seen[-1][1] < service.state.revision:  # noqa: ASYNC110 - virtual time
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return swaps, seen


@pytest.mark.parametrize("seed", range(15))
def test_swaps_are_made_once_under_faults(seed: int) -> None:
    """Lost, late and overtaken messages, cut-off hosts, a service that stops: each swap is made at most once, and what
    was made is known to be made, or as perhaps replaced.
    """
    swaps, seen = run_virtual(history, seed, seed=seed)
    assert [revision for _, revision in seen] == list(range(2, 2 + len(seen)))
    assert len({value for value, _ in seen}) == len(seen), "made twice"
    assert set(swaps.won) <= set(seen)
    assert {value for value, _ in set(seen) - set(swaps.won)} <= swaps.perhaps
    assert len(swaps.won) == len(HOSTS) * SWAPS


def test_the_same_seed_gives_the_same_run() -> None:
    """Delays, losses and their consequences come from the seed alone, with a deterministic scheduler."""
    runs = [run_virtual(history, 7, seed=7) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_request_may_come_late() -> None:
    """A transaction whose host has given up is made afterwards; a host that reads too early does not know."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults())
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            store = service.store("h1")
            service.faults.max_delay_s = 1000
            with pytest.raises(OutcomeUnknown):
                await store.commit(put("a", b"late", if_revision=ABSENT))
            service.faults.max_delay_s = 0
            assert (await store.get("a")).entry is None
            await trio.sleep(1000)
            found = (await store.get("a")).entry
            assert found is not None
            assert found.value == b"late"
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_outages() -> None:
    """A host that is cut off is told so in time; its lease ends; a stopped service ends none, and keeps all."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults())
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            cut_off, other = service.store("h1"), service.store("h2")
            lease = await cut_off.grant_lease(10)
            begin = await committed(cut_off, put("members/h1", lease_id=lease.lease_id))
            service.stop()
            for store in (cut_off, other):
                with pytest.raises(MetadataUnavailable, match="did not answer"):
                    await store.get("members/h1")
                assert store.statistics.away
            await trio.sleep(100)
            service.start()
            assert (await other.get("members/h1")).entry is not None
            service.cut_off("h1")
            with pytest.raises(MetadataUnavailable):
                await cut_off.keep_alive(lease.lease_id)
            async with other.watch("members/", begin) as watch:
                assert (await watch.receive()).events[0].entry is None
            async with cut_off.watch("members/", begin) as watch:
                with trio.move_on_after(100) as scope:
                    await watch.receive()
                assert scope.cancelled_caught
                service.heal("h1")
                assert (await watch.receive()).events[0].entry is None
            nursery.cancel_scope.cancel()

    run_virtual(main)
