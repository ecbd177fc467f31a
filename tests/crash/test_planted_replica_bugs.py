"""Mistakes that the files of replicas could have, put in one at a time: crashes find each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from logstore.format.batch import iterate_batches
from logstore.interfaces import FileSystem
from logstore.log import replica_chunk, replica_recovery, replicas
from logstore.log.coroutines import start
from logstore.log.jobs import SyncDirectory, WorkOnFile
from logstore.log.journal_replay import JournalContent
from logstore.log.replica_chunk import CHUNK_KEY, DIRECTORY, ChunkPrefix, LocalReplica
from logstore.log.replica_recovery import remove_replica
from logstore.log.replicas import ReplicaChunks
from logstore.log.stream_state import PendingAppend, PlacedGroup
from logstore.log.ticket import Ticket
from logstore.testing.crash import CrashPlan
from logstore.testing.history import PromiseBroken
from logstore.testing.simdisk import CrashBounds
from logstore.testing.world import Setup, journaled
from tests.crash.test_replicas import Enumerator, Workload, appends, copies, cuts, groups, removals, seals

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch


def entry_in_front_of_the_data(patch: Patch) -> None:
    """A replica is noted when it is begun, so a crash in its first write looks like loss."""
    before = ReplicaChunks._begin

    def begin(self: ReplicaChunks, *arguments: Any) -> LocalReplica:
        replica = before(self, *arguments)
        replica.noted = self._note(replica, replica.end)
        return replica

    patch.setattr(ReplicaChunks, "_begin", begin)


def confirmed_without_entry(patch: Patch) -> None:
    """A batch and a seal are confirmed before the ledger says so."""
    before = ReplicaChunks._note

    def note(self: ReplicaChunks, *arguments: Any, **named: Any) -> Ticket[None]:
        before(self, *arguments, **named)
        return Ticket.succeeded(None)

    patch.setattr(ReplicaChunks, "_note", note)


def files_cut_in_front_of_the_entry(patch: Patch) -> None:
    """A cut shortens the files before the ledger says so: a crash in between leaves a shorter open chunk."""
    before = ReplicaChunks._place_of

    async def place_of(self: ReplicaChunks, replica: LocalReplica, log: Any, end: ChunkPrefix) -> tuple[int, int]:
        place = await before(self, replica, log, end)
        await self._cut_log(replica, end, place)
        return place

    patch.setattr(ReplicaChunks, "_place_of", place_of)


def start_does_not_cut(patch: Patch) -> None:
    """A start opens a replica as its files are, though the ledger says that it is shorter."""
    patch.setattr(replica_recovery, "cut_files", lambda fs, directory, cut: None)


def journal_behind_the_cut(patch: Patch) -> None:
    """A start puts back what the journal has behind the end of a chunk that was cut."""
    patch.setattr(replica_recovery, "parts_before", lambda parts, cut: parts)


def index_is_not_cut(patch: Patch) -> None:
    """The index of a chunk that was cut covers more than the chunk has, which looks like loss."""
    before = replica_recovery.cut_files

    def cut_files(fs: FileSystem, directory: str, cut: tuple[int, int]) -> None:
        before(_WithoutIndexes(fs), directory, cut)

    patch.setattr(replica_recovery, "cut_files", cut_files)
    patch.setattr(replicas, "cut_files", cut_files)


class _WithoutIndexes:
    """A file system that does not truncate indexes."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def truncate(self, path: str, size_bytes: int) -> None:
        """Not of an index."""
        if not path.endswith(".index"):
            self._fs.truncate(path, size_bytes)


def noted_over_the_seal(patch: Patch) -> None:
    """What is durable of an open replica is noted while it is being sealed."""
    before = ReplicaChunks._cut

    async def cut(self: ReplicaChunks, stream: str, epoch: int, end: ChunkPrefix) -> None:
        replica = self._replicas[stream, epoch]
        sealing = start(before(self, stream, epoch, end))
        self._note(replica, replica.end)
        await sealing

    patch.setattr(ReplicaChunks, "_cut", cut)


