"""Peace with real bytes: the paper's experiment (section 6.2, figure 10) at one tenth, on 17 hosts in namespaces.

`python benchmarks/peace_real.py [--quick] [--parts chains,hdfs] [--runs N]` builds the paper's two racks with network
namespaces and shaped links, lets 16 hosts write checkpoints of 8 chunks, three replicas each, under HDFS's default
placement and under Peace by turns, and leaves results/peace_real.json and .png. Part `chains` has a small chunk server
and disks paced by the paper's table 8, part `hdfs` a real HDFS. The simulator runs the same beside it. Needs root.

Invariants:
* In each round both sides run one after the other, with the same writers; ratios are medians of each round's own.
* What was measured so far is on disk after every round, in build/benchmarks; the kept result is that of a whole run.
* Under HDFS each side runs once before what is measured: the first pipelines meet JVMs that have compiled nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.program import options
from benchmarks.harness.report import Rows, machine, versions
from benchmarks.harness.signals import ended_in_order
from benchmarks.racks import chains, real_hdfs, report
from benchmarks.racks.coordinator import coordinating
from benchmarks.racks.experiment import Experiment, Load
from benchmarks.racks.hosts import HostFailed
from benchmarks.racks.links import Rates
from benchmarks.racks.network import Network, NetworkUnavailable, why_not
from benchmarks.racks.report import (
    CHAINS,
    DEFAULT,
    HDFS_PART,
    PAPERS_PEACE,
    PEACE,
    REAL,
    SIMULATED,
    Timeline,
)
from benchmarks.racks.setting import Setting
from benchmarks.simulation import setups
from scheduler.hdfs.errors import HdfsUnavailable
from scheduler.peace.online import Mode
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import WRITER_THREADS
from scheduler.simulation.policies import Era, PolicyMaker, hdfs_default
from scheduler.simulation.run import SimulatedRun
from scheduler.simulation.scenario import Scenario

PAYLOAD_SHARE = 1448 / 1514
"""TCP payload of a full frame, as the shaping counts its bytes."""


@dataclass(frozen=True)
class Plan:
    """How much is measured. `chunks` and `runs` by part; no run begins after `limit_seconds`.

    `papers`: once also Peace as in the paper. `neighbours`: so many rounds with chains have also Peace with capacities
    beside those of the calibrator's rule.
    """

    mode: str
    chunks: dict[str, int]
    runs: dict[str, int]
    limit_seconds: float
    papers: bool
    neighbours: int


FULL = Plan("full", {CHAINS: 8, HDFS_PART: 8}, {CHAINS: 5, HDFS_PART: 5}, 2400.0, papers=True, neighbours=3)
QUICK = Plan("quick", {CHAINS: 2, HDFS_PART: 1}, {CHAINS: 1, HDFS_PART: 1}, 100.0, papers=False, neighbours=0)


class Turn(NamedTuple):
    """One side of a round: how it is run, and what the simulator runs beside it."""

    policy: str
    run: Callable[[], tuple[SimulatedRun, Load]]
    simulated: PolicyMaker
    cluster: SimulatedCluster


class Benchmark:
    """One run: parts, and the rows that they fill."""

    def __init__(self, plan: Plan, seed: int, data: Path, folder: Path, console: Console) -> None:
        self.plan = plan
        self.rows = Rows()
        self.timelines: list[Timeline] = []
        self._seed = seed
        self._data = data
        self._folder = folder
        self._console = console
        self._began = time.monotonic()
        self.about: dict[str, Any] = {
            "benchmark": report.NAME,
            "mode": plan.mode,
            "plan": asdict(plan),
            "seed": seed,
            "machine": machine(data),
            "versions": {**versions(), **{name: metadata.version(name) for name in ("hdfs", "numba", "numpy")}},
            "settings": {},
            "links": {},
            "left_out": [],
        }

    def run(self, parts: Sequence[str]) -> None:
        """All parts, each on a network of its own."""
        for part in parts:
            try:
                self._part(part)
            except (HdfsUnavailable, HostFailed) as error:
                self.about["left_out"].append(f"{part}: {error}")

    def _part(self, part: str) -> None:
        setting = replace(Setting(chunks=self.plan.chunks[part]), paced=part == CHAINS)
        directory = self._data / part
        directory.mkdir()
        with Network(setting.racks, setting.link_bytes_s) as network:
            if part == CHAINS:
                with chains.opened(setting, network, directory) as cluster:
                    self._rounds(part, cluster, self._default(part))
            else:
                with real_hdfs.opened(setting, network, directory) as cluster:
                    self.about["hdfs_start_s"] = round(cluster.hdfs.start_seconds, 1)
                    self._rounds(part, cluster, real_hdfs.hdfs_chooses(WRITER_THREADS))

    def _rounds(self, part: str, cluster: Experiment, default: PolicyMaker) -> None:
        """Default and Peace by turns; in the part with chains also Peace with other capacities, and as in the paper."""
        self.about["links"][part] = _links(cluster)
        self._say(f"{part}: links {cluster.rates.figures()}")
        if isinstance(cluster, real_hdfs.RealHdfs):
            self._prepare_hdfs(cluster, default)
        setting = cluster.setting
        self.about["settings"][part] = {**asdict(setting), "capacity": setting.capacity}
        papers = setting.papers_cluster(cluster.cluster)
        for number in range(1, self.plan.runs[part] + 1):
            seed = self._seed + number
            turns = [
                Turn(DEFAULT, partial(cluster.default, default, seed), self._default(part), cluster.cluster),
                Turn(PEACE, partial(_continuous, cluster, seed), setups.continuous(), cluster.cluster),
            ]
            if part == CHAINS and number <= self.plan.neighbours:
                turns += [
                    Turn(name, partial(_continuous, cluster, seed, name, other), setups.continuous(name), other)
                    for name, other in cluster.setting.neighbours(cluster.cluster).items()
                ]
            if number % 2 == 0:
                turns.reverse()
            if self.plan.papers and part == CHAINS and number == 1:
                turns.append(Turn(PAPERS_PEACE, partial(_papers, cluster, papers, seed), setups.timesteps(), papers))
            for turn in turns:
                if time.monotonic() - self._began > self.plan.limit_seconds:
                    self.about["left_out"].append(f"{part}, {turn.policy}, round {number}: the run's time was up")
                    continue
                self._measured(part, turn.policy, number, *turn.run())
                self._simulated(part, turn, number, cluster.setting, seed)
            report.publish(self.rows, self.timelines, {**self.about, "mode": "partial"}, results.TRIALS, None)

    def _prepare_hdfs(self, cluster: real_hdfs.RealHdfs, default: PolicyMaker) -> None:
        """Both sides once, and what a chunk takes besides its bytes: for the simulator, and for the capacities."""
        if self.plan.mode != "quick":
            cluster.default(default, self._seed)
            _continuous(cluster, self._seed)
            self._say(f"{HDFS_PART}: both sides once, not measured")
        cluster.calibrate(partial(_continuous, cluster, self._seed))
        took_s = cluster.setting.overheads_s
        spread = f"{fmean(took_s):.3f} s ({min(took_s):.3f} to {max(took_s):.3f})"
        self._say(
            f"{HDFS_PART}: {spread} a chunk besides its bytes, {cluster.setting.capacity} chunks at a time on a link"
        )

    def _default(self, part: str) -> PolicyMaker:
        """HDFS's default in the simulator: of the paper's time, or of the version that runs."""
        return hdfs_default(WRITER_THREADS, era=Era.BEFORE_0_17 if part == CHAINS else Era.FROM_0_17)

    def _measured(self, part: str, policy: str, number: int, run: SimulatedRun, load: Load) -> None:
        labels = {"part": part, "source": REAL, "policy": policy, "round": number}
        figures = {**_figures(run), **load._asdict(), "cpus": psutil.cpu_count()}
        if part == HDFS_PART and policy == PEACE:
            figures["as_planned"] = 1.0  # RealHdfs.check raises where a chunk is not
        self.rows.add(**labels, **figures)
        self.timelines.append(_timeline(part, REAL, policy, number, run))
        self._say(
            f"{part}, {policy}, round {number}: IO {run.io_s():.1f} s, from submission {run.response_s():.1f} s, "
            f"COMP {run.comp_s():.1f} s; {load.busy_cpus:.2f} CPUs busy, {load.own_cpus:.2f} ours"
        )

    def _simulated(self, part: str, turn: Turn, number: int, setting: Setting, seed: int) -> None:
        scenario = Scenario(turn.cluster, setting.jobs(turn.cluster, seed), memory_full=part == CHAINS)
        run = simulate(scenario, turn.simulated, seed)
        self.rows.add(part=part, source=SIMULATED, policy=turn.policy, round=number, **_figures(run))
        self.timelines.append(_timeline(part, SIMULATED, turn.policy, number, run))

    def finish(self) -> None:
        """Print everything, and write it: a full run that left something out is none."""
        self.about["seconds"] = round(time.monotonic() - self._began, 1)
        self.about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
        whole = self.plan.mode != "full" or not self.about["left_out"]
        if not whole:
            self.about["mode"] = "partial"
        folder = self._folder if whole else results.partial(self._folder)
        report.publish(self.rows, self.timelines, self.about, folder, self._console)

    def _say(self, text: str) -> None:
        self._console.log(text)


def _continuous(
    experiment: Experiment, seed: int, name: str = PEACE, cluster: SimulatedCluster | None = None
) -> tuple[SimulatedRun, Load]:
    """Peace with a coordinator of its own, which knows the experiment's cluster, or this one."""
    with coordinating((cluster or experiment.cluster).topology, Mode.CONTINUOUS, seed) as url:
        return experiment.peace(url, seed, name)


