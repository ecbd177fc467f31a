"""Sealed chunks of replicated streams in the tier: hosts in memory, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Put, Transaction
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.tier import tiering
from logstore.cluster.tier.tiering import ClusterTiering
from logstore.errors import ObjectMissing
from logstore.events import TIER_CHUNK_NOT_REGISTERED
from logstore.format.records import Record, encode_batch
from logstore.format.tiered_chunk import ParsedKey
from logstore.replica.registrations import TieredCopy
from logstore.tier import sweeps
from tests.cluster import tier_world
from tests.cluster.epochs_world import NOW_MS
from tests.cluster.tier_world import SWEEP_S, TIERED, TOPIC, TierWorld, in_world

HOSTS = ("a", "b", "c")


def test_chunks_go_to_the_tier_and_any_owner_reads_them() -> None:
    """Sealed chunks are stored, and leave all hosts but for the last one; all records are read from there, by the next
    owner too; the log start stays.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        for _ in range(5):
            await world.chunk()
        await world.append()
        await world.settle(is_swept=False)
        life, stream = await world.wait_leader()
        assert (stream.log_start_offset, stream.local_start_offset, stream.tiered_end_offset) == (0, 12, 15)
        for running in world.cluster.hosts.values():
            assert sorted(chunk.base_offset for chunk in running.files.disk.chunks.values()) == [12, 15]
        await world.check_all()
        await world.kill(life.running.host.name)
        await world.check_all()

    in_world(test, *HOSTS)


def test_an_owner_that_is_lost_at_any_step_loses_nothing() -> None:
    """Whatever the owner was doing at the object store, the next one goes on: copies stay until the registration names
    what was read back, and what the lost one has left is removed.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        await world.chunk()
        await world.settle(is_swept=False)
        for number in range(11):
            world.kill_at = len(world.steps) + number
            await world.chunk()
            while not world.lost:  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.01)
            world.kill_at = -1
            await world.bring_back()
            await world.settle(is_swept=False)
            await world.check_all()
        await world.settle()
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_store_that_goes_at_any_step_loses_nothing() -> None:
    """As a NameNode that restarts, and is in safe mode for a while: whatever was under way is done later, also if it
    was done and the answer was lost; what is left of it is removed.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        await world.chunk()
        await world.settle(is_swept=False)
        for number in range(12):
            world.away_at = len(world.steps) + number
            await world.chunk()
            while not world.is_away:  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.01)
            await trio.sleep(5)
            world.away_at, world.is_away = -1, False
            await world.settle(is_swept=False)
            await world.check_all()
        await world.settle()
        await world.check_all()

    in_world(test, *HOSTS)


def test_what_the_store_does_late_does_no_harm() -> None:
    """Objects of attempts that were given up appear when a later attempt is registered, of this owner or the next one:
    what is named stays as it is, and what has come late is swept.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        late: list[Callable[[], None]] = []
        for is_lost in (False, True):
            life, _ = await world.wait_leader()
            life.objects.postpone = late.append
            await world.chunk()
            while len(late) < 2:  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.1)
            life.objects.postpone = None
            if is_lost:
                await world.lose(life.running.host.name)
                await world.bring_back()
            await world.settle(is_swept=False)
            for put in late:
                put()
            late.clear()
            await world.check_all()
        assert not {key for chunk in await world.named() for key in chunk.all_keys()} >= world.keys()
        await world.settle()
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_topic_that_is_deleted_takes_what_is_being_registered_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has stored a chunk, and asks the metadata store to register it, when the topic goes: nobody will name
    the objects, and they go at once, without a sweep.
    """
    monkeypatch.setattr(tier_world, "SWEEP_S", 100_000.0)

    async def test(world: TierWorld) -> None:
        await world.create()
        life, stream = await world.wait_leader()
        await world.append()
        await trio.sleep(1)
        noted: list[int] = []
        note = life.running.host.note_tiered

        def late(stream: str, epoch: int, copy: TieredCopy) -> None:
            world.cluster.metadata.cut_off(life.running.host.name)
            noted.append(epoch)
            note(stream, epoch, copy)

        life.running.host.note_tiered = late  # type: ignore[method-assign]
        await world.chunk()
        while not noted:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.1)
        assert world.keys()
        other = next(each for each in world.hosts.values() if each is not life)
        other.topics.delete_topic(TOPIC)
        await trio.sleep(2)
        world.cluster.metadata.heal(life.running.host.name)
        await world.cluster.until(lambda: stream.deleted)
        await trio.sleep(5)
        assert not world.keys()

    in_world(test, *HOSTS)


