"""Figure 5: what checkpoints cost, for each load, at the paper's rate and at full speed.

The four kinds of a load run side by side, each in turn for a slice: A B C D D C B A, then B C D A A D C B, and so on
(ABBA for each pair). Such a block gives one sample of each ratio; what drifts within it cancels out.

Invariants:
* Beside what a run wrote stands what its items demand, counted from them alone: a goal compares the two, and a run that
  wrote something else is not compared with others.
* Processor time is that of this process and of the sidecar together, what the sidecar does behind a slice included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

from benchmarks.continuous.items import opens_of, results_of
from benchmarks.continuous.runs import Query, Ran, Run
from benchmarks.harness.report import Row
from spe_adapter.cec.policy import NoChecks, Policy

SETTLE_S = 0.05
"""Behind a slice the sidecar syncs and indexes what it got; its processor time counts."""


class Kind(NamedTuple):
    """A bar of figure 5."""

    checkpoints: bool = True
    persist: bool = True
    policy: Callable[[], Policy] = NoChecks


def in_turn(names: Sequence[str], block: int) -> list[str]:
    """The order of a block's slices: forth and back, and each time another one begins."""
    first = block % len(names)
    forth = [*names[first:], *names[:first]]
    return [*forth, *reversed(forth)]


def interleaved(
    queries: dict[str, Query], kinds: dict[str, Kind], *, blocks: range, slice_s: float, warm_records: int
) -> Iterator[Row]:
    """Rows of a load: one for each slice of these blocks, then one for each kind with its counts."""
    with ExitStack() as stack:
        runs: dict[str, Run] = {}
        for name, query in queries.items():
            runs[name] = stack.enter_context(closing(query.start(kinds[name].policy())))
            runs[name].warm_up(warm_records)
        for block in blocks:
            for name in in_turn(list(runs), block):
                one = runs[name].slice(slice_s, settle_s=SETTLE_S)
                yield {"what": "slice", "kind": name, "round": block, **one._asdict()}
        for name, run in runs.items():
            yield {"what": "counts", "kind": name, "blocks": len(blocks), **counted(run.ran())}


def counted(ran: Ran) -> Row:
    """What a run wrote since it was started, and what its items demand."""
    figures, bounds = ran.figures, ran.bounds
    source, window = ran.setting.source, ran.setting.window
    return {
        "records": figures.records,
        "beats": len(bounds),
        "results": figures.emitted - figures.opens - figures.checks,
        "results_wanted": results_of(source, window, figures.records),
        "opens": figures.opens,
        "opens_wanted": opens_of(source, window, bounds) if ran.setting.checkpoints else 0,
        "checks": figures.checks,
        "closes": figures.tombstones,
        "seconds": ran.seconds,
        "control_bytes_per_record": ran.control_bytes / figures.records,
        "plain_bytes_per_record": ran.plain_bytes / figures.records,
        "to_replay_most": max(epoch.figures.to_replay for epoch in ran.timeline.epochs),
    }
