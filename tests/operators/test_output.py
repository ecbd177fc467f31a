"""What results become as records, beside their text."""

from __future__ import annotations

import numpy as np

from spe_adapter.operators.output import record_times

NOW_MS = 1_700_000_000_000


def test_results_carry_their_own_time() -> None:
    """The end of a window is its result's timestamp."""
    assert record_times(np.array([5, NOW_MS - 1]), 2, NOW_MS).tolist() == [5, NOW_MS - 1]


def test_no_timestamp_is_refused_by_the_log() -> None:
    """Windows that end in years to come, or did before 1970, do not stop a query."""
    assert record_times(np.array([NOW_MS + 10**12, -5]), 2, NOW_MS).tolist() == [NOW_MS, 0]


def test_results_without_time_are_of_now() -> None:
    """One timestamp for all."""
    assert record_times(None, 2, NOW_MS).tolist() == [NOW_MS, NOW_MS]
