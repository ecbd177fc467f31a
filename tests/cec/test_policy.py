"""Policies: what they promise on any list of windows, and over long runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidConfig
from spe_adapter.cec.extent import Counters
from spe_adapter.cec.policy import (
    DEFAULT_Q,
    DEFAULT_U,
    Budget,
    CostBenefit,
    Costs,
    NoChecks,
    Policy,
    Targets,
    View,
    bounded,
)
from spe_adapter.continuous import Options

COSTS = Costs(footprint_s=1e-6, footprint_bytes=60.0, byte_s=1e-9, tuple_s=2e-7, record_s=1e-6)


@st.composite
def views(draw: st.DrawFn, *, whole: bool | None = None) -> View:
    """Any list of windows that a run could have."""
    ages = sorted(draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30)), reverse=True)
    ordinals = np.array([100 - age for age, _ in ages], np.int64)
    seens = np.sort(np.array([200 - age for _, age in ages], np.int64))
    fresh = draw(st.integers(0, 5))
    is_whole = draw(st.booleans()) if whole is None else whole
    unlisted = 0 if is_whole else draw(st.integers(1, 200))
    return View(100, 200, len(ages) + fresh + unlisted, ordinals, seens, fresh)


def after(view: View, checks: int) -> tuple[int, int] | None:
    """q and u after so many checks, from the definition; None if windows not listed decide."""
    if checks == len(view.ordinals):
        return (0, 0) if len(view.ordinals) + view.fresh >= view.open_windows else None
    return view.emitted + checks - int(view.ordinals[checks]), view.seen - int(view.seens[checks])


LIMITS = st.integers(0, 120)


@given(views(), LIMITS, LIMITS)
def test_targets_hold_afterwards_and_no_fewer_checks_would_do(view: View, q_limit: int, u_limit: int) -> None:
    """If the list has a way to both targets, the shortest is taken; Q below N counts as N."""
    checks = Targets(q_limit, u_limit).checks(view)
    assert 0 <= checks <= len(view.ordinals)
    least = max(q_limit, view.open_windows)

    def holds(count: int) -> bool:
        reached = after(view, count)
        return reached is not None and reached[0] <= least and reached[1] <= u_limit

    ways = [count for count in range(len(view.ordinals) + 1) if holds(count)]
    if ways and len(view.ordinals):
        assert checks == ways[0]


@given(views(), LIMITS, LIMITS, LIMITS, LIMITS)
def test_lower_targets_never_mean_fewer_checks(view: View, q_low: int, q_more: int, u_low: int, u_more: int) -> None:
    """Monotone in Q and in U."""
    assert Targets(q_low, u_low).checks(view) >= Targets(q_low + q_more, u_low + u_more).checks(view)


@given(views(whole=False), LIMITS)
def test_a_list_that_ends_too_early_is_used_for_what_it_can_do(view: View, q_limit: int) -> None:
    """Without a way to Q in the list: the lowest q there is, or nothing; unless q is twice too large."""
    checks = Targets(q_limit).checks(view)
    least = max(q_limit, view.open_windows)
    known = [reached[0] for count in range(len(view.ordinals)) if (reached := after(view, count)) is not None]
    if known and min(known) > least:
        assert checks == (len(known) if min(known) > 2 * least else known.index(min(known)))


def run(policy: Policy, windows: int, results: list[int], *, listed: int | None = None) -> tuple[int, list[int]]:
    """So many windows, opened at once; epochs with so many results. How many checks were taken; q after each epoch."""
    counters = Counters().after(footprints=windows, records=windows)
    ordinals = np.full(windows, counters.emitted, np.int64)
    seens = np.full(windows, counters.seen, np.int64)
    total, extents = 0, []
    for epoch, count in enumerate(results):
        counters = counters.after(results=count, records=10 * count)
        order = np.argsort(ordinals, kind="stable")
        listing = order[:listed]
        view = View(counters.emitted, counters.seen, windows, ordinals[listing], seens[listing], now_ms=epoch * 1000.0)
        checks = policy.checks(view)
        total += checks
        counters = counters.after(footprints=checks)
        ordinals[order[:checks]] = counters.emitted
        seens[order[:checks]] = counters.seen
        policy.took(checks, checks * 0.001)
        extents.append(counters.extent(int(ordinals.min())))
    return total, extents


@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
    st.integers(0, 200),
    st.none() | st.integers(1, 60),
)
def test_an_unattainable_extent_does_not_thrash(
    windows: int, results: list[int], q_limit: int, listed: int | None
) -> None:
    """Whatever Q, and however short the list: not more checks than other records, and one round of the windows."""
    total, extents = run(Targets(q_limit), windows, results, listed=listed)
    assert total <= sum(results) + windows
    if listed is None or listed >= windows:
        assert max(extents) <= max(q_limit, windows)


@given(st.integers(1, 60), st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 60))
def test_extents_stay_bounded_with_short_lists(windows: int, results: list[int], listed: int) -> None:
    """With a list too short for its blocks q still stays within a few times its limit: rounds are finished."""
    _, extents = run(Targets(0), windows, results, listed=listed)
    steps = -(-windows // listed)
    assert max(extents) <= 3 * windows + (steps + 1) * max(results)


@given(views(), st.integers(0, 5))
def test_limits_grow_with_the_windows(view: View, per_window: int) -> None:
    """Targets below so many per open window are taken for that, both of them."""
    least = per_window * view.open_windows
    assert Targets(0, 0, per_window).checks(view) == Targets(least, least).checks(view)


def test_the_default_does_not_write_a_large_state_over_and_over() -> None:
    """Ten million windows, three records for each since the oldest footprint: a bare million would check them all."""
    windows = 10_000_000
    old = np.zeros(100, np.int64)
    view = View(3 * windows, 3 * windows, windows, old, old)
    assert bounded().checks(view) == 0
    assert Targets(DEFAULT_Q, DEFAULT_U).checks(view) == len(old)


def test_targets_without_windows_or_limits() -> None:
    """Nothing open, or no limit given: nothing to do. Numbers below 0 are refused."""
    nothing = np.empty(0, np.int64)
    assert Targets(0, 0).checks(View(9, 9, 0, nothing, nothing)) == 0
    assert Targets().checks(View(2**40, 2**40, 1, np.zeros(1, np.int64), np.zeros(1, np.int64))) == 0
    assert NoChecks().checks(View(2**40, 2**40, 1, np.zeros(1, np.int64), np.zeros(1, np.int64))) == 0
    for limits in ((-1, 0), (0, -1)):
        with pytest.raises(InvalidConfig):
            Targets(*limits)


def test_thousands_of_candidates_take_no_time_to_speak_of() -> None:
    """One call sees all of a hundred thousand windows: a few numpy operations, not a loop (which would not end)."""
    ordinals = np.arange(100_000, dtype=np.int64)
    view = View(300_000, 300_000, 100_000, ordinals, ordinals)
    for _ in range(200):
        assert Targets(200_000).checks(view) == 100_000
        assert CostBenefit(COSTS, 1.0, records_per_s=1000.0).checks(view) == 100_000


# ---- budgets


class Everything:
    """Wants every candidate, always."""

    def checks(self, view: View) -> int:
        """All."""
        return len(view.ordinals)

    def took(self, checks: int, ms: float) -> None:
        """Nothing to learn."""


def budget_view(now_ms: float, candidates: int = 10_000) -> View:
    """Many candidates at a moment."""
    column = np.zeros(candidates, np.int64)
    return View(10**6, 10**6, candidates, column, column, now_ms=now_ms)


@given(
    st.lists(st.tuples(st.floats(0, 300), st.floats(0.001, 3)), max_size=60),
    st.floats(1, 10),
    st.floats(10, 100),
    st.floats(0.0001, 5),
)
def test_a_budget_is_kept(calls: list[tuple[float, float]], ci_ms: float, cp_ms: float, guess_ms: float) -> None:
    """Before any check is taken, less time was spent than was granted; with a right guess that holds afterwards too."""
    budget = Budget(ci_ms, cp_ms, Everything(), footprint_ms=guess_ms)
    now_ms = spent_ms = 0.0
    for wait_ms, cost_ms in calls:
        now_ms += wait_ms
        checks = budget.checks(budget_view(now_ms))
        periods = now_ms // cp_ms + 1
        if checks:
            assert spent_ms < ci_ms * periods + 1e-6
            if cost_ms <= budget.footprint_ms and checks > 1:
                assert spent_ms + checks * cost_ms <= ci_ms * periods + 1e-6
        spent_ms += checks * cost_ms
        budget.took(checks, checks * cost_ms)


def test_a_budget_learns_what_checks_cost() -> None:
    """After some rounds a period's checks take a period's budget, and what was overdrawn is paid back."""
    budget = Budget(10.0, 100.0, Everything(), footprint_ms=0.001)
    taken = []
    for period in range(20):
        checks = budget.checks(budget_view(period * 100.0, 100))
        budget.took(checks, checks * 0.5)
        taken.append(checks)
    # Fifty milliseconds at once, by a wrong guess: five periods' worth.
    assert taken == [100, 0, 0, 0, 0, *[20] * 15]


def test_a_budget_is_not_saved_up() -> None:
    """After a pause there is one period's time, not ten: a pause must not end in a long stop."""
    budget = Budget(10.0, 100.0, Everything(), footprint_ms=1.0)
    assert budget.checks(budget_view(0.0)) == 10
    budget.took(0, 0.0)
    assert budget.checks(budget_view(1000.0)) == 10
    budget.took(10, 10.0)
    assert budget.checks(budget_view(1099.0)) == 0
    assert budget.checks(budget_view(1100.0)) == 10


