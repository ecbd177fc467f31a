"""How Peace's planners scale: time per timestep, per chunk and per single chain, memory, distance from the optimum.

`python benchmarks/peace_scale.py [--quick] [--smoke]` plans one timestep on networks of 17 to 10,000 hosts under four
loads with all planners side by side, compares tiny networks with exhaustive search, and leaves results/peace_scale.json
and .png. A timestep is one `plan` call: from request objects to the plan's chain objects, everything included.

Invariants:
* All planners get the same network, the same requests and full capacity; every round has a seed of its own.
* The first plan of each case is checked by the verifier. Times are wall-clock; medians count, the best is shown beside.
* What was not measured is listed with the reason: a planner is left out where the size before says it takes too long.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.program import options
from benchmarks.harness.report import Rows, machine
from benchmarks.scale import report
from benchmarks.scale.bursts import burst, fewest
from benchmarks.scale.cases import LOADS, Case, case, irregular, tiny
from benchmarks.yardstick.brute import max_chunks
from benchmarks.yardstick.exact import ExactPlan, ExactPlanner
from benchmarks.yardstick.verify import verify
from scheduler.peace.online import GATHER_MS
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import Planner, Residual, TransferPlan
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner

ROOT = Path(__file__).resolve().parents[1]
FAST = ("tree", "repaired")
GROWTH = 1.3
"""A planner's time is expected to grow with the number of hosts to this power, when deciding whether to wait for it."""
TELLING = 200
"""Hosts from which on a time tells something about larger networks."""
CHAIN_CALLS = 2000
BURST_CHUNKS = 3
"""Each writer of a burst has so many times its own chunks, so that there is more than a beginning and an end."""
UNEVEN = 0.02
"""How far chunks' times are from their mean, at most."""
CHILD_LIMIT_S = 120


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    mode: str
    sizes: tuple[int, ...]
    deep_sizes: tuple[int, ...]
    """With three levels of switches."""
    rounds: int
    paper_limit_s: float
    """No timestep of planner `paper` that is expected to take longer."""
    exact_limit_s: float
    """And none of `exact`; also what HiGHS gets."""
    tiny_cases: int
    irregular_cases: int
    """For two levels of switches and for three, each."""
    bursts: int
    """Likewise, and once with chunks that take equally long, once with such that do not."""
    weighed: tuple[int, ...]
    compiled: bool
    """Whether compiling from nothing is timed: it takes half a minute."""
    limit_s: float
    """No case of `paper` or `exact` begins later."""


FULL = Scale(
    "full",
    (17, 68, 200, 400, 1000, 2000, 5000, 10_000),
    (1000, 10_000),
    21,
    5,
    20,
    300,
    100,
    48,
    (17, 1000, 10_000),
    True,
    190,
)
QUICK = Scale("quick", (17, 200, 1000, 10_000), (10_000,), 9, 1.0, 3.0, 60, 20, 6, (10_000,), False, 35)
SMOKE = Scale("smoke", (17, 200), (200,), 2, 0.5, 1.0, 10, 2, 1, (17,), False, 3600)


