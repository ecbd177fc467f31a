"""What a query may live through, told as stories: each epoch once, from one execution, over all streams."""

import pytest

from logstore.epochs.decisions import Last, decode_last, encode_last
from logstore.errors import FencedRun, InvalidRecord, StagedMissing, StagePosition, StaleEpoch, StorageFailed
from logstore.events import EPOCH_TOPIC_GONE, STAGED_DATA_EXPIRED
from logstore.format.epoch_api import AbortRequest, DecideReply, StageReply
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO, ENOSPC, Fault, FileCall
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar, decide, decision, piece, stage


@pytest.fixture
def sidecar() -> Sidecar:
    """A sidecar with one topic of two partitions."""
    sidecar = Sidecar(SimDisk(), ManualClock())
    sidecar.create("out", 2)
    return sidecar


def test_an_epoch_of_two_tasks_reaches_both_streams(sidecar: Sidecar) -> None:
    """Two tasks' pieces appear in the order of tasks and pieces, between BEGIN and END, and staging is empty after."""
    assert stage(sidecar, piece({0: ["c"], 1: ["d"]}, epoch=0, task=1)) == StageReply(1)
    assert stage(sidecar, piece({0: ["a"]}, epoch=0, task=0)) == StageReply(1)
    assert stage(sidecar, piece({0: ["b"]}, epoch=0, task=0, position=1)) == StageReply(2)
    assert decide(sidecar, decision((1, "a0", 1), (0, "a0", 2), epoch=0)) == DecideReply("committed", 0)
    assert sidecar.values("out", 0) == ["<Begin 0>", "a", "b", "c", "<End 0>"]
    assert sidecar.values("out", 1) == ["<Begin 0>", "d", "<End 0>"]
    assert sidecar.fs.list_directory("staging") == []
    assert sidecar.staging.used_bytes == 0
    assert sidecar.epochs.describe("query-1").state == "idle"


def test_the_last_epoch_again_is_a_duplicate(sidecar: Sidecar) -> None:
    """Spark re-runs the last epoch after a crash, perhaps with other output; it is acknowledged and dropped."""
    stage(sidecar, piece({0: ["a"]}, epoch=7))
    decide(sidecar, decision((0, "a0", 1), epoch=7))
    stage(sidecar, piece({0: ["other"]}, epoch=7, run="run-2"))
    reply = decide(sidecar, decision((0, "a0", 1), epoch=7, run="run-2"))
    assert reply == DecideReply("duplicate", 7, "positions of 7")
    assert sidecar.records("out", 0) == ["a"]
    assert sidecar.epochs.describe("query-1").staged_bytes == 0


def test_positions_of_the_last_epoch_outlive_its_publication() -> None:
    """What an epoch was decided with is told with its duplicate and by describe: also of one without output, which
    leaves no END in any stream, and after a restart.
    """
    disk = SimDisk()
    decide(Sidecar(disk, ManualClock()), decision((0, "a0", 0), epoch=5))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.epochs.describe("query-1").positions == "positions of 5"
    assert decide(revived, decision(epoch=5, run="run-2")) == DecideReply("duplicate", 5, "positions of 5")
    assert revived.epochs.describe("query-1").positions == "positions of 5"


def test_a_last_epoch_of_a_former_version_has_no_positions() -> None:
    """The ledger's entry of a version that did not keep them is read as it is."""
    assert decode_last("q", b'{"version":1,"epoch":3,"decided_ms":9,"forget":false}') == Last(3, 9, False, "")
    assert decode_last("q", encode_last(Last(3, 9, False, "here"))) == Last(3, 9, False, "here")


def test_a_rewound_checkpoint_is_an_error_naming_both_epochs(sidecar: Sidecar) -> None:
    """An epoch older than the last one is refused, unless the user says skip."""
    for epoch in (3, 4):
        stage(sidecar, piece({0: [str(epoch)]}, epoch=epoch))
        decide(sidecar, decision((0, "a0", 1), epoch=epoch))
    with pytest.raises(StaleEpoch, match=r"epoch 3 .* epoch 4"):
        decide(sidecar, decision(epoch=3, run="run-2"))
    assert decide(sidecar, decision(epoch=3, run="run-2", rewind="skip")) == DecideReply("skipped", 4)
    assert sidecar.records("out", 0) == ["3", "4"]


