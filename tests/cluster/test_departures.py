"""Hosts that leave, in virtual time: drained while clients append, kept after all, removed for good."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Committed, Condition, MetadataStore, Put, Transaction
from logstore.cluster.members.departures import MAX_NOTES, Departures
from logstore.cluster.members.host_identity import STARTS_IN_USE
from logstore.cluster.members.view import ClusterView
from logstore.cluster.survey import Survey
from logstore.errors import HostStays, UnknownHost
from logstore.replica.appending import OwnerLimits
from logstore.replica.registrations import StreamRegistration
from logstore.testing.clock import ManualClock
from tests.cluster.late_watches import LateWatches
from tests.cluster.memory import LIMITS, MemoryCluster, simulated

SMALL_CHUNKS = OwnerLimits(suspect_ms=1_500, repair_timeout_ms=1_000, chunk_bytes=20)


def said(cluster: MemoryCluster, asked: str) -> Departures:
    """What an operator says to a host."""
    running = cluster.hosts[asked]
    return Departures(running.view, running.store)


async def registrations(cluster: MemoryCluster, streams: list[str]) -> list[StreamRegistration]:
    """Of these streams, read at any host."""
    host = next(iter(cluster.hosts.values())).host
    return [await host.read_registration(stream) for stream in streams]


async def named(cluster: MemoryCluster, streams: list[str], name: str) -> int:
    """How many chunks of the streams name a host."""
    found = [chunk for each in await registrations(cluster, streams) for chunk in each.chunks]
    return sum(any(member.host == name for member in (*chunk.members, *chunk.candidates)) for chunk in found)


async def disks(cluster: MemoryCluster) -> set[str]:
    """The disks that the metadata store knows."""
    page = await next(iter(cluster.hosts.values())).store.page(schema.DISKS)
    return {entry.key.removeprefix(schema.DISKS) for entry in page.entries}


async def until_empty(cluster: MemoryCluster, streams: list[str], name: str) -> None:
    """Wait until a host owns and holds nothing."""
    while await named(cluster, streams, name) or cluster.hosts[name].host.owners:  # noqa: ASYNC110  virtual time
        await trio.sleep(0.5)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_host_is_drained_while_clients_append(replicas: int) -> None:
    """Appends go on, nothing is lost, no chunk has fewer copies meanwhile; the host ends with none and is stopped."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=6, replicas=replicas)
        written: dict[str, list[bytes]] = {stream: [] for stream in streams}
        is_over = trio.Event()

        async def produce(stream: str) -> None:
            while not is_over.is_set():
                data = b"%d" % len(written[stream])
                await cluster.append(stream, data)
                written[stream].append(data)
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(produce, stream)
            await trio.sleep(5)
            assert any(cluster.hosts["a"].host.owns(stream) for stream in streams)
            await said(cluster, "b").drain("a")
            while await named(cluster, streams, "a") or cluster.hosts["a"].host.owners:
                for each in await registrations(cluster, streams):
                    assert all(len(chunk.members) >= each.min_copies for chunk in each.chunks)
                    assert all(len(chunk.members) >= replicas for chunk in each.chunks)
                await trio.sleep(0.2)
            await cluster.stop("a")
            await trio.sleep(2)
            is_over.set()
        await trio.sleep(0.5)
        for stream in streams:
            assert len(written[stream]) > 50
            found = await cluster.read_all("b", stream)
            assert [data for at, data in enumerate(found) if not at or found[at - 1] != data] == written[stream]
        assert await said(cluster, "b").remove("a") == 0
        await cluster.until(lambda: not cluster.hosts["c"].view.leaving)

    simulated(test, "a", "b", "c", "d", limits=SMALL_CHUNKS)


