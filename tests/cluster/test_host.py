"""A cluster of real hosts in virtual time, on links and disks in memory and a simulated metadata store."""

import errno
from dataclasses import replace

import pytest
import trio

from logstore.cluster.members.election import MIN_COPIES_SETTING
from logstore.errors import NotLeader, UnknownTopicOrPartition
from logstore.replica.messages import Append, BatchEntry, CopyChunk, EntriesRead
from logstore.replica.registrations import Prefix
from tests.cluster.memory import DISK_S, LEASE_S, LIMITS, MemoryCluster, simulated
from tests.cluster.sealed_chunks import sealed_chunk


def test_a_topic_gets_owners_and_takes_appends() -> None:
    """A new topic's streams are owned, replicated, and read at every host."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, offset = await cluster.append(stream, b"one", 2)
        assert offset == 0
        assert await cluster.append(stream, b"two") == (name, 2)
        owner = cluster.hosts[name].host
        chunk = owner.registration(stream).open_chunk
        assert chunk is not None
        assert {member.host for member in chunk.members} == {"a", "b", "c"}
        assert owner.acked(stream).next_offset == owner.next_offset(stream) == 3
        await trio.sleep(0.1)  # all members are told what is acknowledged
        for host in "abc":
            assert await cluster.read_all(host, stream) == [b"one", b"two"]
            assert cluster.hosts[host].host.owner_of(stream) == name

    simulated(test, "a", "b", "c")


def test_the_owner_is_killed() -> None:
    """Another host takes over in less than a second, nothing acknowledged is lost, offsets go on."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        written = [b"%d" % number for number in range(20)]
        name = ""
        for data in written[:10]:
            name, _ = await cluster.append(stream, data)
        await cluster.kill(name)
        since_s = trio.current_time()
        other, offset = await cluster.append(stream, written[10])
        assert (other != name, offset) == (True, 10)
        assert trio.current_time() - since_s < 1
        for data in written[11:]:
            await cluster.append(stream, data)
        await trio.sleep(0.1)
        assert await cluster.read_all(other, stream) == written
        await cluster.start(name)
        await trio.sleep(5)
        assert await cluster.read_all(name, stream) == written
        registration = await cluster.hosts[other].host.read_registration(stream)
        assert all(len(chunk.members) == 3 for chunk in registration.chunks)

    simulated(test, "a", "b", "c")


def test_a_host_is_cut_off_from_the_metadata_store() -> None:
    """Its streams go to others when its lease ends; it serves until then, and comes back as a member."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        cluster.metadata.cut_off(name)
        await trio.sleep(1)
        assert await cluster.append(stream, b"1") == (name, 1)
        await trio.sleep(LEASE_S)
        other, offset = await cluster.append(stream, b"2")
        assert (other != name, offset) == (True, 2)
        assert not cluster.hosts[name].host.owns(stream)
        cluster.metadata.heal(name)
        await trio.sleep(10)
        assert cluster.hosts[name].membership.is_held
        assert "cluster_left" in cluster.reports.names()
        assert await cluster.read_all(name, stream) == [b"0", b"1", b"2"]

    simulated(test, "a", "b", "c")


def test_the_metadata_store_is_away() -> None:
    """Appends go on for as long as it is away, and what waited goes on when it is back: a member that failed, say."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        cluster.metadata.stop()
        for number in range(1, 100):
            await cluster.append(stream, b"%d" % number)
            await trio.sleep(0.5)
        lost = next(host for host in "abc" if host != name)
        running = cluster.hosts[name]
        await cluster.kill(lost)
        offset = running.host.append(stream, b"100", 1)
        await trio.sleep(20)
        assert running.observers[stream].high_watermark == offset, "acknowledged by a member that is gone"
        cluster.metadata.start()
        await cluster.until(lambda: running.observers[stream].high_watermark > offset)
        await trio.sleep(0.1)  # members are told what is acknowledged
        assert await cluster.read_all(name, stream) == [b"%d" % number for number in range(101)]

    simulated(test, "a", "b", "c")


