"""A view in memory and a lease that is kept alive, over outages of a simulated service, and on a real etcd."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.metadata.errors import LeaseEnded
from logstore.base.metadata.held_lease import HeldLease
from logstore.base.metadata.interface import MAX_PAGE_ENTRIES, Delete, MetadataStore, Put
from logstore.base.metadata.view import MetadataView
from logstore.testing.metadata_contract import changing, committed, put
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.metadata.support import etcd_members, etcd_store, needs_etcd
from tests.support.limits import PATIENCE_S
from tests.support.virtual_time import run_virtual


def simulated(test: Callable[[SimulatedMetadata, trio.Nursery], Awaitable[None]], seed: int = 0) -> None:
    """Run a test against a simulated service, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(seed), MetadataFaults(max_delay_s=0.01))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            await test(service, nursery)
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=seed)


def values(view: MetadataView) -> dict[str, bytes]:
    """Keys and values of a view."""
    return {key: entry.value for key, entry in view.entries.items()}


def test_a_view_follows_and_stays_over_an_outage() -> None:
    """It has what is under its prefix, waits for a commit, stays while the service is away, and then catches up."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        near, far = service.store("near"), service.store("far")
        await committed(far, changing(Put("a/1", b"1"), Put("b/1", b"1")))
        view = MetadataView(near, "a/")
        nursery.start_soon(view.run)
        await view.reached(1)
        assert values(view) == {"a/1": b"1"}
        await view.reached(await committed(far, changing(Put("a/2", b"2"), Delete("a/1"))))
        assert values(view) == {"a/2": b"2"}
        service.cut_off("near")
        revision = await committed(far, put("a/3", b"3"))
        await trio.sleep(100)
        assert values(view) == {"a/2": b"2"}
        service.heal("near")
        await view.reached(revision)
        assert values(view) == {"a/2": b"2", "a/3": b"3"}

    simulated(test)


def test_a_view_that_was_compacted_reads_again() -> None:
    """What was removed and compacted while it was cut off goes; what came is there."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        near, far = service.store("near"), service.store("far")
        await committed(far, changing(Put("a/1", b"1"), Put("a/2", b"2")))
        view = MetadataView(near, "a/")
        nursery.start_soon(view.run)
        await view.reached(1)
        service.cut_off("near")
        await trio.sleep(100)
        revision = await committed(far, changing(Delete("a/1"), Put("a/3", b"3")))
        revision = await committed(far, changing(Delete("a/2")))
        await far.compact(revision)
        service.heal("near")
        await view.reached(revision)
        assert values(view) == {"a/3": b"3"}

    simulated(test)


@pytest.mark.parametrize("seed", range(10))
def test_a_view_of_many_pages_while_they_change(seed: int) -> None:
    """Changes during a reading of three pages: in the end it is what the service has, and no key ever goes back."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        random = Random(seed)
        near, far = service.store("near"), service.store("far")
        keys = [f"a/{number:04d}" for number in range(3 * MAX_PAGE_ENTRIES)]
        for begin in range(0, len(keys), 64):
            await committed(far, changing(*(Put(key, b"0") for key in keys[begin : begin + 64])))
        view = MetadataView(near, "a/")
        newest: dict[str, int] = {}

        async def check() -> None:
            while True:
                await view.changed()
                for key, entry in view.entries.items():
                    assert entry.revision >= newest.get(key, 0)
                    newest[key] = entry.revision

        nursery.start_soon(check)
        nursery.start_soon(view.run)
        for number in range(100):
            key = random.choice(keys)
            revision = await committed(far, changing(Delete(key) if number % 3 == 0 else Put(key, b"%d" % number)))
        revision = await committed(far, put("a/end"))
        await view.reached(revision)
        assert dict(view.entries) == {key: entry for key, entry in service.state.entries.items() if key[:2] == "a/"}

    simulated(test, seed)


def is_held(lease: HeldLease) -> bool:
    """Whether it is held now; mypy takes a property for constant."""
    return lease.held


def test_a_lease_is_held_and_given_back() -> None:
    """Kept alive over many times its length and short outages; ended at once when its holder is cancelled."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store = service.store("h1")
        lease = HeldLease(store, 6)
        assert not is_held(lease)
        async with trio.open_nursery() as holder:
            await holder.start(lease.run)
            await committed(store, put("members/h1", lease_id=lease.lease_id))
            for _ in range(20):
                assert is_held(lease)
                service.cut_off("h1")
                await trio.sleep(1.5)
                service.heal("h1")
                await trio.sleep(3)
                assert (await store.get("members/h1")).entry is not None
            holder.cancel_scope.cancel()
        assert not is_held(lease)
        assert (await store.get("members/h1")).entry is None

    simulated(test)


def test_a_lease_is_not_held_when_the_service_may_have_ended_it() -> None:
    """Cut off: `held` ends before the service ends the lease, and the holder is told."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store, other = service.store("h1"), service.store("h2")
        lease = HeldLease(store, 6)
        ended: list[LeaseEnded] = []

        async def hold(task_status: trio.TaskStatus[None]) -> None:
            try:
                await lease.run(task_status)
            except LeaseEnded as error:
                ended.append(error)

        await nursery.start(hold)
        begin = await committed(store, put("members/h1", lease_id=lease.lease_id))
        service.cut_off("h1")
        async with other.watch("members/", begin) as watch:
            await watch.receive()
        assert not is_held(lease)
        await trio.sleep(10)
        assert [error.lease_id for error in ended] == [lease.lease_id]

    simulated(test)


@needs_etcd
async def test_on_etcd(tmp_path: Path) -> None:
    """A member's key stays while etcd is killed and restarted, and a view of members sees it go."""
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store, trio.open_nursery() as nursery:
            view = MetadataView(store, "members/")
            nursery.start_soon(view.run)
            lease = HeldLease(store, 60)
            with trio.fail_after(PATIENCE_S):
                await view.reached(1)
                async with trio.open_nursery() as holder:
                    await holder.start(lease.run)
                    await view.reached(await join(store, lease.lease_id))
                    members[0].kill()
                    assert list(view.entries) == ["members/h1"]
                    members[0].start()
                    assert (await store.get("members/h1")).entry == view.entries["members/h1"]
                    holder.cancel_scope.cancel()
                while view.entries:
                    await view.changed()
            nursery.cancel_scope.cancel()


async def join(store: MetadataStore, lease_id: int) -> int:
    """Put a member; returns the revision."""
    return await committed(store, put("members/h1", lease_id=lease_id))
