"""What the rows of the stateful benchmark are labelled with, and which of them there are.

Invariant: everything is computed from the rows.
"""

from __future__ import annotations

from benchmarks.harness.report import Rows
from benchmarks.microbatch.engines import CAIRN, ENGINES

KEPT, LOST = "memory kept", "memory lost"
"""What becomes of the state in the host's shared memory when Spark is killed: it outlives its processes, or the host
is a new one. Spark's own engines always load from their checkpoint.
"""
COLD, WARM = "cold", "warm"
"""A recovery in a Spark that is new, or that has run queries of all engines before."""


def keys_of(rows: Rows, what: str) -> list[int]:
    """The numbers of keys with which this was measured."""
    return sorted({row["keys"] for row in rows.select(what=what)})


def recoveries_of(rows: Rows, keys: int) -> list[tuple[str, str]]:
    """The engines, each with what became of its memory, that recovered with so many keys."""
    found = {(row["engine"], row["memory"]) for row in rows.select(what="recovery", keys=keys)}
    return sorted(found, key=lambda each: (list(ENGINES).index(each[0]), each[1]))


def recovery_title(engine: str, memory: str) -> str:
    """For tables and plots."""
    return f"{ENGINES[engine].title}, {memory}" if engine == CAIRN else ENGINES[engine].title