def test_a_budget_gives_what_the_other_policy_wants() -> None:
    """It only ever takes away; and one check fits into any period."""
    assert Budget(10.0, 100.0, NoChecks()).checks(budget_view(0.0)) == 0
    assert Budget(10.0, 100.0, Everything()).checks(budget_view(0.0, 3)) == 3
    dear = Budget(1.0, 100.0, Everything(), footprint_ms=50.0)
    assert dear.checks(budget_view(0.0)) == 1
    dear.took(1, 50.0)
    assert dear.checks(budget_view(100.0)) == 0
    assert dear.checks(budget_view(4999.0)) == 0
    assert dear.checks(budget_view(5100.0)) == 1


@pytest.mark.parametrize(("ci_ms", "cp_ms", "guess_ms"), [(0.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 1.0, 0.0)])
def test_budgets_that_make_no_sense_are_refused(ci_ms: float, cp_ms: float, guess_ms: float) -> None:
    """0 < CI <= CP, and a check costs something."""
    with pytest.raises(InvalidConfig):
        Budget(ci_ms, cp_ms, NoChecks(), footprint_ms=guess_ms)


# ---- costs and benefits


def best_of(view: View, costs: Costs, mtbf_s: float, records_per_s: float) -> int:
    """The formula, one number of checks after the other."""
    q, u = view.emitted - int(view.ordinals[0]), view.seen - int(view.seens[0])
    worth = []
    for checks in [*range(len(view.ordinals)), view.open_windows]:
        reached = after(view, checks) if checks < len(view.ordinals) else (view.open_windows, 0)
        assert reached is not None
        saved = costs.tuple_s * (q - reached[0]) + costs.record_s * (u - reached[1])
        paid = min(checks, len(view.ordinals)) if view.is_whole else checks
        worth.append(saved * (u / records_per_s) / (2 * mtbf_s) - paid * costs.check_s)
    return worth.index(max(worth))


