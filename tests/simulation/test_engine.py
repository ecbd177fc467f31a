"""The simulator: hand-computed cases, bytes conserved, the same run for the same seed, failures, monotonicity."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import RequestError
from scheduler.peace.online import GATHER_MS, Mode, Settings
from scheduler.peace.plan import TransferKind
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import SimulationStuck, simulate
from scheduler.simulation.measured import MB, PAPER, Physics, curve, paper_cluster
from scheduler.simulation.policies import AtOnce, ClusterLoad, Orders, PolicyMaker, Start, hdfs_default, peace, sinbad
from scheduler.simulation.run import SimulatedRun, bounds
from scheduler.simulation.scenario import Loss, Scenario, SimulatedJob, checkpoints, spread_writers
from scheduler.topology import racks

FAST = curve((1,), (1e9,))
"""As fast as need be."""
EVEN = Physics(
    disk_write=curve((1, 16), (40.0, 2.5)),
    disk_read=curve((1, 16), (20.0, 1.25)),
    client_write=FAST,
    client_read=FAST,
    link_bytes_s=100.0 * MB,
    cache_bytes=0.0,
)
"""Round numbers: disks of 40 MB/s to write and 20 to read for any number of clients, links of 100 MB/s, no memory."""


class Fixed(AtOnce):
    """Starts every chunk of a job at once on the way that was given for it."""

    sample_s: float | None = None

    def __init__(self, ways: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        self.ways = ways
        self.heard: list[tuple[int, float]] = []

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """All of it."""
        return Orders(tuple(Start(job.name, chunk, way, job.kind) for chunk, way in enumerate(self.ways[job.name])))

    def done(self, start: Start, now_s: float) -> Orders:
        """Nothing more."""
        return Orders()

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """Broken chunks go the same way without the lost host."""
        self.heard.append((host, now_s))
        return Orders(tuple(s._replace(hosts=tuple(h for h in s.hosts if h != host), attempt=1) for s in broken))

    def observe(self, view: ClusterLoad) -> None:
        """Not used."""


def run_fixed(
    physics: Physics,
    ways: Mapping[str, Sequence[tuple[int, ...]]],
    *,
    jobs: Sequence[SimulatedJob] = (),
    losses: Sequence[Loss] = (),
) -> SimulatedRun:
    """Jobs that take exactly these ways, in the paper's cluster."""
    chosen = tuple(jobs) or tuple(SimulatedJob(name, way[0][0], len(way)) for name, way in ways.items())
    cluster = SimulatedCluster(paper_cluster(physics=physics), physics)
    return simulate(Scenario(cluster, chosen, tuple(losses)), PolicyMaker("fixed", lambda *_: Fixed(ways)), 0)


def ends(run: SimulatedRun) -> dict[tuple[str, int], float]:
    """When each chunk was acknowledged, in seconds."""
    return {(chunk.request, chunk.chunk): chunk.end_s for chunk in run.chunks if chunk.acked}


# ---- by hand


def test_a_lone_chain_runs_at_its_slowest_part() -> None:
    """64 MB through disks of 40 MB/s: 1.6 s; and each of the three disks carried 64 MB."""
    run = run_fixed(EVEN, {"a": [(0, 1, 9, 10)]})
    assert ends(run)["a", 0] == pytest.approx(1.6)
    cluster = SimulatedCluster(paper_cluster(), EVEN)
    assert [run.carried[cluster.disk(host)] / MB for host in (1, 9, 10)] == pytest.approx([64.0] * 3)


def test_two_chains_share_a_disk_then_one_has_it() -> None:
    """a (two chunks' time on host 1) and b share 40 MB/s until b is done; nothing else is shared."""
    run = run_fixed(
        EVEN, {"a": [(0, 1)], "b": [(2, 1)]}, jobs=[SimulatedJob("a", 0, 1), SimulatedJob("b", 2, 1, at_s=0.8)]
    )
    # a has 32 MB left at 0.8 s; both at 20 MB/s until a ends at 2.4 s; b then has 32 MB at 40 MB/s
    assert ends(run) == pytest.approx({("a", 0): 2.4, ("b", 0): 3.2})


