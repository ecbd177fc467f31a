"""Beats count as clocks do, and are never shorter than the time that they stand for."""

import time

from tests.cluster_processes.beats import BEAT_S, beating, beats, longest_gap
from tests.support.waiting import until


def test_a_beat_is_never_shorter_than_its_time() -> None:
    """Whatever the machine does: a bound in beats is no tighter than the promise."""
    with beating() as counting:
        until(lambda: counting.count, "a first beat")
        begun_s, begun = time.monotonic(), counting.count
        until(lambda: counting.count >= begun + 20, "twenty beats")
        took_s, count = time.monotonic() - begun_s, counting.count - begun
    assert took_s >= (count - 1) * BEAT_S
    assert beats(3.0) * BEAT_S >= 3.0


def test_the_longest_gap_begins_at_the_loss() -> None:
    """What came before it does not count; what came at once leaves no gap."""
    assert longest_gap([1, 2, 90, 100, 130, 131], 100) == 30
    assert longest_gap([1, 2, 130, 131], 100) == 30
    assert longest_gap([100, 100], 100) == 0
