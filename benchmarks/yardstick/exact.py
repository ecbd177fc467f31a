"""Planner `exact`: the largest number of chunks that fit into one timestep, by integer programming.

Two programs: `compact` for the default placement of up to three replicas (any network, fastest on trees of racks) and
for any number of replicas in a single rack; `patterns` for everything else on small networks. What is too large for
the second is refused with an error that says so.

Invariants:
* The plan keeps every promise of a plan. It ignores costs: it may take a detour if more chunks fit so.
* It never plans fewer chunks than planner `paper` would with the same random numbers, even if time runs out.
* Among plans with the most chunks, one with more chunks for earlier requests is preferred, as far as time allows: a
  second program with the number of chunks fixed, left at its best solution when its time is up, and left out if it has
  more than MAX_COLUMNS_FOR_TIES columns. Hosts that are counted together (`compact`) count as the first of them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.yardstick.compact import MANY_HOSTS, Compact
from benchmarks.yardstick.patterns import Patterns
from benchmarks.yardstick.program import FREE, SLACK, Program, Solution
from scheduler.errors import SchedulerError
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import HostChain, Request, Residual, TransferPlan, check_request
from scheduler.topology import Topology

TIME_LIMIT_S = 60.0
TIES_S = 1.0
"""How long to look for a plan as good that favours earlier requests."""
MAX_COLUMNS_FOR_TIES = 10_000


@dataclass(frozen=True, slots=True)
class ExactPlan(TransferPlan):
    """A plan, and what is known of the best: none has more than `bound` chunks; `proven`: this one has as many."""

    proven: bool = False
    bound: int = 0

    @property
    def chunks(self) -> int:
        """How many chunks are planned."""
        return len(self.chains)


class ExactPlanner:
    """The most chunks in one timestep: HiGHS may take `time_limit_s`, and `ties_s` more for a fairer plan (0: none).

    From `many_hosts` hosts on, those that are alike are counted together, which is faster by orders of magnitude.
    """

    name = "exact"

    def __init__(
        self,
        topology: Topology,
        time_limit_s: float = TIME_LIMIT_S,
        ties_s: float = TIES_S,
        *,
        many_hosts: int = MANY_HOSTS,
    ) -> None:
        self._topology = topology
        self._time_limit_s = time_limit_s
        self._ties_s = ties_s
        self._many_hosts = many_hosts
        self._paper = PaperPlanner(topology)

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """One chunk's chain, as planner `paper` chooses it: for a single chunk there is nothing to optimize."""
        return self._paper.chain(request, chunk, residual, random)

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> ExactPlan:
        """A plan with as many chunks as possible, taken from `residual`. Raises RequestError for what it cannot plan.

        `random` matters only where time runs out.
        """
        for request in requests:
            check_request(self._topology, request)
        wanted = [request for request in requests if request.chunks]
        if not wanted:
            return ExactPlan(proven=True)
        model: Compact | Patterns
        if Compact.fits(self._topology, wanted):
            model = Compact(self._topology, wanted, residual, many_hosts=self._many_hosts)
        else:
            model = Patterns(self._topology, wanted, residual)
        solution, proven, bound = self._solve(model.program, model.taken, wanted)
        planned = model.chains(solution) if solution is not None else [[] for _ in wanted]
        if not proven:
            greedy = self._paper.plan(wanted, residual.copy(), random)
            if len(greedy.chains) > sum(map(len, planned)):
                planned = [[chain for chain in greedy.chains if chain.request == request.name] for request in wanted]
                proven = len(greedy.chains) == bound
        for chains in planned:
            for chain in chains:
                residual.take(chain)
        rests = [
            rest_of(request, {chain.chunk for chain in chains})
            for request, chains in zip(wanted, planned, strict=True)
            if len(chains) < request.chunks
        ]
        return ExactPlan(tuple(chain for chains in planned for chain in chains), tuple(rests), proven, bound)

    def _solve(
        self, program: Program, taken: Sequence[tuple[int, int]], requests: Sequence[Request]
    ) -> tuple[Solution | None, bool, int]:
        """Values, whether they are proven to be best, and the bound."""
        asked = sum(request.chunks for request in requests)
        worth, early = [0.0] * program.columns, [0.0] * program.columns
        for column, place in taken:
            worth[column], early[column] = 1.0, float(len(requests) - place)
        try:
            most = program.maximize(self._time_limit_s, worth)
        except SchedulerError:  # time ran out before there was anything
            return None, False, asked
        bound = min(int(most.bound + SLACK), asked)
        chunks = sum(most.values[column] for column, _ in taken)
        large = program.columns > MAX_COLUMNS_FOR_TIES
        if chunks == asked or len(requests) == 1 or large or not self._ties_s:
            return most, chunks == bound, bound
        program.row([(column, 1) for column, _ in taken], chunks, FREE)
        try:
            fair = program.maximize(self._ties_s, early, most.values)
        except SchedulerError:
            fair = most
        return fair, chunks == bound, bound


def rest_of(request: Request, planned: Collection[int]) -> Request:
    """What waits of a request if the chunks with these numbers, at any places, are planned."""
    places = [chunk for chunk in range(request.chunks) if request.number(chunk) not in planned]
    return replace(
        request,
        chunks=len(places),
        sources=tuple(request.sources[chunk] for chunk in places) if request.sources else (),
        numbers=tuple(request.number(chunk) for chunk in places),
    )