def test_a_full_chunk_goes_on_while_the_metadata_store_is_away() -> None:
    """It is rolled when the store is back. A member that fails meanwhile, or an owner, holds the stream up until then;
    nothing that was acknowledged is lost.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        chunks = len(cluster.hosts[name].host.registration(stream).chunks)
        cluster.metadata.stop()
        for number in range(1, 100):
            with trio.fail_after(1):
                assert (await cluster.append(stream, b"%d" % number))[0] == name
            await trio.sleep(0.3)
        assert len(cluster.hosts[name].host.registration(stream).chunks) == chunks
        cluster.metadata.start()
        with trio.fail_after(20):
            await cluster.until(lambda: len(cluster.hosts[name].host.registration(stream).chunks) > chunks)
        cluster.metadata.stop()
        for number in range(100, 200):
            await cluster.append(stream, b"%d" % number)
        await cluster.kill(name)
        with trio.move_on_after(20) as waited:
            await cluster.append(stream, b"200")
        assert waited.cancelled_caught
        cluster.nursery.start_soon(cluster.start, name)
        await trio.sleep(20)
        cluster.metadata.start()
        await cluster.append(stream, b"200")
        await trio.sleep(0.1)  # members are told what is acknowledged
        found = await cluster.read_all(next(iter(cluster.hosts)), stream)
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(201)]

    simulated(test, "a", "b", "c", limits=replace(LIMITS, chunk_bytes=50))


def test_a_planned_end_hands_over() -> None:
    """`resign` returns when others own the streams; producers wait for less than a second."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=12)
        owners = {stream: (await cluster.append(stream, b"0"))[0] for stream in streams}
        name = owners[streams[0]]
        begin_s = trio.current_time()
        await cluster.stop(name)
        assert trio.current_time() - begin_s < 1
        for stream in streams:
            other, offset = await cluster.append(stream, b"1")
            assert (other != name, offset) == (True, 1)
        assert trio.current_time() - begin_s < 1.5

    simulated(test, "a", "b", "c")


def test_a_topic_is_deleted() -> None:
    """Owners stop, and replicas go on every host, on one that was away at the time as well."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic("gone", partitions=3)
        (kept,) = await cluster.create_topic("kept")
        for stream in (*streams, kept):
            await cluster.append(stream, b"0")
        owner = await cluster.owner(kept)
        away = next(host for host in "abc" if host != owner.host.name)
        await cluster.kill(away)
        host = next(iter(cluster.hosts.values())).host
        known = host.view.topics["gone"]
        await host.topics.delete("gone", known.topic.topic_id)
        await trio.sleep(1)
        for running in cluster.hosts.values():
            assert not any(running.host.owns(stream) for stream in streams)
            assert {stream for stream, _ in running.files.disk.chunks} == {kept}
            assert all(heard.news[-1] == ("deposed", 0) for name, heard in running.observers.items() if name != kept)
        running = await cluster.start(away)
        await trio.sleep(5)
        assert {stream for stream, _ in running.files.disk.chunks} == {kept}
        await cluster.append(kept, b"1")
        with pytest.raises(UnknownTopicOrPartition):
            await host.read_registration(streams[0])

    simulated(test, "a", "b", "c")


def test_fences_go_with_their_topic() -> None:
    """On every host, and on one that was away when the topic was deleted, after its start."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("gone")
        first, _ = await cluster.append(stream, b"0")
        await cluster.kill(first)
        second, _ = await cluster.append(stream, b"1")
        third = next(name for name in cluster.hosts if name != second)
        assert all(stream in cluster.disks[name].fences for name in (second, third))
        await cluster.start(first)
        await cluster.kill(third)
        await cluster.append(stream, b"2")
        host = cluster.hosts[second].host
        await host.topics.delete("gone", host.view.topics["gone"].topic.topic_id)
        await trio.sleep(10)
        assert [cluster.disks[name].fences for name in (first, second)] == [{}, {}]
        assert stream in cluster.disks[third].fences
        await cluster.start(third)
        await trio.sleep(10)
        assert cluster.disks[third].fences == {}

    simulated(test, "a", "b", "c")


