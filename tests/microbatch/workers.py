"""What stateful queries cost a host in Python processes and memory, with Spark's own daemon and with Cairn's.

`python -m tests.microbatch.workers [--queries N]` starts a sidecar and, for each daemon in turn, a Spark with two cores
and N stateful queries of two partitions; it prints the Python processes behind ten epochs of each, their resident and
their proportional memory (a page that n processes share counts 1/n in each), and the processor time they took.

Invariant: nothing is kept; memory is read while the queries are idle and their workers still there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from tests.microbatch.operators import rows_of
from tests.microbatch.world import World
from tests.support.sidecar import Sidecar
from tests.support.spark_session import start_spark

DAEMONS = ("pyspark.daemon", "spe_adapter.daemon")
EPOCHS = 10
ROWS = 40
MEGABYTE = 1 << 20


class Process(NamedTuple):
    """One Python process: what it is for, and its memory."""

    purpose: str
    rss_bytes: int
    pss_bytes: int
    cpu_s: float


def python_processes() -> list[Process]:
    """The Python processes that Spark has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            command, parent = process.cmdline(), process.parent()
            forked = parent is not None and parent.cmdline() == command
            memory, times = process.memory_full_info(), process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        modules = [part for part in command if part.startswith(("pyspark.", "spe_adapter."))]
        if not modules:
            continue
        purpose = f"{'worker of' if forked else 'process'} {' '.join(modules)}"
        found.append(Process(purpose, memory.rss, memory.pss, times.user + times.system))
    return sorted(found)


def measure(daemon: str, queries: int, directory: Path, console: Console) -> None:
    """Run the queries and print what they hold."""
    with Sidecar(directory / "sidecar") as sidecar:
        spark = start_spark(directory / "spark", daemon=daemon)
        worlds = [World(spark, sidecar.address, f"q{at}", directory / f"q{at}") for at in range(queries)]
        running = []
        for epoch, rows in enumerate(rows_of(EPOCHS, ROWS, ROWS // 2)):
            for world in worlds:
                world.feed(rows)
                if not epoch:
                    running.append(world.start(world.query()))
            for query in running:
                query.processAllAvailable()
        processes = python_processes()
        for query in running:
            query.stop()
        spark.stop()
    table = Table(title=f"{queries} queries of 2 partitions, {daemon}")
    for name in ("process", "RSS, MB", "PSS, MB", "processor, s"):
        table.add_column(name)
    for one in processes:
        table.add_row(one.purpose, str(one.rss_bytes // MEGABYTE), str(one.pss_bytes // MEGABYTE), f"{one.cpu_s:.1f}")
    table.add_section()
    table.add_row(
        f"{len(processes)} processes",
        str(sum(one.rss_bytes for one in processes) // MEGABYTE),
        str(sum(one.pss_bytes for one in processes) // MEGABYTE),
        f"{sum(one.cpu_s for one in processes):.1f}",
    )
    console.print(table)


def main() -> None:
    """Measure with each daemon, in a process of its own: a JVM has one Spark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--daemon", choices=DAEMONS)
    given = parser.parse_args()
    if given.daemon is None:
        for daemon in DAEMONS:
            command = [sys.executable, "-m", "tests.microbatch.workers", "--queries", str(given.queries)]
            subprocess.run([*command, "--daemon", daemon], check=True)
        return
    with tempfile.TemporaryDirectory(prefix="cairn-workers-") as directory:
        measure(given.daemon, given.queries, Path(directory), Console(width=120))


if __name__ == "__main__":
    main()
