"""What a query may live through, told as stories: each epoch once, from one execution, over all streams."""

from collections.abc import Collection
from random import Random

import pytest

from logstore.epochs.ledger_entries import LastEpoch, decode_last_epoch, encode_last_epoch
from logstore.errors import (
    FencedIncarnation,
    InvalidRecord,
    StagedMissing,
    StagePosition,
    StaleEpoch,
    StorageFailed,
    TopicAuthorizationFailed,
)
from logstore.events import EPOCH_TOPIC_GONE, STAGED_DATA_EXPIRED
from logstore.format.epoch_api import AbortRequest, EpochCommitReply, StageReply, StageRequest
from logstore.testing.clock import ManualClock
from logstore.testing.driver import JobDriver
from logstore.testing.faults import EIO, ENOSPC, Fault, FileCall
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar, commit, commit_request, segment, stage


@pytest.fixture
def sidecar() -> Sidecar:
    """A sidecar with one topic of two partitions."""
    sidecar = Sidecar(SimDisk(), ManualClock())
    sidecar.create("out", 2)
    return sidecar


def test_an_epoch_of_two_tasks_reaches_both_streams(sidecar: Sidecar) -> None:
    """Two tasks' segments appear in the order of tasks and segments, between BEGIN and END, and staging is empty."""
    assert stage(sidecar, segment({0: ["c"], 1: ["d"]}, epoch=0, task=1)) == StageReply(1)
    assert stage(sidecar, segment({0: ["a"]}, epoch=0, task=0)) == StageReply(1)
    assert stage(sidecar, segment({0: ["b"]}, epoch=0, task=0, position=1)) == StageReply(2)
    assert commit(sidecar, commit_request((1, "a0", 1), (0, "a0", 2), epoch=0)) == EpochCommitReply("committed", 0)
    assert sidecar.values("out", 0) == ["<Begin 0>", "a", "b", "c", "<End 0>"]
    assert sidecar.values("out", 1) == ["<Begin 0>", "d", "<End 0>"]
    assert sidecar.fs.list_directory("staging") == []
    assert sidecar.staging.used_bytes == 0
    assert sidecar.epochs.describe("query-1").state == "idle"


def test_the_last_epoch_again_is_a_duplicate(sidecar: Sidecar) -> None:
    """Spark re-runs the last epoch after a crash, perhaps with other output; it is acknowledged and dropped."""
    stage(sidecar, segment({0: ["a"]}, epoch=7))
    commit(sidecar, commit_request((0, "a0", 1), epoch=7))
    stage(sidecar, segment({0: ["other"]}, epoch=7, incarnation="run-2"))
    reply = commit(sidecar, commit_request((0, "a0", 1), epoch=7, incarnation="run-2"))
    assert reply == EpochCommitReply("duplicate", 7, "positions of 7")
    assert sidecar.records("out", 0) == ["a"]
    assert sidecar.epochs.describe("query-1").staged_bytes == 0


def test_positions_of_the_last_epoch_outlive_its_publication() -> None:
    """What an epoch was committed with is told with its duplicate and by describe: also of one without output, which
    leaves no END in any stream, and after a restart.
    """
    disk = SimDisk()
    commit(Sidecar(disk, ManualClock()), commit_request((0, "a0", 0), epoch=5))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.epochs.describe("query-1").positions == "positions of 5"
    assert commit(revived, commit_request(epoch=5, incarnation="run-2")) == EpochCommitReply(
        "duplicate", 5, "positions of 5"
    )
    assert revived.epochs.describe("query-1").positions == "positions of 5"


def test_a_last_epoch_of_a_former_version_has_no_positions_and_no_topics() -> None:
    """The ledger's entry of a version that did not keep them is read as it is."""
    assert decode_last_epoch("q", b'{"version":1,"epoch":3,"decided_ms":9,"forget":false}') == LastEpoch(
        3, 9, False, ""
    )
    last = LastEpoch(3, 9, False, "here", ("t", "u"))
    assert decode_last_epoch("q", encode_last_epoch(last)) == last


def test_the_topics_of_a_query_are_those_of_its_newest_epoch_with_output() -> None:
    """An epoch without output takes none away, nor does a restart."""
    disk = SimDisk()
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", 2)
    stage(sidecar, segment({0: ["a"], 1: ["b"]}, epoch=3))
    commit(sidecar, commit_request((0, "a0", 1), epoch=3))
    commit(sidecar, commit_request(epoch=4))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    for each in (sidecar, revived):
        (found,) = each.epochs.summaries(["query-1"])
        assert (found.last_epoch, found.topics) == (4, ("out",))


