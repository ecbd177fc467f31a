"""Checkpoints with a real coordinator: chunks at their gos, waiting without frozen pages, and life without Peace."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from spe_adapter.checkpoint import steps
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import SinkFailed
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools, Outcome
from spe_adapter.checkpoint.names import CheckpointName
from spe_adapter.checkpoint.plans import Grant, PeaceRequests
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.sinks import FileContent
from spe_adapter.checkpoint.snapshot import Snapshot
from spe_adapter.checkpoint.steps import CheckpointState
from tests.checkpoint.state import UNIT, PagedState, recovered
from tests.checkpoint.test_service import wait_until
from tests.support.hdfs.cluster import loopback_nodes, network
from tests.support.limits import PATIENCE_S
from tests.support.steps import RecordedSteps

NODES = loopback_nodes(4, racks=2)
HOST = NODES[0].name
PAGES, PAGE_BYTES = 96, 1 << 18


class Lines:
    """Notes the log lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, object]]] = []

    def __call__(self, event: object, /, **fields: object) -> None:
        """One line."""
        self.lines.append((event.name, fields))  # type: ignore[attr-defined]

    def names(self) -> list[str]:
        """The events."""
        return [name for name, _ in self.lines]


def tools(client: CoordinatorClient, sink: DirectorySink, report: Lines) -> ManagerTools:
    """A manager's tools with Peace."""
    return ManagerTools(sink, PeaceRequests(client, HOST, 2), CoordinatorRegistry(client), report=report)


def state_of(seed: int) -> PagedState:
    """A state of three chunks."""
    return PagedState(PAGES, Random(seed), PAGE_BYTES)


def test_chunks_are_written_as_planned_and_registered(tmp_path: Path) -> None:
    """The manifest names the hosts of the plan, the coordinator lists the checkpoint, and its queue is empty again."""
    state, lines = state_of(1), Lines()
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        manager = CheckpointManager(UNIT, state.freeze, tools(client, DirectorySink(tmp_path), lines))
        outcome = manager.checkpoint()
        assert outcome.state is CheckpointState.ACKNOWLEDGED, (outcome, lines.lines)
        assert outcome.manifest is not None
        assert outcome.manifest.is_planned
        assert len(outcome.manifest.files) == 3
        newest = client.newest_checkpoint(UNIT.name)
        assert newest is not None
        assert (newest.seq, newest.epoch, newest.state_bytes) == (1, 1, PAGES * PAGE_BYTES)
        assert not client.status()["in_flight"]
        state.change()
        assert manager.checkpoint().is_complete
        found = Finder(DirectorySink(tmp_path), CoordinatorRegistry(client)).checkpoints(UNIT)
        assert [manifest.seq for manifest in found] == [2, 1]
    assert recovered(tmp_path) == (2, state.versions[2])


def test_told_to_wait_nothing_is_frozen_and_the_go_freezes_anew(tmp_path: Path) -> None:
    """While another request has all of the host, the state goes on; what is written is the version at the go."""
    state, lines = state_of(2), Lines()
    outcomes: list[Outcome] = []
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        other = client.submit(HOST, 200, 2)
        goes = other.goes()
        first = next(goes)
        manager = CheckpointManager(UNIT, state.freeze, tools(client, DirectorySink(tmp_path), lines))
        thread = threading.Thread(target=lambda: outcomes.append(manager.checkpoint()))
        thread.start()
        wait_until(lambda: state.frozen and state.frozen[0].released, "the release of the freeze")
        assert not list(tmp_path.glob("*"))
        state.change(5)
        first.failed()
        other.cancel()
        thread.join(PATIENCE_S)
    (outcome,) = outcomes
    assert outcome.is_complete, (outcome, lines.lines)
    assert outcome.manifest is not None
    assert outcome.manifest.is_planned
    assert len(state.frozen) == 2
    assert recovered(tmp_path) == (2, state.versions[2])