def test_a_host_that_is_needed_keeps_its_copies() -> None:
    """With as many hosts as copies a drained host gives up its streams alone; when another host comes, all the rest."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=6)
        for stream in streams:
            await cluster.append(stream, b"0")
        await said(cluster, "a").drain("a")
        await cluster.until(lambda: not cluster.hosts["a"].host.owners)
        await trio.sleep(20)
        for stream in streams:
            await cluster.append(stream, b"1")
        assert all(
            len(chunk.members) == 3 for each in await registrations(cluster, streams) for chunk in each.chunks
        ), "fewer copies because a host is drained"
        assert not cluster.hosts["a"].host.owners
        await cluster.start("d")
        await until_empty(cluster, streams, "a")
        await cluster.stop("a")
        for stream in streams:
            assert await cluster.read_all("d", stream) == [b"0", b"1"]

    simulated(test, "a", "b", "c")


def test_a_host_is_kept_after_all() -> None:
    """It takes streams and chunks again; to say so twice does no harm."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=12, replicas=2)
        for stream in streams:
            await cluster.append(stream, b"0")
        await said(cluster, "b").drain("a")
        await said(cluster, "c").drain("a")
        await until_empty(cluster, streams, "a")
        await said(cluster, "c").undrain("a")
        await said(cluster, "b").undrain("a")
        more = await cluster.create_topic("more", partitions=12, replicas=2)
        for stream in more:
            await cluster.append(stream, b"0")
        assert await named(cluster, more, "a")
        assert any(cluster.hosts["a"].host.owns(stream) for stream in more)

    simulated(test, "a", "b", "c")


def test_a_host_that_is_gone_is_removed() -> None:
    """Chunks forget it once every other host has them, and keep its name as long as there is another way to more
    copies; the name is free then. The metadata store forgets its disk, and one that another host has no more.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=4)
        for stream in streams:
            await cluster.append(stream, b"0")
        with pytest.raises(HostStays, match="host 'a' is alive: `cairn hosts drain a`") as refused:
            await said(cluster, "b").remove("a")
        assert "alive until its lease has expired" in str(refused.value), "the host may just have been killed"
        wiped = cluster.hosts["b"].identity.member
        await cluster.kill("b")
        cluster.wipe("b")
        await cluster.start("b")
        while any(  # noqa: ASYNC110  time is virtual
            chunk.names(wiped) for each in await registrations(cluster, streams) for chunk in each.chunks
        ):
            await trio.sleep(1)
        assert len(await disks(cluster)) == 4
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)
        assert await said(cluster, "b").remove("a") == 4
        while await said(cluster, "c").remove("a"):  # noqa: ASYNC110  time is virtual
            await trio.sleep(1)
        assert await named(cluster, streams, "a") == 0
        await cluster.until(lambda: not cluster.hosts["b"].view.leaving)
        assert await disks(cluster) == {running.identity.member.disk for running in cluster.hosts.values()}
        await cluster.start("d", node_id=9)
        await trio.sleep(5)
        for each in await registrations(cluster, streams):
            assert all({member.host for member in chunk.members} == {"b", "c", "d"} for chunk in each.chunks)

    simulated(test, "a", "b", "c")


Happens = Callable[[], Awaitable[None]]


class Interrupted:
    """A metadata store in which something happens before the n-th request, once."""

    def __init__(self, store: MetadataStore, at: int, happens: Happens) -> None:
        self._store = store
        self._left = at
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)

        async def ask(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                await self._happens()
            return await asked(*arguments, **options)

        return ask

    @property
    def has_happened(self) -> bool:
        """Whether there were so many requests."""
        return self._left < 0


async def late_view(cluster: MemoryCluster, asked: str, *prefixes: str) -> ClusterView:
    """The view of a host that hears no more of some keys."""
    view = ClusterView(cast(MetadataStore, LateWatches(cluster.hosts[asked].store, prefixes)), cluster.reports)
    cluster.nursery.start_soon(view.run)
    await view.complete()
    return view


async def asked_late(cluster: MemoryCluster, asked: str, at: int, happens: Happens) -> tuple[Departures, Interrupted]:
    """What an operator says to a host that hears of no member any more, and what happens before its n-th request."""
    store, view = cluster.hosts[asked].store, await late_view(cluster, asked, schema.MEMBERS)
    interrupted = Interrupted(store, at, happens)
    return Departures(view, cast(MetadataStore, interrupted)), interrupted


async def named_disks(cluster: MemoryCluster, streams: list[str]) -> set[str]:
    """The disks that chunks of the streams name."""
    found = [chunk for each in await registrations(cluster, streams) for chunk in each.chunks]
    return {member.disk for chunk in found for member in (*chunk.members, *chunk.candidates)}


async def until_named(cluster: MemoryCluster, streams: list[str], name: str, replicas: int) -> None:
    """Create a stream, and wait until a chunk of it has a host among its members."""
    streams += await cluster.create_topic(replicas=replicas)
    await cluster.append(streams[0], b"0")
    while not await named(cluster, streams, name):  # noqa: ASYNC110  time is virtual
        await trio.sleep(0.1)


def moments(often: tuple[int, ...]) -> list[Any]:
    """The requests of a removal up to the first one that forgets a disk; few of them are tried in a short run."""
    return [at if at in often else pytest.param(at, marks=pytest.mark.slow) for at in range(6)]


@pytest.mark.parametrize("at", moments((1, 5)))
def test_a_host_that_is_back_while_it_is_removed(at: int) -> None:
    """Whenever it joins, and whatever the host that was asked has heard of it: it is not removed, and its disk stays.
    What was said of it before it came is named in the refusal, and can be taken back.
    """

    async def test(cluster: MemoryCluster) -> None:
        disk = cluster.hosts["a"].identity.member.disk
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)

        async def back() -> None:
            await cluster.start("a")

        asked, interrupted = await asked_late(cluster, "b", at, back)
        with pytest.raises(HostStays, match="host 'a' is alive: `cairn hosts drain a`") as refused:
            await asked.remove("a")
        assert interrupted.has_happened
        assert disk in await disks(cluster)
        is_said = (await cluster.hosts["c"].store.get(schema.leaving_key("a"))).entry is not None
        assert ("`cairn hosts undrain a` cancels that" in str(refused.value)) == is_said == (at == 5)
        await asked.undrain("a")
        await cluster.kill("a")
        await cluster.start("a")

    simulated(test, "a", "b", "c")


@pytest.mark.parametrize("at", moments((2, 5)))
def test_a_host_that_was_there_while_it_is_removed(at: int) -> None:
    """It comes back with its disk, takes a chunk, and is lost again: whatever the host that was asked has heard of it,
    its disk stays known as long as a chunk names it, and it is not called removed.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams: list[str] = []
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)

        async def was_there() -> None:
            await cluster.start("a")
            await until_named(cluster, streams, "a", replicas=4)
            await cluster.kill("a")
            await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)

        asked, interrupted = await asked_late(cluster, "b", at, was_there)
        left = await asked.remove("a")
        assert interrupted.has_happened
        assert await named_disks(cluster, streams) <= await disks(cluster)
        if left:
            await cluster.start("a")
        else:
            assert await named(cluster, streams, "a") == 0

    simulated(test, "a", "b", "c", "d")