def test_the_copy_order_of_an_owner_that_was_replaced_leaves_nothing() -> None:
    """It names a chunk that has been trimmed since: what was begun of the copy goes, though the stream is quiet."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        host = cluster.hosts[name].host
        before = host.registration(stream).open_chunk
        assert before is not None
        await cluster.append(stream, b"1")
        end = Prefix.empty(0).followed_by(b"0", 1).followed_by(b"1", 1)
        host.roll(stream)
        await cluster.until(lambda: len(host.registration(stream).chunks) == 2)
        host.trim(stream, 2, keeps_last=False)
        await cluster.until(lambda: len(host.registration(stream).chunks) == 1)
        await trio.sleep(10)
        source, target = before.members[:2]
        order = CopyChunk(
            stream, target.disk, before.epoch, 0, end, source, cluster.hosts[name].host.owners[stream].revision - 1
        )
        running = cluster.hosts[target.host]
        running.host.receive(source.host, order)
        running.host.receive(
            source.host,
            EntriesRead(stream, before.epoch, source, Prefix.empty(0), (BatchEntry(b"0", 1),), 1, b"state at 0"),
        )
        await trio.sleep(0.1)
        assert (stream, before.epoch) in running.files.disk.chunks
        await trio.sleep(5)
        assert [epoch for _, epoch in running.files.disk.chunks] == []
        assert not running.host.replica_counts[1]

    simulated(test, "a", "b", "c")


def test_a_topic_is_deleted_under_load() -> None:
    """Appends that were under way, and late ones, leave nothing on any disk."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        member = owner.identity.member
        chunk = owner.host.registration(stream).open_chunk
        assert chunk is not None
        topic_id = stream.partition("/")[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.host.topics.delete, "t", topic_id)
            while owner.host.owns(stream):
                if owner.host.may_append(stream, 10):
                    owner.host.append(stream, b"1", 1)
                await trio.sleep(0.0003)
        late = Append(stream, member.disk, chunk.epoch, 0, "b", Prefix.empty(0), (BatchEntry(b"late", 1),), 0)
        owner.host.receive("b", late)
        await trio.sleep(10)
        assert all(not running.files.disk.chunks for running in cluster.hosts.values())
        owner.host.receive("b", late)
        await trio.sleep(10)
        assert all(not running.files.disk.chunks for running in cluster.hosts.values())

    simulated(test, "a", "b", "c")


def test_a_chunk_ends_while_its_members_write() -> None:
    """A member that is still writing when the registration shows the end is cut and sealed when it has written."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        slow = next(running for name, running in cluster.hosts.items() if name != owner.host.name)
        slow.files.write_s = 1.0
        await cluster.append(stream, b"1")
        slow.files.write_s = DISK_S
        chunk = owner.host.registration(stream).chunks[0]
        assert not chunk.is_open
        await trio.sleep(10)
        found = slow.files.disk.chunks[stream, chunk.epoch]
        assert found.is_sealed
        assert found.end == chunk.end

    # The member is not chosen again: nothing else shows it the registration.
    simulated(test, "a", "b", "c", limits=replace(LIMITS, suspect_ms=1_000_000))


def test_idle_streams_cost_nothing() -> None:
    """Owners at rest get no ticks, send nothing, and ask nothing of the metadata store or the disk."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=300)
        for stream in streams:
            await cluster.append(stream, b"0")
        await trio.sleep(30)
        stores = [running.store.statistics for running in cluster.hosts.values()]

        def figures() -> tuple[object, ...]:
            operations = [dict(running.files.operations) for running in cluster.hosts.values()]
            transactions = [statistics.transactions for statistics in stores]
            ticking = [running.host.statistics.ticking_owners for running in cluster.hosts.values()]
            return dict(cluster.network.sent), operations, transactions, ticking

        before = figures()
        await trio.sleep(60)
        assert figures() == before
        assert before[-1] == [0, 0, 0]

    simulated(test, "a", "b", "c")


