"""Committed offsets are as durable as records: over a real ledger on a real file system, reopened."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from logstore.disk.files import OsFiles
from logstore.errors import CorruptFile, StorageFailed
from logstore.format.topic_partition import TopicPartition
from logstore.kafka.groups import service
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.offsets import CommittedOffset, OffsetStore
from logstore.kafka.groups.service import SWEEP_INTERVAL_S, CommitRequest, GroupService, OffsetSettings, OffsetToCommit
from logstore.kafka.groups.settings import GroupSettings
from logstore.log.jobs import JobQueue
from logstore.log.ledger import DIRECTORY, Ledger
from logstore.log.ticket import Ticket

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3_600_000
ORDERS = TopicPartition("orders", 0)
RETURNS = TopicPartition("returns", 1)
TOOL = CommitRequest("a/b c%ü", -1, "", None)


class Disk(OsFiles):
    """A data directory; `refuse` makes every sync of a file fail, as a full or broken disk does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refuse = False

    def sync(self, path: str) -> None:
        """Sync, or refuse."""
        if self.refuse:
            raise OSError(28, "No space left on device")
        super().sync(path)


class Sidecar:
    """The ledger, the groups and their topics, as one process has them. Work is done when `work` is called."""

    def __init__(self, disk: Disk, *, now_s: float = 0.0) -> None:
        self.disk = disk
        self.queue = JobQueue(io_window=1)
        self.ledger = Ledger.open(disk, "groups", self.queue.ready)
        self.topics = {"orders": ("id-1", 3), "returns": ("id-2", 3)}
        coordinator = GroupCoordinator(GroupSettings(), lambda: "x")
        self.service = GroupService(coordinator, OffsetStore(self.ledger), self.topics.get, OffsetSettings(), now_s)
        self.service.recover_at_once(now_s)

    def work(self) -> None:
        """Do all disk work."""
        while (job := self.queue.next_job()) is not None:
            self.queue.finished(job, job.run(self.disk))

    def commit(
        self, positions: Mapping[TopicPartition, OffsetToCommit], request: CommitRequest = TOOL, now_ms: int = NOW_MS
    ) -> tuple[dict[TopicPartition, ErrorCode], Ticket[None]]:
        """OffsetCommit, not worked off yet."""
        return self.service.commit(request, positions, 0.0, now_ms)

    def offsets(self, partitions: Sequence[TopicPartition] | None = None) -> dict[TopicPartition, int | None]:
        """What OffsetFetch tells, of some partitions or all."""
        taken = self.service.committed(TOOL.group_id, partitions)
        current = {where: found.offset for where in taken.known if (found := taken.of(where)) is not None}
        return dict(current) if partitions is None else {where: current.get(where) for where in partitions}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """An empty data directory."""
    made = Disk(tmp_path)
    made.make_directory(DIRECTORY)
    yield made
    made.close()


def at(offset: int, metadata: str = "") -> OffsetToCommit:
    """A position."""
    return OffsetToCommit(offset, -1, metadata)


def test_a_commit_is_acknowledged_and_seen_only_when_synced(disk: Disk) -> None:
    """Nobody may read an offset that a crash could take back."""
    sidecar = Sidecar(disk)
    refused, ticket = sidecar.commit({ORDERS: at(7)})
    before = ticket.done
    assert refused == {}
    assert sidecar.offsets([ORDERS]) == {ORDERS: None}
    sidecar.work()
    assert (before, ticket.done) == (False, True)
    assert sidecar.offsets([ORDERS, RETURNS]) == {ORDERS: 7, RETURNS: None}


