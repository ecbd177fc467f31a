"""How fast `cairn verify` checks a directory, beside a plain read of the same files.

`python -m benchmarks.verify_speed [--quick] [--smoke]` prints a table, and writes results/verify_speed.json. A sidecar
takes 16 KB requests of 1 KB records in several streams and stops. Then, in turns, `cat` reads all files of the
directory, and the command checks it: cold, with the files out of the page cache, and warm. Both count from the start
of their process to its end, so the check's start is in its figures.

Invariants:
* The files are the same, in the same order; whoever reads first changes from round to round. A cold read comes from
  the disk: what the kernel counts as read in by the process is compared with the directory's size, and a round that
  found more than a tenth in memory ends the run.
* What the machine below this system's disk remembers is not known: both readers have the same of it.
* Processor time is that of the process and all that it has started.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import results
from benchmarks.harness.load import payload
from benchmarks.harness.meter import median
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.program import content_of, keep, options, scratch
from benchmarks.harness.raw import RawConnection, produce_frame
from benchmarks.harness.report import Goal, Rows, at_least, machine, print_goals, print_rows
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.harness.signals import ended_in_order

GIB: Final = 2**30
RECORD_BYTES: Final = 1000
STREAMS: Final = 8
IN_FLIGHT: Final = 16
TOPIC: Final = "checked"
PLAIN, CHECK = "cat", "cairn verify"
COLD, WARM = "cold", "warm"
SPARE: Final = "spare"
BLOCK_BYTES: Final = 512
"""Of what getrusage(2) counts."""
COLD_SHARE, WANTED_SHARE = 0.9, 0.9


@dataclass(frozen=True)
class Plan:
    """How much is checked, and how often."""

    mode: str
    size_bytes: int
    rounds: int


FULL, QUICK, SMOKE = Plan(results.FULL, 4 * GIB, 3), Plan("quick", GIB, 1), Plan("smoke", GIB // 64, 1)


def fill(data: Path, size_bytes: int) -> Path:
    """A data directory of a sidecar that has ended, with at least so many bytes of batches. Raises PeerFailed."""
    peer = SidecarPeer(data)
    peer.start()
    try:
        peer.wait_serving()
        load = payload(RECORD_BYTES)
        with RawConnection(peer.port) as connection:
            connection.create_topic(TOPIC, STREAMS)
            frames = [produce_frame(TOPIC, partition, load.batch) for partition in range(STREAMS)]
            count = -(-size_bytes // len(load.batch))
            for number in range(count + IN_FLIGHT):
                if number < count:
                    connection.send(frames[number % STREAMS])
                if number >= IN_FLIGHT:
                    connection.receive()
        peer.stop()
    finally:
        peer.kill()
    return peer.data_path


def files_of(directory: Path) -> list[Path]:
    """All its files, by name, but for the room that is kept for the journal, in which nothing is to be checked."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != SPARE)


def forget(files: Sequence[Path]) -> None:
    """Have the kernel drop what it has of the files in memory."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # a page that is not written yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(command: Sequence[str | Path]) -> dict[str, float]:
    """Run a command to its end: its seconds, its processor time, and the bytes that the kernel read in for it. Raises
    PeerFailed if it fails.
    """
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    seconds, after = time.perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise PeerFailed(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "read_bytes": float((after.ru_inblock - before.ru_inblock) * BLOCK_BYTES),
    }


def run(plan: Plan, data: Path, console: Console) -> Rows:
    """All rounds. Raises PeerFailed if a cold read was none."""
    rows = Rows()
    directory = fill(data, plan.size_bytes)
    files = files_of(directory)
    size = sum(path.stat().st_size for path in files)
    rows.add(part="directory", bytes=size, files=len(files))
    commands: dict[str, list[str | Path]] = {
        PLAIN: ["cat", *files],
        CHECK: [sys.executable, "-m", "logstore.cli", "verify", directory, "--json"],
    }
    for number in range(1, plan.rounds + 1):
        for state in (COLD, WARM):
            for reader in (PLAIN, CHECK) if number % 2 else (CHECK, PLAIN):
                if state == COLD:
                    forget(files)
                found = timed(commands[reader])
                if state == COLD and found["read_bytes"] < COLD_SHARE * size:
                    raise PeerFailed(f"{reader}: {found['read_bytes']:,.0f} of {size:,} bytes came from the disk")
                figures = {"mb_per_s": size / found["seconds"] / 1e6, "cpu_s_per_gib": found["cpu_s"] * GIB / size}
                rows.add(part="read", round=number, state=state, reader=reader, **found, **figures)
                console.print(rows.all[-1], markup=False)
    return rows


def find_goals(rows: Rows) -> list[Goal]:
    """The check's speed to the plain read's, cold."""
    shares = rows.ratios("mb_per_s", {"reader": CHECK}, {"reader": PLAIN}, part="read", state=COLD)
    return [at_least("cairn verify, speed to that of cat, cold", median(shares), "×", WANTED_SHARE, shares)]


def table(rows: Rows) -> list[list[str]]:
    """A line for each reader and state."""
    lines = []
    for state in (COLD, WARM):
        for reader in (PLAIN, CHECK):
            speeds = rows.values("mb_per_s", part="read", state=state, reader=reader)
            costs = rows.values("cpu_s_per_gib", part="read", state=state, reader=reader)
            span = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
            lines.append([state, reader, f"{median(speeds):,.0f}", span, f"{median(costs):.2f}"])
    return lines


def draw(rows: Rows, path: Path) -> None:
    """Each read as a point."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    names = [(state, reader) for state in (COLD, WARM) for reader in (PLAIN, CHECK)]
    for at, (state, reader) in enumerate(names):
        speeds = rows.values("mb_per_s", part="read", state=state, reader=reader)
        axes.plot(speeds, [at] * len(speeds), "o")
    axes.set_yticks(range(len(names)), [f"{reader}, {state}" for state, reader in names])
    axes.set_xlim(left=0)
    axes.set_xlabel("MB/s")
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = options(
        __doc__, quick="1 GiB, one round", smoke="does it work at all", data="a folder on the disk to read"
    )
    given = parser.parse_args(arguments)
    plan = SMOKE if given.smoke else QUICK if given.quick else FULL
    folder = results.directory(parser, given.results, plan.mode)
    console = Console(width=160)
    with ended_in_order(), scratch("verify", given.data) as data:
        before = machine(data)
        if shutil.disk_usage(data).free < 2 * plan.size_bytes:
            sys.exit(
                f"{data}: twice the {plan.size_bytes:,} bytes that are checked should be free; name another --data"
            )
        rows = run(plan, data, console)
    after = [round(load, 2) for load in os.getloadavg()]
    columns = ("files", "reader", "MB/s, median", "MB/s, rounds", "processor s/GiB")
    print_rows(console, "All files of a directory", columns, table(rows))
    goals = find_goals(rows)
    print_goals(console, goals)
    content = content_of(plan.mode, before, goals, rows.all, plan=asdict(plan), load_average_after=after)
    keep(folder, "verify_speed", content, partial(draw, rows), console)


if __name__ == "__main__":
    main()
