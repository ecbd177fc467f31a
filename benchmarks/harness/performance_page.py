"""The tables of docs/performance.md, from the kept results of `benchmarks.produce_consume`.

`python -m benchmarks.harness.performance_page` writes them into the page, between two marks; a test compares.
Invariant: every number between the marks comes from the results' rows; what was not measured is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.harness.produce_consume_report import (
    CELL_COLUMNS,
    KAFKA,
    NAME,
    OURS,
    SERVERS,
    cell_lines,
    most_of_any_server,
)
from benchmarks.harness.report import Rows, verdict
from benchmarks.harness.results import RESULTS, ROOT

PAGE: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"
LATENCIES: Final = (("p50_ms", "p50"), ("p99_ms", "p99"))


def render(content: Mapping[str, Any]) -> str:
    """The tables, as Markdown, with the machine, the versions and the commit that they were measured with."""
    rows = Rows()
    rows.all = list(content["rows"])
    machine, versions = content["machine"], content["versions"]
    measured = (
        f"Measured {content['finished'][:10]} (commit {content['commit'][:10]}, a {content['mode']} run) on "
        f"{machine['cpus']} processors ({machine['cpu']}), {machine['memory_gb']:.0f} GB, {machine['file_system']}; "
        f"Python {versions['python']}, Kafka {versions['kafka']}. Load average before and after: "
        f"{machine['load_average_before'][0]} and {content['load_average_after'][0]}."
    )
    parts = [
        measured,
        f"![Throughput and p99 of produce and consume beside Kafka](../benchmarks/results/{NAME}.png)",
        _goals(content["goals"], rows),
        _cells(rows),
        _produce(rows),
        _reading(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) if lines else ""


def _titled(title: str, table: str) -> str:
    return f"### {title}\n\n{table}" if table else ""


def _goals(goals: Sequence[Mapping[str, Any]], rows: Rows) -> str:
    most = most_of_any_server(rows)
    lines = [
        [
            goal["name"],
            f"{goal['value']:.4g} {goal['unit']}",
            _spread(goal),
            goal["goal"],
            verdict(goal["holds"], goal["goal"], goal["low"], goal["high"]) + _out_of_reach(goal, most),
        ]
        for goal in goals
    ]
    held = sum(bool(goal["holds"]) for goal in goals)
    return _titled(
        f"Goals: {held} of {len(goals)} hold",
        _table(("goal", "value", "lowest and highest round", "to reach", ""), lines),
    )


def _out_of_reach(goal: Mapping[str, Any], most: Mapping[str, float]) -> str:
    """What a server that does nothing but answer reaches, where that is below the goal too."""
    reached = most.get(goal["name"])
    if reached is None or reached >= float(goal["goal"].split()[-1]):
        return ""
    return f"; a server that answers at once has {reached:.2f} ×"


def _spread(goal: Mapping[str, Any]) -> str:
    """The rounds that a value is the median of."""
    return "" if goal["n"] is None else f"{goal['low']:.3g} to {goal['high']:.3g} (n = {goal['n']})"


def _cells(rows: Rows) -> str:
    columns = ["cell", *(f"{server}: {column}" for server in SERVERS for column in CELL_COLUMNS)]
    return _titled("Produce, cell by cell (medians; µs: the server's processor)", _table(columns, cell_lines(rows)))


def _produce(rows: Rows) -> str:
    kinds = dict.fromkeys((r["client"], r.get("shape"), r["record_bytes"]) for r in rows.select(what="produce"))
    lines = []
    for client, shape, size in kinds:
        labels = {"what": "produce", "client": client, "record_bytes": size, **({"shape": shape} if shape else {})}
        line = [f"{client} {shape or ''}, {size} B".replace(" ,", ",")]
        for server in SERVERS:
            rate, p99 = (rows.median(figure, server=server, **labels) for figure in ("mb_per_s", "p99_ms"))
            line.append("" if rate is None or p99 is None else f"{rate:.1f} MB/s, p99 {p99:.2f} ms")
        lines.append(line)
    return _titled("Produce with batches of 16 KB, and by clients (medians)", _table(("load", *SERVERS), lines))


def _reading(rows: Rows) -> str:
    lines: list[list[str]] = []

    def add(title: str, figure: str, unit: str, **labels: Any) -> None:
        values = [rows.median(figure, server=server, **labels) for server in (OURS, KAFKA)]
        if any(value is not None for value in values):
            lines.append([title, *("" if value is None else f"{value:,.2f} {unit}" for value in values)])

    kinds = dict.fromkeys((row["client"], row["record_bytes"]) for row in rows.select(what="consume"))
    for client, size in kinds:
        add(f"catch-up, {client}, {size} B", "mb_per_s", "MB/s", what="consume", client=client, record_bytes=size)
    add("tail at full speed", "mb_per_s", "MB/s", what="tail", pace="full")
    for figure, name in LATENCIES:
        add(f"tail at 8 MB/s: age of a record, {name}", figure, "ms", what="tail", pace="paced")
        add(f"produce at 8 MB/s: {name}", figure, "ms", what="beside", reader=False)
        add(f"produce beside a reader that catches up: {name}", figure, "ms", what="beside", reader=True)
        add(f"look-up by time: {name}", figure, "ms", what="seek")
    return _titled("Reading, and beside it (medians)", _table(("", OURS, KAFKA), lines))


def filled(page: str, content: Mapping[str, Any]) -> str:
    """The page with these results between its marks. Raises ValueError if it has not exactly one pair of marks."""
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed or BEGIN in after:
        raise ValueError(f"the page needs {BEGIN} and, behind it, {END}, once each")
    return f"{before}{BEGIN}\n\n{render(content)}\n\n{END}{after}"


def kept_results() -> dict[str, Any]:
    """What the last full run left."""
    content: dict[str, Any] = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
    return content


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), kept_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