@given(views(), st.floats(0.001, 1000), st.floats(0.1, 1000))
def test_the_best_number_of_checks_is_taken(view: View, mtbf_s: float, records_per_s: float) -> None:
    """As the formula says, for any list."""
    checks = CostBenefit(COSTS, mtbf_s, records_per_s=records_per_s).checks(view)
    assert checks == (best_of(view, COSTS, mtbf_s, records_per_s) if len(view.ordinals) else 0)


@given(views(), st.floats(0.001, 1000), st.floats(1.0, 10.0))
def test_rarer_failures_and_dearer_checks_never_mean_more_checks(view: View, mtbf_s: float, factor: float) -> None:
    """Monotone in both."""
    checks = CostBenefit(COSTS, mtbf_s, records_per_s=100.0).checks(view)
    assert CostBenefit(COSTS, mtbf_s * factor, records_per_s=100.0).checks(view) <= checks
    dearer = COSTS._replace(footprint_s=COSTS.footprint_s * factor, byte_s=COSTS.byte_s * factor)
    assert CostBenefit(dearer, mtbf_s, records_per_s=100.0).checks(view) <= checks


def test_what_a_record_costs_is_taken_from_the_runner() -> None:
    """Where the view says what a record takes to process, that counts: dearer replays are worth more checks."""
    view = View(1_000, 10_000, 100, np.arange(100), np.arange(0, 1_000, 10))
    cheap, dear = (
        CostBenefit(COSTS, 3600.0, records_per_s=1e4).checks(view._replace(record_s=record_s))
        for record_s in (1e-9, 1e-3)
    )
    assert cheap < dear == 100