def test_objects_go_with_their_records() -> None:
    """What was trimmed, and a topic that was deleted, leave the store at once; what is named stays."""

    async def test(world: TierWorld) -> None:
        await world.create()
        for _ in range(4):
            await world.chunk()
        await world.settle(is_swept=False)
        life, stream = await world.wait_leader()
        stream.trim(7)
        await trio.sleep(2)
        assert [chunk.base_offset for chunk in await world.named()] == [6, 9]
        assert world.keys() == {key for chunk in await world.named() for key in chunk.all_keys()}
        await world.check_all()
        life.topics.delete_topic(TOPIC)
        await trio.sleep(2)
        assert not world.keys()
        assert life.tiering.figures.removed_chunks == 4
        assert life.tiering.figures.swept_keys == 0

    in_world(test, *HOSTS)


def test_a_store_that_is_away_holds_up_nothing_else() -> None:
    """Records are acknowledged, read and trimmed; every copy stays; when the store is back, chunks go there."""

    async def test(world: TierWorld) -> None:
        await world.create()
        world.is_away = True
        for _ in range(4):
            await world.chunk()
        life, stream = await world.wait_leader()
        await world.check_all()
        stream.trim(3)
        await trio.sleep(70)
        assert (stream.log_start_offset, stream.tiered_end_offset, life.tiering.waiting_chunks) == (3, -1, 3)
        assert life.tiering.figures.away_since_ms is not None
        assert world.cluster.reports.names().count("tier_away") == len(HOSTS)
        for running in world.cluster.hosts.values():
            assert sorted(chunk.base_offset for chunk in running.files.disk.chunks.values()) == [3, 6, 9]
        world.is_away = False
        await world.settle()
        assert world.cluster.reports.names().count("tier_back") == len(HOSTS)
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_damaged_registration_stops_its_own_stream_alone() -> None:
    """Its chunk is stored and nobody can register it: the chunks of the host's other streams go to the tier, it is
    shown, and its objects stay. When the registration is restored, it goes on.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        partitions = await world.cluster.create_topic("others", 12, 3, **TIERED)
        await world.append()
        life, stream = await world.wait_leader()
        host = life.running.host

        def are_owned() -> bool:
            return all(any(each.running.host.owns(at) for each in world.hosts.values()) for at in partitions)

        await world.cluster.until(are_owned)
        damaged = next(each for each in life.topics.topics["others"].partitions if host.owns(each.stream))
        batch = encode_batch([Record(0, NOW_MS, None, b"x")])
        ticket = damaged.append(bytearray(batch), now_ms=NOW_MS)
        await world.cluster.until(lambda: ticket.done)
        world.is_away = True
        for each in (damaged, stream):
            host.roll(each.stream)
        await world.cluster.until(lambda: all(len(each.registration.chunks) == 2 for each in (damaged, stream)))
        key = f"{schema.STREAMS}{damaged.stream}"
        entry = (await life.running.store.get(key)).entry
        assert entry is not None
        await life.running.store.commit(Transaction((), (Put(key, b"{"),)))
        world.is_away = False
        await world.cluster.until(lambda: stream.tiered_chunk_count == 1)
        await world.chunk()
        await world.cluster.until(lambda: stream.tiered_chunk_count == 2)
        assert life.tiering.left_out_streams == 1
        (told,) = world.cluster.reports.of(TIER_CHUNK_NOT_REGISTERED)
        assert told["stream"] == damaged.name
        await trio.sleep(3 * SWEEP_S)
        kept = world.keys()
        assert any(each.startswith(f"{damaged.tier_place}/") for each in kept)
        assert damaged.tiered_chunk_count == 0

        await life.running.store.commit(Transaction((), (Put(key, entry.value),)))
        others = [each.topics.topics["others"].partitions[damaged.partition] for each in world.hosts.values()]
        await world.cluster.until(lambda: any(each.tiered_chunk_count for each in others))
        assert life.tiering.left_out_streams == 0

    in_world(test, *HOSTS)


def test_no_copy_goes_while_the_metadata_store_is_away() -> None:
    """A chunk that was stored and read back is not in the tier before the registration says so: copies stay. When the
    metadata store is back, the same objects are registered.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        await world.append()
        life, stream = await world.wait_leader()
        life.threads.delay_s = 2.0
        for _ in range(3):
            await world.chunk()
        for name in HOSTS:
            world.cluster.metadata.cut_off(name)
        await trio.sleep(30)
        stored = world.keys()
        assert stored
        assert stream.tiered_end_offset == -1
        for running in world.cluster.hosts.values():
            assert sorted(chunk.base_offset for chunk in running.files.disk.chunks.values())[0] == 0
        for name in HOSTS:
            world.cluster.metadata.heal(name)
        await world.settle()
        assert stored <= world.keys()
        await world.check_all()

    in_world(test, *HOSTS)


