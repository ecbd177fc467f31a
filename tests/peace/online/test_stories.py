"""What the online scheduler promises, as stories on small networks: waiting, priorities, failures, losses."""

import gc
from collections.abc import Sequence
from random import Random

import pytest

from scheduler.errors import RequestError
from scheduler.peace.online import (
    ChunkRecord,
    Mode,
    OnlineScheduler,
    RequestRecord,
    RequestState,
    Settings,
    Stragglers,
    Submission,
)
from scheduler.peace.online.continuous import Continuous
from scheduler.peace.online.jobs import ChunkUnit, TransferJob
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.online.unreachable import UnreachableUnits
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind, TransferPlan
from scheduler.topology import Server, Topology, both_ways, racks
from tests.peace.online.world import World


def world_of(topology: Topology, **settings: object) -> World:
    """A world with planner `paper`."""
    return World(topology, PaperPlanner, Settings(**settings))  # type: ignore[arg-type]


def two_racks(receive: int = 1) -> Topology:
    """Writers a, c, d in one rack, b1 and b2 in the other, wide links between."""
    servers = [Server(name, "left", 2, 2) for name in "acd"]
    servers += [Server(name, "right", 2, receive) for name in ("b1", "b2")]
    return Topology(servers, both_ways("left", "right", 8), switches=["left", "right"])


# ---- the reservation


def starvation(world: World, rounds: int) -> int:
    """A head that needs both hosts of a rack at once, against writers that take one each, alternately.

    Returns the completions until it starts, at most `rounds`.
    """
    one = Submission("c0", "c", 1, placement=("other-rack:0",))
    world.submit(one)
    world.submit(Submission("d0", "d", 1, placement=("other-rack:0",)))
    world.submit(Submission("head", "a", 1, placement=("other-rack:0", "same-rack:1")))
    for number in range(1, rounds + 1):
        world.submit(Submission(f"c{number}", "cd"[number % 2], 1, placement=("other-rack:0",)))
        if world.request("head").state != "waiting":
            return number - 1
        world.finish(next(iter(world.in_flight)))
    return rounds


def test_the_head_is_not_starved_by_those_behind() -> None:
    """A head that needs two hosts at once starts after the two chunks in its way, whatever else arrives."""
    assert starvation(world_of(two_racks()), 50) <= 2


def test_without_a_reservation_the_head_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: tokens are held for nobody; then the promise is broken, and seen to be."""
    monkeypatch.setattr("scheduler.peace.online.tokens.Tokens.hold", lambda self, keys: self.owed.update({"never": 1}))
    monkeypatch.setattr("scheduler.peace.online.tokens.Tokens.release", lambda self, keys, for_good=True: None)
    with pytest.raises(AssertionError, match="waits longer than promised"):
        starvation(world_of(two_racks()), 50)


def test_a_writer_at_its_full_rate_holds_nothing_back() -> None:
    """A head that waits for its own sending side only leaves all other capacity to those behind it."""
    world = world_of(two_racks(receive=4), max_tries=16)
    world.submit(Submission("big", "a", 6, placement=("other-rack:0",)))
    outcome = world.submit(Submission("next", "c", 2, placement=("other-rack:0",)))
    assert len(outcome.go) == 2
    assert world.scheduler.status().head == "big"
    assert world.scheduler.status().reserved == ()


def test_others_start_with_what_the_head_leaves() -> None:
    """While the head holds one rack's hosts, a write within the other rack starts at once."""
    world = world_of(two_racks())
    world.submit(Submission("c0", "c", 1, placement=("other-rack:0",)))
    world.submit(Submission("head", "a", 1, placement=("other-rack:0", "same-rack:1")))
    assert set(world.scheduler.status().reserved) == {"a", "b1", "b2"}
    assert not world.submit(Submission("late", "d", 1, placement=("other-rack:0",))).go
    assert world.submit(Submission("inside", "d", 1, placement=("same-rack:0",))).go


