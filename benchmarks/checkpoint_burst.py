"""Operators' checkpoints of 16 hosts at once into a real HDFS: default placement against Peace.

`python benchmarks/checkpoint_burst.py [--quick] [--rounds N]` builds the paper's two racks with network namespaces and
shaped links, starts a real HDFS in them and a stateful operator on every host, lets 16 of them checkpoint at once by
turns under HDFS's placement and under Peace, and leaves results/checkpoint_burst.json and .png. Needs root. A full run
takes about a quarter of an hour.

Invariants:
* In each round all policies run one after the other, with the same writers; ratios are medians of each round's own.
* What was measured so far is on disk after every run, in build/benchmarks; the kept result is that of a whole run.
* Each policy runs once before what is measured: the first pipelines meet JVMs that have compiled nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.burst import report
from benchmarks.burst.cluster import DEFAULT, OWN_DISK, PEACE, BurstCluster, Work, opened
from benchmarks.harness import results
from benchmarks.harness.program import options
from benchmarks.harness.report import Rows, machine, versions
from benchmarks.harness.signals import ended_in_order
from benchmarks.racks.hosts import HostFailed
from benchmarks.racks.network import Network, NetworkUnavailable, why_not
from benchmarks.racks.setting import BYTES_PER_CHECKSUM, Setting
from scheduler.hdfs.errors import HdfsUnavailable
from spe_adapter.checkpoint.manager import AT_ONCE

OVERHEAD_S = 0.13
"""What a chunk takes besides its bytes, until it is measured: what benchmarks/peace_real.py measured."""


@dataclass(frozen=True)
class Plan:
    """How much is measured. `chunk_bytes`: about what a chunk of an operator's checkpoint has, compressed.

    No run begins after `limit_seconds`. `warm`: every policy runs once, not measured, and what a chunk takes besides
    its bytes is measured.
    """

    mode: str
    rounds: int
    chunk_bytes: int
    work: Work
    limit_seconds: float
    warm: bool
    policies: tuple[str, ...] = (DEFAULT, PEACE, OWN_DISK)


FULL = Plan("full", 3, 5_178_000, Work(300_000, every_s=0.5, updates=500, quiet_s=10.0), 1500.0, warm=True)
QUICK = Plan(
    "quick",
    1,
    1_295_000,
    Work(75_000, every_s=0.5, updates=500, quiet_s=5.0),
    600.0,
    warm=False,
    policies=(DEFAULT, PEACE),
)


class Benchmark:
    """One run."""

    def __init__(self, plan: Plan, seed: int, data: Path, folder: Path, console: Console) -> None:
        self.plan = plan
        self.rows = Rows()
        self.spans: list[dict[str, Any]] = []
        self._seed = seed
        self._data = data
        self._folder = folder
        self._console = console
        self._began = time.monotonic()
        packages = {name: metadata.version(name) for name in ("hdfs", "numba", "numpy", "pyarrow")}
        self.about: dict[str, Any] = {
            "benchmark": report.NAME,
            "mode": plan.mode,
            "plan": asdict(plan),
            "seed": seed,
            "machine": machine(data),
            "versions": {**versions(), **packages},
            "setting": {},
            "left_out": [],
        }

    def run(self) -> None:
        """Everything, on a network of its own."""
        chunk_bytes = self.plan.chunk_bytes // BYTES_PER_CHECKSUM * BYTES_PER_CHECKSUM
        setting = Setting(chunks=AT_ONCE, paced=False, chunk_bytes=chunk_bytes, overheads_s=(OVERHEAD_S,))
        try:
            with (
                Network(setting.racks, setting.link_bytes_s) as network,
                opened(setting, network, self._data, self.plan.work) as cluster,
            ):
                self._rounds(cluster)
        except (HdfsUnavailable, HostFailed) as error:
            self.about["left_out"].append(str(error))

    def _rounds(self, cluster: BurstCluster) -> None:
        self.about["hdfs_start_s"] = round(cluster.base.hdfs.start_seconds, 1)
        self.about["links"] = cluster.base.rates.figures()
        self._say(f"links {cluster.base.rates.figures()}")
        cluster.build()
        self._say("state is built")
        if self.plan.warm:
            for policy in self.plan.policies:
                cluster.burst(policy, self._seed)
            self._say("each policy once, not measured")
            cluster.calibrate(self._seed)
        setting = cluster.base.setting
        self.about["setting"] = {**asdict(setting), "capacity": setting.capacity}
        self._say(f"{setting.capacity} chunks at a time on a link")
        for number in range(1, self.plan.rounds + 1):
            policies = self.plan.policies[:: 1 if number % 2 else -1]
            for policy in policies:
                if time.monotonic() - self._began > self.plan.limit_seconds:
                    self.about["left_out"].append(f"{policy}, round {number}: the run's time was up")
                    continue
                self._measured(cluster, policy, number)

    def _measured(self, cluster: BurstCluster, policy: str, number: int) -> None:
        burst = cluster.burst(policy, self._seed + number)
        figures = report.figures_of(burst)
        self.rows.add(policy=policy, round=number, load_average=os.getloadavg()[0], **figures)
        self.spans.append({"policy": policy, "round": number, "spans": report.spans_of(burst)})
        self._say(
            f"{policy}, round {number}: one {figures['one_s']:.1f} s from the go, "
            f"{figures['one_submitted_s']:.1f} s from submission, all {figures['all_s']:.1f} s; epoch p99 "
            f"{figures['quiet_p99_ms']:.0f} ms, in the burst {figures['burst_p99_ms']:.0f} ms; without waiting for a "
            f"processor {figures['quiet_own_p99_ms']:.1f}, {figures['burst_own_p99_ms']:.1f} ms; "
            f"{figures['busy_cpus']:.2f} CPUs busy, {figures['failed']} checkpoints failed"
        )
        report.publish(self.rows, self.spans, {**self.about, "mode": "partial"}, results.TRIALS, None)

    def finish(self) -> None:
        """Print everything, and write it: a full run that left something out is none."""
        self.about["seconds"] = round(time.monotonic() - self._began, 1)
        self.about["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
        whole = self.plan.mode != "full" or not self.about["left_out"]
        if not whole:
            self.about["mode"] = "partial"
        for line in self.about["left_out"]:
            self._say(f"left out: {line}")
        folder = self._folder if whole else results.partial(self._folder)
        report.publish(self.rows, self.spans, self.about, folder, self._console)

    def _say(self, text: str) -> None:
        self._console.log(text)


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number from 1 to 100")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and leave its results."""
    parser = options(
        __doc__,
        quick="one round with a quarter of the state",
        data="where the hosts' files are meanwhile (default: a temporary one)",
    )
    parser.add_argument("--rounds", type=_rounds, help="how many (default: 3; quick: 1)")
    parser.add_argument("--seed", type=int, default=0, help="which hosts write, and all chance (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    problem = why_not()
    if problem is not None:
        sys.exit(f"{report.NAME}: {problem}")
    plan = QUICK if chosen.quick else FULL
    if chosen.rounds is not None:
        plan = replace(plan, mode="partial", rounds=chosen.rounds, limit_seconds=float("inf"))
    folder = results.directory(parser, chosen.results, plan.mode)
    console = Console(log_path=False, width=None if sys.stdout.isatty() else 130)
    console.print(f"seed {chosen.seed}")
    with ended_in_order(), tempfile.TemporaryDirectory(dir=chosen.data, prefix="burst-") as name:
        benchmark = Benchmark(plan, chosen.seed, Path(name), folder, console)
        try:
            benchmark.run()
        except NetworkUnavailable as error:
            sys.exit(f"{report.NAME}: {error}")
        except KeyboardInterrupt:
            sys.exit(f"{report.NAME}: interrupted; all it built is removed, results so far are written")
        benchmark.finish()


if __name__ == "__main__":
    main()
