"""Chunks that hang: what they hold is free again after their deadline, and a writer that only hangs is given up."""

import pytest

from scheduler.peace.online import Mode, Settings, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.topology import racks
from tests.peace.online.world import World


@pytest.mark.parametrize("mode", list(Mode))
def test_a_chunk_that_hangs_gives_its_capacity_back(mode: Mode) -> None:
    """It is revoked and planned anew around its chain's hosts; who waited for its link goes on."""
    world = World(racks([4, 4], 1), PaperPlanner, Settings(mode=mode))
    hung = world.submit(Submission("hung", "r1h1", 1, placement=("other-rack:0",))).go[0]
    assert not world.submit(Submission("behind", "r1h2", 1, placement=("other-rack:0",))).go, "the link is full"
    outcome = world.expire(("hung", 0, 1))
    assert outcome.revoked == (hung,)
    assert world.request("hung").avoid == (hung.hosts[1],), "the writer itself is no suspect"
    while ("behind", 0, 1) not in world.in_flight:
        world.finish(("hung", 0, 2))
    again = next(go for go in outcome.go if go.request == "hung")
    assert (again.attempt, hung.hosts[1] in again.hosts) == (2, False)
    assert world.scheduler.done("hung", 0, 1, 0).ignored is not None
    assert world.scheduler.overdue("hung", 0, 1, 0).ignored is not None


def test_a_writer_that_only_hangs_is_given_up() -> None:
    """After the last attempt its request has failed, and holds nothing any more."""
    world = World(racks([4, 4], 1), PaperPlanner, Settings(max_attempts=3))
    world.submit(Submission("hung", "r1h1", 1, placement=("other-rack:0",)))
    for attempt in (1, 2, 3):
        world.expire(("hung", 0, attempt))
    assert world.request("hung").state == "failed"
    assert "attempt 3 of chunk 0 took too long" in world.request("hung").reason
    assert not any(use.used for use in world.scheduler.status().uses)