def test_offsets_survive_a_restart(disk: Disk) -> None:
    """All of a position comes back, under any group name, and the group shows as Empty."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: OffsetToCommit(7, 3, "näher"), RETURNS: at(9)})
    sidecar.commit({ORDERS: OffsetToCommit(8, 4, "später")})
    sidecar.work()
    again = Sidecar(disk)
    found = again.service.committed(TOOL.group_id)
    assert {where: (c.offset, c.leader_epoch, c.metadata) for where, c in found.known.items()} == {
        ORDERS: (8, 4, "später"),
        RETURNS: (9, -1, ""),
    }
    assert [group.group_id for group in again.service.coordinator.groups()] == [TOOL.group_id]


def test_a_refusing_disk_acknowledges_nothing_and_recovers(disk: Disk) -> None:
    """The commit fails, the older offset stands, the next commit after the trouble works and is durable."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(1)})
    sidecar.work()
    disk.refuse = True
    _, ticket = sidecar.commit({ORDERS: at(2)})
    sidecar.work()
    assert isinstance(ticket.error, StorageFailed)
    assert sidecar.offsets() == {ORDERS: 1}
    disk.refuse = False
    _, ticket = sidecar.commit({ORDERS: at(3)})
    sidecar.work()
    assert ticket.error is None
    assert Sidecar(disk).offsets() == {ORDERS: 3}


def test_what_cannot_be_committed_is_refused_by_partition(disk: Disk) -> None:
    """Unknown topics and partitions and long metadata are refused; the rest of the request goes through."""
    sidecar = Sidecar(disk)
    unknown, beyond = TopicPartition("nothing", 0), TopicPartition("orders", 3)
    refused, _ = sidecar.commit({ORDERS: at(5), unknown: at(1), beyond: at(1), RETURNS: at(1, "x" * 4097)})
    sidecar.work()
    assert refused == {
        unknown: ErrorCode.unknown_topic_or_partition,
        beyond: ErrorCode.unknown_topic_or_partition,
        RETURNS: ErrorCode.offset_metadata_too_large,
    }
    assert sidecar.offsets() == {ORDERS: 5}
    refused, _ = sidecar.commit({ORDERS: at(6)}, CommitRequest("new", 1, "m", None))
    assert refused == {ORDERS: ErrorCode.group_id_not_found}


def test_a_topic_made_again_does_not_inherit_offsets(disk: Disk) -> None:
    """Offsets belong to the topic's id; those of a deleted topic are gone even if its deletion was not told."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5), RETURNS: at(6)})
    sidecar.work()
    sidecar.topics["orders"] = ("id-3", 3)
    assert sidecar.offsets() == {RETURNS: 6}
    assert sidecar.offsets([ORDERS]) == {ORDERS: None}
    assert sidecar.service.forget_topic("returns", "another topic of that name") == []
    sidecar.service.forget_topic("returns", sidecar.topics["returns"][0])
    sidecar.service.expire(0.0, NOW_MS)
    sidecar.work()
    assert not list(sidecar.ledger.items())


def test_deleting_a_group_takes_its_offsets_along(disk: Disk) -> None:
    """Also a commit that is still on its way to the disk."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5)})
    sidecar.work()
    sidecar.commit({RETURNS: at(6)})
    error, ticket = sidecar.service.delete_group(TOOL.group_id)
    sidecar.work()
    assert error is ErrorCode.none
    assert ticket.done
    assert sidecar.offsets() == {}
    assert not list(Sidecar(disk).ledger.items())
    assert sidecar.service.delete_group(TOOL.group_id)[0] is ErrorCode.group_id_not_found


def test_a_deletion_looks_at_no_other_groups(disk: Disk) -> None:
    """It takes what the group has, and what is being written: the ledger, which has all groups, is not walked."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5)})
    sidecar.work()
    sidecar.commit({RETURNS: at(6)})
    items, sidecar.ledger.items = sidecar.ledger.items, None  # type: ignore[method-assign, assignment]
    error, ticket = sidecar.service.delete_group(TOOL.group_id)
    sidecar.ledger.items = items  # type: ignore[method-assign]
    sidecar.work()
    assert (error, ticket.done, sidecar.offsets()) == (ErrorCode.none, True, {})
    assert not list(Sidecar(disk).ledger.items())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_group_that_commits_while_its_deletion_waits_keeps_its_type(disk: Disk, *, is_whole: bool) -> None:
    """Of the group as a whole, or of its last offset: the group that is there afterwards, also behind a restart, is
    what the later commit says.
    """
    sidecar = Sidecar(disk)
    store = sidecar.service._offsets
    position = CommittedOffset(5, -1, "", NOW_MS, "id-1")
    store.commit("g", "consumer", {ORDERS: position})
    sidecar.work()
    deleted = store.delete_group("g") if is_whole else store.delete("g", [ORDERS])
    committed = store.commit("g", "consumer", {ORDERS: position._replace(offset=6)})
    sidecar.work()
    assert (deleted.error, committed.error) == (None, None)
    for now in (store, Sidecar(disk).service._offsets):
        assert list(now.groups()) == [("g", "consumer")]
        assert now.of_group("g")[ORDERS].offset == 6


def test_a_group_whose_deletion_the_disk_refused_is_still_there(disk: Disk) -> None:
    """The group can be seen and deleted again."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5)})
    sidecar.work()
    disk.refuse = True
    sidecar.service.delete_group(TOOL.group_id)
    sidecar.work()
    disk.refuse = False
    assert sidecar.offsets() == {ORDERS: 5}
    assert sidecar.service.delete_group(TOOL.group_id)[0] is ErrorCode.none