def test_the_link_between_racks_is_shared_fairly() -> None:
    """Four chains to four hosts of the other rack, disks of 40 MB/s: 25 MB/s each, while one at home has its 40."""
    ways = {f"w{host}": [(host, 8 + host)] for host in range(4)} | {"home": [(4, 5)]}
    run = run_fixed(EVEN, ways)
    assert ends(run) == pytest.approx({**{(f"w{host}", 0): 2.56 for host in range(4)}, ("home", 0): 1.6})


def test_a_forwarders_link_is_used_twice_by_its_own_chain() -> None:
    """A host sends its own chunk and forwards another: 100 MB/s over two, with disks that do not matter."""
    physics = replace(EVEN, disk_write=FAST)
    run = run_fixed(physics, {"a": [(0, 1)], "b": [(2, 0, 3)]})
    assert ends(run) == pytest.approx({("a", 0): 1.28, ("b", 0): 1.28})


def test_a_reader_takes_its_share_of_the_disk_from_a_writer() -> None:
    """Equal rates x: x/40 of the disk's time for the writer and x/20 for the reader: 13⅓ MB/s each."""
    jobs = [SimulatedJob("w", 0, 1), SimulatedJob("r", 2, 1, kind=TransferKind.READ, sources=((1,),))]
    run = run_fixed(EVEN, {"w": [(0, 1)], "r": [(1, 2)]}, jobs=jobs)
    assert ends(run) == pytest.approx({("w", 0): 4.8, ("r", 0): 4.8})


def test_memory_takes_what_the_disk_cannot_until_it_is_full() -> None:
    """30 MB of memory: at 100 MB/s, drained at 40, it is full after 0.5 s; the other 14 MB go at 40: 0.85 s."""
    run = run_fixed(replace(EVEN, cache_bytes=30.0 * MB), {"a": [(0, 1)]})
    assert ends(run)["a", 0] == pytest.approx(0.85, rel=0.03)


def test_a_reader_keeps_the_disk_from_draining_the_memory() -> None:
    """30 MB of memory fill in 0.3 s while the reader has the disk; the other 34 MB go at 13⅓ MB/s: 2.85 s."""
    jobs = [SimulatedJob("w", 0, 1), SimulatedJob("r", 2, 1, kind=TransferKind.READ, sources=((1,),))]
    run = run_fixed(replace(EVEN, cache_bytes=30.0 * MB), {"w": [(0, 1)], "r": [(1, 2)]}, jobs=jobs)
    assert ends(run)["w", 0] == pytest.approx(2.85, rel=0.03)


def test_memory_that_was_filled_drains_while_nobody_writes() -> None:
    """The same again after a pause is as fast as the first time, and at once it is not."""
    physics = replace(EVEN, cache_bytes=30.0 * MB)
    for pause, slower in ((5.0, False), (0.0, True)):
        jobs = [SimulatedJob("a", 0, 1), SimulatedJob("b", 2, 1, at_s=0.86 + pause)]
        run = run_fixed(physics, {"a": [(0, 1)], "b": [(2, 1)]}, jobs=jobs)
        times = {request.name: request.io_s for request in run.requests}
        assert (times["b"] > times["a"] * 1.5) == slower