def test_a_rewound_checkpoint_is_an_error_naming_both_epochs(sidecar: Sidecar) -> None:
    """An epoch older than the last one is refused, unless the user says skip."""
    for epoch in (3, 4):
        stage(sidecar, segment({0: [str(epoch)]}, epoch=epoch))
        commit(sidecar, commit_request((0, "a0", 1), epoch=epoch))
    with pytest.raises(StaleEpoch, match=r"epoch 3 .* epoch 4"):
        commit(sidecar, commit_request(epoch=3, incarnation="run-2"))
    assert commit(sidecar, commit_request(epoch=3, incarnation="run-2", rewind="skip")) == EpochCommitReply(
        "skipped", 4
    )
    assert sidecar.records("out", 0) == ["3", "4"]


def test_a_zombie_driver_is_fenced(sidecar: Sidecar) -> None:
    """Once a newer incarnation has been seen, the older one can neither stage, commit nor abort, and its output is
    gone.
    """
    stage(sidecar, segment({0: ["old"]}, epoch=0))
    stage(sidecar, segment({0: ["new"]}, epoch=0, incarnation="run-2"))
    with pytest.raises(FencedIncarnation, match="run-2"):
        stage(sidecar, segment({0: ["old"]}, epoch=0, task=1))
    with pytest.raises(FencedIncarnation):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    with pytest.raises(FencedIncarnation):
        sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))
    commit(sidecar, commit_request((0, "a0", 1), epoch=0, incarnation="run-2"))
    assert sidecar.records("out", 0) == ["new"]


def test_a_driver_takes_over_at_any_moment_of_an_epoch() -> None:
    """The next driver's fence is staged at each step of a commit: it is taken, and never dropped as old output."""
    for seed in range(4):
        steps, is_over = 0, False
        while not is_over:
            sidecar = Sidecar(SimDisk(), ManualClock(), io_window=1)  # the fence's write waits while others end
            sidecar.create("out", 2)
            stage(sidecar, segment({0: ["a"], 1: ["b"]}, epoch=1))
            sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=1), now_ms=0)
            driver = JobDriver(sidecar.store.queue, sidecar.fs, Random(seed))
            is_over = driver.run(steps) < steps
            fence = sidecar.epochs.stage(StageRequest("query-1", "run-2", 0, 0, "fence", 0, (), b""), now_ms=0)
            driver.run()
            assert fence.result() == StageReply(1), f"fence after {steps} steps, seed {seed}"
            steps += 1
        assert steps > 10


def test_a_fence_outlives_the_sidecar(sidecar: Sidecar) -> None:
    """After a power cut the older incarnation is still fenced: the fence was durable before it was answered."""
    stage(sidecar, segment({0: ["old"]}, epoch=0))
    stage(sidecar, segment({0: ["new"]}, epoch=0, incarnation="run-2"))
    assert isinstance(sidecar.fs, SimDisk)
    for disk in sidecar.fs.crash_states():
        revived = Sidecar(disk, ManualClock())
        revived.roll_forward()
        with pytest.raises(FencedIncarnation):
            commit(revived, commit_request((0, "a0", 1), epoch=0))


def test_missing_segments_are_an_error_not_a_gap(sidecar: Sidecar) -> None:
    """A commit that names more, fewer or other segments than are here commits nothing."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    stage(sidecar, segment({0: ["b"]}, epoch=0, position=1))
    for tasks in ([(0, "a0", 3)], [(0, "a0", 1)], [(0, "a1", 2)], [(0, "a0", 2), (1, "a0", 1)]):
        with pytest.raises(StagedMissing):
            commit(sidecar, commit_request(*tasks, epoch=0))
    assert sidecar.values("out", 0) == []
    assert commit(sidecar, commit_request((0, "a0", 2), epoch=0)).outcome == "committed"


def test_only_the_winning_attempt_counts(sidecar: Sidecar) -> None:
    """Speculative attempts with different output: the one that is named appears, whole, and nothing of the other."""
    stage(sidecar, segment({0: ["x1"], 1: ["x2"]}, epoch=0, attempt="first"))
    stage(sidecar, segment({0: ["y1"]}, epoch=0, attempt="second"))
    commit(sidecar, commit_request((0, "second", 1), epoch=0))
    assert sidecar.records("out", 0) == ["y1"]
    assert sidecar.values("out", 1) == []


def test_a_retried_segment_is_accepted_once(sidecar: Sidecar) -> None:
    """The same segment again is acknowledged; other bytes at its position, or a gap, are refused with what is here."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    assert stage(sidecar, segment({0: ["a"]}, epoch=0)) == StageReply(1)
    with pytest.raises(StagePosition) as other:
        stage(sidecar, segment({0: ["b"]}, epoch=0))
    assert other.value.length == 1
    with pytest.raises(StagePosition, match="does not follow"):
        stage(sidecar, segment({0: ["c"]}, epoch=0, position=2))
    commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    assert sidecar.records("out", 0) == ["a"]


