"""The cells of produce: streams × connections × requests in flight × bytes of a request, and what a request costs.

Every cell is measured with the load generator of `benchmarks.harness.generator`, at every server in turn. `refused`
cells send to a partition that does not exist: what is left then is the network's side of a request.

Invariants:
* A cell's name says all of it, and `--only` finds cells by parts of their names.
* The generator is not the limit: `generator` rows are the same loads against a server that answers at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.harness.generator import Orders, generate_apart
from benchmarks.harness.meter import percentiles, process_clock_s
from benchmarks.harness.report import Row

SMALL_BYTES, LARGE_BYTES = 1024, 16 * 1024
STREAMS = (1, 16, 200, 1000)
SHAPES = ((1, 1), (1, 5), (1, 20), (16, 1), (16, 5))
"""Connections, and requests in flight on each."""
UNKNOWN_TOPIC_OR_PARTITION = 3
NO_PARTITION = 100_000
PROCESSES = 2
"""Of the load, where a cell has connections for them."""


class Cell(NamedTuple):
    """One load."""

    streams: int
    connections: int
    depth: int
    request_bytes: int
    is_refused: bool = False

    @property
    def name(self) -> str:
        """As tables and `--only` have it: `16 streams, 16 × 5, 1 KB`, `refused, 1 × 20, 1 KB`."""
        to = "refused" if self.is_refused else f"{self.streams} stream{'s' if self.streams > 1 else ''}"
        return f"{to}, {self.connections} × {self.depth}, {self.request_bytes // 1024} KB"

    @property
    def topic(self) -> str:
        """The topic that cells with as many streams share."""
        return f"cells-{self.streams}"

    def orders(self, port: int, seconds: float) -> Orders:
        """For the generator."""
        orders = Orders(port, self.topic, self.streams, self.connections, self.depth, self.request_bytes, seconds)
        if self.is_refused:
            return orders._replace(error=UNKNOWN_TOPIC_OR_PARTITION, first_partition=NO_PARTITION)
        return orders


ALL = (
    *(Cell(1, connections, depth, SMALL_BYTES, True) for connections, depth in ((1, 1), (1, 20), (16, 5))),
    *(Cell(streams, *shape, size) for size in (SMALL_BYTES, LARGE_BYTES) for streams in STREAMS for shape in SHAPES),
)
FEW = tuple(
    cell
    for cell in ALL
    if (cell.is_refused and cell.connections * cell.depth > 1)
    or (cell.connections, cell.depth) == (16, 5)
    or (cell.streams == 1 and cell.depth == 5)
)
"""For a quick run."""


def measure(cell: Cell, port: int, pid: int, seconds: float) -> Row:
    """Load one server with one cell, and give back its figures."""
    processes = min(PROCESSES, cell.connections)
    before_s = process_clock_s(pid)
    generated = generate_apart(cell.orders(port, seconds), processes)
    used_s = process_clock_s(pid) - before_s
    rate = generated.requests / generated.seconds
    return {
        **cell._asdict(),
        "requests_per_s": rate,
        "mb_per_s": rate * cell.request_bytes / 1e6,
        "cpu_us_per_request": used_s / generated.requests * 1e6,
        "generator_us_per_request": generated.cpu_s / generated.requests * 1e6,
        **percentiles(generated.latencies_s)._asdict(),
    }


@contextmanager
def instant_server(cell: Cell) -> Iterator[tuple[int, int]]:
    """Port and process id of a server that answers a cell's requests at once, without a look at them."""
    command = [sys.executable, "-m", "benchmarks.harness.instant", cell.topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()