def test_what_could_start_does_start() -> None:
    """Continuous mode conserves work: after an event hardly any request that waits has a path beside the reservation.

    Hardly any, because planners look one replica ahead and pick at random: a search may end in a dead end.
    """
    topology = racks([4, 5], 3)
    missed = tried = 0
    for seed in range(4):
        world = World(topology, PaperPlanner, Settings(), seed)
        random, probe = Random(seed), PaperPlanner(topology)
        for number in range(9):
            world.submit(Submission(f"q{number}", topology.servers[number].name, 2))
        while world.in_flight:
            world.finish(random.choice(sorted(world.in_flight)))
            assert isinstance(world.scheduler._policy, Continuous)
            left = world.scheduler._policy._tokens.left
            for job in world.scheduler._queue:
                unit = job.next_unit()
                if unit is not None and job.name != world.scheduler.status().head:
                    tried += 1
                    missed += any(probe.chain(unit.request, 0, left.copy(), random) for _ in range(5))
    assert tried > 100
    assert missed / tried < 0.1


def test_chunks_of_a_checkpoint_stay_together() -> None:
    """Sixteen checkpoints at once on the paper's cluster: few are under way at a time, and they end about in order."""
    topology = racks([8, 9], 4)
    world = world_of(topology)
    for number in range(16):
        world.submit(Submission(f"q{number:02}", topology.servers[number].name, 4))
    ended: list[str] = []
    random = Random(1)
    while world.in_flight:
        oldest = sorted(world.in_flight, key=lambda attempt: list(world.in_flight).index(attempt))[:4]
        ended += world.finish(random.choice(oldest)).finished
    displaced = sum(abs(place - sorted(ended).index(name)) for place, name in enumerate(ended)) / len(ended)
    assert world.running / world.events < 8, "checkpoints are interleaved"
    assert displaced < 4


# ---- priorities


def test_priority_goes_first_and_ages() -> None:
    """A later request of higher priority overtakes, but not one that has waited longer than the priority is worth."""
    world = world_of(racks([3], 1, send=1), priority_ms=100)
    place = ("anywhere",)
    for host in range(1, 4):
        world.submit(Submission(f"busy{host}", f"r1h{host}", 2, placement=place))
    world.submit(Submission("low", "r1h1", 1, placement=place))
    world.submit(Submission("high", "r1h1", 1, placement=place, priority=9))
    assert world.scheduler.place("high").requests_ahead < world.scheduler.place("low").requests_ahead
    world.now_ms += 1000
    world.submit(Submission("later", "r1h1", 1, placement=place, priority=9))
    assert world.scheduler.place("low").requests_ahead < world.scheduler.place("later").requests_ahead


# ---- told at once


def test_a_request_that_cannot_start_is_told_its_place() -> None:
    """The outcome has no go, and the place counts requests and chunks ahead; a smaller re-submission keeps it."""
    world = world_of(racks([2], 1, send=1))
    assert world.submit(Submission("first", "r1h1", 3, placement=("anywhere",))).go
    assert not world.submit(Submission("second", "r1h1", 5, placement=("anywhere",))).go
    world.submit(Submission("third", "r1h1", 1, placement=("anywhere",)))
    assert world.scheduler.place("second") == (1, 2, 6)
    assert world.scheduler.place("third") == (2, 7, 16)
    world.resubmit("second", 4)
    assert world.scheduler.place("second") == (1, 2, 6)
    world.resubmit("second", 6)
    assert world.scheduler.place("third") == (1, 2, 6)
    assert world.scheduler.place("second") == (2, 3, 8)
    with pytest.raises(RequestError, match="request"):
        world.resubmit("first", 2)


# ---- failures and losses


def test_a_suspect_is_avoided_while_there_is_another() -> None:
    """A failed chunk goes around its suspect, or waits for a host that is not one; without any other it goes back."""
    world = world_of(racks([3], 1, send=1))
    go = world.submit(Submission("q", "r1h1", 1, placement=("anywhere",))).go[0]
    other = ({"r1h2", "r1h3"} - {go.hosts[1]}).pop()
    again = world.fail((go.request, 0, 1), (go.hosts[1],)).go[0]
    assert (again.attempt, again.hosts[1]) == (2, other)
    assert world.fail((go.request, 0, 2), (other,)).go[0].attempt == 3


