"""Every step of the tables of epochs and of staged attempts is taken by a story, and every other step is refused."""

from __future__ import annotations

from itertools import product

import pytest

from logstore.epochs import query as query_module
from logstore.epochs import staging
from logstore.epochs.ledger_entries import TRANSITIONS, EpochEvent, EpochState, Incarnations
from logstore.errors import StorageFailed
from logstore.format.epoch_api import AbortRequest, StageReply
from logstore.format.staged import AttemptKey
from logstore.log.jobs import DiskJob, Operation
from logstore.log.ticket import Ticket
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar, commit, commit_request, segment, stage
from tests.support.steps import RecordedSteps


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> RecordedSteps[EpochState, EpochEvent]:
    """The table that the code runs in this test."""
    recording = RecordedSteps(TRANSITIONS)
    monkeypatch.setattr(query_module, "TRANSITIONS", recording)
    return recording


def a_sidecar() -> tuple[Sidecar, SimDisk]:
    """A new sidecar with a topic."""
    disk = SimDisk()
    sidecar = Sidecar(disk, ManualClock())
    sidecar.roll_forward()
    sidecar.create("out", 2)
    return sidecar, disk


def fail(disk: SimDisk, kind: str, path: str) -> None:
    """Let all calls of a kind fail for paths that contain `path`; an empty kind ends that."""
    disk.fault_for = (lambda call: EIO if call.kind == kind and path in call.path else None) if kind else None


def ledger_fails() -> None:
    """A commit is refused and taken back; another is refused and made again."""
    sidecar, disk = a_sidecar()
    for epoch in (0, 1):
        stage(sidecar, segment({0: ["a"]}, epoch=0))
        fail(disk, "sync", "ledger")
        with pytest.raises(StorageFailed):
            commit(sidecar, commit_request((0, "a0", 1), epoch=0))
        fail(disk, "", "")
        if epoch:
            assert commit(sidecar, commit_request((0, "a0", 1), epoch=0)).outcome == "committed"
        else:
            assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes


def stream_fails() -> None:
    """A stream fails and is tried again; the next epoch is committed before the mark; a restart finds a record."""
    sidecar, disk = a_sidecar()
    stage(sidecar, segment({0: ["a"]}, epoch=0))
    stage(sidecar, segment({0: ["b"]}, epoch=1))
    fail(disk, "write", "streams")
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.records("out", 0) == ["a"]
    fail(disk, "", "")
    now_ms = sidecar.clock.wall_ms()
    first = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=0), now_ms=now_ms)
    second = sidecar.epochs.commit(commit_request((0, "a0", 1), epoch=1), now_ms=now_ms)
    assert (sidecar.settle(first).outcome, second.result().outcome) == ("duplicate", "committed")
    assert sidecar.records("out", 0) == ["a", "b"]


def block_fails() -> None:
    """The block of an epoch fails, and the ledger behind it; a newer incarnation waits for the epoch."""
    sidecar, disk = a_sidecar()
    for epoch in (0, 1):
        stage(sidecar, segment({0: ["a"]}, epoch=epoch))
    commit(sidecar, commit_request((0, "a0", 1), epoch=0))
    disk.fault_for = lambda call: EIO if call.kind == "sync" and call.path.startswith(("ledger", "journal")) else None
    with pytest.raises(StorageFailed):
        commit(sidecar, commit_request((0, "a0", 1), epoch=1))
    assert sidecar.epochs.describe("query-1").state == "stuck"
    assert not sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 1))).dropped_bytes
    with pytest.raises(StorageFailed, match="epoch 1 is decided"):
        stage(sidecar, segment({0: ["b"]}, epoch=1, incarnation="run-2"))
    fail(disk, "", "")
    stage(sidecar, segment({0: ["b"]}, epoch=1, incarnation="run-2"))
    assert sidecar.epochs.describe("query-1").last_epoch == 1
    assert sidecar.records("out", 0) == ["a", "a"]