def test_abort_drops_what_is_not_committed_and_never_undoes_a_commit(sidecar: Sidecar) -> None:
    """After abort a commit finds nothing; after commit abort changes nothing."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes > 0
    with pytest.raises(StagedMissing):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    stage(sidecar, segment({0: ["b"]}, epoch=0))
    ticket = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=0), now_ms=sidecar.clock.wall_ms())
    assert sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0)).result().dropped_bytes == 0
    assert sidecar.settle(ticket).outcome == "committed"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    assert sidecar.records("out", 0) == ["b"]


def test_a_commit_repeated_while_it_is_under_way_joins_it(sidecar: Sidecar) -> None:
    """A client that lost its connection asks again; both are answered once the epoch is in, and it is in once."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    now_ms = sidecar.clock.wall_ms()
    first = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=0), now_ms=now_ms)
    second = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=0), now_ms=now_ms)
    assert sidecar.settle(first) == EpochCommitReply("committed", 0)
    assert second.result() == EpochCommitReply("duplicate", 0, "positions of 0")
    assert sidecar.records("out", 0) == ["a"]


def test_a_commit_needs_the_rights_for_what_it_publishes(sidecar: Sidecar) -> None:
    """Rights are asked for when its turn has come: somebody else may have staged more for the query while it waited."""
    sidecar.create("secret", 1)
    asked: list[set[str]] = []

    def may_publish(topics: Collection[str]) -> None:
        asked.append(set(topics))
        if "secret" in topics:
            raise TopicAuthorizationFailed("not for this one")

    now_ms = sidecar.clock.wall_ms()
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    stage(sidecar, segment({0: ["b"]}, epoch=1))
    first = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=0), now_ms=now_ms, may_publish=may_publish)
    second = sidecar.epochs.commit(commit_request((0, "a0", 2), epoch=1), now_ms=now_ms, may_publish=may_publish)
    staged = sidecar.epochs.stage(segment({0: ["c"]}, epoch=1, position=1, topic="secret"), now_ms=now_ms)
    assert sidecar.settle(staged) == StageReply(2)
    assert sidecar.settle(first).outcome == "committed"
    with pytest.raises(TopicAuthorizationFailed):
        sidecar.settle(second)
    assert asked == [{"out"}, {"out", "secret"}]
    assert (sidecar.records("out", 0), sidecar.records("secret", 0)) == (["a"], [])
    assert sidecar.epochs.describe("query-1").last_epoch == 0


def test_an_empty_epoch_is_remembered(sidecar: Sidecar) -> None:
    """An epoch without output touches no stream, yet counts as the last one."""
    assert commit(sidecar, commit_request((0, "a0", 0), epoch=5)) == EpochCommitReply("committed", 5)
    assert commit(sidecar, commit_request(epoch=5)) == EpochCommitReply("duplicate", 5, "positions of 5")
    assert sidecar.values("out", 0) == []


def test_large_output_is_published_whole(sidecar: Sidecar) -> None:
    """Segments above what is read at a time, and many of them, arrive complete and in order."""
    sidecar = Sidecar(SimDisk(), ManualClock(), limit_bytes=64 << 20)
    sidecar.create("out", 1)
    expected = []
    for position in range(5):
        values = [f"{position}-{number}-" + "x" * 900 for number in range(900)]
        expected += values
        stage(sidecar, segment({0: values}, epoch=0, position=position))
    commit(sidecar, commit_request((0, "a0", 5), epoch=0))
    assert sidecar.records("out", 0) == expected


def test_batches_a_stream_would_refuse_are_not_staged(sidecar: Sidecar) -> None:
    """Announced counts that do not match the bytes are refused, and leave nothing behind."""
    request = segment({0: ["a"]}, epoch=0)
    wrong = request.parts[0].__class__("out", 0, request.parts[0].length_bytes, 1, 2)
    with pytest.raises(InvalidRecord, match="announced"):
        stage(sidecar, request.__class__("query-1", "run-1", 0, 0, "a0", 0, (wrong,), request.data))
    assert sidecar.epochs.describe("query-1").staged_bytes == 0


def test_a_full_staging_area_refuses_and_recovers(sidecar: Sidecar) -> None:
    """Above the limit staging fails naming the setting; after a commit there is room again."""
    sidecar = Sidecar(SimDisk(), ManualClock(), limit_bytes=1000)
    sidecar.create("out", 1)
    stage(sidecar, segment({0: ["a" * 300]}, epoch=0))
    with pytest.raises(StorageFailed, match=r"staging\.limit_bytes = 1000"):
        stage(sidecar, segment({0: ["b" * 600]}, epoch=0, task=1))
    commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    stage(sidecar, segment({0: ["b" * 600]}, epoch=1))


