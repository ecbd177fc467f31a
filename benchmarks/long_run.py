"""An hour of mixed load with kills: what a sidecar uses does not grow, and nothing is lost, twice or out of order.

`python benchmarks/long_run.py [--minutes 60] [--quick] [--smoke]` starts one sidecar and clients of all kinds
(`benchmarks/mixed/clients.py`) with a continuous stateful query. It kills the sidecar with SIGKILL at the end of each
life of a sixth of the time, stops it with SIGTERM at the end of each third one, and writes results/long_run.json with a
plot.

Invariants:
* Growth is looked for within a life, from its second quarter to its last, and from the first life to the last: what a
  restart would hide shows in the first, what a data directory gathers in the second.
* Retention is short enough that chunks are trimmed from the first minutes on: a directory that grows is a leak.
* A goal is judged on medians of samples that are seconds apart; all samples are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
import psutil
import pyarrow as pa
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.meter import cpu_seconds, median, percentiles
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.raw import RawConnection
from benchmarks.harness.report import (
    Goal,
    Row,
    Rows,
    at_least,
    at_most,
    machine,
    print_goals,
    print_rows,
)
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.mixed.clients import CLIENTS, INPUT, OUTPUT, PARTITIONS, PROBE, Told
from logstore.testing.ports import free_port
from spe_adapter.continuous import Fragment, FromJson, TopicSource
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Counting

ROOT = Path(__file__).parents[1]
TOTALS = "totals"
RETENTION = {
    INPUT: {"retention.bytes": str(1 << 20), "segment.bytes": str(256 << 10)},
    OUTPUT: {"retention.bytes": str(256 << 10), "segment.bytes": str(64 << 10)},
    TOTALS: {"retention.bytes": str(256 << 10), "segment.bytes": str(64 << 10)},
    PROBE: {"retention.bytes": str(256 << 10), "segment.bytes": str(64 << 10)},
}
"""Of each topic, by its rate: some minutes of it, so that each is full before the second life, and longer than its
readers are ever away.
"""
RETENTION_CHECK_MS = 10_000
LIVES = 6
CLEAN_SHARE = 3
MAX_SHARE = 100.0
"""Of a life's time, the longest that the last one lasts."""
PATIENCE_S = 300.0
WANTED = (
    "records acknowledged",
    "records of in checked",
    "records of out checked",
    "offsets committed",
    "records read again",
    "epochs committed",
    "topics made and deleted",
    "progress of the query",
)
"""What each client must have done at least once; the last life lasts until then, on a slow machine, too."""
FIGURES = ("rss_mb", "handles", "threads", "files", "disk_mb", "cpu_us", "probe_p50_ms", "probe_p99_ms")
"""Of each sample; processor time is that of a request, of all kinds."""

FRAGMENT = Fragment(
    query="long-run",
    sources=(TopicSource(INPUT, (FromJson(pa.schema([("k", pa.string()), ("v", pa.int64())])),)),),
    key=("k",),
    operator=Aggregate(Counting(10), total=agg.sum("v")),
    topic=TOTALS,
    allow_trimming=True,
)
"""What `python -m spe_adapter.continuous` runs beside the clients, on partition 0."""


@dataclass(frozen=True)
class Plan:
    """How long it takes, and how often it looks."""

    mode: str
    minutes: float
    sample_s: float = 5.0


class Query:
    """The continuous query, started again when it ends."""

    def __init__(self, address: str, told: Told, log: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "spe_adapter.continuous", "benchmarks.long_run:FRAGMENT"),
            *("--servers", address, "--report-s", "1"),
        ]
        self._told, self._log = told, log
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._told.ended.is_set():
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                    stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            with self._process as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self._told.count("progress of the query" if '"epoch"' in line else "recoveries of the query")
            self._told.ended.wait(1.0)

    def stop(self) -> None:
        """End it; `Told.ended` is set."""
        if self._process is not None:
            self._process.terminate()
        self._thread.join(PATIENCE_S)