def test_a_runner_that_is_told_nothing_bounds_its_recovery() -> None:
    """By default q and u have limits."""
    policy = Options("127.0.0.1:9092").policy()
    old = np.zeros(1, np.int64)
    assert policy.checks(View(DEFAULT_Q + 2, 0, 1, old, old)) == 1
    assert policy.checks(View(1, DEFAULT_U + 1, 1, old, old)) == 1
    assert policy.checks(View(1, DEFAULT_U, 1, old, old)) == 0


def test_the_interval_is_youngs() -> None:
    """With one window, checks come when the expected loss since the last has grown to their cost."""
    costs = Costs(footprint_s=1e-3, footprint_bytes=0.0, byte_s=0.0, tuple_s=0.0, record_s=1e-5)
    policy = CostBenefit(costs, mtbf_s=1000.0, records_per_s=1000.0)
    # 1e-5 s x 1000 records/s x t squared / (2 x 1000 s) = 1e-3 s.
    due_s = (2 * 1000.0 * 1e-3 / (1e-5 * 1000.0)) ** 0.5
    for seconds, checks in ((due_s * 0.99, 0), (due_s * 1.01, 1)):
        view = View(10, int(1000 * seconds), 1, np.zeros(1, np.int64), np.zeros(1, np.int64))
        assert policy.checks(view) == checks


def test_the_rate_is_taken_from_the_views() -> None:
    """Until it is known nothing is taken; costs follow what checks take."""
    policy = CostBenefit(COSTS, mtbf_s=1e-9)
    column = np.zeros(1, np.int64)
    assert policy.checks(View(10, 100, 1, column, column, now_ms=0.0)) == 0
    assert policy.checks(View(10, 100, 1, column, column, now_ms=1000.0)) == 0
    assert policy.checks(View(10, 1100, 1, column, column, now_ms=2000.0)) == 1
    before = policy.costs.footprint_s
    policy.took(1, 1.0)
    assert before < policy.costs.footprint_s < 1e-3
    policy.took(0, 1.0)


@pytest.mark.parametrize(("mtbf_s", "records_per_s"), [(0.0, None), (1.0, 0.0)])
def test_rates_that_make_no_sense_are_refused(mtbf_s: float, records_per_s: float | None) -> None:
    """Positive or nothing."""
    with pytest.raises(InvalidConfig):
        CostBenefit(COSTS, mtbf_s, records_per_s=records_per_s)


@given(st.integers(1, 40), st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_cost_and_benefit_do_not_thrash(windows: int, results: list[int]) -> None:
    """When failures are about to come every moment, an epoch's checks are one round at most."""
    total, _ = run(CostBenefit(COSTS, 1e-6, records_per_s=1e4), windows, results)
    assert total <= windows * len(results)
    assert run(CostBenefit(COSTS, 1e15, records_per_s=1e4), windows, results)[0] == 0