def test_a_chunk_takes_time_besides_its_bytes_and_leaves_its_disk_to_others_then() -> None:
    """0.4 s before its first byte: while b's has not come, a has the disk of both alone."""
    physics = replace(EVEN, overheads_s=(0.4,))
    alone = run_fixed(physics, {"a": [(0, 1)]})
    assert ends(alone)["a", 0] == pytest.approx(1.6 + 0.4)
    assert [request.go_s for request in alone.requests] == [0.0]
    run = run_fixed(
        physics, {"a": [(0, 1)], "b": [(2, 1)]}, jobs=[SimulatedJob("a", 0, 1), SimulatedJob("b", 2, 1, at_s=0.8)]
    )
    # both move from 1.2 s on, when a has 32 MB left: a ends at 2.8 s; b then has 32 MB at 40 MB/s
    assert ends(run) == pytest.approx({("a", 0): 2.8, ("b", 0): 3.6})


@pytest.mark.parametrize("lost_s", [0.2, 1.0])
def test_a_host_that_is_lost_before_the_first_byte_breaks_the_chunk_too(lost_s: float) -> None:
    """It goes again without that host, with all that a chunk takes; the first byte of the broken one never goes."""
    run = run_fixed(replace(EVEN, overheads_s=(0.4,)), {"a": [(0, 1, 9)]}, losses=[Loss(9, lost_s, notice_s=0.1)])
    assert [chunk.end_s for chunk in run.chunks if not chunk.acked] == [lost_s]
    assert ends(run) == pytest.approx({("a", 0): lost_s + 0.1 + 2.0})


def test_each_chunk_draws_what_it_takes_by_the_seed() -> None:
    """All that was measured comes, in an order that the seed decides."""
    cluster = SimulatedCluster(paper_cluster(), replace(EVEN, disk_write=FAST, overheads_s=(0.0, 1.0)))
    ways = {f"w{host}": [(host, host + 8)] for host in range(8)}
    jobs = tuple(SimulatedJob(name, way[0][0], 1) for name, way in ways.items())

    def times(seed: int) -> list[float]:
        run = simulate(Scenario(cluster, jobs), PolicyMaker("fixed", lambda *_: Fixed(ways)), seed)
        return [chunk.end_s - chunk.start_s for chunk in sorted(run.chunks)]

    assert times(1) == times(1)
    assert len({tuple(times(seed)) for seed in range(5)}) > 1
    both = [time for seed in range(5) for time in times(seed)]
    assert max(both) - min(both) >= 1.0


def test_a_lost_host_breaks_chains_and_is_noticed_later() -> None:
    """Lost at 1 s, known at 4 s: the chunk goes again without it, from its first byte."""
    run = run_fixed(EVEN, {"a": [(0, 1, 9)], "b": [(2, 3)]}, losses=[Loss(9, 1.0, notice_s=3.0)])
    broken = [chunk for chunk in run.chunks if not chunk.acked]
    assert [(chunk.request, chunk.end_s) for chunk in broken] == [("a", 1.0)]
    assert ends(run) == pytest.approx({("a", 0): 5.6, ("b", 0): 1.6})
    assert {request.name: request.go_s for request in run.requests}["a"] == 0.0


def test_nothing_under_way_and_nothing_to_come_is_an_error() -> None:
    """A policy that forgets a chunk is named, not waited for."""
    with pytest.raises(SimulationStuck, match="'a'"):
        run_fixed(EVEN, {"a": [(0, 1)]}, jobs=[SimulatedJob("a", 0, 2)])


def test_bad_scenarios_name_the_field() -> None:
    """Twice the same name, a host that is none, no chunks, reads without sources, too many writers."""
    cluster = SimulatedCluster(paper_cluster())
    for jobs, field in (
        ([SimulatedJob("a", 0, 1), SimulatedJob("a", 1, 1)], "jobs"),
        ([SimulatedJob("a", 17, 1)], "host"),
        ([SimulatedJob("a", 0, 0)], "chunks"),
        ([SimulatedJob("a", 0, 1, kind=TransferKind.READ)], "sources"),
    ):
        with pytest.raises(RequestError, match=f"^{field}:"):
            Scenario(cluster, tuple(jobs))
    with pytest.raises(RequestError, match="18 of 17"):
        spread_writers(cluster, 18, Random(0))


