"""Figure 5: what checkpoints cost, for each load, at the paper's rate and at full speed.

The four kinds of a load run side by side, each in turn for a slice: A B C D, D C B A, and so on (ABBA for each pair).
Such a block gives one sample of each ratio; what drifts within it cancels out.

Invariants:
* Nothing is compared before it is known to have done its work: the G_opens and results of each run are counted again
  from the items alone, and must be equal.
* Processor time is that of this process and of the sidecar together, what the sidecar does behind a slice included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class NoWork(AssertionError):
    """A run did not write what its load must write: its figures would say nothing."""


def interleaved(
    queries: dict[str, Query], kinds: dict[str, Kind], *, blocks: int, slice_s: float, warm_records: int
) -> Iterator[Row]:
    """Rows of a load: one for each slice, then one for each kind with its counts. Raises NoWork."""
    with ExitStack() as stack:
        runs: dict[str, Run] = {}
        for name, query in queries.items():
            runs[name] = stack.enter_context(closing(query.start(kinds[name].policy())))
            runs[name].warm_up(warm_records)
        for block in range(blocks):
            for name in [*runs, *reversed(runs)]:
                one = runs[name].slice(slice_s, settle_s=SETTLE_S)
                yield {"what": "slice", "kind": name, "round": block, **one._asdict()}
        for name, run in runs.items():
            yield {"what": "counts", "kind": name, **counted(run.ran(), kinds[name])}


def counted(ran: Ran, kind: Kind) -> Row:
    """What a run wrote, once it is known to be what its items demand. Raises NoWork."""
    figures, bounds = ran.figures, ran.bounds
    source, window = ran.setting.source, ran.setting.window
    wanted_results = results_of(source, window, figures.records)
    wanted_opens = opens_of(source, window, bounds) if kind.checkpoints else 0
    results = figures.emitted - figures.opens - figures.checks
    if (results, figures.opens) != (wanted_results, wanted_opens):
        raise NoWork(
            f"{source.topic}, windows of {window}: {results:,} results and {figures.opens:,} G_opens were written in "
            f"{len(bounds):,} beats; the items demand {wanted_results:,} and {wanted_opens:,}"
        )
    return {
        "records": figures.records,
        "beats": len(bounds),
        "results": results,
        "opens": figures.opens,
        "opens_wanted": wanted_opens,
        "checks": figures.checks,
        "closes": figures.closes,
        "seconds": ran.seconds,
        "control_bytes_per_record": ran.control_bytes / figures.records,
        "plain_bytes_per_record": ran.plain_bytes / figures.records,
        "to_replay_most": max(beat.figures.to_replay for beat in ran.timeline.beats),
    }
