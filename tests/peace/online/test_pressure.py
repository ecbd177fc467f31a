"""The bound on the wait where it is hard to keep: requests that need several hosts, among many that need one."""

from random import Random

import pytest

from scheduler.peace.online import Mode, Settings, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.topology import Server, Topology, both_ways
from tests.peace.online.world import World

SMALL = ("other-rack:0",)
PAIR = ("other-rack:0", "same-rack:1")
TRIPLE = ("other-rack:0", "same-rack:1", "same-rack:1")
QUEUED = 14
EVERY = 7
"""Of so many requests one is large."""


def pressure(takers: int, large: tuple[str, ...], mode: Mode, *, events: int) -> int:
    """Six writers keep the queue full for a few hosts that take one chunk each; how many large requests started.

    The world checks at every event that nobody waits longer than promised.
    """
    servers = [Server(f"w{number}", "left", 3, 2) for number in range(6)]
    servers += [Server(f"b{number}", "right", 1, 1) for number in range(takers)]
    topology = Topology(servers, both_ways("left", "right", 20), switches=["left", "right"])
    world, random = World(topology, PaperPlanner, Settings(mode), takers), Random(takers)
    for _ in range(events):
        while len(world.scheduler.status().requests) < QUEUED:
            number = len(world.done)
            placement = SMALL if number % EVERY else large
            world.submit(Submission(f"q{number}", f"w{random.randrange(6)}", 1, placement=placement))
        oldest = next(iter(world.in_flight))
        world.finish(oldest if random.random() < 0.7 else random.choice(list(world.in_flight)))
    return sum(world.request(f"q{number}").state != "waiting" for number in range(0, len(world.done), EVERY))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("takers", "large"), [(2, PAIR), (4, TRIPLE), (5, PAIR)])
def test_nobody_waits_longer_than_promised(takers: int, large: tuple[str, ...], mode: Mode) -> None:
    """However many small requests could use the hosts one by one that a large one needs together."""
    assert pressure(takers, large, mode, events=100) > 80 // EVERY


@pytest.mark.parametrize(("takers", "large"), [(2, PAIR), (4, TRIPLE), (5, PAIR)])
def test_without_a_reservation_they_do(takers: int, large: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: tokens are held for nobody; the promise is broken, and seen to be."""
    monkeypatch.setattr("scheduler.peace.online.tokens.Tokens.hold", lambda self, keys: self.owed.update({"never": 1}))
    monkeypatch.setattr("scheduler.peace.online.tokens.Tokens.release", lambda self, keys, for_good=True: None)
    with pytest.raises(AssertionError, match="waits longer than promised"):
        pressure(takers, large, Mode.CONTINUOUS, events=100)
