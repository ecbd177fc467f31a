"""A cluster that plans its copies, in virtual time: whatever becomes of the host that plans, all copies are made."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from logstore.base.metadata import schema
from logstore.cluster.copies import copy_coordinator
from logstore.cluster.copies.copy_fields import decode_plan, encode_plan
from logstore.cluster.copies.copy_pace import CopyRates
from logstore.cluster.copies.copy_plan import Going
from logstore.cluster.copies.copy_requests import AWAY_S
from logstore.cluster.host import ClusterHost
from logstore.events import COPIES_UNPLANNED, COPY_PLANNER_CRASHED
from logstore.replica import copy_tokens
from logstore.replica.copy_tokens import CopyGo
from logstore.replica.registrations import ChunkRegistration, Member
from scheduler.peace.copies import HOST_COPIES, CopyScheduler, CopyStart
from tests.cluster.memory import LIMITS, MemoryCluster, simulated

HOSTS = "abcde"
CHUNK_BYTES = 120_000
BATCH = b"x" * 30_000


async def begin(cluster: MemoryCluster, *, partitions: int = 8, batches: int = 12, hosts: str = HOSTS) -> list[str]:
    """Hosts in three racks that plan their copies, and streams with sealed chunks; copies take a while."""
    cluster.is_planned, cluster.bytes_per_s = True, 5e6
    for number, name in enumerate(hosts):
        await cluster.start(name, rack=f"/r{number % 3}", node_id=number)
    await cluster.until(lambda: all(len(each.view.members) == len(hosts) for each in cluster.hosts.values()))
    streams = await cluster.create_topic(partitions=partitions)
    for _ in range(batches):
        for stream in streams:
            await cluster.append(stream, BATCH)
    return streams


async def sealed(cluster: MemoryCluster, streams: list[str]) -> list[ChunkRegistration]:
    """All sealed chunks, as the metadata store has them."""
    host = next(iter(cluster.hosts.values())).host
    registrations = [await host.read_registration(stream) for stream in streams]
    return [chunk for each in registrations for chunk in each.chunks if not chunk.is_open]


async def is_whole(cluster: MemoryCluster, streams: list[str]) -> bool:
    """Whether each sealed chunk has three copies that are alive."""
    alive = {each.identity.member for each in cluster.hosts.values()}
    return all(sum(member in alive for member in chunk.members) >= 3 for chunk in await sealed(cluster, streams))


async def until_whole(cluster: MemoryCluster, streams: list[str]) -> float:
    """Wait until no copy is missing; how long that took."""
    began_s = trio.current_time()
    while not await is_whole(cluster, streams):  # noqa: ASYNC110  the metadata store is asked
        await trio.sleep(0.05)
    return trio.current_time() - began_s


def coordinators(cluster: MemoryCluster) -> list[str]:
    """The hosts that think that they plan copies."""
    return [name for name, each in cluster.hosts.items() if each.coordinator and each.coordinator.coordinates]


def holders(cluster: MemoryCluster) -> dict[str, int]:
    """Copies that are being made now, by target."""
    going = [go for each in cluster.hosts.values() for go in each.host.copy_tokens.held.values()]
    return {name: sum(go.target == name for go in going) for name in HOSTS}


async def lose_one(cluster: MemoryCluster, streams: list[str]) -> str:
    """The host that has most chunks is killed."""
    chunks = await sealed(cluster, streams)
    counts = Counter(member.host for chunk in chunks for member in chunk.members)
    name = counts.most_common(1)[0][0]
    await kill_soon(cluster, name)
    return name


async def kill_soon(cluster: MemoryCluster, name: str) -> None:
    """A host is killed; its end is not waited for, which takes a second."""
    cluster.nursery.start_soon(cluster.kill, name)
    await cluster.until(lambda: name not in cluster.hosts)


async def back(cluster: MemoryCluster, name: str) -> None:
    """A host that was killed starts again."""
    await trio.sleep(2)
    number = HOSTS.index(name)
    await cluster.start(name, rack=f"/r{number % 3}", node_id=number)


def check(test: Callable[[MemoryCluster], Awaitable[None]], seed: int = 0) -> None:
    """Run a test with small chunks."""
    simulated(test, limits=replace(LIMITS, chunk_bytes=CHUNK_BYTES), seed=seed)


@pytest.mark.parametrize("is_small", [False, True])
def test_copies_go_by_one_plan(monkeypatch: pytest.MonkeyPatch, *, is_small: bool) -> None:
    """A host is lost: one host plans, no host gets more copies at a time than it has tokens, or shared goes of small
    ones; nobody asks when all is done; the metadata store keeps nothing but who plans, and an empty plan.
    """
    if not is_small:
        monkeypatch.setattr(copy_tokens, "SHARED_BYTES", CHUNK_BYTES)

    async def test(cluster: MemoryCluster) -> None:
        streams = await (begin(cluster, partitions=16, batches=5) if is_small else begin(cluster))
        assert coordinators(cluster) == [], "nobody plans while nothing is to be copied"
        await lose_one(cluster, streams)
        most: dict[str, int] = dict.fromkeys(HOSTS, 0)
        while not await is_whole(cluster, streams):
            most = {name: max(count, most[name]) for name, count in holders(cluster).items()}
            await trio.sleep(0.005)
        if is_small:
            assert HOST_COPIES < max(most.values()) <= HOST_COPIES * copy_tokens.SHARED_CHUNKS
        else:
            assert max(most.values()) == HOST_COPIES
        assert len(coordinators(cluster)) == 1
        assert all(each.host.copy_tokens.is_planned for each in cluster.hosts.values())
        await trio.sleep(3)
        calls = cluster.network.sent["call"]
        await trio.sleep(60)
        assert cluster.network.sent["call"] == calls
        store = next(iter(cluster.hosts.values())).store
        entry = (await store.get(schema.COPY_PLAN_KEY)).entry
        assert entry is not None
        assert decode_plan(entry.value) == []

    check(test)


STEPS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 30, 40)


@pytest.mark.parametrize("step", [pytest.param(step, marks=pytest.mark.slow if step > 1 else ()) for step in STEPS])
def test_a_coordinator_is_killed_at_each_step(step: int) -> None:
    """Before it answers its n-th call, the coordinator is killed: another one goes on, and all copies are made."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await begin(cluster, batches=16)
        killed: list[str] = []
        steps = 0

        async def kill_it(host: str) -> None:
            nonlocal steps
            running = cluster.hosts.get(host)
            if running is None or running.coordinator is None or not running.coordinator.coordinates or killed:
                return
            steps += 1
            if steps == step:
                killed.append(host)
                cluster.nursery.start_soon(cluster.kill, host)
                await trio.lowlevel.checkpoint()

        cluster.network.before_answer = kill_it
        lost = await lose_one(cluster, streams)
        await cluster.until(lambda: bool(killed))
        await cluster.until(lambda: killed[0] not in cluster.hosts)
        await back(cluster, lost)
        assert await until_whole(cluster, streams) < 30
        assert killed[0] not in coordinators(cluster)

    check(test)