def test_every_step_of_the_table_is_taken(table: RecordedSteps[EpochState, EpochEvent]) -> None:
    """By the three stories together; no step outside the table is tried."""
    ledger_fails()
    stream_fails()
    block_fails()
    assert table.taken == set(TRANSITIONS)


ATTEMPT = AttemptKey("query-1", "run-1", 0, 0, "a0")


def run_one(sidecar: Sidecar) -> tuple[DiskJob, tuple[Operation, OSError] | None]:
    """Run the next job, without giving it back."""
    job = sidecar.store.queue.next_job()
    assert job is not None
    return job, job.run(sidecar.fs)


def drop(sidecar: Sidecar, attempt: staging.StagedAttempt) -> None:
    """As the epochs would, when nobody needs the attempt."""
    sidecar.staging.drop([attempt.key])


def begin(sidecar: Sidecar) -> tuple[Ticket[StageReply], staging.StagedAttempt]:
    """Stage one frame without running its write."""
    ticket = sidecar.epochs.stage(segment({0: ["a"]}, epoch=0), now_ms=sidecar.clock.wall_ms())
    attempt = sidecar.staging.get(ATTEMPT)
    assert attempt is not None
    return ticket, attempt


def test_every_step_of_an_attempt_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped before, during and behind a write, a failed write, and during the removal; no byte counts for ever."""
    table = RecordedSteps(staging.TRANSITIONS)
    monkeypatch.setattr(staging, "TRANSITIONS", table)
    sidecar, disk = a_sidecar()
    stage(sidecar, segment({0: ["of another attempt"]}, epoch=0, task=1))  # admits the incarnation
    used_bytes = sidecar.staging.used_bytes

    ticket, attempt = begin(sidecar)
    drop(sidecar, attempt)
    assert isinstance(ticket.error, StorageFailed)
    attempt.drop()

    for fails in (False, True):
        ticket, attempt = begin(sidecar)
        fail(disk, "sync" if fails else "", "staging")
        job, outcome = run_one(sidecar)
        drop(sidecar, attempt)
        sidecar.store.queue.finished(job, outcome)
        fail(disk, "", "")
        attempt.drop()
        removal, outcome = run_one(sidecar)
        attempt.drop()
        sidecar.store.queue.finished(removal, outcome)
        assert (ticket.error is not None) == fails

    ticket, attempt = begin(sidecar)
    fail(disk, "write", "staging")
    sidecar.run()
    fail(disk, "", "")
    assert isinstance(ticket.error, StorageFailed)
    drop(sidecar, attempt)

    ticket, attempt = begin(sidecar)
    sidecar.run()
    stage(sidecar, segment({0: ["b"]}, epoch=0, position=1))
    drop(sidecar, attempt)
    sidecar.run()
    assert sidecar.staging.used_bytes == used_bytes
    assert table.taken == set(staging.TRANSITIONS)


@pytest.mark.parametrize(
    ("state", "event"),
    sorted(set(product(staging.AttemptState, staging.AttemptEvent)) - set(staging.TRANSITIONS), key=repr),
)
def test_every_other_step_of_an_attempt_is_refused(state: staging.AttemptState, event: staging.AttemptEvent) -> None:
    """The attempt stays as it is, and the defect is named."""
    attempt = staging.StagedAttempt(ATTEMPT, "path", lambda _: None, lambda _: None)
    attempt.state = state
    with pytest.raises(AssertionError, match=event.value):
        attempt.move(event)
    assert attempt.state is state


@pytest.mark.parametrize(("state", "event"), sorted(set(product(EpochState, EpochEvent)) - set(TRANSITIONS), key=repr))
def test_every_other_step_is_refused(state: EpochState, event: EpochEvent) -> None:
    """The query stays as it is, and the defect is named."""
    query = query_module.Query("q", Incarnations(("run",), 1, 0), Ticket.succeeded(None), state=state)
    with pytest.raises(AssertionError, match=event.value):
        query.move(event)
    assert query.state is state
