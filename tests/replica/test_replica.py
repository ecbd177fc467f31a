"""One replica, message by message."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile
from typing import TypeVar

import pytest

from logstore.replica.effects import CutChunk, Effect, Load, RemoveChunk, Send, StoreDurably, WriteEntries, WriteFence
from logstore.replica.known_replicas import StoredChunk, StoredReplicas
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    CopyChunk,
    CopyDone,
    CopyProgress,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
    ToReplica,
    end_after,
)
from logstore.replica.register import ReadRegistration
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, Prefix, StreamRegistration
from logstore.replica.replica import Replica

ME, OTHER, THIRD = Member("b", "disk2"), Member("a", "disk1"), Member("c", "disk3")
ENTRIES = tuple(BatchEntry(b"batch %d" % number, 1) for number in range(6))
START = Prefix.empty(0)
REGISTRATION = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((OTHER, ME), 0)
T = TypeVar("T")


def at(count: int) -> Prefix:
    """The prefix behind some entries."""
    return end_after(START, ENTRIES[:count])


def append(first: int, end: int, *, epoch: int = 1, disk: str = "disk2", acked: int = 0) -> Append:
    """An append of some of the entries."""
    return Append("s", disk, epoch, 0, "a", at(first), ENTRIES[first:end], at(acked).length_bytes)


def messages(effects: list[Effect], kind: type[T]) -> list[T]:
    """The messages of a kind among effects."""
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def stores(effects: list[Effect]) -> list[StoreDurably]:
    """The disk operations among effects."""
    return [effect for effect in effects if isinstance(effect, StoreDurably)]


def with_entries(count: int) -> Replica:
    """A replica that has some entries durably."""
    return Replica(ME, StoredReplicas({}, {("s", 1): StoredChunk(0, at(count), is_sealed=False)} if count else {}))


def test_it_confirms_what_is_durable() -> None:
    """An append is answered when it is synced, not before; what it carries on goes on at once."""
    replica = with_entries(0)
    message = Append("s", "disk2", 1, 0, "a", START, ENTRIES[:2], 0, (THIRD,))
    effects = replica.receive("a", message)
    (store,) = stores(effects)
    assert store.operation == WriteEntries("s", 1, START, ENTRIES[:2])
    (onward,) = messages(effects, Append)
    assert (onward.disk, onward.forward, onward.entries) == ("disk3", (), ENTRIES[:2])
    assert messages(effects, AppendDone) == []
    assert messages(replica.stored(store.token), AppendDone) == [AppendDone("s", 1, ME, at(2))]


def test_it_takes_no_gap_and_nothing_twice() -> None:
    """A gap is answered with what is missing, a repetition with what is durable, an overlap is written once."""
    replica = with_entries(2)
    assert messages(replica.receive("a", append(3, 4)), OutOfOrder) == [OutOfOrder("s", 1, ME, at(2))]
    effects = replica.receive("a", append(0, 2))
    assert (stores(effects), messages(effects, AppendDone)) == ([], [AppendDone("s", 1, ME, at(2))])
    (store,) = stores(replica.receive("a", append(1, 4)))
    assert store.operation == WriteEntries("s", 1, at(2), ENTRIES[2:4])


def test_it_refuses_what_contradicts_its_bytes() -> None:
    """Other bytes in front, or batches that do not end where its own do, are DIVERGED, and nothing is written."""
    replica = with_entries(2)
    other = Append("s", "disk2", 1, 0, "a", Prefix(at(2).length_bytes, 2, 7), ENTRIES[2:3], 0)
    straddling = Append("s", "disk2", 1, 0, "a", START, (BatchEntry(bytes(at(2).length_bytes + 1), 3),), 0)
    for message in (other, straddling):
        effects = replica.receive("a", message)
        assert [refused.reason for refused in messages(effects, Refused)] == [Reason.DIVERGED]
        assert stores(effects) == []


def test_it_bounds_what_is_not_durable() -> None:
    """Beyond its bound an append is dropped; the owner sends it again when it lags."""
    replica = Replica(ME, StoredReplicas(), max_unsynced_bytes=20)
    (store,) = stores(replica.receive("a", append(0, 2)))
    assert replica.receive("a", append(2, 4)) == []
    replica.stored(store.token)
    assert len(stores(replica.receive("a", append(2, 4)))) == 1


def calls(work: Callable[[], T]) -> tuple[T, int]:
    """What work returns, and how many functions it called."""
    profile = Profile(builtins=False)
    result = profile.runcall(work)
    return result, sum(entry.callcount for entry in profile.getstats())


def test_a_roll_costs_the_same_however_many_chunks_there_are() -> None:
    """A replica that has seen the registration looks at what has changed in the next one; at all, when it has not."""
    count = 5_000
    chunks = tuple(ChunkRegistration(n + 1, n, (OTHER, ME), Prefix(1, n + 1, n)) for n in range(count))
    last = ChunkRegistration(count + 1, count, (OTHER, ME))
    registration = StreamRegistration(2, 1, count + 1, OwnerId("a", "a.1"), (*chunks, last))
    stored = {
        ("s", each.epoch): StoredChunk(each.base_offset, each.end or START, each.end is not None) for each in chunks
    }
    stored["s", last.epoch] = StoredChunk(count, Prefix(1, count + 1, 7), is_sealed=False)
    replica = Replica(ME, StoredReplicas({}, stored))
    effects, called = calls(lambda: replica.registration_seen("s", 1, registration))
    assert not effects
    assert called > count
    rolled = registration.rolled(Prefix(1, count + 1, 7), (OTHER, ME), (), (OTHER, ME))
    effects, called = calls(lambda: replica.registration_seen("s", 2, rolled))
    (cut,) = stores(effects)
    assert isinstance(cut.operation, CutChunk)
    replica.stored(cut.token)
    assert replica.is_in_line("s", rolled)
    assert called < 100
    without_me = rolled.with_copies(2_000, (OTHER,)).trimmed(10, keeps_last=True)
    effects, called = calls(lambda: replica.registration_seen("s", 3, without_me))
    removed = [store.operation.epoch for store in stores(effects) if isinstance(store.operation, RemoveChunk)]
    assert removed == [*range(1, 11), 2_000]
    assert called < 500
    assert not replica.is_in_line("s", without_me)


def test_damage_in_a_settled_chunk_is_told_again_with_each_registration() -> None:
    """A chunk about which registrations have nothing to say is looked at again from the moment its damage is found."""
    sealed = REGISTRATION.rolled(at(2), (OTHER, ME), (), (OTHER, ME))
    replica = Replica(ME, StoredReplicas({}, {("s", 1): StoredChunk(0, at(2), is_sealed=True)}))
    assert replica.registration_seen("s", 1, sealed) == []
    (load,) = [
        effect
        for effect in replica.receive("c", ReadEntries("s", "disk2", 1, 0, 100, for_copy=False))
        if isinstance(effect, Load)
    ]
    replica.load_failed(load.token)
    told = messages(replica.registration_seen("s", 2, sealed.claimed(OwnerId("c", "c.1"))), Refused)
    assert [refused.reason for refused in told] == [Reason.DAMAGED]


def test_a_message_for_another_disk_is_refused() -> None:
    """A host whose disk was replaced says so to whoever means the old one."""
    replica = with_entries(2)
    wanted: list[ToReplica] = [
        append(2, 3, disk="disk9"),
        Fence("s", "disk9", 1, 0, 2),
        CopyChunk("s", "disk9", 1, 0, at(2), OTHER, 5),
        ReadEntries("s", "disk9", 1, 0, 100, for_copy=False),
    ]
    for message in wanted:
        effects = replica.receive("a", message)
        assert [(refused.member, refused.reason) for refused in messages(effects, Refused)] == [(ME, Reason.WRONG_DISK)]
        assert stores(effects) == []


def test_a_fence_is_durable_before_it_is_answered() -> None:
    """From when it is heard on, older appends are refused; the answer waits for it and for every append taken."""
    replica = with_entries(1)
    (written,) = stores(replica.receive("a", append(1, 2)))
    (fenced,) = stores(replica.receive("c", Fence("s", "disk2", 1, 0, 5)))
    assert fenced.operation == WriteFence("s", 5)
    assert [refused.fence_epoch for refused in messages(replica.receive("a", append(2, 3)), Refused)] == [5]
    assert replica.stored(fenced.token) == []
    effects = replica.stored(written.token)
    assert messages(effects, FenceDone) == [FenceDone("s", 1, ME, 5, at(2), 0)]
    assert messages(effects, AppendDone) == [AppendDone("s", 1, ME, at(2))]


def test_a_fence_only_rises() -> None:
    """A lower fence is refused, the same one answered again, and the next life of the host still has it."""
    replica = Replica(ME, StoredReplicas({"s": 5}, {("s", 1): StoredChunk(0, at(1), is_sealed=False)}))
    assert [refused.reason for refused in messages(replica.receive("c", Fence("s", "disk2", 1, 0, 4)), Refused)] == [
        Reason.FENCED
    ]
    again = replica.receive("c", Fence("s", "disk2", 1, 0, 5))
    assert messages(again, FenceDone) == [FenceDone("s", 1, ME, 5, at(1), 0)]
    assert [refused.reason for refused in messages(replica.receive("a", append(1, 2)), Refused)] == [Reason.FENCED]


def test_a_failed_write_is_final() -> None:
    """What was durable stays, what was behind counts for nothing, and nothing is taken any more."""
    replica = with_entries(1)
    (first,) = stores(replica.receive("a", append(1, 2)))
    (second,) = stores(replica.receive("a", append(2, 3)))
    assert [refused.reason for refused in messages(replica.store_failed(first.token), Refused)] == [Reason.DISK_FAILED]
    assert replica.stored(second.token) == []
    assert [refused.reason for refused in messages(replica.receive("a", append(1, 2)), Refused)] == [Reason.DISK_FAILED]
    (fenced,) = stores(replica.receive("c", Fence("s", "disk2", 1, 0, 2)))
    assert [done.durable for done in messages(replica.stored(fenced.token), FenceDone)] == [at(1)]


def test_only_the_registration_seals_and_removes() -> None:
    """A hint makes it ask; the registration makes it cut. A registration older than the chunk removes nothing."""
    replica = with_entries(3)
    assert replica.receive("a", LookAtRegistration("s", 9)) == [ReadRegistration("s")]
    assert replica.registration_seen("s", 1, StreamRegistration(2, 1).claimed(OwnerId("a", "a.1"))) == []
    sealed = REGISTRATION.rolled(at(2), (OTHER, ME), (), (OTHER,))
    (cut,) = stores(replica.registration_seen("s", 3, sealed))
    assert cut.operation == CutChunk("s", 1, at(2))
    replica.stored(cut.token)
    assert replica.registration_seen("s", 3, sealed) == []
    (removed,) = stores(replica.registration_seen("s", 4, sealed.with_copies(1, (OTHER,))))
    assert removed.operation == RemoveChunk("s", 1)
    replica.stored(removed.token)
    assert replica.streams() == []


def test_a_copy_outlives_registrations_from_before_it() -> None:
    """A copy that was ordered under a registration is not removed because of an older one, without it."""
    source = Replica(OTHER, StoredReplicas({}, {("s", 1): StoredChunk(0, at(4), is_sealed=True)}))
    replica = Replica(ME, StoredReplicas())
    registration = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((OTHER, THIRD), 0)
    sealed = registration.rolled(at(4), (OTHER, THIRD), (), (OTHER, THIRD))
    named = sealed.with_copies(1, (OTHER, THIRD), (ME,))
    (asked,) = messages(replica.receive("a", CopyChunk("s", "disk2", 1, 0, at(4), OTHER, 7)), ReadEntries)
    (load,) = [effect for effect in source.receive("b", asked) if isinstance(effect, Load)]
    (piece,) = messages(source.loaded(load.token, START, ENTRIES[:4], 4), EntriesRead)
    (written,) = stores(replica.receive("a", piece))
    assert replica.receive("a", piece) == []
    progress, read = replica.stored(written.token)
    assert isinstance(progress, Send)
    assert isinstance(progress.message, CopyProgress)
    assert (progress.host, progress.message.copied_bytes, progress.message.revision) == ("a", 28, 7)
    assert read == ReadRegistration("s", 7)
    (cut,) = stores(replica.registration_seen("s", 7, named))
    assert messages(replica.stored(cut.token), CopyDone) == [CopyDone("s", 1, ME, at(4), 7)]
    assert replica.registration_seen("s", 6, sealed) == []
    assert len(stores(replica.registration_seen("s", 8, sealed))) == 1


def test_a_copy_that_contradicts_its_source_is_damaged() -> None:
    """Other bytes in front of the place where the source goes on: the copy is dropped and made anew, not waited for."""
    replica = with_entries(2)
    replica.receive("a", CopyChunk("s", "disk2", 1, 0, at(4), OTHER, 7))
    late = EntriesRead("s", 1, OTHER, at(1), ENTRIES[1:2], 4)
    assert replica.receive("a", late) == []
    other = Prefix(at(2).length_bytes, 2, 7)
    effects = replica.receive("a", EntriesRead("s", 1, OTHER, other, ENTRIES[2:4], 4))
    assert [refused.reason for refused in messages(effects, Refused)] == [Reason.DAMAGED]
    assert stores(effects) == []


def test_a_copy_that_the_registration_no_longer_names_is_removed() -> None:
    """The owner that ordered it is gone, and the next one chose others: what is there of the copy goes."""
    replica = Replica(ME, StoredReplicas())
    registration = StreamRegistration(2, 1).claimed(OwnerId("a", "a.1")).opened((OTHER, THIRD), 0)
    sealed = registration.rolled(at(4), (OTHER, THIRD), (), (OTHER, THIRD))
    replica.receive("a", CopyChunk("s", "disk2", 1, 0, at(4), OTHER, 7))
    (written,) = stores(replica.receive("a", EntriesRead("s", 1, OTHER, START, ENTRIES[:2], 4)))
    assert replica.registration_seen("s", 8, sealed) == []
    replica.stored(written.token)
    assert replica.registration_seen("s", 6, sealed) == []
    (removed,) = stores(replica.registration_seen("s", 8, sealed))
    replica.stored(removed.token)
    assert replica.streams() == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_cut_that_the_disk_refuses_is_no_damage(is_damaged: bool) -> None:
    """Only a copy that does not match its checksum says DAMAGED, after which the registration may drop it."""
    replica = with_entries(3)
    (cut,) = stores(replica.registration_seen("s", 3, REGISTRATION.rolled(at(2), (OTHER, ME), (), (OTHER,))))
    reasons = [refused.reason for refused in messages(replica.store_failed(cut.token, is_damaged=is_damaged), Refused)]
    assert reasons == [Reason.DAMAGED if is_damaged else Reason.DISK_FAILED]
    effects = replica.receive("c", ReadEntries("s", "disk2", 1, 0, 100, for_copy=True))
    assert [effect.limit_bytes for effect in effects if isinstance(effect, Load)] == [at(3).length_bytes]


def test_a_removal_that_fails_is_tried_again() -> None:
    """At the next look at the registration, not at once: a broken disk is not asked in a loop."""
    replica = with_entries(3)
    gone = REGISTRATION.rolled(at(3), (OTHER,), (), (OTHER,))
    (removed,) = stores(replica.registration_seen("s", 4, gone))
    assert stores(replica.store_failed(removed.token)) == []
    assert len(stores(replica.registration_seen("s", 4, gone))) == 1


def test_readers_see_what_is_acknowledged() -> None:
    """Of an open chunk the acknowledged length; all of a sealed one as soon as another chunk follows it."""
    replica = with_entries(3)
    replica.receive("a", append(3, 3, acked=2))

    def limit() -> int:
        effects = replica.receive("reader", ReadEntries("s", "disk2", 1, 0, 100, for_copy=False))
        return next(effect.limit_bytes for effect in effects if isinstance(effect, Load))

    assert limit() == at(2).length_bytes
    last = REGISTRATION.claimed(OwnerId("c", "c.1")).sealed(at(3), (ME,), (OTHER,))
    (cut,) = stores(replica.registration_seen("s", 3, last))
    replica.stored(cut.token)
    assert limit() == at(2).length_bytes
    replica.registration_seen("s", 4, last.opened((ME,), 3))
    assert limit() == at(3).length_bytes


@pytest.mark.parametrize("is_sealed", [False, True])
def test_damage_never_passes_for_a_shorter_copy(is_sealed: bool) -> None:
    """A damaged copy refuses fences and copies as DAMAGED, reports itself, and is copied anew once it is not listed."""
    stored = StoredReplicas({}, {("s", 1): StoredChunk(0, at(1), is_sealed=is_sealed, is_damaged=True)})
    replica = Replica(ME, stored)
    sealed = REGISTRATION.rolled(at(3), (OTHER, ME), (), (OTHER,))
    asked = [
        replica.receive("c", Fence("s", "disk2", 1, 0, 2)),
        replica.receive("a", CopyChunk("s", "disk2", 1, 0, at(3), OTHER, 3)),
        replica.registration_seen("s", 3, sealed),
    ]
    for effects in asked:
        assert [refused.reason for refused in messages(effects, Refused)] == [Reason.DAMAGED]
    (removed,) = stores(replica.registration_seen("s", 4, sealed.with_copies(1, (OTHER,))))
    replica.stored(removed.token)
    assert len(messages(replica.receive("a", CopyChunk("s", "disk2", 1, 0, at(3), OTHER, 5)), ReadEntries)) == 1
