"""Every step of a query's table is taken by some story, and every other step is refused."""

from __future__ import annotations

from itertools import product

import pytest

from logstore.epochs import epochs
from logstore.epochs.decisions import TRANSITIONS, Event, Runs, State
from logstore.errors import StorageFailed
from logstore.format.private import AbortRequest
from logstore.log.ticket import Ticket
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar, decide, decision, piece, stage


class Recording(dict[tuple[State, Event], State]):
    """The table, noting which steps are taken."""

    def __init__(self) -> None:
        super().__init__(TRANSITIONS)
        self.taken: set[tuple[State, Event]] = set()

    def get(self, step: tuple[State, Event], default: State | None = None) -> State | None:  # type: ignore[override]
        """The state that follows."""
        self.taken.add(step)
        return super().get(step, default)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """The table that the code runs in this test."""
    recording = Recording()
    monkeypatch.setattr(epochs, "TRANSITIONS", recording)
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
    """A decision is refused and taken back; another is refused and decided again."""
    sidecar, disk = a_sidecar()
    for epoch in (0, 1):
        stage(sidecar, piece({0: ["a"]}, epoch=0))
        fail(disk, "sync", "ledger")
        with pytest.raises(StorageFailed):
            decide(sidecar, decision((0, "a0", 1), epoch=0))
        fail(disk, "", "")
        if epoch:
            assert decide(sidecar, decision((0, "a0", 1), epoch=0)).outcome == "committed"
        else:
            assert sidecar.settle(sidecar.epochs.abort(AbortRequest("query-1", "run-1", 0))).dropped_bytes


def stream_fails() -> None:
    """A stream fails and is tried again; the next epoch is decided in front of the mark; a restart finds a decision."""
    sidecar, disk = a_sidecar()
    stage(sidecar, piece({0: ["a"]}, epoch=0))
    stage(sidecar, piece({0: ["b"]}, epoch=1))
    fail(disk, "write", "streams")
    with pytest.raises(StorageFailed):
        decide(sidecar, decision((0, "a0", 1), epoch=0))
    revived = Sidecar(disk.kill_state(), ManualClock())
    revived.roll_forward()
    assert revived.records("out", 0) == ["a"]
    fail(disk, "", "")
    now_ms = sidecar.clock.wall_ms()
    first = sidecar.epochs.decide(decision((0, "a0", 1), epoch=0), now_ms=now_ms)
    second = sidecar.epochs.decide(decision((0, "a0", 1), epoch=1), now_ms=now_ms)
    assert (sidecar.settle(first).outcome, second.result().outcome) == ("duplicate", "committed")
    assert sidecar.records("out", 0) == ["a", "b"]


def test_every_step_of_the_table_is_taken(table: Recording) -> None:
    """By the two stories together; no step outside the table is tried."""
    ledger_fails()
    stream_fails()
    assert table.taken == set(TRANSITIONS)


@pytest.mark.parametrize(("state", "event"), sorted(set(product(State, Event)) - set(TRANSITIONS), key=repr))
def test_every_other_step_is_refused(state: State, event: Event) -> None:
    """The query stays as it is, and the defect is named."""
    query = epochs._Query("q", Runs(("run",), 1, 0), Ticket.succeeded(None), state=state)
    with pytest.raises(AssertionError, match=event.value):
        query.move(event)
    assert query.state is state
