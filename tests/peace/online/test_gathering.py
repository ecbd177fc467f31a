"""Events that are gathered: recorded at once, planned together when they are due, by whoever keeps the time."""

from dataclasses import replace
from random import Random

import pytest

from scheduler.errors import RequestError
from scheduler.peace.online import EventOutcome, Mode, OnlineScheduler, Settings, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.repaired import RepairedPlanner
from scheduler.topology import Topology, racks
from tests.peace.online.world import World

NETWORK = racks([4, 4], 4)
SETTINGS = Settings(gather_ms=10)


def scheduler(settings: Settings = SETTINGS, topology: Topology = NETWORK) -> OnlineScheduler:
    """One that gathers."""
    return OnlineScheduler(topology, PaperPlanner(topology), settings, Random(1))


def write(name: str, writer: str, chunks: int = 1) -> Submission:
    """A checkpoint."""
    return Submission(name, writer, chunks)


@pytest.mark.parametrize("mode", Mode)
def test_an_event_starts_nothing_until_it_is_planned(mode: Mode) -> None:
    """The first event sets the time for all that follow; a plan starts what all of them allow, and then none is due."""
    found = scheduler(Settings(mode, gather_ms=10))
    due = [found.plan_at_ms]
    assert found.plan(0).ignored == "nothing was gathered"
    for name, writer, now_ms in (("a", "r1h1", 100), ("b", "r2h1", 109)):
        assert found.submit(write(name, writer), now_ms).go == ()
        due.append(found.plan_at_ms)
    assert found.place("b").chunks_ahead == 1
    assert {go.request for go in found.plan(110).go} == {"a", "b"}
    assert [*due, found.plan_at_ms] == [None, 110, 110, None]


def test_a_plan_may_come_early_or_late() -> None:
    """A timer is never exact: whatever the time, what was gathered is planned once."""
    for now_ms in (0, 100, 5000):
        found = scheduler()
        found.submit(write("a", "r1h1"), 100)
        assert [go.request for go in found.plan(now_ms).go] == ["a"]
        assert found.plan(now_ms).ignored


def test_what_changes_nothing_is_not_gathered() -> None:
    """A report that is told again, or refused, sets no timer."""
    found = scheduler()
    found.submit(write("a", "r1h1"), 0)
    (go,) = found.plan(10).go
    assert found.done("a", go.chunk, go.attempt, 500).finished == ("a",)
    found.plan(502)
    assert found.done("a", go.chunk, go.attempt, 600).ignored
    with pytest.raises(RequestError):
        found.submit(write("b", "nobody"), 600)
    assert found.plan_at_ms is None


def test_what_ends_before_its_plan_never_starts() -> None:
    """A request that is cancelled, or whose host is lost, in between; what it had in flight is revoked at once."""
    found = scheduler()
    found.submit(write("a", "r1h1", 3), 0)
    assert len(found.plan(10).go) == 2
    assert len(found.cancel("a", 20).revoked) == 2
    found.submit(write("b", "r2h1"), 21)
    assert found.host_lost("r2h1", 22).given_up == ("b",)
    found.submit(write("c", "r2h2"), 23)
    assert {go.request for go in found.plan(30).go} == {"c"}


@pytest.mark.parametrize(("took_ms", "window_ms"), [(100, 1), (400, 2), (1000, 5), (60_000, 10)])
def test_short_chunks_are_gathered_for_a_shorter_time(took_ms: int, window_ms: int) -> None:
    """Half a percent of what the last chunk took, and no more than the setting."""
    found = scheduler()
    found.submit(write("a", "r1h1", 2), 0)
    (go, _) = found.plan(10).go
    found.done("a", go.chunk, go.attempt, 10 + took_ms)
    assert found.plan_at_ms == 10 + took_ms + window_ms


def test_a_restart_plans_all_that_waits() -> None:
    """What was gathered is in no record; whoever restores has it planned at once."""
    world = World(NETWORK, PaperPlanner, replace(SETTINGS, gather_ms=50))
    world.submit(write("a", "r1h1"))
    assert not world.in_flight
    world.restart()
    assert len(world.in_flight) == 1
    assert world.scheduler.plan_at_ms is None


def test_many_events_do_the_work_of_many() -> None:
    """However many submit within the time that is gathered, whoever has room starts in the plan: not only the first."""
    topology = racks([35] * 20, 35)
    found = OnlineScheduler(topology, RepairedPlanner(topology), SETTINGS, Random(1))
    found.submit(Submission("busy", "r1h1", 2, placement=("same-rack:0&other-host:0",)), 0)
    found.plan(10)
    for server in topology.servers:
        found.submit(Submission(server.name, server.name, 1, placement=("same-rack:0&other-host:0",)), 20)
    assert found.status().requests[1].name == "r1h1", "who cannot start is the head of the queue"
    assert len(found.plan(30).go) == len(topology.servers) - 1


def test_the_same_events_give_the_same_plans() -> None:
    """Times come in as arguments, and chance as a seed."""

    def life() -> list[EventOutcome]:
        found = scheduler()
        outcomes = [found.submit(write(f"a{number}", f"r1h{number}", 3), number) for number in range(1, 5)]
        outcomes.append(found.plan(11))
        outcomes += [found.done(go.request, go.chunk, go.attempt, 900) for go in outcomes[-1].go]
        return [*outcomes, found.plan(904)]

    assert life() == life()


def test_the_time_that_is_gathered_is_bounded() -> None:
    """A second at most: more would be a mistake of units."""
    with pytest.raises(RequestError, match="gather_ms"):
        Settings(gather_ms=1001)
    with pytest.raises(RequestError, match="gather_ms"):
        Settings(gather_ms=-1)
