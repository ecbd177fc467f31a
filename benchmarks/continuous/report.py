"""Goals, tables and JSON of benchmarks/cec.py, with the paper's numbers.

Invariants:
* Everything is computed from the rows. A goal whose rows were not measured is left out, never assumed.
* A goal on a cost is judged by the upper end of its 95 % confidence interval, one on a rate by the lower end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.continuous import drawing, paper
from benchmarks.continuous.figures import (
    COLD,
    DISK,
    KINDS,
    LOADS,
    NATIVE,
    OVERHEAD,
    POLICY,
    RESPONSE,
    WARM,
    WINDOWS_PER_S,
    counts_of,
    is_comparable,
    loading_of,
    loads_of,
    miscounts,
    overhead_of,
    overheads,
    per_block,
    percent,
    periods,
    recoveries,
    response_of,
    target_title,
    throughput_of,
)
from benchmarks.harness import intervals
from benchmarks.harness.report import Goal, Row, Rows, at_least, at_most, print_goals, print_rows, write_json

NAME = "cec"
NOTES = (
    (
        "One machine for source, operator, sink and storage, where the paper has a server for each and a network "
        "between."
    ),
    (
        f"The paper's rate is {paper.RECORDS_PER_S:,.0f} tuples/s: its text does not name it, but 16.5 s from the "
        "first to the tenth tuple of one of 100,000 items do."
    ),
    (
        "The run goes round by round; each holds a part of every figure, so that a run that is cut short has "
        "something of all. Figure 5's kinds take turns, slice by slice, A B C D D C B A, in the next block B C D "
        "A A D C B; each such block is one sample of each ratio to native, and intervals are Student's t at 95 % "
        "over the blocks of all rounds, in each of which the kinds were started anew. Processor time is that of "
        "the runner and of the sidecar together. The default policy is what a runner does that is told nothing: Q "
        "= U = 1,000,000."
    ),
    (
        "An epoch (50 ms of input in figure 5, 10 ms in the others) is what Cairn commits at once. G_open is "
        "written for each window that opened in an epoch and is open at its end; a window that opens and closes "
        "within an epoch leaves a close at most. The paper writes a G_open for every window, so its Real is twice "
        "the results at any rate; Real here counts the same tuples (results and footprints), and nears twice as "
        "windows outlive epochs. So fast windows write no G_open and two closes an epoch, slow windows at most two "
        "G_opens an epoch: what was written stands beside each goal, and many items are the load that writes most."
    ),
    "Everything is durable (fsynced) before it counts; figure 5's native too.",
    (
        "Gopen/Net encodes its G_opens and drops them, where the paper's sends them without persisting them: the step "
        "from there to Gopen/Disk is network, sidecar and disk together."
    ),
    (
        "The G_opens and results that each run must write are counted again from the items alone; runs that wrote "
        "others miss a goal, and are compared with nothing."
    ),
    (
        "Figures 6 and 7 run at the paper's rate, behind a warm-up at full speed that brings windows into all "
        "stages of their lives and some seconds at the paper's rate, within CI 5 ms of CP 100 ms, and U = 125,000 "
        "is the paper's own. Extents count results, G_opens and G_checks as in the paper; closes stand apart. 'at "
        "most' is over all epochs behind that warm-up, less the records of that epoch itself. Q = 1 × N is more "
        "than can be had, as the paper says, and no goal."
    ),
    (
        "The load is the runner's own: fencing, backward scan over the network, reconstruction, filling the state. "
        "Bytes replayed are input records × 100 bytes."
    ),
    (
        "Figures 8 and 9 run at full speed with a target that always wants more (U = 0; the paper's Q = N, which "
        "counts as attained here), so that CI and CP alone say how many checks are taken. Response time is from "
        "the commit of the epoch with a window's first tuple to the commit of the one with its result, for all "
        "windows that closed in a run's second half, whenever they opened; the curves show its whole length."
    ),
    (
        "Windows are loaded from a sidecar of their own, so that the sources of the others stay in memory. Cold: "
        "it was just started, and the system was told to forget its files (fadvise). What a virtual machine's "
        "host keeps in memory cannot be dropped from here."
    ),
    "The paper's numbers are those that its text names; its figures' bars and curves are not part of it.",
    "load_average_before and _after say how busy the machine was with other work.",
)


def publish(rows: Rows, about: Mapping[str, Any], directory: Path, console: Console) -> list[Goal]:
    """Print the tables, write JSON and plot, give back the goals."""
    goals = find_goals(rows)
    _print_baseline(rows, console)
    _print_recoveries(rows, console)
    _print_periods(rows, console)
    _print_loading(rows, console)
    print_goals(console, goals)
    for what in about.get("left_out", ()):
        console.print(f"left out: {what}")
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "notes": list(NOTES),
        "paper": {
            "rate": {"source": "from section IV.C, text", "records_per_s": paper.RECORDS_PER_S},
            "figure 5": paper.FIGURE_5,
            "figure 6": {"source": "section IV.B, text", "open windows": paper.OPEN_WINDOWS, **_texts(paper.FIGURE_6)},
            "figure 7": {"source": "section IV.B, text", **_texts(paper.FIGURE_7)},
            "figure 8, response s": {"source": "section IV.C, text", **_texts(paper.FIGURE_8)},
            "figure 9": {"source": "section IV.C, text (estimated loads)", **_texts(paper.FIGURE_9)},
        },
        "overheads": overheads(rows),
        "rows": rows.all,
    }
    write_json(directory / f"{NAME}.json", content)
    drawing.draw(rows, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def _texts(numbers: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in numbers.items()}


# ---- goals


def find_goals(rows: Rows) -> list[Goal]:
    """Every goal that this run measured."""
    return [
        *_overhead_goals(rows),
        *_work_goals(rows),
        *_target_goals(rows),
        *_response_goals(rows),
        *_loading_goals(rows),
    ]


def _overhead_goals(rows: Rows) -> list[Goal]:
    goals = []
    for workload in LOADS:
        for speed, bound in OVERHEAD.items():
            for kind in (DISK, POLICY):
                overhead = overhead_of(rows, workload, speed, kind)
                if overhead is not None and is_comparable(rows, workload, speed, kind):
                    name = f"{workload}, {speed}, {kind}: processor time {percent(overhead)}, n = {overhead.n}"
                    written = _written(counts_of(rows, workload, speed, kind))
                    goals.append(at_most(f"{name}; {written}", overhead.high, "of native", bound))
    return goals


def _written(counts: Mapping[str, int]) -> str:
    """The footprints and closes that an overhead is of."""
    if not counts:
        return "what was written was not counted"
    opens, checks, closes, epochs = (f"{counts[name]:,}" for name in ("opens", "checks", "closes", "beats"))
    return f"{opens} G_opens, {checks} G_checks, {closes} closes in {epochs} epochs"


def _work_goals(rows: Rows) -> list[Goal]:
    """Every window that opened and stayed open was written once, every result once."""
    loads = [
        (f"{workload}, {speed}", rows.select(what="counts", workload=workload, speed=speed))
        for workload in LOADS
        for speed in OVERHEAD
    ]
    loads.append(("figures 6 to 9", [*rows.select(what="recovery"), *rows.select(what="period")]))
    return [_work_goal(name, found) for name, found in loads if found]


def _work_goal(name: str, runs: Sequence[Row]) -> Goal:
    opens, results = (sum(row[f"{what}_wanted"] for row in runs) for what in ("opens", "results"))
    name = f"{name}: G_opens and results that differ from the {opens:,} and {results:,} that the items demand"
    return at_most(name, miscounts(runs), "tuples", 0)


def _target_goals(rows: Rows) -> list[Goal]:
    goals = []
    for row in recoveries(rows):
        title = target_title(row["target"], row["value"])
        if row["target"] == "Q" and row["value"] > 1:
            bound = row["value"] * row["q_unit"]
            goals.append(at_most(f"{title}: extent at every moment", row["extent_most"] / bound, "of Q", 1.0))
        elif row["target"] == "U":
            name = f"{title}: records to replay at every moment"
            goals.append(at_most(name, row["to_replay_most"] / row["value"], "of U", 1.0))
    return goals


def _response_goals(rows: Rows) -> list[Goal]:
    goals = []
    for period, bound in RESPONSE.items():
        ratio = response_of(rows, period)
        if ratio is not None:
            name = f"CP {period} ms: response {ratio.mean:.2f} × ({ratio.low:.2f} to {ratio.high:.2f}), n = {ratio.n}"
            goals.append(at_most(name, ratio.high, "× without checks", round(bound, 2)))
    shortest, longest = (rows.median("extent_mean", what="period", period_ms=period) for period in (25, 250))
    if shortest is not None and longest:
        goals.append(at_most("extent with CP 25 ms against 250 ms", shortest / longest, "×", 1.0))
    return goals


def _loading_goals(rows: Rows) -> list[Goal]:
    found = loading_of(rows, WARM)
    if found is None:
        return []
    name = f"windows loaded, warm: {found.mean / 1e6:.2f} M/s, n = {found.n}"
    return [at_least(name, found.low / 1e6, "M windows/s", WINDOWS_PER_S / 1e6)]


# ---- tables


def _print_baseline(rows: Rows, console: Console) -> None:
    columns = (
        *(
            "windows",
            "kind",
            "speed",
            "results/s",
            "real / results",
            "records/s",
            "µs CPU/record",
            "overhead %",
            "95 %",
        ),
        *("G_opens", "G_checks", "closes", "beats"),
    )
    lines = []
    for workload, speed, kind in product(LOADS, OVERHEAD, KINDS):
        written = counts_of(rows, workload, speed, kind)
        results, real, records = (
            throughput_of(rows, workload, speed, kind, figure) for figure in ("results", "real", "records")
        )
        if results is None or real is None or records is None or not written:
            continue
        cost = intervals.of_values(list(per_block(rows, workload, speed, kind).values()))
        overhead = None if kind == NATIVE else overhead_of(rows, workload, speed, kind)
        lines.append(
            (
                *(workload, kind, speed, f"{results.mean:,.0f}", f"{real.mean / results.mean:.3f}"),
                *(f"{records.mean:,.0f}", f"{cost.mean * 1e6:.3f}"),
                "" if overhead is None else f"{overhead.mean * 100:+.1f}",
                "" if overhead is None else f"{overhead.low * 100:+.1f} to {overhead.high * 100:+.1f}",
                *(f"{written[name]:,}" for name in ("opens", "checks", "closes", "beats")),
            )
        )
    print_rows(console, "Figure 5: what checkpoints cost (the paper: throughput less than 10 % lower)", columns, lines)


def _print_recoveries(rows: Rows, console: Console) -> None:
    columns = (
        *("target", "paper: extent, load, replay", "N", "extent", "at most", "u at most", "G_checks", "closes"),
        *("tuples read", "load ms", "replayed MB", "replay s"),
    )
    lines = []
    for row in recoveries(rows):
        target, value = row["target"], row["value"]
        theirs = {"Q": paper.FIGURE_6, "U": paper.FIGURE_7}.get(target, {}).get(value)
        said = "–" if theirs is None else paper.text(theirs)
        load = loads_of(rows, target, value)
        replays = rows.select(what="replay", target=target, value=value)
        if load is None or not replays:
            continue
        lines.append(
            (
                *(target_title(target, value), said),
                *(
                    f"{row[name]:,.0f}"
                    for name in ("windows", "extent_mean", "extent_most", "to_replay_most", "checks")
                ),
                *(f"{row['closes']:,}", f"{replays[0]['tuples']:,}"),
                f"{load.mean * 1000:.0f} ± {(load.high - load.mean) * 1000:.0f}",
                *(f"{replays[0]['replayed_bytes'] / 1e6:.1f}", f"{replays[0]['replay_s']:.2f}"),
            )
        )
    print_rows(console, "Figures 6 and 7: recovery for each Q and U", columns, lines)


def _print_periods(rows: Rows, console: Console) -> None:
    columns = ("CP", "paper: response", "response s", "× without CEC", "95 %", "extent", "checks", "M records/s")
    lines = []
    for period in periods(rows):
        wanted = {"what": "period", "period_ms": period}
        ratio = None if period is None else response_of(rows, period)
        theirs = paper.FIGURE_8.get(period)
        numbers = [rows.median(name, **wanted) or 0.0 for name in ("extent_mean", "checks", "records_per_s")]
        lines.append(
            (
                "no checks" if period is None else f"{period} ms",
                "–" if theirs is None else f"{theirs} s (× {theirs / paper.FIGURE_8[None]:.2f})",
                f"{rows.median('response_s', **wanted) or 0:.2f}",
                "" if ratio is None else f"{ratio.mean:.2f}",
                "" if ratio is None else f"{ratio.low:.2f} to {ratio.high:.2f}",
                *(f"{numbers[0]:,.0f}", f"{numbers[1]:,.0f}", f"{numbers[2] / 1e6:.2f}"),
            )
        )
    print_rows(console, "Figures 8 and 9: response time and extent for each CP (CI 10 ms; medians)", columns, lines)


def _print_loading(rows: Rows, console: Console) -> None:
    columns = ("storage", "n", "windows", "tuples read", "M windows/s", "95 %", "M windows per CPU s")
    lines = []
    for storage in (COLD, WARM):
        found = loading_of(rows, storage)
        if found is None:
            continue
        wanted = {"what": "loading", "storage": storage}
        numbers = [rows.median(name, **wanted) or 0.0 for name in ("windows", "tuples", "windows_per_cpu_s")]
        lines.append(
            (
                *(storage, str(found.n), f"{numbers[0]:,.0f}", f"{numbers[1]:,.0f}", f"{found.mean / 1e6:.2f}"),
                *(f"{found.low / 1e6:.2f} to {found.high / 1e6:.2f}", f"{numbers[2] / 1e6:.2f}"),
            )
        )
    print_rows(
        console, f"Windows loaded a second (the paper: {paper.TUPLES_PER_S:,.0f} tuples/s at best)", columns, lines
    )
