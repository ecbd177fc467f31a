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

Invariants: an optimal solution of the program is as good as the best plan, and can be dealt out as a plan.
"""

from collections.abc import Sequence

from scheduler.peace.decompose import TreeWays, Ways, deal
from scheduler.peace.flows import Flows
from scheduler.peace.placement import Placement, Relation, default_placement
from scheduler.peace.plan import Chain, Kind, Request, Residual
from scheduler.peace.program import Program, Solution, Term
from scheduler.topology import Topology, Tree

MOST_COMPACT = 3


def parts_of(topology: Topology, placement: Placement) -> tuple[int, int] | None:
    """How many positions the near and the far part have, the writer's among them; None if it takes another program."""
    easy = (Relation.SAME_RACK, Relation.OTHER_HOST)
    if len(topology.racks) == 1 and all(rule.relation in easy for rules in placement for rule in rules):
        return 1 + len(placement), 0
    if len(placement) <= MOST_COMPACT and placement == default_placement(len(placement)):
        return 2, len(placement) - 1
    return None


class Compact:
    """Writes with one placement that `parts_of` knows, with nothing to avoid."""

    def __init__(self, topology: Topology, requests: Sequence[Request], residual: Residual) -> None:
        self.program = Program()
        self._topology = topology
        self._requests = requests
        self._residual = residual
        near, far = parts_of(topology, requests[0].placement) or (0, 0)
        self._near, self._far = range(near), range(near, near + far)
        self.taken = [[(self.program.column(request.chunks), 1)] for request in requests]
        """For each request, the columns that say how many of its chunks are planned."""
        switches = range(len(topology.switches))
        self._starts = [self.program.column() if topology.members[v] else -1 for v in switches]
        self._ends = [self.program.column() if topology.members[v] and far else -1 for v in switches]
        self._at: list[dict[int, list[Term]]] = [{} for _ in range(near + far)]
        self._positions()
        self._capacities()
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
            all(request.kind is Kind.WRITE and not request.avoid for request in requests)
            and len({request.placement for request in requests}) == 1
            and parts_of(topology, requests[0].placement) is not None
        )

    def _positions(self) -> None:
        """Each position of a part is taken once in each; no host has more positions than there are parts."""
        program, residual = self.program, self._residual
        for request, columns in zip(self._requests, self.taken, strict=True):
            self._at[0].setdefault(request.writer, []).extend(columns)
        for position in range(1, len(self._at)):
            for host in range(len(self._topology.servers)):
                most = min(int(residual.receive[host]), int(residual.disk[host]))
                if most > 0:
                    self._at[position][host] = [(program.column(most), 1)]
        for part, counts in ((self._near, self._starts), (self._far, self._ends)):
            for rack in self._topology.racks:
                members = self._topology.members[rack]
                for position in part:
                    terms = [term for host in members for term in self._at[position].get(host, ())]
                    program.equal(terms, [(counts[rack], 1)])
                for host in members if len(part) > 1 else ():
                    terms = [term for position in part for term in self._at[position].get(host, ())]
                    program.at_most([*terms, (counts[rack], -1)], 0)

    def _capacities(self) -> None:
        for host in range(len(self._topology.servers)):
            at = [positions.get(host, []) for positions in self._at]
            self.program.at_most([term for terms in at[:-1] for term in terms], int(self._residual.send[host]))
            most = min(int(self._residual.receive[host]), int(self._residual.disk[host]))
            self.program.at_most([term for terms in at[1:] for term in terms], most)

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

    def chains(self, solution: Solution) -> list[list[Chain]]:
        """For each request, its chains."""
        values = solution.values
        counts = [
            {host: sum(values[column] for column, _ in terms) for host, terms in positions.items()}
            for positions in self._at
        ]
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
        for request, columns in zip(self._requests, self.taken, strict=True):
            of_writer = by_writer.get(request.writer, [])
            count = sum(values[column] for column, _ in columns)
            chains.append([Chain(request.name, request.number(chunk), *of_writer.pop()) for chunk in range(count)])
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
