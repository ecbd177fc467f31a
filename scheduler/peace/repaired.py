"""Planner `repaired`: the plan of `tree`, improved where random picks lost chunks.

Greedy picks use up resources that other chunks need: a replica on a host that cannot forward it, a sending slot in a
rack where no host can receive. That costs about a tenth of the chunks where each host has one slot, and nothing where
the links between racks are the bottleneck. There are three steps; each runs only if the step before left something to
gain:

1. The plan of `tree`, first come first served.
2. For writes with the default placement of two or three replicas: the largest number of chunks that an aggregate model
   allows, for each rack and host (`scheduler.peace.repaired_kernels` has the model), and where links between higher
   switches are a bottleneck, the largest number that the tree carries (`scheduler.peace.levels_kernels`); then chains
   with these numbers.
3. Waiting chunks are tried again, and exchanged for chains that may find another path, for a bounded number of rounds.

The best of these plans is returned. If step 2 covers all requests and not all chunks fit, step 2 comes first: if it
reaches the model's bound, no plan has more chunks, and the greedy plan is not made.

Source: beyond SGuard, whose algorithm 1 is step 1 and is not optimal (section 5).

Invariants:
* A plan never has fewer chunks than the greedy plan of the same seed. Every chain is valid.
* Reads, copies and requests with another placement keep the chains of step 1; exchanges concern writes only.
* Step 2 serves the requests of one rack in their order; there is no other promise about which requests wait.
* Work is bounded: step 2 takes linear time in hosts and chunks (the number of chunks alone: times a logarithm), step 3
  at most ROUNDS exchanges.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from scheduler.peace import levels_kernels as levels
from scheduler.peace import repaired_kernels as kernels
from scheduler.peace.plan import Counts, HostChain, Request, Residual, TransferPlan
from scheduler.peace.tree import EncodedRequests, TreePlanner, collector_paused
from scheduler.peace.tree_kernels import DEPTH, DOWN_COST, UP_COST, WRITE, Numbers, Rows, refresh
from scheduler.topology import Topology

ROUNDS = 4000
"""The number of exchanges tried per timestep: 2 to 4 ms."""
LOOKS = 2_000_000
"""The limit of ROUNDS times the number of requests: to pick a waiting request may mean to examine all of them."""
IMPROVABLE = {
    2: ((1, 0, 0), (0, 1, 0)),
    3: ((1, 0, 0), (0, 1, 0), (4, 0, 0)),
}
"""The default placements that the aggregate model covers, in the kernels' form, by their number of replicas."""
COSTS = slice(UP_COST, DOWN_COST + 1)
LISTS = 11
"""The number of scratch rows of `repaired_kernels.rebuild`."""
TRIES = 6
FEW_HOSTS = 1000
"""In networks of up to this many hosts the chains of step 2 are dealt out up to TRIES times."""
SEEDS = (1 << 64) - 1
MAX_WANTED = 1 << 30
"""The number of chunks of one writer that are counted at most."""


class KernelPlan(NamedTuple):
    """A plan in the kernels' form, and the capacity left. Row i belongs to request `owner[i]`; rows may be longer."""

    residual: Residual
    planned: Numbers
    rows: Rows
    owner: Numbers

    @property
    def chunks(self) -> int:
        """The number of planned chunks."""
        return int(self.planned.sum())


class Demand(NamedTuple):
    """Requests that the aggregate model covers, all with the same number of replicas."""

    encoded: EncodedRequests
    chosen: Numbers
    replicas: int


