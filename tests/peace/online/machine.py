"""Random lives of an online scheduler, as a Hypothesis state machine over `world.World`."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler.errors import RequestError
from scheduler.peace.online import Mode, Settings, Stragglers, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import Planner, TransferKind
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.topology import Link, Server, Topology, both_ways, racks
from tests.peace.online.world import World


def _ring() -> Topology:
    servers = [Server(f"s{n}h{m}", f"s{n}", 1 + n % 2, 2) for n in range(3) for m in range(2)]
    links = [Link(f"s{a}", f"s{b}", 2) for a in range(3) for b in range(3) if a != b]
    return Topology(servers, links, name="ring")


def _deep() -> Topology:
    servers = [Server(f"{rack}h{n}", rack, 2, 2, 1 if n else 2) for rack in ("a1", "a2", "b1") for n in range(3)]
    pairs = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a", "top"), ("b", "top")]
    links = [link for low, high in pairs for link in both_ways(low, high, 2 if high == "top" else 3)]
    return Topology(servers, links, switches=["top", "a", "b", "a1", "a2", "b1"], name="deep")


@st.composite
def networks_like(draw: st.DrawFn, base: Topology) -> Topology:
    """This network, changed: half of the servers at the least are there, every link is."""
    count = len(base.servers)
    kept = draw(st.lists(st.sampled_from(base.servers), min_size=(count + 1) // 2, max_size=count, unique=True))
    numbers, racks_of_base = st.sampled_from([None, None, 1, 2, 3]), sorted({server.rack for server in base.servers})
    moves = st.sampled_from([None, None, None, *racks_of_base])

    def changed(server: Server) -> Server:
        send, receive, rack = draw(numbers), draw(numbers), draw(moves)
        return replace(server, send=send or server.send, receive=receive or server.receive, rack=rack or server.rack)

    links = [replace(link, capacity=draw(numbers) or link.capacity) for link in draw(st.permutations(base.links))]
    return Topology(list(map(changed, kept)), links, switches=base.switches, name=base.name)


NETWORKS = {
    "tight": racks([2, 3], 1, send=1),
    "rack": racks([5], 1),
    "paper": racks([3, 4], 2),
    "wide": racks([3, 3, 3], 3, send=2, receive=1),
    "ring": _ring(),
    "deep": _deep(),
}
PLACEMENTS = [
    None,
    None,
    None,
    ("anywhere",),
    ("same-host:0", "other-host:0"),
    ("other-rack:0",),
    ("anywhere", "anywhere"),
]


class Machine(RuleBasedStateMachine):
    """Writers, readers, failures, lost hosts and restarts; the world checks every step."""

    world: World
    network: Topology

    @initialize(
        network=st.sampled_from(sorted(NETWORKS)),
        planner=st.sampled_from([PaperPlanner, TreePlanner, RepairedPlanner]),
        mode=st.sampled_from([Mode.CONTINUOUS, Mode.CONTINUOUS, Mode.TIMESTEPS]),
        stragglers=st.sampled_from(Stragglers),
        fraction=st.sampled_from([0.5, 0.8, 1.0]),
        tries=st.sampled_from([1, 2, 16]),
        gather_ms=st.sampled_from([0, 0, 1, 30]),
        seed=st.integers(0, 1000),
    )
    def found(
        self,
        network: str,
        planner: Callable[[Topology], Planner],
        mode: Mode,
        stragglers: Stragglers,
        fraction: float,
        tries: int,
        gather_ms: int,
        seed: int,
    ) -> None:
        """A network and a scheduler."""
        topology = NETWORKS[network]
        settings = Settings(mode, fraction, stragglers, 12, 6, 3, 3, 50, tries, gather_ms=gather_ms)
        chosen = planner if topology.tree is not None else PaperPlanner
        self.network = topology
        self.world = World(topology, chosen, settings, seed)
        self.names = 0

    # ---- requests

    @rule(data=st.data(), chunks=st.integers(1, 5), priority=st.sampled_from([0, 0, 0, 1, 3]))
    def write(self, data: st.DataObject, chunks: int, priority: int) -> None:
        """A writer submits a checkpoint."""
        writer = data.draw(st.sampled_from(self._hosts()))
        placement = data.draw(st.sampled_from(PLACEMENTS))
        self._submit(Submission(self._name(), writer, chunks, data.draw(st.integers(1, 3)), placement, priority))

    @rule(data=st.data(), chunks=st.integers(1, 3), copy=st.booleans())
    def move(self, data: st.DataObject, chunks: int, copy: bool) -> None:
        """A recovery read, or a re-replication."""
        hosts = st.sampled_from(self._hosts())
        sources = tuple(tuple(data.draw(st.lists(hosts, min_size=1, max_size=2, unique=True))) for _ in range(chunks))
        if copy:
            placement = data.draw(st.sampled_from([None, ("other-rack:0",), ("same-rack:0",)]))
            self._submit(Submission(self._name(), None, chunks, 1, placement, 0, TransferKind.COPY, sources))
        else:
            self._submit(Submission(self._name(), data.draw(hosts), chunks, 1, None, 0, TransferKind.READ, sources))

    @precondition(lambda self: self.world.requests())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Any request is cancelled, also one that has ended."""
        self.world.cancel(data.draw(st.sampled_from(sorted(record.name for record in self.world.requests()))))

    @precondition(lambda self: self._waiting())
    @rule(data=st.data(), chunks=st.integers(1, 6))
    def resubmit(self, data: st.DataObject, chunks: int) -> None:
        """A request that nothing was started of has another size now."""
        name = data.draw(st.sampled_from(self._waiting()))
        if self.world.request(name).kind == "write" or chunks <= self.world.request(name).chunks:
            self.world.resubmit(name, chunks)

    # ---- chunks

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        """A chunk is done; telling it again changes nothing."""
        attempt = data.draw(st.sampled_from(sorted(self.world.in_flight)))
        self.world.finish(attempt)
        assert self.world.scheduler.done(*attempt, 0).ignored is not None

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data(), count=st.integers(2, 8))
    def done_several(self, data: st.DataObject, count: int) -> None:
        """The oldest chunks are done: the usual course of things."""
        for _ in range(count):
            if self.world.in_flight:
                self.world.finish(next(iter(self.world.in_flight)))

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data(), suspect=st.booleans())
    def fail(self, data: st.DataObject, suspect: bool) -> None:
        """A chunk fails, perhaps with a suspect."""
        attempt = data.draw(st.sampled_from(sorted(self.world.in_flight)))
        hosts = [self.world.topology.servers[host].name for host in self.world.in_flight[attempt].hosts]
        self.world.fail(attempt, (hosts[-1],) if suspect else ())

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """A chunk hangs."""
        self.world.expire(data.draw(st.sampled_from(sorted(self.world.in_flight))))

    @precondition(lambda self: self.world.old)
    @rule(data=st.data(), failed=st.booleans())
    def late(self, data: st.DataObject, failed: bool) -> None:
        """A report about an attempt that is over changes nothing."""
        attempt = data.draw(st.sampled_from(self.world.old[-20:]))
        before = self.world.scheduler.status()
        scheduler = self.world.scheduler
        outcome = scheduler.failed(*attempt, (), 0) if failed else scheduler.done(*attempt, 0)
        assert outcome.ignored is not None
        assert outcome[:-1] == ((), (), (), (), ())
        assert scheduler.status() == before

    # ---- hosts and restarts

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A host is lost, if enough are left."""
        hosts = self._hosts()
        if len(self._lost()) < 3 and len(hosts) > 2:
            self.world.lose(data.draw(st.sampled_from(hosts)))

    @precondition(lambda self: self._lost())
    @rule(data=st.data())
    def regain(self, data: st.DataObject) -> None:
        """A lost host is back."""
        self.world.regain(data.draw(st.sampled_from(self._lost())))

    @rule(data=st.data())
    def change_network(self, data: st.DataObject) -> None:
        """The network is another one: fewer servers or all of them, elsewhere, in another order, with other numbers."""
        self.world.change_network(data.draw(networks_like(self.network)))

    @rule()
    def restart(self) -> None:
        """The scheduler dies and goes on from its records."""
        self.world.restart()

    def teardown(self) -> None:
        """When chunks complete and hosts come back, every request ends."""
        if not hasattr(self, "world"):
            return
        random = Random(1)
        self.world.drain(random)
        self.world.change_network(self.network)
        self.world.drain(random)
        for host in sorted(self.world.lost):
            self.world.regain(host)
            self.world.drain(random)
        left = [record.name for record in self.world.requests() if record.state in ("waiting", "running")]
        assert not left, f"{left} never end"

    # ---- small things

    def _submit(self, submission: Submission) -> None:
        """Only what has no path, or no room, is refused."""
        refused = ""
        try:
            self.world.submit(submission)
        except RequestError as error:
            refused = error.field
        full = len([record for record in self.world.requests() if record.state in ("waiting", "running")]) >= 12
        assert refused in ("", "placement", "sources") or (full and refused == "requests")

    def _name(self) -> str:
        self.names += 1
        return f"q{self.names}"

    def _hosts(self) -> list[str]:
        return [server.name for server in self.world.topology.servers if server.name not in self.world.lost]

    def _lost(self) -> list[str]:
        return sorted(self.world.lost & set(self.world.topology.index))

    def _waiting(self) -> list[str]:
        return sorted(record.name for record in self.world.requests() if record.state == "waiting")