def test_what_a_killed_writer_requested_is_cancelled_by_the_next(tmp_path: Path) -> None:
    """The killed one had all of the host, and a request that waited; the next writer of the same owner does not wait
    for it, nor cancel its own requests and those of others.
    """
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        killed = PeaceRequests(client, HOST, 2, owner="service-1")
        assert not killed.ask(3).is_waiting
        assert killed.ask(3).is_waiting
        others = [
            PeaceRequests(client, NODES[1].name, 2, owner="service-10").ask(1),
            PeaceRequests(client, NODES[2].name, 2).ask(1),
        ]
        after = PeaceRequests(client, HOST, 2, owner="service-1")
        grants = [after.ask(3), after.ask(3)]
        assert [grant.is_waiting for grant in grants] == [False, True]
        listed = [(one["writer"], one["state"]) for one in client.status()["queue"]]
        assert sorted(listed) == sorted(
            [(HOST, "running"), (HOST, "waiting"), (NODES[1].name, "running"), (NODES[2].name, "running")]
        )
        for grant in (*grants, *others):
            grant.cancel()


def test_without_a_go_within_the_bound_there_is_no_plan(tmp_path: Path) -> None:
    """The host stays busy: the request is cancelled, the line says why, and the checkpoint is written all the same."""
    state, lines = state_of(2), Lines()
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        other = client.submit(HOST, 200, 2)
        next(other.goes())
        impatient = ManagerTools(
            DirectorySink(tmp_path), PeaceRequests(client, HOST, 2, 0.2), CoordinatorRegistry(client), report=lines
        )
        outcome = CheckpointManager(UNIT, state.freeze, impatient).checkpoint()
        waiting = [request for request in client.status()["queue"] if request["state"] == "waiting"]
        other.cancel()
    assert outcome.is_complete, (outcome, lines.lines)
    assert outcome.manifest is not None
    assert not outcome.manifest.is_planned
    (said,) = [fields["error"] for name, fields in lines.lines if name == "checkpoint_unplanned"]
    assert "no go for 0.2 s" in str(said)
    assert not waiting
    assert recovered(tmp_path) == (1, state.versions[1])


def test_other_pages_at_the_go_are_fitted_or_submitted_anew(tmp_path: Path) -> None:
    """A state that shrank below the number of granted chunks at the go is asked for anew, and written."""
    state, lines = state_of(3), Lines()
    outcomes: list[Outcome] = []
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        other = client.submit(HOST, 200, 2)
        next(other.goes())
        manager = CheckpointManager(UNIT, state.freeze, tools(client, DirectorySink(tmp_path), lines))
        thread = threading.Thread(target=lambda: outcomes.append(manager.checkpoint()))
        thread.start()
        wait_until(lambda: state.frozen and state.frozen[0].released, "the release of the freeze")
        small = PagedState(2, Random(3), PAGE_BYTES)
        state.content, state.epoch, state.versions = small.content, 2, {2: small.content.tobytes()}
        other.cancel()
        thread.join(PATIENCE_S)
        requests = client.status()
    (outcome,) = outcomes
    assert outcome.is_complete, (outcome, lines.lines)
    assert not requests["in_flight"]
    assert recovered(tmp_path) == (2, small.versions[1])


def test_without_a_coordinator_the_checkpoint_is_written_and_says_so(tmp_path: Path) -> None:
    """A coordinator that does not answer costs plan and registration, each with a line; later it is registered."""
    state, lines = state_of(4), Lines()
    with CoordinatorClient("http://127.0.0.1:1", patience_s=0.1) as client:
        manager = CheckpointManager(UNIT, state.freeze, tools(client, DirectorySink(tmp_path), lines))
        outcome = manager.checkpoint()
    assert outcome.state is CheckpointState.COMPLETE
    assert outcome.manifest is not None
    assert not outcome.manifest.is_planned
    assert lines.names() == ["checkpoint_unplanned", "checkpoint_written", "checkpoint_unregistered"]
    assert recovered(tmp_path) == (1, state.versions[1])


def test_an_unknown_host_is_no_reason_not_to_write(tmp_path: Path) -> None:
    """A coordinator that refuses the request costs the plan; the line has its reason."""
    state, lines = state_of(5), Lines()
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        strange = ManagerTools(DirectorySink(tmp_path), PeaceRequests(client, "nobody", 2), report=lines)
        outcome = CheckpointManager(UNIT, state.freeze, strange).checkpoint()
    assert outcome.is_complete
    assert "nobody" in str(lines.lines[0][1]["error"])


class FailsTwice(DirectorySink):
    """A directory that fails the first writes."""

    failures = 2

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """Fail, or write."""
        if self.failures:
            self.failures -= 1
            raise SinkFailed("not now")
        return super().write(name, file, content)