class RepairedPlanner:
    """The greedy plan, improved. Raises TopologyError if the network is not a tree of racks."""

    name = "repaired"

    def __init__(self, topology: Topology) -> None:
        self._tree = TreePlanner(topology)
        switches, hosts = len(topology.switches), len(topology.servers)
        self._sums = np.zeros((kernels.SUM_ROWS, switches), np.int64)
        self._parts = np.zeros((kernels.PART_ROWS, hosts), np.int32)
        self._levels = np.zeros((levels.LEVEL_ROWS, switches), np.int64)
        self._levels[levels.ORDER] = np.argsort(-self._tree.tree[DEPTH], kind="stable")
        self._heads = np.zeros((2, switches), np.int32)
        self._hosts = np.arange(hosts, dtype=np.int32)

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """The chain of one chunk, as by the tree planner; None, and nothing taken, if there is none."""
        return self._tree.chain(request, chunk, residual, random)

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Plan as many chunks as the three steps fit into `residual`, and take them from there."""
        with collector_paused():
            encoded, seed = self._tree.encode(requests), random.getrandbits(64)
            best = self._surely_best(encoded, residual, seed) or self._from_greedy(encoded, residual.copy(), seed)
            for ours, improved in zip(_arrays(residual), _arrays(best.residual), strict=True):
                ours[:] = improved
            order = np.argsort(best.owner, kind="stable")
            return self._tree.decode(requests, encoded, best.planned, best.rows[order])

    def demand(self, requests: Sequence[Request]) -> Demand | None:
        """The requests for `max_chunks` and `begins`; None if the aggregate model does not cover them all."""
        encoded = self._tree.encode(requests)
        for replicas in IMPROVABLE:
            chosen = _chosen(encoded, replicas)
            if 0 < len(chosen) == len(encoded.fields):
                return Demand(encoded, chosen, replicas)
        return None

    def max_chunks(self, demand: Demand, whole: Residual, timesteps: int) -> int:
        """The largest number of chunks that the model allows in `timesteps` timesteps together: an upper bound."""
        times = whole.copy()
        for counts in _arrays(times):
            np.copyto(counts, np.minimum(counts.astype(np.int64) * timesteps, MAX_WANTED), casting="same_kind")
        nothing = KernelPlan(times, np.empty(0, np.int64), np.empty((0, 1), np.int32), np.empty(0, np.int64))
        return self._bound(demand.encoded, nothing, demand.chosen, demand.replicas)

    def begins(self, demand: Demand, whole: Residual) -> Numbers:
        """For each switch, how many chunks its hosts can begin in one timestep if no other hosts begin any."""
        self.max_chunks(demand, whole, 1)
        return np.array([kernels.begins(self._sums, rack, demand.replicas) for rack in range(self._sums.shape[1])])

    def _surely_best(self, encoded: EncodedRequests, before: Residual, seed: int) -> KernelPlan | None:
        """The plan of step 2, if it covers all requests, not all chunks fit, and it reaches the model's bound."""
        count = len(encoded.fields)
        for replicas in IMPROVABLE:
            chosen = _chosen(encoded, replicas)
            if 0 < len(chosen) == count:
                rows, planned = np.empty((0, encoded.width), np.int32), np.zeros(count, np.int64)
                nothing = KernelPlan(before.copy(), planned, rows, np.empty(0, np.int64))
                most = self._bound(encoded, nothing, chosen, replicas)
                if most < encoded.fields[:, 2].sum() and self._through(most, replicas, seed) == most:
                    improved = self._rebuilt(encoded, nothing, chosen, most, replicas, seed)
                    return improved if improved.chunks == most else None
        return None

    def _from_greedy(self, encoded: EncodedRequests, residual: Residual, seed: int) -> KernelPlan:
        """The plan of all steps, from the greedy plan on."""
        before, planned = residual.copy(), np.zeros(len(encoded.fields), np.int64)
        rows = self._tree.run(encoded, residual, seed, planned)
        best = KernelPlan(residual, planned, rows, np.repeat(np.arange(len(planned)), planned))
        enough = likely = int(encoded.fields[:, 2].sum())
        if best.chunks == enough:
            return best
        for replicas in IMPROVABLE:
            chosen = _chosen(encoded, replicas)
            if not len(chosen):
                continue
            fixed = self._without(before, best, chosen, replicas)
            most = self._bound(encoded, fixed, chosen, replicas)
            through = self._through(most, replicas, seed) if fixed.chunks + most > best.chunks else 0
            if fixed.chunks + through > best.chunks:
                improved = self._rebuilt(encoded, fixed, chosen, most, replicas, seed)
                best = improved if improved.chunks > best.chunks else best
            if len(chosen) == len(encoded.fields):
                enough = min(enough, most)
                likely = through or enough
        if best.chunks < min(enough, likely):
            return self._exchanged(encoded, best, enough)
        return best

    def _without(self, before: Residual, best: KernelPlan, chosen: Numbers, replicas: int) -> KernelPlan:
        """The plan without the chains of the chosen requests."""
        given = np.isin(best.owner, chosen) if len(chosen) < len(best.planned) else np.ones(len(best.owner), np.bool_)
        if given.all():
            residual = before.copy()
        else:
            residual = best.residual.copy()
            rows = np.ascontiguousarray(best.rows[given, : replicas + 1])
            kernels.give_back(self._tree.tree, self._tree.pool, rows, *_arrays(residual))
        planned = best.planned.copy()
        planned[chosen] = 0
        return KernelPlan(residual, planned, best.rows[~given], best.owner[~given])

    def _bound(self, encoded: EncodedRequests, fixed: KernelPlan, chosen: Numbers, replicas: int) -> int:
        """The largest number of chunks of the chosen requests beside the fixed chains, by the model."""
        writers, wanted = encoded.fields[chosen, 1], encoded.fields[chosen, 2]
        counts = np.bincount(writers, np.minimum(wanted, MAX_WANTED), self._parts.shape[1])
        self._parts[kernels.WANT] = np.minimum(counts, MAX_WANTED)
        tables = self._tree.tree, self._tree.pool, self._parts, self._sums
        return int(kernels.bound(*tables, replicas, *_arrays(fixed.residual)))

    def _through(self, most: int, replicas: int, seed: int) -> int:
        """The number of chunks that the tree carries; if the racks allow more, the racks' shares are computed again."""
        tables = self._tree.tree, self._tree.pool, self._levels, self._sums
        begin, best, kept = self._sums.copy(), -1, self._sums
        for turn in range(TRIES // 2 if self._parts.shape[1] <= FEW_HOSTS else 1):
            self._tree.seed(seed + turn & SEEDS)
            self._sums[:] = begin
            improved = int(levels.improve(*tables, most, replicas))
            if improved > best:
                best, kept = improved, self._sums.copy()
            if best >= most:
                break
        self._sums[:] = kept
        return best

    def _rebuilt(
        self, encoded: EncodedRequests, fixed: KernelPlan, chosen: Numbers, most: int, replicas: int, seed: int
    ) -> KernelPlan:
        """The best of a few tries of `_once_rebuilt`: the hosts of a chain are random, and some lose chunks."""
        wanted = fixed.chunks + int(self._sums[kernels.A].sum())
        best = fixed
        for turn in range(TRIES if self._parts.shape[1] <= FEW_HOSTS else 1):
            before = KernelPlan(fixed.residual.copy(), fixed.planned, fixed.rows, fixed.owner)
            improved = self._once_rebuilt(encoded, before, chosen, most, replicas, seed + turn & SEEDS)
            if turn == 0 or improved.chunks > best.chunks:
                best = improved
            if best.chunks >= wanted:
                break
        return best

    def _once_rebuilt(
        self, encoded: EncodedRequests, fixed: KernelPlan, chosen: Numbers, most: int, replicas: int, seed: int
    ) -> KernelPlan:
        """Chains for the numbers of `_bound`, then greedy chains for all waiting chunks."""
        tree, pool = self._tree.tree, self._tree.pool
        self._tree.seed(seed)
        refresh(tree, pool, *_arrays(fixed.residual))
        writes = np.ascontiguousarray(encoded.fields[chosen, 1:3])
        lists, rows = np.empty((LISTS, 2 * most + 4), np.int32), np.empty((most, replicas + 1), np.int32)
        tables = tree, pool, self._parts, self._sums
        sizes = np.zeros(3, np.int64)
        kernels.rebuild(*tables, writes, replicas, lists, self._heads, self._hosts, sizes, rows)
        used = int(levels.split(tree, pool, lists, *lists[kernels.HALVES_LEFT], sizes, rows))
        kernels.write_all(tree, pool, *_arrays(fixed.residual))
        owner = np.zeros(used, np.int64)
        heads = np.empty((2, max(used, pool.shape[1])), np.int32)
        kernels.assign(encoded.fields, chosen, rows, used, heads[0], heads[1], owner)
        planned = fixed.planned + np.bincount(owner, minlength=len(fixed.planned))
        parts, owners = [fixed.rows, _padded(rows[:used], encoded.width)], [fixed.owner, owner]
        if used < most or len(chosen) < len(planned):
            known = planned.copy()
            parts.append(self._tree.run(encoded, fixed.residual, seed, planned))
            owners.append(np.repeat(np.arange(len(planned)), planned - known))
        return KernelPlan(fixed.residual, planned, np.concatenate(parts), np.concatenate(owners))

    def _exchanged(self, encoded: EncodedRequests, best: KernelPlan, enough: int) -> KernelPlan:
        """Step 3, in place: first with the nearest hosts, then with any, since a longer path may let more through."""
        used, room = best.chunks, min(enough, best.chunks + ROUNDS)
        rows, owner = np.full((room, encoded.width), -1, np.int32), np.zeros(room, np.int64)
        rows[:used], owner[:used] = best.rows, best.owner
        tree = self._tree.tree
        costs = tree[COSTS].copy()
        for cost in (costs, np.zeros_like(costs)):
            tree[COSTS] = cost
            used = kernels.exchange(
                *(tree, self._tree.pool, encoded.fields, encoded.rules, encoded.avoid, best.planned, rows, owner, used),
                *(min(ROUNDS, LOOKS // len(encoded.fields)) // 2, room),
                *(np.empty(encoded.width, np.int32), *_arrays(best.residual)),
            )
        tree[COSTS] = costs
        return KernelPlan(best.residual, best.planned, rows[:used], owner[:used])


def _arrays(residual: Residual) -> tuple[Counts, Counts, Counts, Counts]:
    return residual.send, residual.receive, residual.disk, residual.link


def _chosen(encoded: EncodedRequests, replicas: int) -> Numbers:
    """The requests that the aggregate model covers, with this number of replicas."""
    fields = encoded.fields
    rules = np.array(IMPROVABLE[replicas], np.int32)
    fitting = [which for which, known in enumerate(encoded.rules) if np.array_equal(known[:replicas], rules)]
    plain = (fields[:, 0] == WRITE) & (fields[:, 4] == replicas) & (fields[:, 5] == fields[:, 6])
    return np.flatnonzero(plain & np.isin(fields[:, 3], fitting))


def _padded(rows: Rows, width: int) -> Rows:
    """The rows with another width, filled with -1 after the last host."""
    if rows.shape[1] == width:
        return rows
    wide = np.full((len(rows), width), -1, np.int32)
    wide[:, : rows.shape[1]] = rows
    return wide
