"""What results become as records, beside their text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spe_adapter.operators.output import Output, record_times

NOW_MS = 1_700_000_000_000


def output(times_ms: list[int] | None) -> Output:
    """Two results."""
    keys = pa.array([b"a", b"b"], pa.binary())
    rows = pa.RecordBatch.from_pydict({"k": ["a", "b"]})
    return Output(keys, rows, None if times_ms is None else np.array(times_ms, np.int64))


def test_results_carry_their_own_time() -> None:
    """The end of a window is its result's timestamp."""
    assert record_times(output([5, NOW_MS - 1]), NOW_MS).tolist() == [5, NOW_MS - 1]


def test_no_timestamp_is_refused_by_the_log() -> None:
    """Windows that end in years to come, or did before 1970, do not stop a query."""
    assert record_times(output([NOW_MS + 10**12, -5]), NOW_MS).tolist() == [NOW_MS, 0]


def test_results_without_time_are_of_now() -> None:
    """One timestamp for all."""
    assert record_times(output(None), NOW_MS).tolist() == [NOW_MS, NOW_MS]