@pytest.mark.slow
def test_a_coordinator_that_loses_its_lease_does_no_harm() -> None:
    """Cut off from the metadata store alone, it tells no new goes; when its lease has ended another host plans. When it
    is back, one of them does, and all copies are made.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await begin(cluster, batches=16)
        await lose_one(cluster, streams)
        await cluster.until(lambda: bool(coordinators(cluster)))
        (stale,) = coordinators(cluster)
        cluster.metadata.cut_off(stale)
        await cluster.until(lambda: any(name != stale for name in coordinators(cluster)))
        cluster.metadata.heal(stale)
        await until_whole(cluster, streams)
        await cluster.until(lambda: not any(each.host.copy_tokens.held for each in cluster.hosts.values()))
        await trio.sleep(5)
        assert stale not in coordinators(cluster)
        assert len(coordinators(cluster)) == 1

    check(test)


def test_of_two_coordinators_the_later_one_counts() -> None:
    """A host that was replaced while it lives, and thinks that it plans: hosts that ask it get no go from it and find
    the other one.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await begin(cluster, batches=16)
        await lose_one(cluster, streams)
        await cluster.until(lambda: bool(coordinators(cluster)))
        (first,) = coordinators(cluster)
        second = next(name for name in cluster.hosts if name != first)
        entry = (await cluster.hosts[second].store.get(schema.COPY_COORDINATOR_KEY)).entry
        coordinator = cluster.hosts[second].coordinator
        assert entry is not None
        assert coordinator is not None
        assert await coordinator.become(entry.revision)
        assert coordinators(cluster) == sorted((first, second))
        await until_whole(cluster, streams)
        assert coordinators(cluster) == [second]
        assert all(each.host.copy_tokens.is_planned for each in cluster.hosts.values())

    check(test)