def test_single_offsets_can_be_deleted(disk: Disk) -> None:
    """OffsetDelete answers by partition and leaves the others."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5), RETURNS: at(6)})
    sidecar.work()
    top, errors, _ = sidecar.service.delete_offsets(TOOL.group_id, [ORDERS, TopicPartition("nothing", 0)])
    sidecar.work()
    assert top is ErrorCode.none
    assert errors == {
        ORDERS: ErrorCode.none,
        TopicPartition("nothing", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert sidecar.offsets() == {RETURNS: 6}
    assert sidecar.service.delete_offsets("none", [ORDERS])[0] is ErrorCode.group_id_not_found


def test_offsets_expire_after_their_retention(disk: Disk) -> None:
    """Seven days after the last commit, or as an old client asked; then the group is forgotten too."""
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5)})
    sidecar.commit({RETURNS: at(6)}, TOOL._replace(retention_ms=DAY_MS))
    sidecar.work()
    sidecar.service.expire(0.0, NOW_MS + DAY_MS - 1)
    sidecar.work()
    assert sidecar.offsets() == {ORDERS: 5, RETURNS: 6}
    sidecar.service.expire(SWEEP_INTERVAL_S, NOW_MS + DAY_MS)
    sidecar.work()
    assert sidecar.offsets() == {ORDERS: 5}
    sidecar.service.expire(2 * SWEEP_INTERVAL_S, NOW_MS + 7 * DAY_MS)
    sidecar.work()
    assert sidecar.offsets() == {}
    sidecar.service.expire(3 * SWEEP_INTERVAL_S, NOW_MS + 7 * DAY_MS)
    assert not list(sidecar.service.coordinator.groups())


def test_a_sweep_of_many_offsets_lets_requests_in(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on soon, a part at a time; what is committed again meanwhile stays, and so does a group made anew."""
    monkeypatch.setattr(service, "SWEEP_STEP", 1)
    sidecar = Sidecar(disk)
    sidecar.commit({ORDERS: at(5), RETURNS: at(6)})
    sidecar.work()
    sidecar.service.expire(0.0, NOW_MS + 8 * DAY_MS)
    sidecar.work()
    (left,) = sidecar.offsets()
    assert sidecar.service.next_deadline() == service.SWEEP_PAUSE_S
    sidecar.commit({left: at(9)}, now_ms=NOW_MS + 8 * DAY_MS)
    sidecar.work()
    for _ in range(4):
        sidecar.service.expire(sidecar.service.next_deadline(), NOW_MS + 8 * DAY_MS)
        sidecar.work()
    assert sidecar.offsets() == {left: 9}
    assert sidecar.service.next_deadline() > SWEEP_INTERVAL_S


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset/g/t", b"{}"),
        ("offset/g/t/x", b"{}"),
        ("offset/g/t/0", b"{"),
        ("offset/g/t/0", b"[]"),
        ("offset/g/t/0", b'{"offset":"1","time":2}'),
    ],
)
def test_damage_is_named(disk: Disk, key: str, value: bytes) -> None:
    """What is not an offset is a CorruptFile that names the key, never a KeyError."""
    sidecar = Sidecar(disk)
    sidecar.ledger.put({key: value})
    sidecar.work()
    with pytest.raises(CorruptFile, match="ledger of groups"):
        list(OffsetStore(sidecar.ledger).load())