class Benchmark:
    """One run, and the rows that it fills."""

    def __init__(self, scale: Scale, first_seed: int, console: Console) -> None:
        self.scale = scale
        self.rows = Rows()
        self.left_out: list[str] = []
        self._seed = first_seed
        self._console = console
        self._began = time.monotonic()
        self._took: dict[tuple[str, str, int], tuple[int, float]] = {}  # planner, load, levels: hosts and seconds

    def run(self) -> None:
        """Everything."""
        self._warm_up()
        for hosts, levels in [
            *((size, 2) for size in self.scale.sizes),
            *((size, 3) for size in self.scale.deep_sizes),
        ]:
            for load in LOADS:
                self._case(load, hosts, levels)
            self._console.log(f"{hosts} hosts, {levels} levels")
        self._tiny()
        self._irregular()
        self._bursts()
        self._weigh()

    def _warm_up(self) -> None:
        """Load what is compiled; then nothing that is there already is the garbage collector's business."""
        for load in LOADS:
            network = case(load, 17, 2, self._seed)
            for planner in (TreePlanner(network.topology), RepairedPlanner(network.topology)):
                planner.plan(network.requests, Residual.full(network.topology), Random(1))
        gc.collect()
        gc.freeze()

    def _case(self, load: str, hosts: int, levels: int) -> None:
        network = case(load, hosts, levels, self._seed)
        about = {"load": load, "hosts": len(network.topology.servers), "levels": levels}
        planners: list[Planner] = [TreePlanner(network.topology), RepairedPlanner(network.topology)]
        for turn in range(self.scale.rounds):
            for planner in planners if turn % 2 else planners[::-1]:
                self._timestep(planner, network, about, turn)
        self._chains(planners[0], network, about)
        slow = (
            (PaperPlanner(network.topology), self.scale.paper_limit_s),
            (ExactPlanner(network.topology, self.scale.exact_limit_s, ties_s=0), self.scale.exact_limit_s),
        )
        for slow_planner, limit_s in slow:
            if self._in_time(slow_planner.name, about, limit_s):
                seconds = self._timestep(slow_planner, network, about, 0)
                self._took[slow_planner.name, load, levels] = hosts, seconds

    def _in_time(self, name: str, about: Mapping[str, Any], limit_s: float) -> bool:
        """Whether to wait for a slow planner; if not, that is noted."""
        hosts, load, levels = about["hosts"], about["load"], about["levels"]
        known = self._took.get((name, load, levels)) or self._took.get((name, load, 2))
        expected_s = known[1] * (hosts / known[0]) ** GROWTH if known and known[0] >= TELLING else 0.0
        left_s = self.scale.limit_s - (time.monotonic() - self._began)
        if expected_s <= min(limit_s, left_s) and left_s > 0:
            return True
        self.left_out.append(f"{name}, {load}, {hosts} hosts, {levels} levels: expected to take {expected_s:.0f} s")
        return False

    def _timestep(self, planner: Planner, network: Case, about: Mapping[str, Any], turn: int) -> float:
        """One measured plan; the first of a case is verified."""
        seed = self._seed + turn
        residual, random = Residual.full(network.topology), Random(seed)
        gc.collect()
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        plan = planner.plan(network.requests, residual, random)
        cpu, seconds = time.thread_time() - begin_cpu, time.perf_counter() - begin
        if turn == 0:
            verify(network.topology, network.requests, plan, Residual.full(network.topology))
        self.rows.add(
            **about,
            planner=planner.name,
            round=turn,
            seed=seed,
            requests=len(network.requests),
            wanted=sum(request.chunks for request in network.requests),
            chunks=len(plan.chains),
            ms=seconds * 1e3,
            cpu_ms=cpu * 1e3,
            us_per_chunk=seconds * 1e6 / max(1, len(plan.chains)),
            **_proof(plan),
        )
        return seconds

    def _chains(self, planner: Planner, network: Case, about: Mapping[str, Any]) -> None:
        """Single chains, as the continuous scheduler asks for them, with half of the capacity in use."""
        residual, random = Residual.full(network.topology), Random(self._seed)
        plan = planner.plan(network.requests, residual, random)
        for chain in plan.chains[::2]:
            residual.give(chain)
        times_us, found = [], 0
        for call in range(CHAIN_CALLS):
            request = network.requests[call * 7 % len(network.requests)]
            begin = time.perf_counter()
            single = planner.chain(request, 0, residual, random)
            times_us.append((time.perf_counter() - begin) * 1e6)
            if single is not None:
                residual.give(single)
                found += 1
        times_us.sort()
        self.rows.add(
            **about,
            planner=f"{planner.name}, one chain",
            round=0,
            us=times_us[len(times_us) // 2],
            best_us=times_us[0],
            p99_us=times_us[len(times_us) * 99 // 100],
            found=found / CHAIN_CALLS,
        )

    def _tiny(self) -> None:
        """Against exhaustive search."""
        for number in range(self.scale.tiny_cases):
            seed = self._seed + number
            network = tiny(seed)
            most = max_chunks(network.topology, network.requests)
            for planner in (TreePlanner(network.topology), RepairedPlanner(network.topology)):
                full = Residual.full(network.topology)
                plan = planner.plan(network.requests, full.copy(), Random(seed))
                verify(network.topology, network.requests, plan, full)
                self.rows.add(load="tiny", planner=planner.name, seed=seed, most=most, chunks=len(plan.chains))
        self._console.log(f"{self.scale.tiny_cases} tiny networks")

    def _irregular(self) -> None:
        """Networks no two links or racks of which are alike, against the exact planner."""
        for levels in (2, 3):
            for number in range(self.scale.irregular_cases):
                seed = self._seed + number
                network = irregular(seed, levels)
                exact = ExactPlanner(network.topology, self.scale.exact_limit_s, ties_s=0)
                best = exact.plan(network.requests, Residual.full(network.topology), Random(seed))
                assert isinstance(best, ExactPlan)
                for planner in (TreePlanner(network.topology), RepairedPlanner(network.topology)):
                    full = Residual.full(network.topology)
                    plan = planner.plan(network.requests, full.copy(), Random(seed))
                    verify(network.topology, network.requests, plan, full)
                    about = {"load": "irregular", "levels": levels, "hosts": len(network.topology.servers)}
                    found = {"chunks": len(plan.chains), "most": len(best.chains), "proven": best.proven}
                    self.rows.add(**about, planner=planner.name, seed=seed, **found)
            self._console.log(f"{self.scale.irregular_cases} irregular networks, {levels} levels")

    def _bursts(self) -> None:
        """All submit at once, in continuous mode with the coordinator's defaults."""
        for levels in (2, 3):
            for number in range(self.scale.bursts):
                seed = self._seed + number
                topology, own = irregular(seed, levels)
                requests = [replace(one, chunks=one.chunks * BURST_CHUNKS) for one in own]
                least = fewest(topology, requests)
                for spread in (0.0, UNEVEN):
                    took = burst(topology, requests, RepairedPlanner(topology), GATHER_MS, spread, seed)
                    self.rows.add(load="burst", levels=levels, seed=seed, spread=spread, took=took, least=least)
            self._console.log(f"{self.scale.bursts} bursts, {levels} levels")

    def _weigh(self) -> None:
        """Processes of their own: memory, and the time until the first plan."""
        for planner in FAST:
            for hosts in self.scale.weighed:
                self.rows.add(load="weighed", **_child(planner, hosts, {}))
            if self.scale.compiled:
                with tempfile.TemporaryDirectory(prefix="peace-scale-") as directory:
                    self.rows.add(load="compiled", **_child(planner, 17, {"NUMBA_CACHE_DIR": directory}))


def _proof(plan: TransferPlan) -> dict[str, Any]:
    return {"proven": plan.proven, "bound": plan.bound} if isinstance(plan, ExactPlan) else {}


def _child(planner: str, hosts: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """What `benchmarks.scale.weigh` says."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale.weigh", planner, str(hosts)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=CHILD_LIMIT_S,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__, quick="under a minute: fewer sizes and rounds", smoke="seconds: only whether the benchmark works"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    scale = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    folder = results.directory(parser, chosen.results, scale.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    console.log(f"first seed {chosen.seed}")
    about: dict[str, Any] = {
        "benchmark": report.NAME,
        "mode": scale.mode,
        "plan": asdict(scale),
        "first_seed": chosen.seed,
        "machine": machine(Path(tempfile.gettempdir())),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("cairn", "highspy", "numba", "numpy")},
        },
    }
    begin = time.perf_counter()
    benchmark = Benchmark(scale, chosen.seed, console)
    benchmark.run()
    about["left_out"] = benchmark.left_out
    about["seconds"] = round(time.perf_counter() - begin, 1)
    about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    report.publish(benchmark.rows, about, folder, console)


if __name__ == "__main__":
    main()