# ---- whole runs

POLICIES = {
    "hdfs": hdfs_default(2),
    "sinbad": sinbad(2),
    "peace": peace("peace", TreePlanner, Settings()),
    "peace that gathers": peace("peace that gathers", TreePlanner, Settings(gather_ms=GATHER_MS)),
}


def whole(
    policy: PolicyMaker, seed: int, *, losses: Sequence[Loss] = (), chunks: int = 2, trace: bool = False
) -> SimulatedRun:
    """16 checkpoints at once in the paper's cluster."""
    cluster = SimulatedCluster(paper_cluster())
    jobs = checkpoints(cluster, spread_writers(cluster, 16, Random(seed)), chunks)
    return simulate(Scenario(cluster, jobs, tuple(losses), memory_full=True, trace=trace), policy, seed)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    """To the last bit; another seed gives another."""
    first, again, other = (whole(POLICIES[name], seed) for seed in (5, 5, 6))
    assert first.chunks == again.chunks
    assert first.requests == again.requests
    assert first.chunks != other.chunks


@pytest.mark.parametrize("name", POLICIES)
def test_every_byte_arrives_once_per_replica_and_resource(name: str) -> None:
    """What disks, clients and links carried is what the chunks over them moved."""
    run = whole(POLICIES[name], 3)
    cluster = SimulatedCluster(paper_cluster())
    expected = np.zeros(cluster.resources)
    for chunk in run.chunks:
        for use in cluster.uses(chunk.hosts, chunk.kind):
            expected[use.resource] += cluster.topology.chunk_bytes
    np.testing.assert_allclose(run.carried, expected, rtol=1e-6, atol=1.0)
    assert sorted((chunk.request, chunk.chunk) for chunk in run.chunks) == sorted(
        (request.name, chunk) for request in run.requests for chunk in range(2)
    )


@pytest.mark.parametrize("name", POLICIES)
def test_rates_never_exceed_links_and_clients(name: str) -> None:
    """At every moment of a run."""
    run = whole(POLICIES[name], 4, trace=True)
    cluster = SimulatedCluster(paper_cluster())
    assert all((moment.rates <= cluster.capacity * (1 + 1e-6)).all() for moment in run.trace)
    assert all((moment.cached <= PAPER.cache_bytes).all() for moment in run.trace)


@pytest.mark.parametrize("name", POLICIES)
def test_no_run_beats_its_lower_bounds(name: str) -> None:
    """Disks, links between racks, writers: COMP is above all, and every request above what its writer needs."""
    run = whole(POLICIES[name], 2)
    cluster = SimulatedCluster(paper_cluster(), replace(PAPER, cache_bytes=0.0))
    least = bounds(cluster, [request.host for request in run.requests], 2)
    assert run.comp_s() >= least.comp_s
    assert all(request.io_s >= least.request_s for request in run.requests)
    assert all(request.response_s >= request.io_s for request in run.requests)


@pytest.mark.parametrize("name", POLICIES)
def test_a_lost_host_costs_time_but_no_chunk(name: str) -> None:
    """All checkpoints of others end, none of their last chains passes the lost host after its loss."""
    cluster = SimulatedCluster(paper_cluster())
    writers = spread_writers(cluster, 16, Random(1))
    gone = next(host for host in range(cluster.hosts) if host not in writers)
    run = whole(POLICIES[name], 1, losses=[Loss(gone, 2.0)])
    assert len(run.requests) == 16
    late = [chunk for chunk in run.chunks if chunk.end_s > 2.0 and gone in chunk.hosts]
    assert not [chunk for chunk in late if chunk.acked]
    assert len([chunk for chunk in run.chunks if chunk.acked]) == 32