def removed_without_mark(patch: Patch) -> None:
    """The entry of a replica goes before its files do: a crash in between leaves a shorter open chunk."""

    async def remove(self: ReplicaChunks, stream: str, epoch: int) -> None:
        replica = self._replicas.get((stream, epoch))
        if replica is not None:
            await self._ledger.put({f"{CHUNK_KEY}{replica.name.directory}": None})
            del self._replicas[stream, epoch]
            if replica.log is not None:
                replica.log.abandon()
                self._host.quiet.forget([replica.log])
            work = WorkOnFile("", lambda fs: remove_replica(fs, replica.name.directory))
            self._lane(replica).run([work, SyncDirectory(DIRECTORY)])

    patch.setattr(ReplicaChunks, "_remove", remove)


def removal_not_synced(patch: Patch) -> None:
    """The mark of a removal goes before it is durable that the files are gone."""
    patch.setattr(replicas, "SyncDirectory", lambda _: SyncDirectory("journal"))


def serial_used_twice(patch: Patch) -> None:
    """A new copy lies where the removed one was: the journal has parts of that one."""
    before = ReplicaChunks._begin

    def begin(self: ReplicaChunks, *arguments: Any) -> LocalReplica:
        self._serial = 0
        return before(self, *arguments)

    patch.setattr(ReplicaChunks, "_begin", begin)


def fence_not_awaited(patch: Patch) -> None:
    """A fence is confirmed when it is asked for."""
    before = ReplicaChunks.write_fence

    def write_fence(self: ReplicaChunks, stream: str, fence_epoch: int) -> Ticket[None]:
        before(self, stream, fence_epoch)
        return Ticket.succeeded(None)

    patch.setattr(ReplicaChunks, "write_fence", write_fence)


def no_founding(patch: Patch) -> None:
    """A new replica forgets the producers' state that came with its first batch."""
    before = ReplicaChunks._begin

    def begin(self: ReplicaChunks, stream: str, epoch: int, at: ChunkPrefix, founding: bytes) -> LocalReplica:
        del founding
        return before(self, stream, epoch, at, b"")

    patch.setattr(ReplicaChunks, "_begin", begin)


def replicas_after_the_journal(patch: Patch) -> None:
    """A start opens replicas without what the journal has of them."""
    before = ReplicaChunks.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type, fs: FileSystem, host: Any, journal: JournalContent, each: Any) -> Any:
        return before(cls, fs, host, journal._replace(parts={}), each)

    patch.setattr(ReplicaChunks, "open", classmethod(opened))


def group_as_single_batches(patch: Patch) -> None:
    """The batches of an append group are written like any others: a crash leaves some of them."""
    before = replica_chunk.check_placed

    def check_placed(name: Any, at: ChunkPrefix, batches: Sequence[tuple[Any, int]]) -> Any:
        placed, single = before(name, at, batches), list[PendingAppend | PlacedGroup]()
        for data, _ in batches:
            for position, header in iterate_batches(data):
                view = memoryview(data)[position : position + header.size_bytes]
                single.append(PendingAppend(view, header, Ticket()))
        return placed._replace(appends=single)

    patch.setattr(replicas, "check_placed", check_placed)


PLANTED: Sequence[tuple[Callable[[Patch], None], Workload]] = (
    (entry_in_front_of_the_data, appends),
    (confirmed_without_entry, seals),
    (confirmed_without_entry, copies),
    (files_cut_in_front_of_the_entry, cuts),
    (start_does_not_cut, cuts),
    (journal_behind_the_cut, cuts),
    (index_is_not_cut, cuts),
    (noted_over_the_seal, seals),
    (removed_without_mark, removals),
    (removal_not_synced, removals),
    (serial_used_twice, removals),
    (fence_not_awaited, appends),
    (no_founding, appends),
    (no_founding, copies),
    (replicas_after_the_journal, appends),
    (group_as_single_batches, groups),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plant", "workload"), PLANTED, ids=lambda each: each.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], workload: Workload, monkeypatch: Patch) -> None:
    """The enumerator reports a broken promise."""
    monkeypatch.setattr(replica_chunk, "KNOWN_INTERVAL_BYTES", 300)
    plant(monkeypatch)
    bounds = CrashBounds(states=12, file_states=6, torn_bytes=10, name_changes=3)
    with pytest.raises(PromiseBroken):
        Enumerator(
            workload, journaled(Setup()), CrashPlan(bounds, second_share=8, recovery_share=100, kill_share=3)
        ).run()
