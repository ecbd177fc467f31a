"""What the demonstration shows at its end: a table in the terminal, and a page that opens without a network.

Invariants: the page is one file, drawn as SVG from the figures alone; nothing in it is measured here.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from spe_adapter.demo.results import Comparison

WIDTH, HEIGHT, MARGIN = 960, 320, 48
BUCKET_S: Final = 1.0
SVG: Final = "http://www.w3.org/2000/svg"
"""The name of the format, not an address: nothing is fetched."""
QUERIES: Final = {
    "averages": ("prices per item, Spark's own aggregation into the exactly-once sink", "#00798c"),
    "spendings": ("sums per customer, a stateful query with its state in its output and in checkpoints", "#2e933c"),
}
"""What each query does, and its colour."""
COLOURS: Final = {"Spark": "#d1495b", "sidecar": "#edae49", "Spark and sidecar": "#7b2d8b"}


@dataclass(slots=True)
class Kill:
    """One kill: whom, when (seconds from the start), and when the first result after it came (None: none was due)."""

    victim: str
    at_s: float
    first_result_s: float | None = None


@dataclass(slots=True)
class DemoOutcome:
    """All figures of one run. `recoveries`: where the state of the stateful query came from at each start. `batches`:
    for each query (seconds from the start, records) of finished micro-batches.
    """

    records: int = 0
    seconds: float = 0.0
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    recoveries: list[str] = field(default_factory=list)
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: {name: [] for name in QUERIES})

    @property
    def is_exact(self) -> bool:
        """Whether the results of every query are there once, and right."""
        return bool(self.comparisons) and all(comparison.is_exact for comparison in self.comparisons.values())


def show_table(outcome: DemoOutcome, console: Console) -> None:
    """Print the figures."""
    table = Table(title="Killed and exact" if outcome.is_exact else "NOT EXACT", show_header=False)
    table.add_row("purchases", f"{outcome.records:,} of 100 bytes")
    rate = outcome.records / max(outcome.seconds, 1e-9)
    table.add_row("rate of each of two queries, kills included", f"{rate:,.0f} records/s")
    table.add_row("kills", str(len(outcome.kills)))
    for number, kill in enumerate(outcome.kills, 1):
        after = (
            "no result was due" if kill.first_result_s is None else f"first result after {kill.first_result_s:.1f} s"
        )
        table.add_row(f"  {number}. {kill.victim} at {kill.at_s:.1f} s", after)
    for line in outcome.recoveries:
        table.add_row("  the stateful query started", line)
    for name, comparison in outcome.comparisons.items():
        table.add_row(QUERIES[name][0], comparison.verdict)
    console.print(table)


def write_page(outcome: DemoOutcome, path: Path) -> None:
    """Write the page with the picture."""
    rows = "".join(
        f"<tr><td>{number}</td><td>{escape(kill.victim)}</td><td>{kill.at_s:.1f} s</td>"
        f"<td>{'–' if kill.first_result_s is None else f'{kill.first_result_s:.1f} s'}</td></tr>"
        for number, kill in enumerate(outcome.kills, 1)
    )
    starts = "".join(f"<li>{escape(line)}</li>" for line in outcome.recoveries)
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Cairn: killed and exact</title>"
        "<style>body{font:16px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse}td,th{padding:.3rem .9rem;border-bottom:1px solid #ddd;text-align:left}"
        ".verdict{font-size:1.3rem;font-weight:600}</style>"
        f"<h1>{'Killed and exact' if outcome.is_exact else 'NOT EXACT'}</h1>{_verdicts(outcome)}"
        f"<p>{outcome.records:,} purchases of 100 bytes in {outcome.seconds:.0f} s, "
        f"{len(outcome.kills)} kills with SIGKILL. The lines are the rates at which the two "
        "queries finished records; dashed lines are kills.</p>"
        f"{_picture(outcome)}<h2>Kills</h2><table><tr><th></th><th>who</th><th>at</th><th>first result after</th></tr>"
        f"{rows}</table><h2>Starts of the stateful query</h2><ul>{starts}</ul></html>",
        encoding="utf-8",
    )


def _verdicts(outcome: DemoOutcome) -> str:
    return "".join(
        f"<p class='verdict' style='color:{QUERIES[name][1]}'>{escape(QUERIES[name][0])}: {escape(found.verdict)}</p>"
        for name, found in outcome.comparisons.items()
    )


def _rates(outcome: DemoOutcome, query: str) -> list[tuple[float, float]]:
    """Records per second over time: what each micro-batch did, spread over the time since the one before."""
    count = int(outcome.seconds / BUCKET_S) + 1
    buckets = [0.0] * count
    before = 0.0
    for at, records in outcome.batches[query]:
        span = max(at - before, 1e-3)
        first, last = int(before / BUCKET_S), min(int(at / BUCKET_S), count - 1)
        for bucket in range(first, last + 1):
            begin, end = max(before, bucket * BUCKET_S), min(at, (bucket + 1) * BUCKET_S)
            buckets[bucket] += records * max(0.0, end - begin) / span / BUCKET_S
        before = at
    return [((bucket + 0.5) * BUCKET_S, rate) for bucket, rate in enumerate(buckets)]


def _picture(outcome: DemoOutcome) -> str:
    rates = {query: _rates(outcome, query) for query in QUERIES}
    top = max((rate for line in rates.values() for _, rate in line), default=1.0) or 1.0
    span = max(outcome.seconds, 1.0)

    def x(seconds: float) -> float:
        return MARGIN + seconds / span * (WIDTH - 2 * MARGIN)

    def y(rate: float) -> float:
        return HEIGHT - MARGIN - rate / top * (HEIGHT - 2 * MARGIN)

    frame = f"xmlns='{SVG}' viewBox='0 0 {WIDTH} {HEIGHT}'"
    parts = [f"<svg {frame} role='img' aria-label='throughput over time'>"]
    for share in (0.0, 0.5, 1.0):
        level = y(top * share)
        parts.append(f"<line x1='{MARGIN}' x2='{WIDTH - MARGIN}' y1='{level}' y2='{level}' stroke='#ddd'/>")
        parts.append(
            f"<text x='{MARGIN}' y='{level - 4}' font-size='12' fill='#666'>{top * share:,.0f} records/s</text>"
        )
    for kill in outcome.kills:
        colour, at = COLOURS.get(kill.victim, "#333"), x(kill.at_s)
        parts.append(
            f"<line x1='{at:.1f}' x2='{at:.1f}' y1='{MARGIN - 20}' y2='{HEIGHT - MARGIN}' stroke='{colour}' "
            f"stroke-width='2' stroke-dasharray='5 4'><title>{escape(kill.victim)} killed</title></line>"
        )
    for number, (query, (_, colour)) in enumerate(QUERIES.items()):
        left = MARGIN + number * 200
        parts.append(f"<text x='{left}' y='{HEIGHT - 16}' font-size='13' fill='{colour}'>— {escape(query)}</text>")
        line = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in rates[query])
        parts.append(f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2'/>")
    for number, (victim, colour) in enumerate(COLOURS.items()):
        left = MARGIN + number * 200
        parts.append(f"<text x='{left}' y='18' font-size='13' fill='{colour}'>┆ {escape(victim)} killed</text>")
    parts.append(
        f"<text x='{WIDTH - MARGIN - 60}' y='{HEIGHT - 16}' font-size='12' fill='#666'>{span:.0f} s</text></svg>"
    )
    return "".join(parts)