def test_a_defect_of_the_planner_ends_one_plan() -> None:
    """The host that plans meets a defect: it says so and serves on, another one plans, and all copies are made."""

    async def test(cluster: MemoryCluster) -> None:
        broken: list[str] = []

        class Broken(CopyScheduler):
            def end(self, name: str, now_ms: int) -> list[CopyStart]:
                if not broken:
                    broken.extend(coordinators(cluster))
                    raise AssertionError("a planted defect")
                return super().end(name, now_ms)

        cluster.planner = lambda host: Broken
        streams = await begin(cluster)
        await lose_one(cluster, streams)
        await until_whole(cluster, streams)
        assert len(cluster.reports.of(COPY_PLANNER_CRASHED)) == 1
        assert broken[0] in cluster.hosts
        assert len(coordinators(cluster)) == 1
        assert coordinators(cluster) != broken
        assert not cluster.reports.of(COPIES_UNPLANNED)

    check(test)


def test_a_new_coordinator_goes_on_with_the_plan() -> None:
    """It begins with the goes that the metadata store has: their tokens are taken before any host has said anything."""

    async def test(cluster: MemoryCluster) -> None:
        await begin(cluster, batches=1)
        store = cluster.hosts["a"].store
        going = [Going("b", "t/0", CopyGo(3, "c", "d")), Going("gone", "t/1", CopyGo(4, "c", "e"))]
        transaction = schema.keep_copy_plan(encode_plan(going), 0)
        await store.commit(transaction._replace(conditions=()))
        coordinator = cluster.hosts["a"].coordinator
        assert coordinator is not None
        assert await coordinator.become(0)
        assert coordinator.counts == (2, 0)
        await trio.sleep(2 * AWAY_S)
        assert coordinator.counts == (0, 0), "hosts that say nothing have no goes"

    check(test)


@pytest.mark.parametrize("is_back", [pytest.param(True, marks=pytest.mark.slow), False])
def test_without_a_plan_copies_go_on(is_back: bool) -> None:
    """No host can plan: after a bound copies go by each host's own tokens, and all are made. When a host can plan after
    all, they are planned again.
    """

    async def test(cluster: MemoryCluster) -> None:
        cluster.planner = lambda host: None
        streams = await begin(cluster, batches=16)
        lost = await lose_one(cluster, streams)
        began_s = trio.current_time()
        await cluster.until(lambda: any(not each.host.copy_tokens.is_planned for each in cluster.hosts.values()))
        assert AWAY_S <= trio.current_time() - began_s <= 2 * AWAY_S
        assert cluster.reports.of(COPIES_UNPLANNED)
        if is_back:
            cluster.planner = lambda host: CopyScheduler
            await back(cluster, lost)
            other = next(name for name in cluster.hosts if name != lost)
            await kill_soon(cluster, other)
            await back(cluster, other)
        await until_whole(cluster, streams)
        assert bool(coordinators(cluster)) <= is_back

    check(test)


