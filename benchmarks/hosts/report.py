"""Goals, tables and a plot of benchmarks/cluster.py.

Invariant: all of them come from rows; a part that was not measured has none.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.meter import median
from benchmarks.harness.report import Goal, Row, Rows, at_least, at_most
from benchmarks.hosts.plan import CAIRN, DEPTHS, KAFKA, KAFKA_FLUSH, PARTITIONS, PEERS, SIZES

FAILOVER_RATIO, FAILOVER_S, STOP_S = 1 / 3, 3.0, 1.0
MEMORY_MB = 150.0
P99_RATIO = 1.2
AT_LEAST = {KAFKA_FLUSH: 1.0, KAFKA: 0.8}
"""Of Kafka's requests a second, with and without its flush."""
COLOURS = {CAIRN: "tab:blue", KAFKA: "tab:orange", KAFKA_FLUSH: "tab:red"}
FAILOVER_FIGURES = {"kill_silence_s": "killed", "return_silence_s": "back", "stop_silence_s": "stopped"}
Table = tuple[str, tuple[str, ...], list[list[str]]]


def _cells() -> list[tuple[str, dict[str, int]]]:
    return [
        (
            f"{size // 1024} KB, {partitions} partition{'s' if partitions > 1 else ''}, {depth} in flight",
            {"request_bytes": size, "partitions": partitions, "in_flight": depth},
        )
        for size, partitions, depth in product(SIZES, PARTITIONS, DEPTHS)
    ]


def find_goals(rows: Rows) -> list[Goal]:
    """All goals whose parts were measured."""
    goals: list[Goal] = []
    for (name, cell), (other, bound) in product(_cells(), AT_LEAST.items()):
        ratios = rows.ratios("requests_per_s", {"peer": CAIRN}, {"peer": other}, part="produce", **cell)
        if ratios:
            goals.append(at_least(f"requests a second to {other}: {name}", median(ratios), "×", bound, ratios))
    silent = rows.values("kill_silence_s", part="failover", peer=CAIRN)
    if silent:
        goals.append(at_most("no acknowledgement after kill -9 of the leader", median(silent), "s", FAILOVER_S, silent))
    ratios = rows.ratios("kill_silence_s", {"peer": CAIRN}, {"peer": KAFKA}, part="failover")
    if ratios:
        goals.append(at_most("the same to Kafka's", median(ratios), "×", FAILOVER_RATIO, ratios))
    silent = rows.values("stop_silence_s", part="failover", peer=CAIRN)
    if silent:
        goals.append(at_most("no acknowledgement at a planned stop of the leader", median(silent), "s", STOP_S, silent))
    ratios = rows.values("p99_ratio", part="copies", peer=CAIRN)
    if ratios:
        goals.append(at_most("p99 beside copies to a lost host", median(ratios), "×", P99_RATIO, ratios))
    peaks = rows.values("peak_mb", part="memory", peer=CAIRN)
    if peaks:
        goals.append(at_most("most memory of a sidecar", max(peaks), "MB", MEMORY_MB))
    return goals


def _figures(rows: list[Row], *names: str) -> list[str]:
    """Medians over rows, as text."""
    return [f"{median([row[name] for row in rows]):,.2f}" for name in names]