def test_a_zombie_driver_is_fenced(sidecar: Sidecar) -> None:
    """Once a newer run has been seen, the older one can neither stage, decide nor abort, and its output is gone."""
    stage(sidecar, piece({0: ["old"]}, epoch=0))
    stage(sidecar, piece({0: ["new"]}, epoch=0, run="run-2"))
    with pytest.raises(FencedRun, match="run-2"):
        stage(sidecar, piece({0: ["old"]}, epoch=0, task=1))
    with pytest.raises(FencedRun):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    with pytest.raises(FencedRun):
        sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))
    decide(sidecar, decision((0, "a0", 1), epoch=0, run="run-2"))
    assert sidecar.records("out", 0) == ["new"]


def test_a_fence_outlives_the_sidecar(sidecar: Sidecar) -> None:
    """After a power cut the older run is still fenced: the fence was durable before it was answered."""
    stage(sidecar, piece({0: ["old"]}, epoch=0))
    stage(sidecar, piece({0: ["new"]}, epoch=0, run="run-2"))
    assert isinstance(sidecar.fs, SimDisk)
    for disk in sidecar.fs.crash_states():
        revived = Sidecar(disk, ManualClock())
        revived.roll_forward()
        with pytest.raises(FencedRun):
            decide(revived, decision((0, "a0", 1), epoch=0))


def test_missing_pieces_are_an_error_not_a_gap(sidecar: Sidecar) -> None:
    """A commit that names more, fewer or other pieces than are here commits nothing."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    stage(sidecar, piece({0: ["b"]}, epoch=0, position=1))
    for tasks in ([(0, "a0", 3)], [(0, "a0", 1)], [(0, "a1", 2)], [(0, "a0", 2), (1, "a0", 1)]):
        with pytest.raises(StagedMissing):
            decide(sidecar, decision(*tasks, epoch=0))
    assert sidecar.values("out", 0) == []
    assert decide(sidecar, decision((0, "a0", 2), epoch=0)).outcome == "committed"


def test_only_the_winning_attempt_counts(sidecar: Sidecar) -> None:
    """Speculative attempts with different output: the one that is named appears, whole, and nothing of the other."""
    stage(sidecar, piece({0: ["x1"], 1: ["x2"]}, epoch=0, attempt="first"))
    stage(sidecar, piece({0: ["y1"]}, epoch=0, attempt="second"))
    decide(sidecar, decision((0, "second", 1), epoch=0))
    assert sidecar.records("out", 0) == ["y1"]
    assert sidecar.values("out", 1) == []


def test_a_retried_piece_is_accepted_once(sidecar: Sidecar) -> None:
    """The same piece again is acknowledged; other bytes at its position, or a gap, are refused with what is here."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    assert stage(sidecar, piece({0: ["a"]}, epoch=0)) == StageReply(1)
    with pytest.raises(StagePosition) as other:
        stage(sidecar, piece({0: ["b"]}, epoch=0))
    assert other.value.length == 1
    with pytest.raises(StagePosition, match="does not follow"):
        stage(sidecar, piece({0: ["c"]}, epoch=0, position=2))
    decide(sidecar, decision((0, "a0", 1), epoch=0))
    assert sidecar.records("out", 0) == ["a"]


def test_abort_drops_what_is_not_decided_and_never_undoes_a_decision(sidecar: Sidecar) -> None:
    """After abort a commit finds nothing; after commit abort changes nothing."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes > 0
    with pytest.raises(StagedMissing):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    stage(sidecar, piece({0: ["b"]}, epoch=0))
    ticket = sidecar.epochs.decide(decision((0, "a0", 1), epoch=0), now_ms=sidecar.clock.wall_ms())
    assert sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0)).result().dropped_bytes == 0
    assert sidecar.settle(ticket).outcome == "committed"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    assert sidecar.records("out", 0) == ["b"]


def test_a_decision_repeated_while_it_is_under_way_joins_it(sidecar: Sidecar) -> None:
    """A client that lost its connection asks again; both are answered once the epoch is in, and it is in once."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    now_ms = sidecar.clock.wall_ms()
    first = sidecar.epochs.decide(decision((0, "a0", 1), epoch=0), now_ms=now_ms)
    second = sidecar.epochs.decide(decision((0, "a0", 1), epoch=0), now_ms=now_ms)
    assert sidecar.settle(first) == DecideReply("committed", 0)
    assert second.result() == DecideReply("duplicate", 0, "positions of 0")
    assert sidecar.records("out", 0) == ["a"]


