"""The store on etcd, while real etcd processes are killed, frozen, cut down to a minority and compacted."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.lowlevel

from logstore.base.events import ignore
from logstore.base.metadata.errors import (
    Compacted,
    MetadataDamaged,
    MetadataFull,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.interface import ABSENT, Committed, Delete, MetadataStore, Put
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.testing.metadata_contract import changing, committed, put
from tests.metadata.support import (
    HASTY,
    EtcdMember,
    Reports,
    etcd_members,
    etcd_store,
    go_on,
    needs_etcd,
    settings_for,
    stop,
)
from tests.support.limits import PATIENCE_S

pytestmark = [needs_etcd, pytest.mark.crash]


async def put_surely(store: MetadataStore, key: str, value: bytes) -> int:
    """Put a key that is absent, whatever happens to answers; returns its revision."""
    while True:
        try:
            outcome = await store.commit(put(key, value, if_revision=ABSENT))
        except (MetadataUnavailable, OutcomeUnknown):
            continue
        if isinstance(outcome, Committed):
            return outcome.revision
        (found,) = outcome.found
        assert found is not None
        assert found.value == value
        return found.revision


class Follower:
    """A watch of everything, and what it has delivered."""

    def __init__(self) -> None:
        self.revisions: list[int] = []
        self.keys: list[str] = []
        self._delivered = ChangeSignal()

    async def follow(self, store: MetadataStore, after: int) -> None:
        """Watch, until cancelled."""
        async with store.watch("", after) as watch:
            while True:
                changes = await watch.receive()
                self.revisions.append(changes.revision)
                self.keys += [event.key for event in changes.events]
                self._delivered.notify()

    async def has_key(self, key: str) -> None:
        """Wait until a change of this key was delivered."""
        with trio.fail_after(PATIENCE_S):
            while key not in self.keys:
                await self._delivered.wait()

    async def has(self, number: int) -> None:
        """Wait until so many keys were delivered."""
        with trio.fail_after(PATIENCE_S):
            while len(self.keys) < number:
                await self._delivered.wait()


async def revision_of(store: MetadataStore) -> int:
    """The present revision."""
    return (await store.get("none")).revision


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_watch_goes_on_over_a_restart(tmp_path: Path, fault: str) -> None:
    """Kill −9 and restart, or freeze, while keys are put: each change is delivered once, in order."""
    number = 60
    with etcd_members(tmp_path) as members:
        (member,) = members
        async with etcd_store(members, **HASTY) as store, trio.open_nursery() as nursery:
            follower = Follower()
            nursery.start_soon(follower.follow, store, await revision_of(store))
            revisions = []
            for index in range(number):
                if index % 20 == 10:
                    if fault == "kill":
                        member.kill()
                        member.start()
                    else:
                        stop(member)
                        nursery.start_soon(after_attempt_failed, store, lambda: go_on(member))
                revisions.append(await put_surely(store, f"k{index}", b"v"))
            await follower.has(number)
            assert follower.keys == [f"k{index}" for index in range(number)]
            assert follower.revisions == revisions == sorted(set(revisions))
            assert store.statistics.attempts_failed > 0
            nursery.cancel_scope.cancel()


async def after_attempt_failed(store: EtcdMetadataStore, then: Callable[[], None]) -> None:
    """Call `then` when another attempt has failed."""
    before = store.statistics.attempts_failed
    while store.statistics.attempts_failed == before:  # noqa: ASYNC110 - a number is no event
        await trio.sleep(0.01)
    then()


async def test_what_needs_etcd_waits_and_says_so(tmp_path: Path) -> None:
    """While etcd is away, calls wait as long as they may and fail by name, it is reported once, and all goes on."""
    reports = Reports()
    with etcd_members(tmp_path) as members:
        (member,) = members
        async with (
            etcd_store(members) as ready,
            open_etcd(settings_for(members, patience_s=0.5), Random(5), reports) as store,
        ):
            await committed(ready, put("a", b"1"))
            begin = await revision_of(ready)
            lease = await ready.grant_lease(3600)
            member.kill()
            assert store.statistics.away == ""
            for call in (lambda: store.get("a"), lambda: store.page(""), lambda: store.keep_alive(lease.lease_id)):
                with pytest.raises(MetadataUnavailable, match=r"did not answer within 0.5 s.*nothing was changed"):
                    await call()
            with pytest.raises(MetadataUnavailable):  # nothing was sent, so the outcome is known
                await store.commit(put("a", b"2"))
            assert member.client in store.statistics.away
            assert reports.names == ["metadata_away"]
            async with store.watch("", begin) as watch, trio.open_nursery() as nursery:
                nursery.start_soon(watch.receive)
                await trio.lowlevel.checkpoint()
                member.start()
                revision = await committed(ready, put("a", b"3"))
            assert revision == begin + 1, "the lost transaction was not made"
            while store.statistics.away:
                await put_surely(store, "b", b"")
            # Once for each outage: an etcd that starts may be silent for longer than this store's patience again.
            assert reports.names == ["metadata_away", "metadata_back"] * (len(reports.names) // 2)
            assert (await ready.keep_alive(lease.lease_id)).lease_id == lease.lease_id


async def test_a_lost_answer_is_an_unknown_outcome(tmp_path: Path) -> None:
    """A frozen etcd that has taken a transaction: its outcome is unknown, it comes late, and it comes at most once."""
    with etcd_members(tmp_path) as members:
        (member,) = members
        async with etcd_store(members) as store, etcd_store(members, patience_s=1.0, **HASTY) as hasty:
            unknown_before = hasty.statistics.unknown_outcomes
            stop(member)
            with pytest.raises(OutcomeUnknown, match="it may have been made"):
                await hasty.commit(put("a", b"mine", if_revision=ABSENT))
            with pytest.raises(MetadataUnavailable):
                await hasty.get("a")
            go_on(member)
            first = await put_surely(store, "a", b"mine")
            assert await put_surely(store, "a", b"mine") == first
            assert await revision_of(store) == first, "made once"
            assert hasty.statistics.unknown_outcomes == unknown_before + 1


async def test_a_cancelled_wait_loses_nothing(tmp_path: Path) -> None:
    """A wait for changes may be cancelled at any moment, again and again: each change still comes once."""
    number = 200
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store, trio.open_nursery() as nursery:
            begin = await revision_of(store)

            async def put_all() -> None:
                for index in range(number):
                    await committed(store, put(f"k{index}"))

            nursery.start_soon(put_all)
            random = Random(3)
            found: list[str] = []
            async with store.watch("", begin) as watch:
                while len(found) < number:
                    with trio.move_on_after(random.choice((0, 0.001, 0.005, 0.02, 1))):
                        found += [event.key for event in (await watch.receive()).events]
            assert found == [f"k{index}" for index in range(number)]


async def test_a_watch_that_was_away_for_too_long_is_told(tmp_path: Path) -> None:
    """Compacted over an outage: the watch raises Compacted, also if the only thing missing is a removal."""
    with etcd_members(tmp_path) as members:
        (member,) = members
        async with etcd_store(members, **HASTY) as store, etcd_store(members) as other:
            before = await committed(other, put("a"))
            async with store.watch("", before) as watch:
                with trio.move_on_after(0.2):
                    await watch.receive()
                stop(member)
                with trio.fail_after(PATIENCE_S):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(after_attempt_failed, store, nursery.cancel_scope.cancel)
                        await watch.receive()  # until the watch has left its connection
                go_on(member)
                removed = await committed(other, changing(Delete("a")))
                await other.compact(removed)
                with pytest.raises(Compacted) as caught, trio.fail_after(PATIENCE_S):
                    await watch.receive()
                assert caught.value.revision == removed
            async with store.watch("", caught.value.revision) as again:
                newer = await committed(other, put("b"))
                assert (await again.receive()).revision == newer


async def test_many_changes_come_in_messages_of_bounded_size(tmp_path: Path) -> None:
    """A watch 20 MiB behind gets everything, transactions whole, though etcd cuts what it sends."""
    value = b"x" * (60 << 10)
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store:
            begin = await revision_of(store)
            revisions = []
            for index in range(24):
                puts = [Put(f"k/{index}/{number}", value) for number in range(14)]
                revisions.append(await committed(store, changing(*puts)))
            async with store.watch("", begin) as watch:
                for revision in revisions:
                    changes = await watch.receive()
                    assert changes.revision == revision
                    assert len(changes.events) == 14


async def test_three_members_lose_one(tmp_path: Path) -> None:
    """One of three killed, or frozen: calls go on at the others, and a watch goes on without loss."""
    with etcd_members(tmp_path, 3) as members:
        async with etcd_store(members, **HASTY) as store, trio.open_nursery() as nursery:
            follower = Follower()
            nursery.start_soon(follower.follow, store, await revision_of(store))
            await put_surely(store, "k0", b"")
            await follower.has(1)
            members[0].kill()
            for index in range(1, 10):
                await put_surely(store, f"k{index}", b"")
            await follower.has(10)
            members[0].start()
            await member_answers(members[0])
            stop(members[1])
            for index in range(10, 20):
                await put_surely(store, f"k{index}", b"")
            await follower.has(20)
            go_on(members[1])
            assert follower.keys == [f"k{index}" for index in range(20)]
            nursery.cancel_scope.cancel()


async def test_a_member_without_a_majority_is_left(tmp_path: Path) -> None:
    """A member cut down to a minority does not answer from what it has; its watch goes on with a majority."""
    with etcd_members(tmp_path, 3) as members:
        async with etcd_store(members, **HASTY) as store, etcd_store(members[:1], patience_s=1.0, **HASTY) as alone:
            begin = await put_surely(store, "a", b"1")
            async with trio.open_nursery() as nursery:
                follower = Follower()
                nursery.start_soon(follower.follow, alone, begin)
                stop(members[1])
                stop(members[2])
                with pytest.raises((MetadataUnavailable, OutcomeUnknown)):
                    await alone.commit(put("a", b"2", if_revision=begin))
                with pytest.raises(MetadataUnavailable):
                    await alone.get("a")
                go_on(members[1])
                go_on(members[2])
                await put_surely(store, "b", b"")
                await follower.has_key("b")
                nursery.cancel_scope.cancel()
            assert follower.revisions == sorted(set(follower.revisions))


async def member_answers(member: EtcdMember) -> None:
    """Wait until a member answers by itself."""
    async with etcd_store([member]):
        pass


async def test_an_etcd_that_forgot_is_refused(tmp_path: Path) -> None:
    """An etcd that comes back empty, or an older copy of it: its answers are refused, for reads and for watches."""
    with etcd_members(tmp_path) as members:
        (member,) = members
        async with etcd_store(members) as store:
            for index in range(5):
                await committed(store, put(f"k{index}"))
            begin = await revision_of(store)
            async with store.watch("", begin) as watch:
                with trio.move_on_after(0.2):
                    await watch.receive()
                member.kill()
                (tmp_path / member.name).rename(tmp_path / "old")
                member.start()
                with trio.fail_after(PATIENCE_S):
                    with pytest.raises(MetadataDamaged, match=f"revision {begin} was seen before"):
                        await store.get("k0")
                    with pytest.raises(MetadataDamaged, match=f"revision {begin} was seen before"):
                        await watch.receive()


async def test_another_cluster_is_refused(tmp_path: Path) -> None:
    """An endpoint of another cluster among the endpoints is found as soon as it answers, by its own address."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with etcd_members(tmp_path / "one") as one, etcd_members(tmp_path / "two") as two:
        two[0].kill()  # so that the first answers are those of `one`, however slow its first one is
        async with etcd_store([*one, *two]) as store:
            await committed(store, put("a"))
            two[0].start()
            await member_answers(two[0])
            one[0].kill()
            with pytest.raises(MetadataDamaged, match=f"etcd at {two[0].client} is cluster .* earlier answers were of"):
                await store.get("a")


async def test_an_etcd_without_room_refuses_by_name(tmp_path: Path) -> None:
    """etcd at its quota: changes are MetadataFull, reads go on."""
    with etcd_members(tmp_path, options=["--quota-backend-bytes", "1000000"]) as members:
        async with etcd_store(members) as store:
            with pytest.raises(MetadataFull, match="space exceeded"):
                for index in range(1000):
                    await committed(store, put(f"k{index}", b"x" * (60 << 10)))
            assert (await store.get("k0")).entry is not None
            with pytest.raises(MetadataFull):
                await store.commit(put("a"))


async def test_a_store_that_is_closed_says_that_it_is_away() -> None:
    """A lease is given back by a host that ends, perhaps when its connections are closed: that is no other error."""
    settings = EtcdSettings(endpoints=("http://127.0.0.1:1",), patience_s=0.2)
    async with open_etcd(settings, Random(0), ignore) as store:
        pass
    with pytest.raises(MetadataUnavailable):
        await store.revoke_lease(1)