def test_attempts_are_bounded() -> None:
    """After the last attempt the request has failed, with the reason; its other chunks are revoked."""
    world = world_of(racks([3], 1), max_attempts=2)
    world.submit(Submission("q", "r1h1", 2, placement=("anywhere",)))
    world.fail(("q", 0, 1))
    outcome = world.fail(("q", 0, 2), ("r1h2",))
    assert outcome.given_up == ("q",)
    assert [go.chunk for go in outcome.revoked] == [1]
    assert world.request("q").state == "failed"
    assert "last of 2 attempts" in world.request("q").reason


def test_a_lost_host_revokes_what_passes_through_it() -> None:
    """Chains through a lost host are planned again without it, its own requests are cancelled, nothing else moves."""
    world = world_of(racks([4], 1, send=1))
    through = world.submit(Submission("q", "r1h1", 1, placement=("anywhere",))).go[0]
    world.submit(Submission("own", through.hosts[1], 1, placement=("anywhere",)))
    outcome = world.lose(through.hosts[1])
    assert through in outcome.revoked
    assert outcome.given_up == ("own",)
    assert [(go.request, go.attempt) for go in outcome.go] == [("q", 2)]
    assert world.scheduler.host_lost(through.hosts[1], 0).ignored is not None
    with pytest.raises(RequestError, match="writer"):
        world.submit(Submission("new", through.hosts[1], 1, placement=("anywhere",)))


def test_a_request_without_a_path_lets_others_pass() -> None:
    """While a rack is lost, a write into it is stranded and others go on; when a host is back, it starts."""
    world = world_of(two_racks())
    world.lose("b1")
    world.submit(Submission("stranded", "a", 1, placement=("other-rack:0", "same-rack:1")))
    assert world.submit(Submission("other", "c", 1, placement=("same-rack:0",))).go
    assert [each.unreachable for each in world.scheduler.status().requests] == [True, False]
    assert world.scheduler.unreachable() == {"stranded"}
    assert [go.request for go in world.regain("b1").go] == ["stranded"]
    assert world.scheduler.unreachable() == frozenset()


def test_a_chunk_without_a_source_fails_its_request() -> None:
    """Sources fall away with their hosts; a copy whose chunk has none left has failed and says why."""
    world = world_of(racks([4], 1))
    sources = (("r1h1", "r1h2"), ("r1h2",))
    world.submit(Submission("copy", None, 2, placement=None, kind=TransferKind.COPY, sources=sources))
    world.lose("r1h1")
    assert world.request("copy").state == "running"
    assert all(go.go.hosts[0] == "r1h2" for go in world.scheduler.status().in_flight)
    assert world.lose("r1h2").given_up == ("copy",)
    assert "no source left" in world.request("copy").reason


def test_a_read_takes_each_chunk_from_a_host_that_has_it() -> None:
    """Recovery reads share the plan: from a source, to the reader; a reader's own copy needs no network."""
    world = world_of(racks([4], 1))
    sources = (("r1h2",), ("r1h1", "r1h3"))
    outcome = world.submit(Submission("read", "r1h1", 2, kind=TransferKind.READ, sources=sources))
    assert [go.hosts for go in outcome.go] == [("r1h2", "r1h1"), ("r1h1", "r1h1")]


def test_a_loss_elsewhere_leaves_the_reservation() -> None:
    """Hosts that are not in the reserved chain come and go; the chain stays, or the head would begin anew each time."""
    servers = [Server(name, "left", 3, 2) for name in ("a", "c", "d", "e")]
    servers += [Server(f"b{number}", "right", 2, 1) for number in range(6)]
    topology = Topology(servers, both_ways("left", "right", 8), switches=["left", "right"])
    world = world_of(topology)
    for name in "cd":
        world.submit(Submission(name, name, 3, placement=("other-rack:0",)))
    world.submit(Submission("head", "a", 1, placement=("other-rack:0", "same-rack:1")))
    reserved = world.scheduler.status().reserved
    assert len(reserved) == 3
    for _ in range(5):
        world.lose("e")
        assert world.scheduler.status().reserved == reserved
        world.regain("e")
        assert world.scheduler.status().reserved == reserved
    world.lose(reserved[1])
    assert reserved[1] not in world.scheduler.status().reserved