@pytest.mark.slow
def test_while_the_metadata_store_is_away_nothing_is_lost() -> None:
    """Goes that were told stay; when it is back, whoever plans then is followed, and all copies are made."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await begin(cluster, batches=16)
        await lose_one(cluster, streams)
        await cluster.until(lambda: bool(coordinators(cluster)))
        cluster.metadata.stop()
        await trio.sleep(3 * AWAY_S)
        cluster.metadata.start()
        await until_whole(cluster, streams)
        await cluster.until(lambda: not any(each.host.copy_tokens.held for each in cluster.hosts.values()))
        for each in cluster.hosts.values():
            assert not each.host.copy_tokens.waiting

    check(test)


# ---- the grace


def copied_bytes(cluster: MemoryCluster) -> int:
    """What hosts that run now have copied."""
    return sum(each.host.copies.flow.copied_bytes for each in cluster.hosts.values())


def test_a_host_that_is_back_in_a_moment_gets_what_it_lacks_alone() -> None:
    """Of the chunks that a restarted host has, none is copied; one that stays away has all of them copied behind the
    grace.
    """

    async def test(cluster: MemoryCluster) -> None:
        cluster.grace_s = 20.0
        streams = await begin(cluster)
        await trio.sleep(30)
        lost = await lose_one(cluster, streams)
        for stream in streams:
            await cluster.append(stream, BATCH)
        await back(cluster, lost)
        await until_whole(cluster, streams)
        assert copied_bytes(cluster) <= len(streams) * CHUNK_BYTES
        before = copied_bytes(cluster)
        await trio.sleep(10)
        began_s = trio.current_time()
        await kill_soon(cluster, lost)
        await until_whole(cluster, streams)
        assert trio.current_time() - began_s >= cluster.grace_s
        assert copied_bytes(cluster) > before + len(streams) * CHUNK_BYTES

    check(test)


def test_a_last_copy_does_not_wait() -> None:
    """Two of three hosts with a chunk are lost: it is copied at once, before any that has two copies left."""

    async def test(cluster: MemoryCluster) -> None:
        cluster.grace_s = 100.0
        streams = await begin(cluster, hosts="abc", partitions=2)
        for name in "de":
            await back(cluster, name)
        began_s = trio.current_time()
        await kill_soon(cluster, "b")
        await kill_soon(cluster, "c")

        async def last_ones() -> int:
            alive = {each.identity.member for each in cluster.hosts.values()}
            counts = [sum(member in alive for member in chunk.members) for chunk in await sealed(cluster, streams)]
            return sum(count < 2 for count in counts)

        assert await last_ones()
        while await last_ones():  # noqa: ASYNC110  the metadata store is asked
            await trio.sleep(0.1)
        assert trio.current_time() - began_s < 50

    check(test)


def test_a_copy_costs_the_metadata_store_few_calls() -> None:
    """A copy is two swaps and what the plan writes; the other hosts that have the stream read both in one look, with
    one call. When each read after each swap, with three, a copy was 17 calls.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await begin(cluster, hosts="abc", batches=16)
        lost = await lose_one(cluster, streams)
        cluster.bytes_per_s = 5e5  # copies take longer than to make the host a member of all streams
        await trio.sleep(2)
        cluster.wipe(lost)
        await cluster.start(lost, rack=f"/r{HOSTS.index(lost)}", node_id=HOSTS.index(lost))
        owned = [((await cluster.owner(stream)).host, stream) for stream in streams]
        await cluster.until(lambda: all(len(open_members(host, stream)) == 3 for host, stream in owned))
        member = cluster.hosts[lost].identity.member
        missing = sum(member not in chunk.members for chunk in await sealed(cluster, streams))
        assert missing >= 10

        def is_idle() -> bool:
            tokens = [each.host.copy_tokens for each in cluster.hosts.values()]
            return not any(each.held or each.waiting for each in tokens)

        before = sum(each.store.statistics.calls for each in cluster.hosts.values())
        await cluster.until(is_idle)
        calls = sum(each.store.statistics.calls for each in cluster.hosts.values()) - before
        assert await is_whole(cluster, streams)
        assert calls <= 5 * missing

    check(test)


def open_members(host: ClusterHost, stream: str) -> tuple[Member, ...]:
    """The members of a stream's open chunk."""
    head = host.head(stream)
    return () if head is None or head.head.open_chunk is None else head.head.open_chunk.members


def test_a_host_whose_packages_are_broken_plans_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that numpy needs is not there: the host goes on, and another one may plan."""

    def broken(_: str) -> None:
        raise ImportError("libopenblas.so.0: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(copy_coordinator, "import_module", broken)
    assert trio.run(copy_coordinator.load_planner) is None


async def revision(cluster: MemoryCluster) -> int:
    """So many changes the metadata store has had."""
    return (await next(iter(cluster.hosts.values())).store.get(schema.COPY_PLAN_KEY)).revision


def test_copies_to_a_host_that_comes_back_share_changes_of_the_metadata_store() -> None:
    """Fewer than one change for each chunk, though a copy is two of its registration, and a go two of the plan: beside
    appends each change is a sync of the store's disk, and work of every host. Each chunk had 1.7 or more.
    """
    partitions, rate = 12, 8 << 20

    async def test(cluster: MemoryCluster) -> None:
        cluster.copy_rates = CopyRates(min_bytes_per_s=rate, max_bytes_per_s=rate)
        streams = await begin(cluster, partitions=partitions, batches=40, hosts="abc")
        await kill_soon(cluster, "c")
        await trio.sleep(2)
        cluster.wipe("c")
        await cluster.start("c", node_id=2)
        member = cluster.hosts["c"].identity.member
        await cluster.until(lambda: all(has_joined(cluster, stream, member) for stream in streams))
        before, chunks = await revision(cluster), await sealed(cluster, streams)
        missing = sum(member not in chunk.members for chunk in chunks)
        assert missing >= partitions // 2
        await until_whole(cluster, streams)
        assert await revision(cluster) - before < missing

    simulated(test, limits=replace(LIMITS, chunk_bytes=64 << 20))


def has_joined(cluster: MemoryCluster, stream: str, member: Member) -> bool:
    """Whether a stream has the member in its open chunk, as far as all hosts know."""
    heads = [each.host.head(stream) for each in cluster.hosts.values()]
    chunks = [None if head is None else head.head.open_chunk for head in heads]
    return all(chunk is not None and member in chunk.members for chunk in chunks)