def tables(rows: Rows) -> list[Table]:
    """A table for each part that was measured: the medians of the rounds."""
    found: list[Table] = []
    names: tuple[str, ...] = ("requests_per_s", "mb_per_s", "p50_ms", "p99_ms", "cpu_us_per_request")
    lines = [
        [name, peer, *_figures(some, *names)]
        for (name, cell), peer in product(_cells(), PEERS)
        if (some := rows.select(part="produce", peer=peer, **cell))
    ]
    found.append(
        (
            "Requests that all replicas have",
            ("load", "server", "requests/s", "MB/s", "p50 ms", "p99 ms", "CPU µs"),
            lines,
        )
    )
    names = ("kill_silence_s", "return_silence_s", "stop_silence_s", "ready_s", "whole_s", "failed_records")
    columns: tuple[str, ...]
    columns = (
        "server",
        "rounds",
        "killed, s",
        "back, s",
        "stopped, s",
        "serves after, s",
        "in sync after, s",
        "records failed",
    )
    found.append(("Seconds without an acknowledgement", columns, _by_peer(rows, "failover", names)))
    names = ("held_bytes", "copied_bytes", "member_s", "copies_s", "calm_p99_ms")
    names += ("joining_p99_ms", "copying_p99_ms", "beside_p99_ms", "p99_ratio", "all_p99_ms", "moves", "moved_max_ms")
    columns = ("server", "rounds", "held, bytes", "copied", "member after, s", "copied after, s", "p99 before, ms")
    columns += ("until member", "behind that", "p99 beside, ms", "ratio", "with moves", "moves", "longest of them, ms")
    found.append(("A lost disk", columns, _by_peer(rows, "copies", names)))
    moments = list(dict.fromkeys(row["moment"] for row in rows.select(part="memory")))
    lines = [
        [peer, moment, f"{max(row['resident_mb'] for row in some):,.0f}", f"{max(row['peak_mb'] for row in some):,.0f}"]
        for peer, moment in product((CAIRN, KAFKA), moments)
        if (some := rows.select(part="memory", peer=peer, moment=moment))
    ]
    found.append(("Memory of the largest host", ("server", "when", "resident MB", "peak MB"), lines))
    return [table for table in found if table[2]]


def _by_peer(rows: Rows, part: str, names: tuple[str, ...]) -> list[list[str]]:
    return [
        [peer, str(len(some)), *_figures(some, *names)]
        for peer in (CAIRN, KAFKA)
        if (some := rows.select(part=part, peer=peer))
    ]


def draw(rows: Rows, path: Path) -> None:
    """Requests a second of every load, and seconds without an acknowledgement; every round a dot."""
    mpl.use("Agg")
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, size in zip(axes[0], SIZES, strict=True):
        places = [(name.partition(", ")[2], cell) for name, cell in _cells() if cell["request_bytes"] == size]
        for index, peer in enumerate(PEERS):
            for place, (_, cell) in enumerate(places):
                rates = rows.values("requests_per_s", part="produce", peer=peer, **cell)
                _bar(axis, place + 0.25 * index, rates, peer, label=not place)
        ticks = [name.replace(", ", "\n") for name, _ in places]
        axis.set_xticks([place + 0.25 for place in range(len(places))], ticks, fontsize=8)
        _scale(axis, rows, "produce")
        axis.set_title(f"Requests of {size // 1024} KB a second, on three replicas")
        axis.legend(loc="upper left", fontsize=8)
    _draw_parts(rows, axes[1][0], "failover", FAILOVER_FIGURES)
    axes[1][0].set_title("Seconds without an acknowledgement, leader lost or stopped")
    _draw_parts(rows, axes[1][1], "copies", {"calm_p99_ms": "all is well", "beside_p99_ms": "beside copies"})
    axes[1][1].set_title("p99 of a steady producer, ms")
    figure.savefig(path, dpi=100)


def _draw_parts(rows: Rows, axis: Axes, part: str, figures: dict[str, str]) -> None:
    for index, peer in enumerate((CAIRN, KAFKA)):
        for place, figure in enumerate(figures):
            _bar(axis, place + 0.3 * index, rows.values(figure, part=part, peer=peer), peer, label=not place)
    axis.set_xticks([place + 0.15 for place in range(len(figures))], list(figures.values()))
    _scale(axis, rows, part)
    axis.legend()


def _scale(axis: Axes, rows: Rows, part: str) -> None:
    """Logarithmic, where something is drawn."""
    if rows.select(part=part):
        axis.set_yscale("log")


def _bar(axis: Axes, x: float, values: list[float], peer: str, *, label: bool) -> None:
    axis.bar([x], [median(values) if values else 0], 0.22, color=COLOURS[peer], label=peer if label else None)
    axis.plot([x] * len(values), values, ".", color="black", alpha=0.5)