def test_what_a_stranded_head_held_is_free_at_once() -> None:
    """The head waits for its own sending side; when that is free it has no path any more: others of its host have."""
    world = world_of(racks([4, 1], 4, send=1, receive=4))
    world.submit(Submission("busy", "r1h1", 1, placement=("same-rack:0",)))
    world.submit(Submission("busy too", "r1h2", 1, placement=("same-rack:0",)))
    world.submit(Submission("head", "r1h1", 1, placement=("other-rack:0",)))
    world.submit(Submission("next head", "r1h2", 1, placement=("same-rack:0",)))
    world.submit(Submission("behind", "r1h1", 1, placement=("same-rack:0",)))
    world.lose("r2h1")
    assert [go.request for go in world.finish(("busy", 0, 1)).go] == ["behind"]
    assert [each.name for each in world.scheduler.status().requests if each.unreachable] == ["head"]


class Unlucky(PaperPlanner):
    """Runs into dead ends only, for one request, while `unlucky`."""

    unlucky = True

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """As planner `paper`, if it is lucky."""
        return None if self.unlucky and request.name == "head" else super().chain(request, chunk, residual, random)

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """The same."""
        return super().plan([each for each in requests if not self.unlucky or each.name != "head"], residual, random)


@pytest.mark.parametrize("mode", Mode)
def test_a_request_that_was_stranded_by_chance_comes_back(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while others keep the network busy, and although it needs two hosts at once that they take one by one."""
    monkeypatch.setattr("scheduler.peace.online.intake.PathCheck.check", lambda self, job: None)
    world = World(two_racks(), Unlucky, Settings(mode, finish_fraction=0.5))
    starved = starvation(world, 10)
    assert starved == 10
    assert [each.name for each in world.scheduler.status().requests if each.unreachable] == ["head"]
    monkeypatch.setattr(Unlucky, "unlucky", False)
    for number in range(20):
        world.submit(Submission(f"more{number}", "cd"[number % 2], 1, placement=("other-rack:0",)))
        world.finish(next(iter(world.in_flight)))
        if world.request("head").state != "waiting":
            return
    pytest.fail("the head starves")


def test_nothing_is_kept_of_stranded_requests_that_left() -> None:
    """Cancelled, or submitted again with another size, while hosts are lost and others keep the network busy."""
    world = world_of(two_racks())
    world.submit(Submission("busy", "c", 1, placement=("same-rack:0",)))
    world.lose("b1")
    for number in range(6):
        world.submit(Submission(f"q{number}", "a", 2, placement=("other-rack:0", "same-rack:1")))
        world.resubmit(f"q{number}", 1)
        world.cancel(f"q{number}")
    policy = world.scheduler._policy
    assert isinstance(policy, Continuous)
    assert not policy._unreachable._units


def test_what_left_the_queue_is_forgotten_although_a_chunk_hangs() -> None:
    """Requests that waited for its source are cancelled again and again; they leave nothing that grows."""
    world = world_of(racks([3], 1, send=1))
    units = sum(isinstance(each, ChunkUnit) for each in gc.get_objects())
    sources = [(("r1h2",),), (("r1h2", "r1h3"),), (("r1h3",),)]
    for number, each in enumerate(sources):
        world.scheduler.submit(Submission(f"hangs {number}", "r1h1", 1, kind=TransferKind.READ, sources=each), 0)
    for number in range(1000):
        chunks = 1 + number % 50
        many = sources[number % 3] * chunks
        world.scheduler.submit(Submission(f"q{number}", "r1h1", chunks, kind=TransferKind.READ, sources=many), 0)
        world.scheduler.cancel(f"q{number}", 0)
    assert sum(isinstance(each, ChunkUnit) for each in gc.get_objects()) < units + 500


def test_a_request_of_stranded_chunks_only_is_out_of_the_line() -> None:
    """Although one of its units has nothing that waits any more: a job at the head must have something to serve."""
    topology, queue = racks([3], 1), RankedQueue()
    job = TransferJob("head", TransferKind.COPY, -1, ((),), 6)
    job.sources = tuple((chunk % 2,) for chunk in range(6))
    job.sort(())
    job.waiting = 6
    unreachable = UnreachableUnits(queue, Unlucky(topology), Random(1), Residual.full(topology))
    queue.put(job, job.waiting)
    for unit in job.units:
        unreachable.add(unit)
    assert queue.first is None
    while job.units[0].waiting:
        job.units[0].take()
        job.waiting -= 1
    assert unreachable.retry_some(idle=True) == [job.units[0]]
    assert queue.first is None


def test_a_cancelled_request_stays_cancelled() -> None:
    """Also when a host comes back that had chunks which the request was submitted again without."""
    world = world_of(racks([4], 1, send=1))
    for host in ("r1h1", "r1h2"):
        world.submit(Submission(f"busy {host}", None, 1, kind=TransferKind.COPY, sources=((host,),)))
    world.submit(Submission("copy", None, 2, kind=TransferKind.COPY, sources=(("r1h1",), ("r1h1", "r1h2"))))
    world.resubmit("copy", 1)
    world.cancel("copy")
    world.lose("r1h2")
    world.regain("r1h2")
    world.drain(Random(1))
    assert not any(name == "copy" for name, _ in world.attempts)


def test_a_host_that_is_back_is_told_in_the_order_of_the_requests() -> None:
    """What is stored after an event is the same in every run: never in an order that hangs on addresses in memory."""
    world = world_of(racks([12], 1))
    names = [f"q{number:02}" for number in range(10)]
    for number, name in enumerate(names):
        world.submit(Submission(name, f"r1h{number + 1}", 2, placement=("anywhere",)))
    for name in names:
        attempt = next(attempt for attempt in sorted(world.in_flight) if attempt[0] == name)
        world.fail(attempt, ("r1h12",))
    world.lose("r1h12")
    changed = world.regain("r1h12").changed
    assert [record.name for record in changed if isinstance(record, RequestRecord)] == names


def test_what_a_head_leaves_of_its_reservation_is_free_at_once() -> None:
    """It finds another way earlier than the reserved one; a host that was held for it takes the next chunk at once."""
    names = [("a", "left"), ("d", "left"), ("b1", "right"), ("b2", "right"), ("e1", "far"), ("e2", "far")]
    servers = [Server(name, rack, 4, 1) for name, rack in names] + [Server("w", "right", 1, 0)]
    links = [link for rack in ("left", "right", "far") for link in both_ways(rack, "core", 8)]
    topology = Topology(servers, links, switches=["core", "left", "right", "far"])
    pair = ("other-rack:0", "same-rack:1")
    for seed in range(20):
        world = World(topology, PaperPlanner, Settings(), seed)
        world.submit(Submission("in the way", "w", 1, placement=("same-rack:0",)))
        world.submit(Submission("far", "d", 1, placement=pair))
        world.submit(Submission("head", "a", 1, placement=pair))
        held = set(world.scheduler.status().reserved)
        if held != {"a", "b1", "b2"}:
            continue
        world.submit(Submission("next head", "w", 1, placement=("same-rack:0",)))
        world.submit(Submission("behind", "b1", 1, placement=("same-rack:0",)))
        world.submit(Submission("behind too", "b2", 1, placement=("same-rack:0",)))
        started = {go.request for go in world.cancel("far").go}
        assert started in ({"head", "behind"}, {"head", "behind too"})
        return
    pytest.fail("no seed reserves the rack that is half free")


def test_a_chunk_that_failed_goes_first_again() -> None:
    """Chunks of a request start lowest first, also those that come back."""
    world = world_of(racks([3], 1))
    assert [go.chunk for go in world.submit(Submission("q", "r1h1", 4, placement=("anywhere",))).go] == [0, 1]
    assert [(go.chunk, go.attempt) for go in world.fail(("q", 0, 1)).go] == [(0, 2)]


@pytest.mark.parametrize("seed", range(10))
def test_a_suspect_that_has_a_chunk_gets_no_second_copy(seed: int) -> None:
    """A suspect is the only source of one chunk, and has another too: it is a source, never a target, of both."""
    world = World(racks([4], 1), PaperPlanner, Settings(Mode.TIMESTEPS), seed)
    world.submit(Submission("copy", None, 2, kind=TransferKind.COPY, sources=(("r1h1", "r1h2"), ("r1h2",))))
    for _ in range(3):
        for attempt in sorted(world.in_flight):
            world.fail(attempt, ("r1h2",))


def test_a_host_that_is_back_is_no_suspect_any_more() -> None:
    """Whatever failed there before."""
    world = world_of(racks([4], 1))
    world.submit(Submission("q", "r1h1", 1, placement=("anywhere",)))
    world.fail(("q", 0, 1), ("r1h2", "r1h3"))
    world.lose("r1h2")
    world.regain("r1h2")
    assert world.request("q").avoid == ("r1h3",)


def test_links_to_a_lost_host_are_free_again() -> None:
    """The way to its rack, which a chunk in flight used up, serves the next attempt to its neighbour."""
    world = world_of(racks([2, 2], 1))
    world.lose("r2h1")
    assert world.submit(Submission("q", "r1h1", 1, placement=("other-rack:0",))).go[0].hosts == ("r1h1", "r2h2")
    world.regain("r2h1")
    assert [go.hosts for go in world.lose("r2h2").go] == [("r1h1", "r2h1")]


# ---- timesteps


@pytest.mark.parametrize("stragglers", Stragglers)
def test_the_next_timestep_begins_at_the_fraction(stragglers: Stragglers) -> None:
    """Four of five chunks done: the next timestep begins; its graph has the fifth's capacity or not, as set."""
    servers = [Server(f"h{n}", "rack", 1, 5) for n in range(5)] + [Server("to", "rack", 1, 5)]
    world = world_of(Topology(servers), mode=Mode.TIMESTEPS, stragglers=stragglers)
    for number in range(5):
        outcome = world.submit(Submission(f"q{number}", f"h{number}", 2, placement=("anywhere",)))
        assert len(outcome.go) == 1, "each joins the timestep with what fits"
    attempts = sorted(world.in_flight)
    for attempt in attempts[:3]:
        assert not world.finish(attempt).go
    started = {go.request for go in world.finish(attempts[3]).go}
    assert {"q0", "q1", "q2", "q3"} <= started
    assert ("q4" in started) == (stragglers is Stragglers.IGNORED)
    assert world.scheduler.status().step == 2


def test_a_timestep_waits_until_its_first_request_can_start() -> None:
    """With stragglers counted, the next timestep does not begin over the head of the first request that they block."""
    topology = Topology([Server("a", "rack", 1, 1), Server("b", "rack", 4, 4), Server("c", "rack", 1, 1)])
    world = world_of(topology, mode=Mode.TIMESTEPS, stragglers=Stragglers.COUNTED, finish_fraction=0.5)
    world.submit(Submission("slow", "a", 2, placement=("anywhere",)))
    world.submit(Submission("other", "b", 9, placement=("other-host:0",)))
    for _ in range(6):
        others = [attempt for attempt in sorted(world.in_flight) if attempt[0] == "other"]
        if others:
            world.finish(others[0])
    assert world.request("slow").state == "running"
    assert world.scheduler.place("slow").chunks_ahead == 0
    assert world.scheduler.status().step <= 2


# ---- bounds and wrong input


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "known"}),
        ("writer", {"writer": "nobody"}),
        ("writer", {"writer": None}),
        ("chunks", {"chunks": 0}),
        ("chunks", {"chunks": 10**6}),
        ("chunks", {"chunks": True}),
        ("replicas", {"replicas": 0}),
        ("placement", {"placement": ("same-moon:0",)}),
        ("placement", {"placement": ("same-rack:0 & other-rack:0",)}),
        ("placement", {"replicas": 16}),
        ("priority", {"priority": 10}),
        ("kind", {"kind": "erase"}),
        ("sources", {"sources": (("a",),)}),
        ("sources", {"kind": TransferKind.READ}),
        ("sources", {"kind": TransferKind.READ, "sources": ((),)}),
        ("sources", {"kind": TransferKind.READ, "sources": (("nobody",),)}),
        ("writer", {"kind": TransferKind.COPY, "sources": (("a",),)}),
        ("placement", {"kind": TransferKind.READ, "sources": (("c",),), "placement": ("anywhere",)}),
    ],
)
def test_wrong_submissions_name_the_field(field: str, change: dict[str, object]) -> None:
    """A submission that cannot be is refused with the field to change, and leaves nothing behind."""
    world = world_of(two_racks())
    world.submit(Submission("known", "a", 1, placement=("anywhere",)))
    before = world.scheduler.status()
    values: dict[str, object] = {"name": "q", "writer": "a", "chunks": 1, "replicas": 2} | change
    with pytest.raises(RequestError) as refused:
        world.scheduler.submit(Submission(**values), 0)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert world.scheduler.status() == before