@pytest.mark.parametrize("name", POLICIES)
def test_a_lost_writers_checkpoint_is_given_up(name: str) -> None:
    """And the others end."""
    writer = spread_writers(SimulatedCluster(paper_cluster()), 16, Random(1))[0]
    run = whole(POLICIES[name], 1, losses=[Loss(writer, 0.5)], chunks=4)
    assert len(run.gave_up) == 1
    assert len(run.requests) == 15


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("at_s", [1.0, 6.0])
def test_what_a_lost_host_asks_for_is_given_up(name: str, at_s: float) -> None:
    """Whether its loss is known by then or not; the others end."""
    cluster = SimulatedCluster(paper_cluster())
    jobs = (*checkpoints(cluster, [6, 14], 2), SimulatedJob("late", 3, 2, at_s))
    run = simulate(Scenario(cluster, jobs, (Loss(3, 0.5, notice_s=3.0),)), POLICIES[name], 1)
    assert run.gave_up == ("late",)
    assert len(run.requests) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_recoveries_and_copies_run_beside_checkpoints(name: str) -> None:
    """Reads arrive at the reader, copies at a host that had none."""
    cluster = SimulatedCluster(paper_cluster())
    reads = SimulatedJob("read", 0, 3, 0.5, kind=TransferKind.READ, sources=((1, 9), (2, 10), (3, 11)))
    copies = SimulatedJob("copy", -1, 2, 0.5, replicas=1, kind=TransferKind.COPY, sources=((4, 5), (12, 13)))
    run = simulate(Scenario(cluster, (*checkpoints(cluster, [6, 14], 2), reads, copies)), POLICIES[name], 1)
    by_name = {(chunk.request, chunk.chunk): chunk.hosts for chunk in run.chunks}
    assert all(by_name["read", n][0] in reads.sources[n] and by_name["read", n][-1] == 0 for n in range(3))
    assert all(by_name["copy", n][0] in copies.sources[n] for n in range(2))
    assert all(by_name["copy", n][-1] not in copies.sources[n] for n in range(2))


@pytest.mark.parametrize("seed", [4, 7])
def test_timesteps_of_a_planner_that_passes_the_head_over(seed: int) -> None:
    """`repaired` may leave the head out for the sake of more chunks; it still gets one chain, and none too many."""
    policy = peace("repaired", RepairedPlanner, Settings(mode=Mode.TIMESTEPS))
    cluster = SimulatedCluster(paper_cluster(5, send=2))
    jobs = checkpoints(cluster, spread_writers(cluster, 16, Random(seed)), 8)
    run = simulate(Scenario(cluster, jobs, memory_full=True), policy, seed)
    assert len(run.chunks) == 16 * 8


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from([1.5, 2.0, 4.0]))
def test_faster_links_and_disks_end_sooner(seed: int, factor: float) -> None:
    """Everything faster by a factor: every chunk ends sooner by exactly that factor, on the same ways."""
    random = Random(seed)
    ways = {f"w{host}": [tuple(random.sample(range(17), 4))] for host in range(6)}
    faster = replace(
        EVEN,
        disk_write=curve((1, 16), (40.0 * factor, 2.5 * factor)),
        link_bytes_s=EVEN.link_bytes_s * factor,
    )
    slow, fast = ends(run_fixed(EVEN, ways)), ends(run_fixed(faster, ways))
    assert fast == pytest.approx({chunk: end / factor for chunk, end in slow.items()})


def test_what_is_gathered_is_planned_when_it_is_due() -> None:
    """Writers that submit within the time that is gathered start together at its end; the simulator keeps the time."""
    cluster = SimulatedCluster(racks([4, 4], 8), EVEN)
    jobs = checkpoints(cluster, [0, 4], 2, at_s=[1.0, 1.003])
    run = simulate(Scenario(cluster, jobs), peace("peace", RepairedPlanner, Settings(gather_ms=GATHER_MS)), 1)
    assert [request.go_s for request in run.requests] == pytest.approx([1.0 + GATHER_MS / 1000] * 2)
    assert sum(chunk.acked for chunk in run.chunks) == 4
