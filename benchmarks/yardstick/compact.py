"""The exact optimum as one compact integer program, for the default placement of up to three replicas.

A chain has a *near* part in the writer's rack (the writer, the first replica) and a *far* part in one other rack (the
second and third). Then it is enough to count, for each host, how often it has which position, and for each rack, how
many near and far parts it has:

* every position of a rack's near parts is taken as often as there are near parts; far parts likewise;
* hosts of a part differ if and only if no host has more positions of a rack's parts than there are parts (König);
* near and far parts meet by routes. On a tree of switches it is enough to count what uses each link: at every switch
  no port may have more traffic, in and out together, than the switch has in all; then nothing has to turn back. On any
  other network the routes from each rack are a flow of their own.

On a network of one rack the near part is the whole chain, for any number of replicas.

Hosts of a rack that are alike (capacities left, chunks to write) are counted together, where there are many hosts. What
is counted for m of them is dealt round to them in the order of the positions. Every limit of a host is on positions
that follow each other, so it holds for each host if it holds m times for all of them: nothing is lost.

Invariants: an optimal solution of the program is as good as the best plan, and can be dealt out as a plan.
"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.yardstick.decompose import TreeWays, Ways, deal
from benchmarks.yardstick.flows import Flows
from benchmarks.yardstick.program import Program, Solution, Term
from scheduler.peace.placement import Placement, Relation, default_placement
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind
from scheduler.topology import Topology, Tree

MAX_COMPACT = 3
MANY_HOSTS = 200
"""From here on hosts that are alike are counted together; below, requests are preferred one by one."""


class _Alike(NamedTuple):
    """Hosts of a rack with the same capacities left, and with as many chunks to write; the first requested first."""

    hosts: list[int]
    send: int
    store: int  # receive or disk, whichever is less


def parts_of(topology: Topology, placement: Placement) -> tuple[int, int] | None:
    """How many positions the near and the far part have, the writer's among them; None if it takes another program."""
    easy = (Relation.SAME_RACK, Relation.OTHER_HOST)
    if len(topology.racks) == 1 and all(rule.relation in easy for rules in placement for rule in rules):
        return 1 + len(placement), 0
    if len(placement) <= MAX_COMPACT and placement == default_placement(len(placement)):
        return 2, len(placement) - 1
    return None