def test_an_empty_epoch_is_remembered(sidecar: Sidecar) -> None:
    """An epoch without output touches no stream, yet counts as the last one."""
    assert decide(sidecar, decision((0, "a0", 0), epoch=5)) == DecideReply("committed", 5)
    assert decide(sidecar, decision(epoch=5)) == DecideReply("duplicate", 5, "positions of 5")
    assert sidecar.values("out", 0) == []


def test_large_output_is_published_whole(sidecar: Sidecar) -> None:
    """Pieces above what is read at a time, and many of them, arrive complete and in order."""
    sidecar = Sidecar(SimDisk(), ManualClock(), limit_bytes=64 << 20)
    sidecar.create("out", 1)
    expected = []
    for position in range(5):
        values = [f"{position}-{number}-" + "x" * 900 for number in range(900)]
        expected += values
        stage(sidecar, piece({0: values}, epoch=0, position=position))
    decide(sidecar, decision((0, "a0", 5), epoch=0))
    assert sidecar.records("out", 0) == expected


def test_batches_a_stream_would_refuse_are_not_staged(sidecar: Sidecar) -> None:
    """Announced counts that do not match the bytes are refused, and leave nothing behind."""
    request = piece({0: ["a"]}, epoch=0)
    wrong = request.parts[0].__class__("out", 0, request.parts[0].length_bytes, 1, 2)
    with pytest.raises(InvalidRecord, match="announced"):
        stage(sidecar, request.__class__("query-1", "run-1", 0, 0, "a0", 0, (wrong,), request.data))
    assert sidecar.epochs.describe("query-1").staged_bytes == 0


def test_a_full_staging_area_refuses_and_recovers(sidecar: Sidecar) -> None:
    """Above the limit staging fails naming the setting; after a commit there is room again."""
    sidecar = Sidecar(SimDisk(), ManualClock(), limit_bytes=1000)
    sidecar.create("out", 1)
    stage(sidecar, piece({0: ["a" * 300]}, epoch=0))
    with pytest.raises(StorageFailed, match=r"staging\.limit_bytes = 1000"):
        stage(sidecar, piece({0: ["b" * 600]}, epoch=0, task=1))
    decide(sidecar, decision((0, "a0", 1), epoch=0))
    stage(sidecar, piece({0: ["b" * 600]}, epoch=1))


@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_directory"])
def test_a_disk_error_kills_the_attempt_only(sidecar: Sidecar, kind: str) -> None:
    """A failed write or sync of staged data is never tried again: that attempt is dead, a new one works."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, piece({0: ["other"]}, epoch=0, task=1))

    def fault(call: FileCall) -> Fault | None:
        return EIO if call.kind == kind and "staging" in call.path else None

    disk.fault_for = fault
    with pytest.raises(StorageFailed, match="a0"):
        stage(sidecar, piece({0: ["a"]}, epoch=0))
    disk.fault_for = None
    with pytest.raises(StorageFailed):
        stage(sidecar, piece({0: ["a"]}, epoch=0))
    stage(sidecar, piece({0: ["a"]}, epoch=0, attempt="a1"))
    decide(sidecar, decision((0, "a1", 1), (1, "a0", 1), epoch=0))
    assert sidecar.records("out", 0) == ["a", "other"]


def test_a_decision_that_may_be_on_disk_keeps_its_data(sidecar: Sidecar) -> None:
    """If the ledger fails, abort drops nothing that a restart might need, and trying again commits once."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    disk.fault_for = lambda call: EIO if call.kind == "sync" and "ledger" in call.path else None
    with pytest.raises(StorageFailed):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    assert sidecar.epochs.describe("query-1").state == "unsure"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    for state in disk.crash_states():
        revived = Sidecar(state, ManualClock())
        revived.roll_forward()
        assert revived.records("out", 0) in ([], ["a"])
        assert revived.epochs.describe("query-1").state == "idle"
    disk.fault_for = None
    assert decide(sidecar, decision((0, "a0", 1), epoch=0)).outcome == "committed"
    assert sidecar.records("out", 0) == ["a"]