def requests(http_port: int) -> float:
    """Requests that the sidecar has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    wanted = "kafka_network_requestmetrics_requests_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


def disk_use(directory: Path) -> tuple[int, int]:
    """Files below a directory, and their bytes on disk."""
    files = size_bytes = 0
    for folder, _, names in os.walk(directory):  # which passes over folders that go meanwhile, as of deleted topics
        for name in names:
            with suppress(OSError):
                size_bytes += os.lstat(os.path.join(folder, name)).st_blocks * 512
                files += 1
    return files, size_bytes


class Sampler:
    """What one life of the sidecar uses, as time goes on."""

    def __init__(self, sidecar: SidecarPeer, http_port: int, told: Told) -> None:
        self._sidecar, self._http_port, self._told = sidecar, http_port, told
        self._requests, self._cpu_s = requests(http_port), cpu_seconds(sidecar.pid)
        told.take_probes()

    def sample(self) -> Row | None:
        """The figures since the last call; None if nothing was answered."""
        process = psutil.Process(self._sidecar.pid)
        answered, used_s = requests(self._http_port), cpu_seconds(self._sidecar.pid)
        before, self._requests = self._requests, answered
        before_s, self._cpu_s = self._cpu_s, used_s
        probes = self._told.take_probes()
        if answered <= before or not probes:
            return None
        found = percentiles(probes)
        files, size_bytes = disk_use(self._sidecar.data_path)
        return {
            "rss_mb": process.memory_info().rss / 1e6,
            "handles": process.num_fds(),
            "threads": process.num_threads(),
            "files": files,
            "disk_mb": size_bytes / 1e6,
            "cpu_us": (used_s - before_s) * 1e6 / (answered - before),
            "requests_s": answered - before,
            "probe_p50_ms": found.p50_ms,
            "probe_p99_ms": found.p99_ms,
        }


def run(plan: Plan, directory: Path, console: Console) -> tuple[Rows, Told]:
    """All lives; the samples, and what the clients saw."""
    rows, told = Rows(), Told()
    http_port = free_port()
    flags = ("--http", f"127.0.0.1:{http_port}", "--retention-check-interval-ms", str(RETENTION_CHECK_MS))
    sidecar = SidecarPeer(directory, flags=flags)
    life_s = plan.minutes * 60 / LIVES
    with ExitStack() as stack:
        sidecar.start()
        stack.callback(sidecar.stop)
        sidecar.wait_serving()
        with RawConnection(sidecar.port) as link:
            for topic, retention in RETENTION.items():
                link.create_topic(topic, PARTITIONS, retention)
        threads = [threading.Thread(target=work, args=(sidecar.bootstrap, told), daemon=True) for work in CLIENTS]
        for thread in threads:
            thread.start()
        query = Query(sidecar.bootstrap, told, directory / "query.log")
        begun = time.monotonic()
        for life in range(LIVES):
            console.print(f"life {life + 1} of {LIVES}, {dict(told.counts)}")
            sampler, served = Sampler(sidecar, http_port, told), time.monotonic()
            while not is_over(told, life, (time.monotonic() - served) / life_s):
                time.sleep(plan.sample_s)
                found = sampler.sample()
                if found is not None:
                    now = time.monotonic()
                    rows.add(life=life, share=(now - served) / life_s, minute=(now - begun) / 60, **found)
            if life + 1 < LIVES:
                told.count("kills" if (life + 1) % CLEAN_SHARE else "clean stops")
                if (life + 1) % CLEAN_SHARE:
                    sidecar.kill()
                else:
                    sidecar.stop()
                sidecar.start()
                sidecar.wait_serving()
        told.ended.set()
        query.stop()
        for thread in threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                told.breaks(f"a client has not ended: {thread.name}")
    return rows, told


def is_over(told: Told, life: int, share: float) -> bool:
    """Whether a life has lasted for as long as it should, of which `share` is over."""
    waits = life + 1 == LIVES and share < MAX_SHARE and not all(told.counts[what] for what in WANTED)
    return share >= 1 and not waits


def level(rows: Sequence[Row], figure: str, low: float, high: float) -> float:
    """The median of a figure over the samples in a part of a life."""
    values = [row[figure] for row in rows if low <= row["share"] < high] or [row[figure] for row in rows]
    return median(values)


def growth(rows: Rows, figure: str) -> tuple[float, float]:
    """How a figure changes within a life (last quarter to second, the median of the lives), and from the second life to
    the last (their last halves): the first life begins with an empty directory.
    """
    lives = [found for life in range(LIVES) if (found := rows.select(life=life))]
    within = median([level(life, figure, 0.75, 2.0) / max(level(life, figure, 0.25, 0.5), 1e-9) for life in lives])
    first, last = lives[min(1, len(lives) - 1)], lives[-1]
    return within, level(last, figure, 0.5, 2.0) / max(level(first, figure, 0.5, 2.0), 1e-9)


def find_goals(rows: Rows, told: Told) -> list[Goal]:
    """Nothing grows, nothing is broken, and every client has done something."""
    most = {"rss_mb": 1.1, "handles": 1.1, "threads": 1.1, "files": 1.1, "disk_mb": 1.2}
    most |= {"cpu_us": 1.2, "probe_p50_ms": 1.2}
    goals = [at_most("broken promises", len(told.broken), "", 0)]
    for figure, bound in most.items():
        within, across = growth(rows, figure)
        goals.append(at_most(f"{figure}: last quarter of a life to its second", within, "×", bound))
        goals.append(at_most(f"{figure}: last life to the second", across, "×", bound))
    return goals + [at_least(what, told.counts[what], "", 1) for what in (*WANTED, "kills")]


def draw(rows: Rows, path: Path) -> None:
    """Each figure over time; a line where a life ends."""
    mpl.use("Agg")
    figure = Figure(figsize=(9, 11), layout="constrained")
    ends = [max(row["minute"] for row in rows.select(life=life)) for life in range(LIVES) if rows.select(life=life)]
    for axis, name in zip(figure.subplots(len(FIGURES), 1, sharex=True), FIGURES, strict=True):
        axis.plot([row["minute"] for row in rows.all], [row[name] for row in rows.all], ".", markersize=2)
        for end in ends[:-1]:
            axis.axvline(end, linestyle="dashed", color="grey")
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
    figure.suptitle("One sidecar under mixed load; dashed: killed or stopped, and started again (minutes)")
    figure.savefig(path, dpi=90)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__, quick="three minutes", smoke="below half a minute: does it work at all", data="a folder for the data"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="all lives together (default: %(default)s)")
    given = parser.parse_args(arguments)
    plan = Plan(results.FULL if given.minutes >= 60 else "shorter", given.minutes)
    if given.quick:
        plan = Plan("quick", 3.0, 1.0)
    if given.smoke:
        plan = Plan("smoke", 0.25, 0.5)
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=160)
    with scratch("long", given.data) as directory:
        before = machine(directory)
        rows, told = run(plan, directory, console)
    goals = find_goals(rows, told)
    lines = [["", what, f"{count:,}"] for what, count in sorted(told.counts.items())]
    print_rows(console, "What the clients did", ("", "what", "times"), lines)
    for line in told.broken:
        console.print(f"[red]broken:[/] {line}")
    print_goals(console, goals)
    content = content_of(
        plan.mode,
        before,
        goals,
        rows.all,
        plan=asdict(plan),
        load_average_after=[round(load, 2) for load in os.getloadavg()],
        counts=dict(sorted(told.counts.items())),
        broken=told.broken,
    )
    keep(folder, "long_run", content, partial(draw, rows), console)


if __name__ == "__main__":
    main()