def test_the_queue_is_bounded() -> None:
    """A submission beyond `max_waiting` is refused; when a request has ended there is room again."""
    world = world_of(racks([2], 1, send=1), max_waiting=2, max_remembered=1)
    for name in ("p", "q"):
        world.submit(Submission(name, "r1h1", 1, placement=("anywhere",)))
    with pytest.raises(RequestError, match="queue full"):
        world.submit(Submission("r", "r1h1", 1, placement=("anywhere",)))
    world.finish(("p", 0, 1))
    world.submit(Submission("r", "r1h1", 1, placement=("anywhere",)))


def test_wrong_reports_are_told_from_late_ones() -> None:
    """What never was is an error with its field; what is over is ignored, and says why."""
    scheduler = OnlineScheduler(two_racks(), PaperPlanner(two_racks()), Settings(), Random(1))
    scheduler.submit(Submission("q", "a", 2, placement=("anywhere",)), 0)
    for field, report in (("request", ("x", 0, 1)), ("chunk", ("q", 2, 1)), ("attempt", ("q", 0, 2))):
        with pytest.raises(RequestError) as wrong:
            scheduler.done(*report, 1)
        assert wrong.value.field == field
    with pytest.raises(RequestError, match="suspects"):
        scheduler.failed("q", 0, 1, ("nobody",), 1)
    assert scheduler.done("q", 0, 1, 1).ignored is None
    assert "is done" in (scheduler.done("q", 0, 1, 2).ignored or "")
    assert "is done" in (scheduler.failed("q", 0, 1, (), 2).ignored or "")
    scheduler.cancel("q", 3)
    assert "is cancelled" in (scheduler.done("q", 1, 1, 4).ignored or "")
    assert "is cancelled" in (scheduler.cancel("q", 5).ignored or "")