def test_an_owner_wakes_when_a_member_that_failed_may_be_chosen_again() -> None:
    """Until then it has no ticks; then its chunk is rolled to all members, though nothing happens."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        owner, _ = await cluster.append(stream, b"0")
        host = cluster.hosts[owner].host
        other = next(name for name in cluster.hosts if name != owner)
        cluster.disks[other].is_full = True
        await cluster.append(stream, b"1")
        cluster.disks[other].is_full = False
        begun_s = trio.current_time()
        await cluster.at_rest()
        assert trio.current_time() - begun_s < 10
        assert {member.host for member in host.registration(stream).chunks[-1].members} == {*cluster.hosts} - {other}
        await cluster.until(lambda: len(host.registration(stream).chunks[-1].members) == 3)
        assert 59 < trio.current_time() - begun_s < 70

    simulated(test, "a", "b", "c", limits=replace(LIMITS, suspect_ms=60_000))


def test_a_copy_is_damaged() -> None:
    """Its host says so, the registration drops it, and it gets another copy; readers go to other members."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        for number in range(30):
            await cluster.append(stream, b"%d" % number * 20)
        owner = await cluster.owner(stream)
        chunk = owner.host.registration(stream).chunks[0]
        assert chunk.end is not None
        bad = next(member.host for member in chunk.members if member.host != owner.host.name)
        await trio.sleep(1)
        cluster.disks[bad].rot((stream, chunk.epoch), 0)
        before = cluster.reports.names().count("replica_damaged")
        found = await cluster.read_all(bad, stream)
        assert found == [b"%d" % number * 20 for number in range(30)]
        assert cluster.reports.names().count("replica_damaged") > before
        await trio.sleep(10)
        assert b"!" not in b"".join(entry.data for entry in cluster.disks[bad].chunks[stream, chunk.epoch].entries)
        registration = await owner.host.read_registration(stream)
        assert all(len(each.members) == 3 for each in registration.chunks)

    simulated(test, "a", "b", "c", limits=replace(LIMITS, chunk_bytes=200))


def test_a_damaged_copy_makes_room_at_once() -> None:
    """Its host hears that it was dropped before the copy that takes its place is ordered, and does not refuse that."""

    async def test(cluster: MemoryCluster) -> None:
        stream, owner, chunk = await sealed_chunk(cluster)
        bad = next(member for member in chunk.members if member.host != owner.host.name)
        await trio.sleep(5)
        cluster.disks[bad.host].rot((stream, chunk.epoch), 0)
        begun_s = trio.current_time()
        await cluster.read_all(bad.host, stream)
        members = [set(chunk.members)]

        def is_copied() -> bool:
            members.append(set(owner.host.registration(stream).chunks[0].members))
            return members[-2:] == [members[0] - {bad}, members[0]]

        await cluster.until(is_copied, "the copy was dropped, and made anew")
        assert trio.current_time() - begun_s < 1
        assert not cluster.disks[bad.host].chunks[stream, chunk.epoch].entries[0].data.startswith(b"!")

    simulated(test, "a", "b", "c", limits=replace(LIMITS, chunk_bytes=200, repair_timeout_ms=10_000))


@pytest.mark.parametrize(("number", "is_damage"), [(errno.EMFILE, False), (errno.EIO, True)])
def test_a_read_fails(number: int, is_damage: bool) -> None:
    """Without a file descriptor nothing is said of the copy; a disk that refuses the read has lost it. The reader gets
    its records from another member.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        await trio.sleep(0.1)
        owner = await cluster.owner(stream)
        bad = next(running for name, running in cluster.hosts.items() if name != owner.host.name)
        bad.files.read_error = number
        assert await cluster.read_all(bad.host.name, stream) == [b"0"]
        bad.files.read_error = 0
        assert ("replica_damaged" in cluster.reports.names()) == is_damage
        await cluster.append(stream, b"1")
        assert ("member_failed" in cluster.reports.names()) == is_damage

    simulated(test, "a", "b", "c")


def test_a_stream_is_named_as_clients_know_it() -> None:
    """What an operator is told of a led stream has topic and partition, beside the stream's own name."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        owner.observe(stream)
        cluster.network.cut(owner.host.name, next(host for host in "abc" if host != owner.host.name))
        await cluster.append(stream, b"1")
        told = [fields for name, fields in cluster.reports.events if name == "member_failed"]
        assert {(fields["stream"], fields["partition"]) for fields in told} == {(stream, "orders-0")}

    simulated(test, "a", "b", "c")


