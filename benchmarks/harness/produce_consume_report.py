"""Goals, tables, JSON and plot of benchmarks/produce_consume.py.

Invariant: everything is computed from the rows. A goal whose rows were not measured is left out, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness.cells import LARGE_BYTES, SMALL_BYTES
from benchmarks.harness.meter import median
from benchmarks.harness.report import Goal, Row, Rows, at_least, at_most, print_goals, print_rows, write_json

NAME = "produce_consume"
OURS, KAFKA, FSYNC = "Cairn", "Kafka", "Kafka, flush.messages=1"
CLIENTS = ("raw", "Java", "confluent-kafka")
CONSUMERS = (*CLIENTS, "kafka-python", "aiokafka")
COLOURS = {OURS: "#1f77b4", KAFKA: "#ff7f0e", FSYNC: "#bcbd22"}
AGAINST_FSYNC = {"1 × 1": 1.0, "1 × 5": 2.0, "1 × 20": 4.0, "16 × 5": 4.0, "16 × 5, 16 streams": 4.0}
"""Connections × requests in flight, and how many times the throughput of Kafka with fsync is to be reached."""
CLIENTS_BOUND = 2.0
"""The same for the Java producer and confluent-kafka, which have at least five requests in flight."""
FLOOR_MARGIN_MS = 0.35
REQUEST_US = 35.0
"""Processor time of a request of 1 KB."""
NOTES = (
    "All servers share the machine's processors with their clients; only ratios within this run mean anything.",
    "Kafka as it comes acks what the operating system has, Cairn what the disk has.",
    "Kafka's Java producer and librdkafka tell latencies from the call of send, with the queue in the client.",
    "Kafka's big log has a quarter of the size of ours.",
    "load_average_before and _after say how busy the machine was with other work: on a busy one, tails are noise.",
)


WHY = {
    "produce, 5 in flight, raw": "Five requests of 16 KB share two or three syncs, and Kafka does not sync at all: a "
    "round costs a sync of this disk (see the floor), and above it one hop to a writer thread and back.",
    "produce, 5 in flight, Java": "The Java producer sends 16 KB at a time, five in flight, so it waits for the disk "
    "as the raw client with five in flight does; with larger batches (confluent-kafka) the sync is paid for.",
    "produce, 1": "One connection or one stream has one write in flight; above that, one Python process serves all.",
    "consume, catch-up": "Kafka hands pages of its files to the socket (sendfile); Cairn reads them into memory, "
    "checks each batch and sends them, on one core.",
    "consume, tail": "What a reader at the tail gets is what is produced, and Cairn's records are synced first.",
    "produce p99 beside": "A request that arrives while a MiB is read and sent waits for the rest of that, and where "
    "two processors serve reader, producer and sidecar, for one of them.",
    "resident memory": "Python, libraries, streams, connections, tail and requests (16 MiB), and what allocators keep.",
    "the load generator": "The load was the limit in some cell: look at the processor time of a request there.",
    "refused": "What is left is the network: receiving, the event loop's turn, and sending.",
    "seek": "Behind the restart the first look-up of each chunk loads its index on a thread: two in a hundred.",
}
"""What is said in the results about a goal that falls short, by the beginning of its name."""


def publish(rows: Rows, about: Mapping[str, Any], directory: Path, console: Console) -> list[Goal]:
    """Print the tables, write JSON and plot, give back the goals."""
    goals = find_goals(rows)
    _print_produce(rows, console)
    _print_rest(rows, console)
    _print_cells(rows, console)
    print_goals(console, goals)
    content = {**about, "goals": [goal._asdict() for goal in goals], "notes": notes_on(goals), "rows": rows.all}
    write_json(directory / f"{NAME}.json", content)
    draw(rows, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def notes_on(goals: Sequence[Goal]) -> list[str]:
    """What to know when reading the figures, and why goals fall short that do."""
    missed = [goal.name for goal in goals if not goal.holds]
    return [*NOTES, *(f"{name} …: {why}" for name, why in WHY.items() if any(m.startswith(name) for m in missed))]


# ---- goals


def find_goals(rows: Rows) -> list[Goal]:
    """Every goal that this run measured."""
    goals: list[Goal] = []
    for labels in _five_in_flight(rows):
        named = ", ".join([labels["client"], f"{labels['record_bytes']} B"])
        _add_ratio(goals, rows, f"produce, 5 in flight, {named}: throughput / Kafka", "records_per_s", 1.0, **labels)
        _add_ratio(goals, rows, f"produce, 5 in flight, {named}: p99 / Kafka", "p99_ms", -1.0, **labels)
    for client in ("Java", "confluent-kafka"):
        for size in (100, 1000):
            labels = {"what": "produce", "client": client, "record_bytes": size}
            name = f"produce, {client}, {size} B: throughput / Kafka"
            _add_ratio(
                goals, rows, f"{name} with flush.messages=1", "records_per_s", CLIENTS_BOUND, other=FSYNC, **labels
            )
            if client == "confluent-kafka":  # Java's are among those with five in flight
                _add_ratio(goals, rows, name, "records_per_s", 1.0, **labels)
    for shape, bound in AGAINST_FSYNC.items():
        labels = {"what": "produce", "client": "raw", "shape": shape, "record_bytes": 100}
        name = f"produce, {shape}: throughput / Kafka with flush.messages=1"
        _add_ratio(goals, rows, name, "records_per_s", bound, other=FSYNC, **labels)
    goals += _one_in_flight(rows) + _cell_goals(rows)
    for client in CONSUMERS:
        for size in (100, 1000):
            name = f"consume, catch-up, {client}, {size} B: throughput / Kafka"
            _add_ratio(goals, rows, name, "records_per_s", 1.0, what="consume", client=client, record_bytes=size)
    _add_ratio(goals, rows, "consume, tail: throughput / Kafka", "records_per_s", 1.0, what="tail", pace="full")
    wanted = {"what": "beside", "server": OURS}
    slowed = rows.ratios("p99_ms", {"reader": True}, {"reader": False}, **wanted)
    if slowed:
        goals.append(at_most("produce p99 beside a reader that catches up / without", median(slowed), "×", 1.2, slowed))
    return goals + _footprint(rows)


def _five_in_flight(rows: Rows) -> list[Row]:
    """The loads with five requests in flight on one connection."""
    found: list[Row] = []
    for size in (100, 1000):
        found.append({"what": "produce", "client": "raw", "shape": "1 × 5", "record_bytes": size})
        found.append({"what": "produce", "client": "Java", "record_bytes": size})
    return [labels for labels in found if rows.select(**labels)]


def _add_ratio(
    goals: list[Goal], rows: Rows, name: str, figure: str, bound: float, *, other: str = KAFKA, **labels: Any
) -> None:
    """Ours / theirs; a negative bound is an upper one."""
    found = rows.ratios(figure, {"server": OURS}, {"server": other}, **labels)
    if found:
        make, limit = (at_least, bound) if bound > 0 else (at_most, -bound)
        goals.append(make(name, median(found), "×", limit, found))


def _cell_goals(rows: Rows) -> list[Goal]:
    """Every cell against Kafka with fsync, those with large requests from depth 5 on against Kafka as it comes, the
    processor time of a request, and whether the load was the limit.
    """
    goals: list[Goal] = []
    names = list(dict.fromkeys(row["cell"] for row in rows.select(what="cell")))
    for name in names:
        labels = {"what": "cell", "cell": name}
        cell = rows.select(**labels)[0]
        if cell["is_refused"]:
            continue
        bound = 4.0 if cell["connections"] > 1 or cell["depth"] >= 20 else 2.0 if cell["depth"] >= 5 else 1.0
        _add_ratio(goals, rows, f"{name}: requests / Kafka with fsync", "requests_per_s", bound, other=FSYNC, **labels)
        if cell["request_bytes"] == LARGE_BYTES and cell["depth"] >= 5:
            _add_ratio(goals, rows, f"{name}: requests / Kafka", "requests_per_s", 1.0, **labels)
    for name in names:
        costs = rows.values("cpu_us_per_request", what="cell", cell=name, server=OURS)
        cell = rows.select(what="cell", cell=name)[0]
        if costs and cell["request_bytes"] == SMALL_BYTES and cell["streams"] == 1:
            goals.append(at_most(f"{name}: processor time of a request", median(costs), "µs", REQUEST_US, costs))
    spare = [
        generator / best
        for name in names
        if (generator := rows.median("requests_per_s", what="generator", cell=name)) is not None
        and (best := max(row["requests_per_s"] for row in rows.select(what="cell", cell=name)))
    ]
    if spare:
        goals.append(at_least("the load generator / the fastest server, the lowest of all cells", min(spare), "×", 1.0))
    return goals


def most_of_any_server(rows: Rows) -> dict[str, float]:
    """For each cell's goal against Kafka with fsync, by the goal's name: how many times that Kafka's requests the same
    load makes at a server that answers at once and stores nothing. No server on this machine has more than that.
    """
    most: dict[str, float] = {}
    for name in dict.fromkeys(row["cell"] for row in rows.select(what="generator")):
        at_once = rows.median("requests_per_s", what="generator", cell=name)
        synced = rows.median("requests_per_s", what="cell", cell=name, server=FSYNC)
        if at_once and synced:
            most[f"{name}: requests / Kafka with fsync"] = at_once / synced
    return most


def _one_in_flight(rows: Rows) -> list[Goal]:
    round_trip = rows.select(what="produce", client="raw", shape="1 × 1", record_bytes=100, server=OURS)
    floors = {row["round"]: row["p50_ms"] for row in rows.select(what="floor", record_bytes=100)}
    above = sorted(row["p50_ms"] - floors[row["round"]] for row in round_trip if row["round"] in floors)
    if not above:
        return []
    name = "produce, one in flight: round trip above one append and fdatasync of 16 KB"
    return [at_most(name, above[len(above) // 2], "ms", FLOOR_MARGIN_MS, above)]


def _footprint(rows: Rows) -> list[Goal]:
    goals: list[Goal] = []
    memory = [row["peak_memory_mb"] for row in rows.select(what="memory") if row["server"].startswith(OURS)]
    if memory:
        goals.append(at_most("resident memory, the most in the whole run", max(memory), "MB", 100))
    starts = rows.values("seconds", what="start", server=OURS)
    if starts:
        goals.append(at_most("start to first ack", median(starts), "s", 1.0, starts))
    restarts = rows.select(what="restart", server=OURS)
    if restarts:
        size = restarts[0]["size_bytes"] / (1 << 30)
        seconds = rows.values("seconds", what="restart", server=OURS)
        name = f"restart after kill -9 with {size:.2g} GiB to first ack"
        goals.append(at_most(name, median(seconds), "s", 1.0, seconds))
        p99 = rows.values("p99_ms", what="seek", server=OURS)
        if p99:
            goals.append(at_most(f"seek by timestamp in {size:.2g} GiB, p99", median(p99), "ms", 1.0, p99))
    return goals


# ---- tables


def _print_produce(rows: Rows, console: Console) -> None:
    lines: list[list[str]] = []
    seen: list[tuple[Any, ...]] = []
    for row in rows.select(what="produce"):
        key = (row["client"], row.get("shape"), row["record_bytes"], row["server"])
        if key not in seen:
            seen.append(key)
    for client, shape, size, server in sorted(
        seen, key=lambda key: (CLIENTS.index(key[0]), key[2], list(SHAPE_ORDER).index(key[1]), SERVERS.index(key[3]))
    ):
        labels: Row = {"what": "produce", "client": client, "record_bytes": size, "server": server}
        if shape is not None:
            labels["shape"] = shape
        figures = [
            rows.median(name, **labels) or 0.0 for name in ("records_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms")
        ]
        rate, mb, p50, p99, p999 = figures
        what = f"{client} {shape or ''}, {size} B"
        lines.append([what, server, f"{rate:,.0f}", f"{mb:,.1f}", f"{p50:.2f}", f"{p99:.2f}", f"{p999:.2f}"])
    columns = ("produce", "server", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms")
    print_rows(console, "Produce (medians)", columns, lines)


SHAPE_ORDER = (*AGAINST_FSYNC, None)
SERVERS = (OURS, KAFKA, FSYNC)


def _print_rest(rows: Rows, console: Console) -> None:
    lines: list[list[str]] = []

    def add(title: str, figure: str, unit: str, **labels: Any) -> None:
        values = [rows.median(figure, server=server, **labels) for server in SERVERS]
        if any(value is not None for value in values):
            lines.append([title, unit, *("" if value is None else f"{value:,.2f}" for value in values)])

    for client in CONSUMERS:
        for size in (100, 1000):
            labels = {"what": "consume", "client": client, "record_bytes": size}
            add(f"catch-up, {client}, {size} B", "records_per_s", "records/s", **labels)
    add("tail, full speed", "records_per_s", "records/s", what="tail", pace="full")
    for figure in ("p50_ms", "p99_ms"):
        add(f"tail, paced: age {figure[:-3]}", figure, "ms", what="tail", pace="paced")
        add(f"produce, paced: {figure[:-3]}", figure, "ms", what="beside", reader=False)
        add(f"… beside a reader: {figure[:-3]}", figure, "ms", what="beside", reader=True)
    add("… the reader's rate", "reader_mb_per_s", "MB/s", what="beside", reader=True)
    add("start to first ack", "seconds", "s", what="start")
    add("peak memory", "peak_memory_mb", "MB", what="memory")
    add("fill the big log", "mb_per_s", "MB/s", what="fill")
    add("restart after kill -9", "seconds", "s", what="restart")
    add("seek by timestamp, p50", "p50_ms", "ms", what="seek")
    add("seek by timestamp, p99", "p99_ms", "ms", what="seek")
    for shape in AGAINST_FSYNC:
        lines += _cpu_line(rows, shape)
    print_rows(console, "Consume, start, memory (medians)", ("what", "unit", *SERVERS), lines)


CELL_COLUMNS = ("requests/s", "p99 ms", "µs/request")


def cell_lines(rows: Rows) -> list[list[str]]:
    """A line for each cell: its name, and for each server what CELL_COLUMNS say (medians)."""
    lines: list[list[str]] = []
    for name in dict.fromkeys(row["cell"] for row in rows.select(what="cell")):
        line = [name]
        for server in SERVERS:
            for figure in ("requests_per_s", "p99_ms", "cpu_us_per_request"):
                value = rows.median(figure, what="cell", cell=name, server=server)
                line.append("" if value is None else f"{value:,.2f}" if figure == "p99_ms" else f"{value:,.0f}")
        lines.append(line)
    return lines


def _print_cells(rows: Rows, console: Console) -> None:
    lines = cell_lines(rows)
    if lines:
        columns = ["cell", *(f"{server}: {column}" for server in SERVERS for column in CELL_COLUMNS)]
        print_rows(console, "Cells (medians; µs: the server's processor)", columns, lines)


def _cpu_line(rows: Rows, shape: str) -> list[list[str]]:
    cells: list[str] = []
    for server in SERVERS:
        found = rows.select(what="produce", client="raw", shape=shape, record_bytes=100, server=server)
        shares = sorted(row["cpu_us_per_request"] for row in found if "cpu_us_per_request" in row)
        cells.append(f"{shares[len(shares) // 2]:,.0f}" if shares else "")
    return [[f"server's CPU, raw {shape}", "µs/request", *cells]] if any(cells) else []


# ---- plot


def draw(rows: Rows, mode: str, path: Path) -> None:
    """Four panels of bars, one colour per server."""
    mpl.use("Agg")
    figure = Figure(figsize=(13, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    raw = {shape: {"what": "produce", "client": "raw", "shape": shape, "record_bytes": 100} for shape in AGAINST_FSYNC}
    _bars(
        panels[0][0], rows, raw, "records_per_s", 1e-6, "Produce, 16 KB batches of 100 B records", "million records/s"
    )
    _bars(panels[0][1], rows, raw, "p99_ms", 1.0, "Produce, p99", "ms")
    clients: dict[str, Row] = {}
    for what in ("produce", "consume"):
        for client in ("Java", "confluent-kafka"):
            for size in (100, 1000):
                clients[f"{what}\n{client.split('-')[0]}\n{size} B"] = {
                    "what": what,
                    "client": client,
                    "record_bytes": size,
                }
    clients = {name: labels for name, labels in clients.items() if rows.select(**labels)}
    _bars(panels[1][0], rows, clients, "mb_per_s", 1.0, "Clients", "MB/s of record values")
    beside: dict[str, Row] = {
        "produce p99\npaced": {"what": "beside", "reader": False},
        "produce p99\nbeside a reader": {"what": "beside", "reader": True},
        "age p99\nat the tail": {"what": "tail", "pace": "paced"},
        "seek p99": {"what": "seek"},
    }
    _bars(panels[1][1], rows, beside, "p99_ms", 1.0, "Latencies at 8 MB/s, and of a seek by timestamp", "ms")
    panels[0][0].legend()
    figure.suptitle(f"Produce and consume ({mode} run; shapes are connections × requests in flight)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _bars(axes: Axes, rows: Rows, groups: Mapping[str, Row], name: str, scale: float, title: str, unit: str) -> None:
    width = 0.8 / len(SERVERS)
    for at, server in enumerate(SERVERS):
        heights = [(rows.median(name, server=server, **labels) or 0.0) * scale for labels in groups.values()]
        places = [place + (at - 1) * width for place in range(len(groups))]
        axes.bar(places, heights, width, label=server, color=COLOURS[server])
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.grid(axis="y", alpha=0.3)