class Compact:
    """Writes with one placement that `parts_of` knows, with nothing to avoid."""

    def __init__(
        self, topology: Topology, requests: Sequence[Request], residual: Residual, *, many_hosts: int = MANY_HOSTS
    ) -> None:
        self.program = Program()
        self._topology = topology
        self._requests = requests
        self._residual = residual
        near, far = parts_of(topology, requests[0].placement) or (0, 0)
        self._near, self._far = range(near), range(near, near + far)
        self._alike = self._groups(apart=len(topology.servers) < many_hosts)
        self._at: list[dict[int, list[Term]]] = [{} for _ in range(near + far)]
        self.taken = self._writers()
        """Columns that say how many chunks are planned, each with the place of the first request that it stands for."""
        switches = range(len(topology.switches))
        self._starts = [self.program.column() if topology.members[v] else -1 for v in switches]
        self._ends = [self.program.column() if topology.members[v] and far else -1 for v in switches]
        self._positions()
        self._links: _TreeLinks | None = None
        self._flows: Flows | None = None
        if far and topology.tree is not None:
            self._links = _TreeLinks(self.program, topology.tree, residual, self._starts, self._ends)
        elif far:
            self._flows = Flows(self.program, topology, residual, self._pairs())

    @staticmethod
    def fits(topology: Topology, requests: Sequence[Request]) -> bool:
        """Whether this program can express these requests."""
        return (
            all(request.kind is TransferKind.WRITE and not request.avoid for request in requests)
            and len({request.placement for request in requests}) == 1
            and parts_of(topology, requests[0].placement) is not None
        )

    def _groups(self, *, apart: bool) -> dict[int, list[_Alike]]:
        """The hosts of each rack, those together that are alike, unless all shall be `apart`."""
        topology, residual = self._topology, self._residual
        first: dict[int, int] = {}
        chunks: dict[int, int] = {}
        for place, request in enumerate(self._requests):
            first.setdefault(request.writer, place)
            chunks[request.writer] = chunks.get(request.writer, 0) + request.chunks
        found: dict[int, dict[tuple[int, ...], _Alike]] = {rack: {} for rack in topology.racks}
        for host in sorted(range(len(topology.servers)), key=lambda host: first.get(host, len(self._requests))):
            send = int(residual.send[host])
            store = min(int(residual.receive[host]), int(residual.disk[host]))
            key = (send, store, chunks.get(host, 0), host if apart else -1)
            found[topology.rack_of[host]].setdefault(key, _Alike([], send, store)).hosts.append(host)
        return {rack: list(groups.values()) for rack, groups in found.items()}

    def _writers(self) -> list[tuple[int, int]]:
        """Columns for the chunks that each group writes: for a host on its own one per request."""
        of_writer: dict[int, list[int]] = {}
        for place, request in enumerate(self._requests):
            of_writer.setdefault(request.writer, []).append(place)
        taken = []
        for alike in self._everyone():
            places = [place for host in alike.hosts for place in of_writer.get(host, ())]
            parts = [places] if len(alike.hosts) > 1 and places else [[place] for place in places]
            for part in parts:
                column = self.program.column(sum(self._requests[place].chunks for place in part))
                self._at[0].setdefault(alike.hosts[0], []).append((column, 1))
                taken.append((column, part[0]))
        return taken

    def _everyone(self) -> list[_Alike]:
        return [alike for groups in self._alike.values() for alike in groups]

    def _positions(self) -> None:
        """Each position is taken once in each part; no host has more positions than there are parts, or than fit."""
        program = self.program
        for position in range(1, len(self._at)):
            for alike in self._everyone():
                if alike.store > 0:
                    self._at[position][alike.hosts[0]] = [(program.column(alike.store * len(alike.hosts)), 1)]
        for part, counts in ((self._near, self._starts), (self._far, self._ends)):
            for rack, groups in self._alike.items():
                for position in part:
                    terms = [term for alike in groups for term in self._at[position].get(alike.hosts[0], ())]
                    program.equal(terms, [(counts[rack], 1)])
                for alike in groups if len(part) > 1 else ():
                    terms = [term for position in part for term in self._at[position].get(alike.hosts[0], ())]
                    program.at_most([*terms, (counts[rack], -len(alike.hosts))], 0)
        for alike in self._everyone():
            at = [positions.get(alike.hosts[0], []) for positions in self._at]
            program.at_most([term for terms in at[:-1] for term in terms], alike.send * len(alike.hosts))
            program.at_most([term for terms in at[1:] for term in terms], alike.store * len(alike.hosts))

    def _pairs(self) -> dict[tuple[int, int], list[Term]]:
        """A column for every two racks: how many chains go from one to the other."""
        racks = self._topology.racks
        pairs = {(a, b): [(self.program.column(), 1)] for a in racks for b in racks if a != b}
        for rack in racks:
            away = [term for (a, _), terms in pairs.items() if a == rack for term in terms]
            here = [term for (_, b), terms in pairs.items() if b == rack for term in terms]
            self.program.equal(away, [(self._starts[rack], 1)])
            self.program.equal(here, [(self._ends[rack], 1)])
        return pairs

    def chains(self, solution: Solution) -> list[list[HostChain]]:
        """For each request, its chains."""
        values = solution.values
        counts: list[dict[int, int]] = [{} for _ in self._at]
        for alike in self._everyone():
            turn = 0
            for position, columns in enumerate(self._at):
                for _ in range(sum(values[column] for column, _ in columns.get(alike.hosts[0], ()))):
                    host = alike.hosts[turn % len(alike.hosts)]
                    counts[position][host] = counts[position].get(host, 0) + 1
                    turn += 1
        ways: Ways | None = None
        if self._links is not None:
            ways = self._links.ways(self._topology, values)
        elif self._flows is not None:
            ways = self._flows.ways(values)
        members = self._topology.members
        near, far = (
            {
                rack: deal([{host: counts[p].get(host, 0) for host in members[rack]} for p in part])
                for rack in self._topology.racks
            }
            for part in (self._near, self._far)
        )
        by_writer: dict[int, list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]] = {}
        for rack, heads in near.items():
            for head in heads:
                hosts: tuple[int, ...] = head
                routes: tuple[tuple[int, ...], ...] = ((),) * (len(head) - 1)
                if ways is not None:
                    end, route = ways.take(rack)
                    tail = far[end].pop()
                    hosts, routes = (*head, *tail), (*routes, route, *((),) * (len(tail) - 1))
                by_writer.setdefault(hosts[0], []).append((hosts, routes))
        chains = []
        for request in self._requests:  # the first requests of a writer first
            of_writer = by_writer.get(request.writer, [])
            planned = range(min(request.chunks, len(of_writer)))
            chains.append([HostChain(request.name, request.number(chunk), *of_writer.pop()) for chunk in planned])
        return chains


class _TreeLinks:
    """What uses each link of a tree; see the module's text."""

    def __init__(
        self, program: Program, tree: Tree, residual: Residual, starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        self._starts, self._ends = starts, ends
        count = len(tree.parent)
        capacity = residual.link
        self._up = [program.column(int(capacity[tree.up[v]])) if tree.parent[v] >= 0 else -1 for v in range(count)]
        self._down = [program.column(int(capacity[tree.down[v]])) if tree.parent[v] >= 0 else -1 for v in range(count)]
        ports: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # (what comes in there, what goes out)
        for v, parent in enumerate(tree.parent):
            if starts[v] >= 0:
                ports[v].append((starts[v], ends[v]))
            if parent >= 0:
                ports[v].append((self._down[v], self._up[v]))
                ports[parent].append((self._up[v], self._down[v]))
        for those in ports:
            through = [(comes, 1) for comes, _ in those]
            program.equal(through, [(goes, 1) for _, goes in those])
            for comes, goes in those:
                others = [(column, -1) for column, _ in those if column != comes]
                program.at_most([(goes, 1), *others], 0)  # in + out ≤ all that comes in

    def ways(self, topology: Topology, values: Sequence[int]) -> TreeWays:
        """The routes that a solution counted."""
        counted = (
            [values[column] if column >= 0 else 0 for column in columns]
            for columns in (self._starts, self._ends, self._up, self._down)
        )
        return TreeWays(topology, *counted)