def test_an_owner_that_is_lost_for_good_stops_no_chunk() -> None:
    """The chunk that it left open names it as one that may have a copy, for as long as no third host lives: that copy
    is not being made, so the chunk is stored, and the copies in front of the last one go.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        await world.append(3)
        life, _ = await world.wait_leader()
        await world.kill(life.running.host.name)
        for _ in range(3):
            await world.chunk()
        found = await world.registration()
        assert found is not None
        assert [member.host for member in found.chunks[0].candidates] == [life.running.host.name]
        with trio.fail_after(300):
            await world.settle()
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_host_that_lives_and_makes_no_copies_stops_no_chunk() -> None:
    """Its disk has failed: no chunk gets its last copy. Chunks wait for that ten minutes, and copies then go."""

    async def test(world: TierWorld) -> None:
        await world.create()
        await world.append()
        life, _ = await world.wait_leader()
        other = next(name for name in HOSTS if name != life.running.host.name)
        world.cluster.disks[other].fails = True
        for _ in range(4):
            await world.chunk()
        assert not await world.named()
        await trio.sleep(tiering.COPIES_WAIT_MS / 1000 + 60)
        found = await world.registration()
        assert found is not None
        assert all(chunk.tiered for chunk in found.chunks[:-1])
        assert [chunk.is_tiered_alone for chunk in found.chunks] == [*[True] * (len(found.chunks) - 2), False, False]
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_key_that_goes_while_it_is_listed_ends_no_host() -> None:
    """Hosts sweep at the same time: a store may say that what it was listing is gone. The next sweep lists it again."""

    async def test(world: TierWorld) -> None:
        await world.create()
        told: list[str] = []

        def gone(method: str, key: str) -> None:
            if method == "list" and len(told) < len(HOSTS):
                told.append(key)
                raise ObjectMissing(key)

        world.objects.before = gone
        for _ in range(3):
            await world.chunk()
        await world.settle()
        assert len(told) == len(HOSTS)
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_long_sweep_holds_up_no_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with many objects takes minutes to list, and is listed anew after each failure: chunks go there
    meanwhile, and what nobody names goes at last.
    """
    monkeypatch.setattr(sweeps, "PAGE_KEYS", 1)

    async def test(world: TierWorld) -> None:
        stream = await world.create()
        for number in range(150):
            key = f"cluster/{TOPIC}.{stream}/{number:020d}-{number:016x}/{number:020d}.log"
            world.objects.put(key, 1, [b"x"])
        life, _ = await world.wait_leader()
        for each in world.hosts.values():
            each.threads.delay_s = 0.2
        await trio.sleep(SWEEP_S + 1)
        await world.chunk()
        await trio.sleep(6)
        assert len(await world.named()) == 1
        assert life.tiering.figures.swept_keys < 150, "the sweep is over already"
        for each in world.hosts.values():
            each.threads.delay_s = 0.005
        await world.settle()
        await world.check_all()

    in_world(test, *HOSTS)