@pytest.mark.parametrize("at", moments((1, 2, 5)))
def test_a_disk_that_is_back_while_another_host_is_removed(at: int) -> None:
    """A host ran on another disk, and has changed back to its first one: whatever the host that was asked has heard of
    it, that disk is not taken for one that was replaced.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams: list[str] = []
        await cluster.kill("a")
        first = cluster.disks.pop("a"), cluster.label_disks.pop("a")
        await cluster.start("a")
        await cluster.kill("d")
        await cluster.until(lambda: "d" not in cluster.hosts["b"].view.members)

        async def changed_back() -> None:
            await cluster.stop("a")
            cluster.disks["a"], cluster.label_disks["a"] = first
            await cluster.start("a")
            await until_named(cluster, streams, "a", replicas=3)

        asked, interrupted = await asked_late(cluster, "b", at, changed_back)
        assert await asked.remove("d") == 0
        assert interrupted.has_happened
        assert cluster.hosts["a"].identity.member.disk in await named_disks(cluster, streams)
        assert await named_disks(cluster, streams) <= await disks(cluster)
        await cluster.kill("a")
        await cluster.start("a")

    simulated(test, "a", "b", "c", "d")


def test_a_host_that_starts_on_a_new_disk_while_another_host_is_removed() -> None:
    """It waits for the end of its last life's lease, with another disk: that one is not taken for one that was
    replaced. When the host has joined with it, the disk before is.
    """

    async def test(cluster: MemoryCluster) -> None:
        await cluster.kill("d")
        await cluster.until(lambda: "d" not in cluster.hosts["c"].view.members)
        known = await disks(cluster)
        before = cluster.hosts["b"].identity.member.disk
        await cluster.kill("b")
        cluster.wipe("b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.start, "b")
            while await disks(cluster) <= known:  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.01)
            assert "b" in cluster.hosts["c"].view.members, "in its last life"
            assert await said(cluster, "c").remove("d") == 0
        assert cluster.hosts["b"].identity.member.disk in await disks(cluster)
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["c"].view.members)
        assert await said(cluster, "c").remove("a") == 0
        assert before not in await disks(cluster)

    simulated(test, "a", "b", "c", "d")


def test_a_host_that_starts_on_a_new_disk_while_it_is_removed() -> None:
    """It has told its disk, and is to join yet: the removal is done, and forgets that disk too. The host joins as a new
    one, gets chunks, and its next start is accepted.
    """

    async def test(cluster: MemoryCluster) -> None:
        before = cluster.hosts["a"].identity.member.disk
        await cluster.kill("a")
        cluster.wipe("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)
        store, join = cluster.hosts["b"].store, trio.Event()
        cluster.before_joining["a"] = join.wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.start, "a")
            while len(await disks(cluster)) < 4 or await first_starts(store):  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.01)
            assert await said(cluster, "b").remove("a") == 0
            assert len(await disks(cluster)) == 2
            join.set()
        disk = cluster.hosts["a"].identity.member.disk
        assert disk != before
        assert await disks(cluster) == {running.identity.member.disk for running in cluster.hosts.values()}
        streams: list[str] = []
        await until_named(cluster, streams, "a", replicas=3)
        await cluster.kill("a")
        await cluster.start("a")
        assert cluster.hosts["a"].identity.member.disk == disk

    simulated(test, "a", "b", "c")


async def first_starts(store: MetadataStore) -> list[str]:
    """Disks that hosts have not brought into use yet."""
    entries = (await store.page(schema.DISKS)).entries
    return [entry.key for entry in entries if schema.decode(schema.StoredDisk, entry).starts < STARTS_IN_USE]


def test_who_asks_a_host_that_hears_nothing_is_answered() -> None:
    """What is said of a host is said, also if the host that was asked does not hear of it; the next one who asks is not
    held up either.
    """

    async def test(cluster: MemoryCluster) -> None:
        view = await late_view(cluster, "b", schema.MEMBERS, schema.LEAVING)
        asked = Departures(view, cluster.hosts["b"].store)
        await asked.drain("c")
        await asked.undrain("c")
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)
        assert await asked.remove("a") == 0
        with pytest.raises(UnknownHost, match="there is no host 'x': it has no disk and no chunk; alive are b, c"):
            await asked.remove("x")
        assert not view.leaving
        assert len(await disks(cluster)) == 2

    simulated(test, "a", "b", "c")


def test_a_removal_that_is_sent_again_is_done() -> None:
    """A client whose answer was lost asks once more, at another host: the host is removed, and no name that is not
    known. `drain` says that it was removed. Notes of it are kept for the last MAX_NOTES hosts; a host of the same name
    that comes later is a host as any other.
    """

    async def test(cluster: MemoryCluster) -> None:
        await cluster.kill("a")
        await cluster.until(lambda: "a" not in cluster.hosts["b"].view.members)
        assert await said(cluster, "b").remove("a") == 0
        for asked in "bc":
            assert await said(cluster, asked).remove("a") == 0
        with pytest.raises(UnknownHost, match="host 'a' was removed from the cluster"):
            await said(cluster, "b").drain("a")
        with pytest.raises(UnknownHost, match="there is no host 'x'"):
            await said(cluster, "b").remove("x")
        store = cluster.hosts["b"].store
        for number in range(MAX_NOTES):
            note = Put(schema.removed_key(f"old{number}"), schema.encode(schema.Removal()))
            await store.commit(Transaction((), (note,)))
        await cluster.kill("c")
        cluster.wipe("c")
        await cluster.until(lambda: "c" not in cluster.hosts["b"].view.members)
        assert await said(cluster, "b").remove("c") == 0
        notes = [entry.key for entry in (await store.page(schema.REMOVED)).entries]
        assert (len(notes), schema.removed_key("a") in notes, schema.removed_key("c") in notes) == (
            MAX_NOTES, False, True,
        )  # fmt: skip
        await cluster.start("c", node_id=9)
        await cluster.until(lambda: "c" in cluster.hosts["b"].view.members)
        with pytest.raises(HostStays, match="host 'c' is alive"):
            await said(cluster, "b").remove("c")

    simulated(test, "a", "b", "c")


def test_the_last_two_hosts_are_not_drained_at_once() -> None:
    """Two operators ask at the same moment: one of the hosts has to take what the other has."""

    async def test(cluster: MemoryCluster) -> None:
        async def other() -> None:
            await said(cluster, "a").drain("b")

        asked, interrupted = await asked_late(cluster, "b", 2, other)
        with pytest.raises(HostStays, match="no other host to move its chunks to"):
            await asked.drain("a")
        assert interrupted.has_happened
        await cluster.until(lambda: set(cluster.hosts["a"].view.leaving) == {"b"})

    simulated(test, "a", "b")


def test_a_host_with_the_only_copy_is_not_removed() -> None:
    """The error says of how many chunks, and where the first one is; nothing is changed."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=6, replicas=1)
        owners = {stream: (await cluster.append(stream, b"0"))[0] for stream in streams}
        name = owners[streams[0]]
        asked = next(host for host in "abc" if host != name)
        many = list(owners.values()).count(name)
        await cluster.kill(name)
        await cluster.until(lambda: name not in cluster.hosts[asked].view.members)
        with pytest.raises(
            HostStays, match=f"of {many} chunks no other host that is alive has a copy, the first is t-"
        ):
            await said(cluster, asked).remove(name)
        assert not cluster.hosts[asked].view.leaving
        with pytest.raises(UnknownHost, match=f"gone for good, `cairn hosts remove {name}`"):
            await said(cluster, asked).drain(name)
        await cluster.start(name)
        for stream in streams:
            assert (await cluster.append(stream, b"1"))[1] >= 1, "twice if the owner reports meanwhile what it lacks"

    simulated(test, "a", "b", "c", limits=LIMITS)


