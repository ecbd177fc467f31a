"""Whether the event loop waits for a short job: what the jobs before it took decides."""

from __future__ import annotations

from logstore.disk.patience import CROWDED, LIMIT_S, Patience, Solitude

FAST_S = LIMIT_S / 5
HANG_S = 30.0


def jobs_until_patient(patience: Patience) -> int:
    """So many fast jobs are noted until a job is waited for."""
    count = 0
    while not patience.is_worth_it:
        patience.note(FAST_S)
        count += 1
        assert count < 1000, "fast jobs do not lead to a wait"
    return count


def test_nothing_is_waited_for_before_a_fast_job_was_seen() -> None:
    """At the start the disk is not known, and may be slow."""
    patience = Patience()
    assert not patience.is_worth_it
    assert jobs_until_patient(patience) == 1


def test_one_hang_ends_the_waiting_and_some_dozens_of_fast_jobs_begin_it_again() -> None:
    """A disk that hung may hang again: it must be fast for a while, but not for ever longer after a longer hang."""
    patience = Patience()
    for _ in range(1000):
        patience.note(FAST_S)
    patience.note(HANG_S)
    assert not patience.is_worth_it
    assert 30 <= jobs_until_patient(patience) <= 70


def test_a_disk_that_is_slow_on_average_is_never_waited_for() -> None:
    """Even if three of four jobs are fast."""
    patience = Patience()
    for _ in range(100):
        for took_s in (10 * LIMIT_S, FAST_S, FAST_S, FAST_S):
            patience.note(took_s)
            assert not patience.is_worth_it


def test_a_fast_disk_stays_waited_for_through_a_job_that_is_a_little_slow() -> None:
    """One job of twice the limit among fast ones changes nothing."""
    patience = Patience()
    for _ in range(100):
        patience.note(FAST_S)
    patience.note(2 * LIMIT_S)
    assert patience.is_worth_it


def test_one_job_in_a_turn_begins_at_once() -> None:
    """Another one in the same turn does not, and might have shared its write: then the next ones wait."""
    solitude = Solitude()
    assert [solitude.may_begin(turn) for turn in range(3)] == [True] * 3
    assert not solitude.may_begin(2)
    assert [solitude.may_begin(turn) for turn in range(3, 3 + CROWDED)] == [False] * (CROWDED - 1) + [True]
    turn = 3 + CROWDED
    assert solitude.may_begin(turn)
    for _ in range(3):
        for _ in range(CROWDED // 2):
            turn += 1
            assert not (solitude.may_begin(turn) and solitude.may_begin(turn))
        assert not solitude.may_begin(turn)