def test_a_stream_that_waits_for_hosts_says_so() -> None:
    """The operator is told how many hosts it needs; it goes on with one when its topic asks for no more."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("t")
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        me = owner.host.name
        for name in set("abc") - {me}:
            await cluster.kill(name)
        cluster.nursery.start_soon(cluster.append, stream, b"1")
        await cluster.until(lambda: "stream_unavailable" in cluster.reports.names())
        (reason,) = [fields["reason"] for name, fields in cluster.reports.events if name == "stream_unavailable"]
        assert f"needs 2 hosts, and these can have it: {me}; start another host" in str(reason)
        topic = replace(owner.view.topics["t"].topic, settings={MIN_COPIES_SETTING: "1"})
        await owner.host.topics.alter("t", topic.topic_id, lambda _: topic)
        await cluster.until(lambda: owner.view.topics["t"].topic == topic)
        owner.host.reconfigure(stream, 64 << 20)
        await cluster.append(stream, b"2")
        await trio.sleep(0.1)  # members are told what is acknowledged
        assert set(await cluster.read_all(me, stream)) == {b"0", b"1", b"2"}

    simulated(test, "a", "b", "c")


def test_a_host_stands_still() -> None:
    """An owner that heard nothing, because its own process stood still, blames no member for it."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        assert cluster.clock is not None
        for number in range(30):
            owner.host.append(stream, b"%d" % number, 1)
            await trio.sleep(0.0012)
            cluster.clock.jump(1.0)
            await trio.sleep(0.1)
        assert "member_failed" not in cluster.reports.names()
        cluster.network.cut(owner.host.name, next(host for host in "abc" if host != owner.host.name))
        owner.host.append(stream, b"31", 1)
        await trio.sleep(1)
        assert "member_failed" in cluster.reports.names()

    simulated(test, "a", "b", "c")


def test_a_link_is_cut() -> None:
    """A member that cannot be reached is replaced once, not again and again, and is chosen again when it can be."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        other = next(host for host in "abc" if host != name)
        cluster.network.cut(name, other)
        await cluster.append(stream, b"1")
        await trio.sleep(60)
        await cluster.append(stream, b"2")
        owner = cluster.hosts[name].host
        assert len(owner.registration(stream).chunks) <= 3
        assert cluster.hosts[other].membership.is_held
        cluster.network.heal()
        await trio.sleep(10)
        await cluster.append(stream, b"3")
        chunk = owner.registration(stream).open_chunk
        assert chunk is not None
        assert len(chunk.members) == 3

    simulated(test, "a", "b", "c")


def test_a_host_without_links_leaves() -> None:
    """Cut off from all other hosts, but not from the metadata store, it leaves, and they go on; later it is back."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        others = [host for host in "abc" if host != name]
        for other in others:
            cluster.network.cut(name, other)
        await trio.sleep(5)
        assert not cluster.hosts[name].membership.is_held
        assert (await cluster.append(stream, b"1"))[0] in others
        cluster.network.heal()
        await trio.sleep(5)
        assert cluster.hosts[name].membership.is_held
        assert await cluster.read_all(name, stream) == [b"0", b"1"]

    simulated(test, "a", "b", "c")


def test_no_member_is_left() -> None:
    """The stream waits, says for whom, and goes on when one is back: nothing acknowledged is gone."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic(replicas=1)
        name, _ = await cluster.append(stream, b"0")
        await cluster.kill(name)
        heard = [running.observe(stream) for running in cluster.hosts.values()]
        await trio.sleep(10)
        ((what, reason),) = [news for each in heard for news in each.news]
        assert what == "unavailable"
        assert f"{name} (disk" in str(reason)
        await cluster.start(name)
        assert (await cluster.append(stream, b"1"))[1] == 1

    simulated(test, "a", "b", "c")


def test_who_does_not_own_a_stream_says_who_does() -> None:
    """NotLeader has the owner and its epoch."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        epoch = cluster.hosts[name].host.registration(stream).epoch
        other = cluster.hosts[next(host for host in "abc" if host != name)].host
        await trio.sleep(0.1)
        with pytest.raises(NotLeader) as caught:
            other.append(stream, b"1", 1)
        assert (caught.value.leader, caught.value.epoch) == (name, epoch)
        with pytest.raises(NotLeader, match="no owner"):
            other.next_offset("unknown/0")

    simulated(test, "a", "b", "c")