def test_abort_after_a_failed_decision_takes_it_back_for_good(sidecar: Sidecar) -> None:
    """Once the ledger works, abort first makes sure that the decision is not on disk, then drops the data."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    disk.fault_for = lambda call: EIO if call.kind == "sync" and "ledger" in call.path else None
    with pytest.raises(StorageFailed):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    disk.fault_for = None
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes > 0
    for state in disk.crash_states():
        revived = Sidecar(state, ManualClock())
        revived.roll_forward()
        assert revived.records("out", 0) == []
        assert revived.epochs.describe("query-1").last_epoch is None


def test_a_stream_that_fails_leaves_the_epoch_decided(sidecar: Sidecar) -> None:
    """One of two streams cannot be written: the client is told, and once the disk works the epoch is whole, once."""
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    stage(sidecar, piece({0: ["a"], 1: ["b"]}, epoch=0))
    failing = sidecar.store.stream("out", 1).directory
    disk.fault_for = lambda call: ENOSPC if call.kind == "write" and call.path.startswith(failing) else None
    with pytest.raises(StorageFailed):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    assert sidecar.epochs.describe("query-1").state == "stuck"
    assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes == 0
    disk.fault_for = None
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert (sidecar.records("out", 0), sidecar.records("out", 1)) == (["a"], ["b"])
    assert decide(sidecar, decision((0, "a0", 1), epoch=0)) == DecideReply("duplicate", 0, "positions of 0")


def test_staged_output_nobody_decides_upon_is_reclaimed(sidecar: Sidecar) -> None:
    """After the time limit it goes, and the operator is told."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    assert sidecar.epochs.describe("query-1").staged_attempts == 1
    sidecar.clock.advance(3600_001)
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert sidecar.fs.list_directory("staging") == []
    assert STAGED_DATA_EXPIRED.name in sidecar.reports.names()


def test_a_batch_job_is_forgotten_after_a_while(sidecar: Sidecar) -> None:
    """`forget` keeps the ledger small; before that, the job's commit again is a duplicate."""
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    decide(sidecar, decision((0, "a0", 1), epoch=0, forget=True))
    assert decide(sidecar, decision((0, "a0", 1), epoch=0, forget=True)).outcome == "duplicate"
    sidecar.clock.advance(8 * 24 * 3600 * 1000)
    sidecar.epochs.tick(now_ms=sidecar.clock.wall_ms())
    sidecar.run()
    assert list(sidecar.store.epochs.items()) == []


def test_a_deleted_topic_does_not_hold_up_the_others(sidecar: Sidecar) -> None:
    """A topic deleted after the decision is passed over with a report; the rest of the epoch appears."""
    sidecar.create("extra", 1)
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    stage(sidecar, piece({0: ["e"]}, epoch=0, task=1, topic="extra"))
    disk = sidecar.fs
    assert isinstance(disk, SimDisk)
    failing = sidecar.store.stream("extra", 0).directory
    disk.fault_for = lambda call: ENOSPC if call.kind == "write" and call.path.startswith(failing) else None
    with pytest.raises(StorageFailed):
        decide(sidecar, decision((0, "a0", 1), (1, "a0", 1), epoch=0))
    disk.fault_for = None
    sidecar.settle(sidecar.store.delete_topic("extra"))
    assert decide(sidecar, decision((0, "a0", 1), (1, "a0", 1), epoch=0)).outcome == "duplicate"
    assert EPOCH_TOPIC_GONE.name in sidecar.reports.names()
    assert sidecar.records("out", 0) == ["a"]