def test_a_clock_that_goes_back_changes_no_order() -> None:
    """Time only goes forwards in the scheduler: ranks and stored times follow the order of submission."""
    world = world_of(racks([2], 1, send=1))
    for name, now_ms in (("first", 5000), ("second", 10), ("third", 20)):
        outcome = world.scheduler.submit(Submission(name, "r1h1", 2, placement=("anywhere",)), now_ms)
        times = [r.since_ms if isinstance(r, ChunkRecord) else r.submitted_ms for r in outcome.changed]
        assert set(times) == {5000}
    assert world.scheduler.place("second").requests_ahead < world.scheduler.place("third").requests_ahead


def test_the_same_seed_gives_the_same_life() -> None:
    """Everything is decided by the events and the seed."""

    def life(seed: int) -> list[object]:
        world = World(racks([4, 4], 2), PaperPlanner, Settings(), seed)
        seen: list[object] = [world.submit(Submission(f"q{n}", f"r1h{n + 1}", 3)) for n in range(4)]
        while world.in_flight:
            seen.append(world.finish(next(iter(world.in_flight))))
        assert all(world.scheduler.state(f"q{n}") is RequestState.FINISHED for n in range(4))
        return seen

    assert life(7) == life(7)
    assert life(7) != life(8)


def test_a_smaller_network_after_a_restart() -> None:
    """Hosts and links that are gone from the topology end what used them; what is too much now drains first."""
    world = world_of(racks([5], 1, send=2))
    world.submit(Submission("q", "r1h1", 4, placement=("anywhere",)))
    world.submit(Submission("gone", "r1h5", 1, placement=("anywhere",)))
    smaller = racks([3], 1, send=1)
    scheduler = OnlineScheduler.restore(
        smaller, PaperPlanner(smaller), Settings(), Random(1), world.records.values(), (), 9999
    )
    assert "gone" in scheduler.restored.given_up
    assert scheduler.state("gone") is RequestState.CANCELLED
    steps = 0
    while scheduler.status().in_flight and steps < 20:
        go = scheduler.status().in_flight[0].go
        scheduler.done(go.request, go.chunk, go.attempt, 10_000 + steps)
        steps += 1
    assert scheduler.state("q") is RequestState.FINISHED
