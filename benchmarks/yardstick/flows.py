"""Routes between racks on any network, as columns of an integer program: one flow for each rack that routes start from.

Invariants: a flow from one rack to several can be taken apart into routes, so that no column per route is needed.
"""

from collections.abc import Mapping, Sequence

from benchmarks.yardstick.decompose import FlowWays
from benchmarks.yardstick.program import Program, Term
from scheduler.errors import RequestError
from scheduler.peace.plan import Residual
from scheduler.topology import Topology

MAX_COLUMNS = 50_000
"""Columns of a program for a network that is no tree, or for another placement: more, and it takes hours."""


class Flows:
    """`pairs[a, b]`: terms whose sum is how many routes lead from the rack a to the rack b."""

    def __init__(
        self, program: Program, topology: Topology, residual: Residual, pairs: Mapping[tuple[int, int], Sequence[Term]]
    ) -> None:
        self._topology = topology
        self._pairs = pairs
        starts = sorted({a for a, _ in pairs})
        check_size(program, len(starts) * len(topology.links))
        self._flow: dict[int, dict[int, int]] = {}
        open_links = [link for link in range(len(topology.links)) if residual.link[link] > 0]
        for start in starts:
            flow = self._flow[start] = {link: program.column(int(residual.link[link])) for link in open_links}
            comes: list[list[Term]] = [[] for _ in topology.switches]
            goes: list[list[Term]] = [[] for _ in topology.switches]
            for link, column in flow.items():
                goes[topology.switch_index[topology.links[link].source]].append((column, 1))
                comes[topology.switch_index[topology.links[link].target]].append((column, 1))
            for switch in range(len(topology.switches)):
                if switch != start:
                    program.equal(comes[switch], [*goes[switch], *pairs.get((start, switch), ())])
        for link in open_links:
            program.at_most([(flow[link], 1) for flow in self._flow.values()], int(residual.link[link]))

    def ways(self, values: Sequence[int]) -> FlowWays:
        """The routes that a solution counted."""
        flows = {start: {link: values[column] for link, column in flow.items()} for start, flow in self._flow.items()}
        ends: dict[int, dict[int, int]] = {}
        for (start, end), terms in self._pairs.items():
            ends.setdefault(start, {})[end] = sum(values[column] * times for column, times in terms)
        return FlowWays(self._topology, flows, ends)


def check_size(program: Program, more: int) -> None:
    """Raise RequestError if the program would become too large to be solved in a useful time."""
    if program.columns + more > MAX_COLUMNS:
        raise RequestError(
            "placement",
            f"the exact optimum would take a program of {program.columns + more} columns, more than {MAX_COLUMNS}; "
            "there is a compact one if all write with the default placement of up to 3 replicas and nothing to avoid, "
            "on a tree of switches; or take a smaller network, or another planner",
        )
