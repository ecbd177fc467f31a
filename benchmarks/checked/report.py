"""What is said of histories: goals, tables, a plot, and several histories as one result.

Invariants: everything follows from the content of a result, so a result of several slices is judged as one of a single
history is. A goal is about promises, or about having looked: what was not done, or not seen, does not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness.meter import median
from benchmarks.harness.report import Goal, at_least, at_most, print_rows

Content = dict[str, Any]
CALLS: Final = (
    *("produce", "read", "deliver", "commit", "committed", "create", "grow", "delete", "alter", "described", "clear"),
    *("log", "epoch", "take over"),
)
KILL_S: Final = 3.0
KILLS: Final = "kill -9 of a host, time without an acknowledgement"
LONGEST_KILL: Final = f"{KILLS}, longest"
ALL_KINDS_MINUTES: Final = 15.0
"""So long a history takes each kind of fault at least once."""
NOT_SEEN: Final = ", not seen"


def share(values: Sequence[float], of: float) -> float:
    """The value that so much of all values is not above. There must be at least one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * of))]


def find_goals(content: Content) -> list[Goal]:
    """No promise is broken, everything healed, and all of it happened and was seen."""
    calls: Counter[str] = Counter(content["calls"])
    slices = content["slices"]
    seen = {kind for kind in content["kinds"] if calls[f"fault: {kind}"]}
    hosts = sum(each["plan"]["hosts"] for each in slices)
    is_whole = any(each["minutes"] >= ALL_KINDS_MINUTES for each in slices)
    unseen = sum(times for call, times in calls.items() if call.startswith("fault: ") and call.endswith(NOT_SEEN))
    goals = [
        at_most("broken promises", content["violation_count"], "", 0),
        at_most("what did not heal or end", len(content["trouble"]), "", 0),
        at_most("faults that nobody saw", unseen, "", 0),
        at_least("kinds of faults that were seen", len(seen), "", len(content["kinds"]) if is_whole else 1),
        at_least("disks whose copies were compared with the logs", calls["disks read"], "", hosts),
        at_least("replaced runs that were refused", calls["zombie, failed"], "", 1 if is_whole else 0),
        *(at_least(f"calls: {call}", calls[call] - calls[f"{call}, failed"], "", 1) for call in CALLS),
    ]
    killed = [row["silence_s"] for row in content["rows"] if row["name"] == "kill"]
    if killed:
        goals += [
            at_most(f"{KILLS}, median", median(killed), "s", KILL_S, killed),
            at_most(LONGEST_KILL, max(killed), "s", KILL_S, killed),
        ]
    return goals


def distributions(rows: Sequence[Content]) -> list[Content]:
    """By the name of the fault: times without an acknowledgement, and from healing until everything goes on."""
    by_name: defaultdict[str, list[Content]] = defaultdict(list)
    for row in rows:
        by_name[row["name"] if "+" not in row["name"] else "two at a time"].append(row)
    found = []
    for name, some in sorted(by_name.items()):
        line: Content = {"name": name, "times": len(some)}
        for figure in ("silence_s", "service_s"):
            values = [row[figure] for row in some]
            line |= {f"{figure}_median": median(values), f"{figure}_p90": share(values, 0.9)}
            line |= {f"{figure}_longest": max(values)}
        found.append(line)
    return found


def merge(parts: Sequence[Content]) -> Content:
    """Several results as one. Raises ValueError if there is none."""
    if not parts:
        raise ValueError("nothing to merge: name the results of at least one run")
    whole: Content = dict(parts[-1])
    for key in ("violations", "trouble", "rows", "slices"):
        whole[key] = [each for part in parts for each in part[key]]
    for key in ("calls", "notes"):
        whole[key] = dict(sorted(sum((Counter(part[key]) for part in parts), Counter()).items()))
    whole["violation_count"] = sum(part["violation_count"] for part in parts)
    whole["kinds"] = sorted({kind for part in parts for kind in part["kinds"]})
    return conclude(whole)


def conclude(content: Content) -> Content:
    """With the distributions and the goals that follow from it."""
    content["distributions"] = distributions(content["rows"])
    content["goals"] = [goal._asdict() for goal in find_goals(content)]
    return content


def tables(content: Content, console: Console) -> None:
    """Faults and calls."""
    lines = [
        [
            line["name"], "", str(line["times"]),
            *(f"{line[f'{figure}_{kind}']:.2f}"
              for figure in ("silence_s", "service_s") for kind in ("median", "p90", "longest")),
        ]
        for line in content["distributions"]
    ]  # fmt: skip
    heads = [f"{what}, {kind} s" for what in ("no ack", "until all go on") for kind in ("median", "90 %", "longest")]
    print_rows(console, "Faults", ("fault", "", "times", *heads), lines)
    calls = [[call, "", f"{count:,}"] for call, count in sorted(content["calls"].items())]
    print_rows(console, "Calls", ("call", "", "times"), calls)


def draw(rows: Sequence[Content], path: Path) -> None:
    """The time without an acknowledgement of each fault, by its kind."""
    mpl.use("Agg")
    kinds = sorted({row["kind"] for row in rows})
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    axis.plot([row["silence_s"] for row in rows], [kinds.index(row["kind"]) for row in rows], "o", alpha=0.5)
    axis.set_yticks(range(len(kinds)), kinds)
    axis.set_xlabel("longest time without an acknowledgement of a stream, s")
    axis.set_xlim(left=0)
    figure.suptitle("A cluster of sidecars under faults, until all streams acknowledge again")
    figure.savefig(path, dpi=90)