@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_directory"])
def test_a_disk_error_kills_the_attempt_only(sidecar: Sidecar, kind: str) -> None:
    """A failed write or sync of staged data is never tried again: that attempt is dead, a new one works."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, segment({0: ["other"]}, epoch=0, task=1))

    def fault(call: FileCall) -> Fault | None:
        return EIO if call.kind == kind and "staging" in call.path else None

    disk.fault_for = fault
    with pytest.raises(StorageFailed, match="a0"):
        stage(sidecar, segment({0: ["a"]}, epoch=0))
    disk.fault_for = None
    with pytest.raises(StorageFailed):
        stage(sidecar, segment({0: ["a"]}, epoch=0))
    stage(sidecar, segment({0: ["a"]}, epoch=0, attempt="a1"))
    commit(sidecar, commit_request((0, "a1", 1), (1, "a0", 1), epoch=0))
    assert sidecar.records("out", 0) == ["a", "other"]


def test_a_commit_that_may_be_on_disk_keeps_its_data(sidecar: Sidecar) -> None:
    """If the ledger fails, abort drops nothing that a restart might need, and trying again commits once."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    disk.fault_for = lambda call: EIO if call.kind == "sync" and "ledger" in call.path else None
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    assert sidecar.epochs.describe("query-1").state == "unsure"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    for state in disk.crash_states():
        revived = Sidecar(state, ManualClock())
        revived.roll_forward()
        assert revived.records("out", 0) in ([], ["a"])
        assert revived.epochs.describe("query-1").state == "idle"
    disk.fault_for = None
    assert commit(sidecar, commit_request((0, "a0", 1), epoch=0)).outcome == "committed"
    assert sidecar.records("out", 0) == ["a"]


def test_abort_after_a_failed_commit_takes_it_back_for_good(sidecar: Sidecar) -> None:
    """Once the ledger works, abort first makes sure that the commit record is not on disk, then drops the data."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    disk.fault_for = lambda call: EIO if call.kind == "sync" and "ledger" in call.path else None
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    disk.fault_for = None
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes > 0
    for state in disk.crash_states():
        revived = Sidecar(state, ManualClock())
        revived.roll_forward()
        assert revived.records("out", 0) == []
        assert revived.epochs.describe("query-1").last_epoch is None


def test_a_stream_that_fails_leaves_the_epoch_committed(sidecar: Sidecar) -> None:
    """One of two streams cannot be written: the client is told, and once the disk works the epoch is whole, once."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, segment({0: ["a"], 1: ["b"]}, epoch=0))
    failing = sidecar.store.stream("out", 1).directory
    disk.fault_for = lambda call: ENOSPC if call.kind == "write" and call.path.startswith(failing) else None
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    assert sidecar.epochs.describe("query-1").state == "stuck"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    disk.fault_for = None
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert (sidecar.records("out", 0), sidecar.records("out", 1)) == (["a"], ["b"])
    assert commit(sidecar, commit_request((0, "a0", 1), epoch=0)) == EpochCommitReply("duplicate", 0, "positions of 0")


def test_staged_output_that_nobody_commits_is_reclaimed(sidecar: Sidecar) -> None:
    """After the time limit it goes, and the operator is told."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    assert sidecar.epochs.describe("query-1").staged_attempts == 1
    sidecar.clock.advance(3600_001)
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert sidecar.fs.list_directory("staging") == []
    assert STAGED_DATA_EXPIRED.name in sidecar.reports.names()


def test_a_batch_job_is_forgotten_after_a_while(sidecar: Sidecar) -> None:
    """`forget` keeps the ledger small; before that, the job's commit again is a duplicate."""
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    commit(sidecar, commit_request((0, "a0", 1), epoch=0, forget=True))
    assert commit(sidecar, commit_request((0, "a0", 1), epoch=0, forget=True)).outcome == "duplicate"
    sidecar.clock.advance(8 * 24 * 3600 * 1000)
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert list(sidecar.store.epochs.items()) == []


def test_a_deleted_topic_does_not_hold_up_the_others(sidecar: Sidecar) -> None:
    """A topic deleted after the commit is passed over with a report; the rest of the epoch appears."""
    sidecar.create("extra", 1)
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    stage(sidecar, segment({0: ["e"]}, epoch=0, task=1, topic="extra"))
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    failing = sidecar.store.stream("extra", 0).directory
    disk.fault_for = lambda call: ENOSPC if call.kind == "write" and call.path.startswith(failing) else None
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), (1, "a0", 1), epoch=0))
    disk.fault_for = None
    sidecar.settle(sidecar.store.delete_topic("extra"))
    assert commit(sidecar, commit_request((0, "a0", 1), (1, "a0", 1), epoch=0)).outcome == "duplicate"
    assert EPOCH_TOPIC_GONE.name in sidecar.reports.names()
    assert sidecar.records("out", 0) == ["a"]