def test_a_failed_chunk_is_planned_anew(tmp_path: Path) -> None:
    """Failures are reported, and Peace gives another go; the content is whole."""
    state, lines = state_of(6), Lines()
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        sink = FailsTwice(tmp_path)
        outcome = CheckpointManager(UNIT, state.freeze, tools(client, sink, lines)).checkpoint()
    assert outcome.is_complete, lines.lines
    assert outcome.manifest is not None
    assert outcome.manifest.is_planned
    assert recovered(tmp_path) == (1, state.versions[1])


class HeldSink(DirectorySink):
    """A directory whose first chunk waits in the middle."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """Wait, then write."""
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().write(name, file, content)


def test_a_coordinator_that_goes_while_chunks_are_written_costs_the_plan_of_the_rest(tmp_path: Path) -> None:
    """Chunks without a go are written where the sink puts them; the checkpoint is whole, and no plan is claimed."""
    state, lines, sink = state_of(9), Lines(), HeldSink(tmp_path)
    outcomes: list[Outcome] = []
    with running(network(NODES, 1)) as url, CoordinatorClient(url, patience_s=0.2, poll_s=0.2) as client:
        manager = CheckpointManager(UNIT, state.freeze, tools(client, sink, lines))
        thread = threading.Thread(target=lambda: outcomes.append(manager.checkpoint()))
        thread.start()
        assert sink.begun.wait(PATIENCE_S)
        client.close()
        sink.go_on.set()
        thread.join(PATIENCE_S)
    (outcome,) = outcomes
    assert outcome.state is CheckpointState.COMPLETE, (outcome, lines.lines)
    assert outcome.manifest is not None
    assert not outcome.manifest.is_planned
    assert lines.names()[0] == "checkpoint_unplanned"
    assert recovered(tmp_path) == (1, state.versions[1])


def test_a_registry_that_lost_a_base_gets_a_full_checkpoint(tmp_path: Path) -> None:
    """A checkpoint whose base is not registered is complete, but not acknowledged; the next one is full."""
    state, lines = state_of(7), Lines()
    with running(network(NODES, 4)) as url, CoordinatorClient(url) as client:
        manager = CheckpointManager(UNIT, state.freeze, tools(client, DirectorySink(tmp_path), lines))
        assert manager.checkpoint().state is CheckpointState.ACKNOWLEDGED
        client.forget_unit(UNIT.name)
        state.change()
        assert manager.checkpoint().state is CheckpointState.COMPLETE
        state.change()
        third = manager.checkpoint()
        assert third.state is CheckpointState.ACKNOWLEDGED
        assert third.manifest is not None
        assert third.manifest.bases == ()


def test_every_step_of_the_table_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, failing at each place where pages may be asked for, skipping, succeeding: no step is left over."""
    recorded = RecordedSteps(steps.TRANSITIONS)
    monkeypatch.setattr(steps, "TRANSITIONS", recorded)
    test_told_to_wait_nothing_is_frozen_and_the_go_freezes_anew(tmp_path / "waits")
    state = state_of(8)

    def fails(since: object) -> Snapshot | None:
        raise SinkFailed("no freeze")

    sink = DirectorySink(tmp_path / "fails")
    assert not CheckpointManager(UNIT, fails, ManagerTools(sink)).checkpoint().is_complete
    assert not CheckpointManager(UNIT, lambda since: None, ManagerTools(sink)).checkpoint().is_complete
    assert (
        not CheckpointManager(UNIT, state.freeze, ManagerTools(AlwaysFails(tmp_path / "full"))).checkpoint().is_complete
    )
    with CoordinatorClient("http://127.0.0.1:1", patience_s=0.0) as client:
        client.close()
        peace = BrokenPeace(client, HOST, 1)
        assert not CheckpointManager(UNIT, state.freeze, ManagerTools(sink, peace)).checkpoint().is_complete
    assert recorded.taken == set(steps.TRANSITIONS)


class AlwaysFails(FailsTwice):
    """A directory that takes no file."""

    failures = 10**9


class BrokenPeace(PeaceRequests):
    """A coordinator's client with a bug that looks like a failed file."""

    def ask(self, chunks: int) -> Grant:
        """Fail."""
        raise OSError("a bug")