class ForgetsEpochs(ClusterTiering):
    """A planted bug: an owner sweeps what it does not know, whoever has stored it."""

    def _may_judge(self, stream: ReplicatedStream, key: ParsedKey) -> bool:
        return True


async def replaced(world: TierWorld) -> None:
    """An owner is cut off from all but the object store, and goes on for three sweeps; another one stores meanwhile."""
    await world.create()
    await world.chunk()
    await world.settle(is_swept=False)
    life, zombie = await world.wait_leader()
    name, ownership = life.running.host.name, zombie.ownership
    world.isolate(name)
    await trio.sleep(10)
    for _ in range(3):
        await world.chunk()
    await trio.sleep(3 * SWEEP_S)
    assert zombie.is_leader, "it does not know"
    assert zombie.ownership == ownership
    await world.check_named()
    assert len(await world.named()) == 4
    world.heal(name)
    await world.append()
    await world.settle()
    await world.check_all()
    assert zombie.ownership != ownership


def test_an_owner_that_was_replaced_removes_nothing_that_its_successor_names() -> None:
    """It does not know that it was, lists the store, and finds objects that its registration does not name."""
    in_world(replaced, *HOSTS)


def test_a_sweep_that_forgets_epochs_is_found() -> None:
    """The test above finds it."""

    async def test(world: TierWorld) -> None:
        for name in [*world.hosts]:
            await world.kill(name)
        world.make = ForgetsEpochs
        for name in HOSTS:
            await world.start(name)
        await replaced(world)

    with pytest.RaisesGroup(ObjectMissing, flatten_subgroups=True, allow_unwrapped=True):
        in_world(test, *HOSTS)


async def random_losses(world: TierWorld, rounds: int) -> None:
    """Owners, other hosts and all hosts are lost, cut off or paused at random moments, stores go away, the log is
    trimmed; then all is well again.
    """
    await world.create()
    for _ in range(rounds):
        await world.chunk(batches=world.random.randrange(1, 4))
        await trio.sleep(world.random.random() * 0.6)
        life, stream = await world.wait_leader()
        name = life.running.host.name
        match world.random.randrange(7):
            case 0:  # in the middle of an upload, or between it and the registration
                life.threads.delay_s = world.random.choice([0.005, 0.2, 2.0])
                await world.chunk()
                await trio.sleep(world.random.random() * 2 * life.threads.delay_s)
                await world.lose(name)
                await world.append()
                await world.bring_back()
            case 1:  # it goes on storing, and finds out that it is replaced when it registers
                life.threads.delay_s = 5.0
                await world.chunk()
                world.isolate(name)
                await trio.sleep(5)
                await world.check_named()
                world.heal(name)
            case 2 if stream.high_watermark > 4:
                stream.trim(stream.log_start_offset + world.random.randrange(4))
            case 3:
                for each in HOSTS:
                    world.cluster.metadata.cut_off(each)
                await trio.sleep(world.random.random() * 2)
                for each in HOSTS:
                    world.cluster.metadata.heal(each)
            case 4:
                for each in [*world.hosts]:
                    await world.lose(each)
                await world.bring_back()
            case 5:
                other = world.random.choice([each for each in HOSTS if each != name])
                await world.lose(other)
                world.cluster.wipe(other)
                await world.chunk()
                await world.bring_back()
            case _:
                world.is_away = not world.is_away
    world.is_away = False
    await world.append()
    await world.settle()
    await world.check_all()


def test_random_losses() -> None:
    """Whatever goes wrong: each record that was acknowledged is there, what is named is there, and nothing else is."""
    in_world(partial(random_losses, rounds=8), *HOSTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_more_random_losses(seed: int) -> None:
    """The same, longer and with other seeds."""
    in_world(partial(random_losses, rounds=14), *HOSTS, seed=seed)