def _papers(experiment: Experiment, cluster: SimulatedCluster, seed: int) -> tuple[SimulatedRun, Load]:
    """Peace as in the paper: Algorithm 1, timesteps, the paper's capacities."""
    with coordinating(cluster.topology, Mode.TIMESTEPS, seed, "paper") as url:
        return experiment.peace(url, seed, PAPERS_PEACE)


def _figures(run: SimulatedRun) -> dict[str, float]:
    return {"io_s": run.io_s(), "response_s": run.response_s(), "comp_s": run.comp_s()}


def _timeline(part: str, source: str, policy: str, number: int, run: SimulatedRun) -> Timeline:
    acks = [round(chunk.end_s, 3) for chunk in run.chunks if chunk.acked]
    spans = [(round(request.go_s, 3), round(request.last_ack_s, 3)) for request in run.requests]
    return Timeline(part, source, policy, number, acks, spans)


def _links(cluster: Experiment) -> dict[str, Any]:
    """What the links carried when measured, and how far the slowest is below what it should carry."""
    rates: Rates = cluster.rates
    wanted = cluster.setting.link_bytes_s * PAYLOAD_SHARE
    slowest = min(*rates.hosts.values(), *rates.between)
    return {**rates.figures(), "payload MB/s wanted": round(wanted / 1e6, 3), "slowest_below": 1 - slowest / wanted}


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    for part in parts:
        if part not in (CHAINS, HDFS_PART):
            raise argparse.ArgumentTypeError(f"{part!r}: parts are {CHAINS} and {HDFS_PART}, joined by a comma")
    return parts


