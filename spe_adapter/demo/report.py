"""What the demonstration shows at its end: a table in the terminal, and a page that opens without a network.

Invariants: the page is one file, drawn as SVG from the figures alone; nothing in it is measured here.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

WIDTH, HEIGHT, MARGIN = 960, 320, 48
BUCKET_S: Final = 1.0
SVG: Final = "http://www.w3.org/2000/svg"
"""The name of the format, not an address: nothing is fetched."""
COLOURS: Final = {"Spark": "#d1495b", "sidecar": "#edae49", "Spark and sidecar": "#7b2d8b"}


@dataclass(slots=True)
class Kill:
    """One kill: whom, when (seconds from the start), and when the first result after it came (None: none was due)."""

    victim: str
    at_s: float
    first_result_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """All figures of one run. `batches` are (seconds from the start, records) of finished micro-batches."""

    records: int = 0
    results: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    batches: list[tuple[float, int]] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether every result is there once, and right."""
        return self.results > 0 and not (self.missing or self.doubled or self.wrong)

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        if self.is_exact:
            return f"exact: {self.results:,} results, none missing, none twice, none wrong"
        return f"NOT exact: {self.missing:,} missing, {self.doubled:,} twice, {self.wrong:,} wrong of {self.results:,}"


def show_table(outcome: Outcome, console: Console) -> None:
    """Print the figures."""
    table = Table(title="Killed and exact" if outcome.is_exact else "NOT EXACT", show_header=False)
    table.add_row("purchases", f"{outcome.records:,} of 100 bytes")
    table.add_row("rate over all, kills included", f"{outcome.records / max(outcome.seconds, 1e-9):,.0f} records/s")
    table.add_row("kills", str(len(outcome.kills)))
    for number, kill in enumerate(outcome.kills, 1):
        after = (
            "no result was due" if kill.first_result_s is None else f"first result after {kill.first_result_s:.1f} s"
        )
        table.add_row(f"  {number}. {kill.victim} at {kill.at_s:.1f} s", after)
    table.add_row("result", outcome.verdict)
    console.print(table)


def write_page(outcome: Outcome, path: Path) -> None:
    """Write the page with the picture."""
    rows = "".join(
        f"<tr><td>{number}</td><td>{escape(kill.victim)}</td><td>{kill.at_s:.1f} s</td>"
        f"<td>{'–' if kill.first_result_s is None else f'{kill.first_result_s:.1f} s'}</td></tr>"
        for number, kill in enumerate(outcome.kills, 1)
    )
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Cairn: killed and exact</title>"
        "<style>body{font:16px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse}td,th{padding:.3rem .9rem;border-bottom:1px solid #ddd;text-align:left}"
        ".verdict{font-size:1.3rem;font-weight:600}</style>"
        f"<h1>Killed and exact</h1><p class='verdict'>{escape(outcome.verdict)}</p>"
        f"<p>{outcome.records:,} purchases of 100 bytes in {outcome.seconds:.0f} s, "
        f"{len(outcome.kills)} kills with SIGKILL. The line is the rate at which Spark finished records; "
        "dashed lines are kills.</p>"
        f"{_picture(outcome)}<h2>Kills</h2><table><tr><th></th><th>who</th><th>at</th><th>first result after</th></tr>"
        f"{rows}</table></html>",
        encoding="utf-8",
    )


def _rates(outcome: Outcome) -> list[tuple[float, float]]:
    """Records per second over time: what each micro-batch did, spread over the time since the one before."""
    count = int(outcome.seconds / BUCKET_S) + 1
    buckets = [0.0] * count
    before = 0.0
    for at, records in outcome.batches:
        span = max(at - before, 1e-3)
        first, last = int(before / BUCKET_S), min(int(at / BUCKET_S), count - 1)
        for bucket in range(first, last + 1):
            begin, end = max(before, bucket * BUCKET_S), min(at, (bucket + 1) * BUCKET_S)
            buckets[bucket] += records * max(0.0, end - begin) / span / BUCKET_S
        before = at
    return [((bucket + 0.5) * BUCKET_S, rate) for bucket, rate in enumerate(buckets)]


def _picture(outcome: Outcome) -> str:
    rates = _rates(outcome)
    top = max((rate for _, rate in rates), default=1.0) or 1.0
    span = max(outcome.seconds, 1.0)

    def x(seconds: float) -> float:
        return MARGIN + seconds / span * (WIDTH - 2 * MARGIN)

    def y(rate: float) -> float:
        return HEIGHT - MARGIN - rate / top * (HEIGHT - 2 * MARGIN)

    line = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in rates)
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
    parts.append(f"<polyline points='{line}' fill='none' stroke='#00798c' stroke-width='2'/>")
    for number, (victim, colour) in enumerate(COLOURS.items()):
        left = MARGIN + number * 200
        parts.append(f"<text x='{left}' y='18' font-size='13' fill='{colour}'>┆ {escape(victim)} killed</text>")
    parts.append(
        f"<text x='{WIDTH - MARGIN - 60}' y='{HEIGHT - 16}' font-size='12' fill='#666'>{span:.0f} s</text></svg>"
    )
    return "".join(parts)