@pytest.mark.parametrize("kind", [schema.CHUNKS, schema.STREAMS])
def test_what_cannot_be_read_may_name_a_host(kind: str) -> None:
    """While an entry of a chunk or a stream is damaged, no host counts as empty, and none is removed."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic(partitions=1, replicas=1)
        owner = (await cluster.append(stream, b"x" * 30))[0]
        await trio.sleep(1)
        await cluster.append(stream, b"y" * 30)
        await cluster.until(lambda: len(cluster.hosts[owner].host.registration(stream).chunks) > 1)
        running = cluster.hosts[next(host for host in "abc" if host != owner)]
        survey = Survey(running.host, running.store, lambda host: True, ManualClock())
        assert (await survey.hosts()).is_complete
        await cluster.kill(owner)
        await cluster.until(lambda: owner not in running.view.members)
        (entry, *_) = (await running.store.page(f"{kind}{stream}")).entries
        damaged = Transaction((Condition(entry.key, entry.revision),), (Put(entry.key, entry.value[:-1]),))
        assert isinstance(await running.store.commit(damaged), Committed)
        await trio.sleep(1)
        assert not (await survey.hosts()).is_complete
        with pytest.raises(HostStays, match=f"the entry '{entry.key}' of the metadata store cannot be read"):
            await Departures(running.view, running.store).remove(owner)
        assert not running.view.leaving

    simulated(test, "a", "b", "c", limits=SMALL_CHUNKS)


def test_the_last_host_is_not_drained() -> None:
    """Somebody must be there to take what it has; the name of a host that never was is refused, with those there are,
    and nothing is said of it.
    """

    async def test(cluster: MemoryCluster) -> None:
        await said(cluster, "a").drain("b")
        with pytest.raises(HostStays, match="no other host to move its chunks to: start another host first"):
            await said(cluster, "a").drain("a")
        for act in (said(cluster, "a").drain, said(cluster, "a").remove):
            with pytest.raises(UnknownHost, match="there is no host 'x': it has no disk and no chunk; alive are a, b"):
                await act("x")
        assert (await cluster.hosts["a"].store.get(schema.leaving_key("x"))).entry is None
        with pytest.raises(UnknownHost, match="host 'x' is not alive, and is not being drained or removed"):
            await said(cluster, "a").undrain("x")

    simulated(test, "a", "b")