def _runs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number from 1 to 100")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__,
        quick="under two minutes, with a quarter of the bytes",
        data="where the hosts' files are meanwhile (default: a temporary one)",
    )
    parser.add_argument("--parts", type=_parts, default=[CHAINS, HDFS_PART], help="chains,hdfs (default: both)")
    parser.add_argument("--runs", type=_runs, help="rounds of each part (default: 5; quick: 1)")
    parser.add_argument("--seed", type=int, default=0, help="which hosts write, and all chance (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    problem = why_not()
    if problem is not None:
        sys.exit(f"peace_real: {problem}")
    plan = QUICK if chosen.quick else FULL
    if chosen.runs is not None:
        plan = replace(plan, mode="partial", runs=dict.fromkeys(plan.runs, chosen.runs), limit_seconds=float("inf"))
    if set(chosen.parts) != {CHAINS, HDFS_PART}:
        plan = replace(plan, mode="partial")
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    console.print(f"seed {chosen.seed}")
    with ended_in_order(), tempfile.TemporaryDirectory(dir=chosen.data, prefix="peace-real-") as name:
        benchmark = Benchmark(plan, chosen.seed, Path(name), folder, console)
        try:
            benchmark.run(chosen.parts)
        except NetworkUnavailable as error:
            sys.exit(f"peace_real: {error}")
        except KeyboardInterrupt:
            sys.exit("peace_real: interrupted; all it built is removed, results so far are written")
        benchmark.finish()


if __name__ == "__main__":
    main()
