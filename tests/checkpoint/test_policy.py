"""When a unit is checkpointed: properties over any run of epochs and measurements, and what wins when."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.checkpoint.errors import CheckpointUrlRefused
from spe_adapter.checkpoint.policy import (
    DEFAULT_FIXED_S,
    DEFAULT_RECOVERY_S_PER_BYTE,
    DEFAULT_SINK_BYTES_PER_S,
    MAX_LOGGED,
    LoggedEpochs,
    MeasuredRates,
    PolicySettings,
    UnitPolicy,
)
from spe_adapter.checkpoint.throttle import BURST_S, Throttle

MIB = 1 << 20
EPOCHS = st.lists(
    st.tuples(st.integers(0, 64 * MIB), st.integers(0, 256 * MIB), st.floats(0.01, 100), st.booleans()), max_size=60
)


@given(EPOCHS, st.floats(0, 100), st.floats(1, 1000), st.integers(0, 64 * MIB))
def test_checkpoints_are_neither_too_often_nor_too_seldom(
    epochs: list[tuple[int, int, float, bool]], min_every_s: float, every_s: float, min_state_bytes: int
) -> None:
    """Whatever happens: at least min_every_s apart, never below the smallest size, always due after every_s."""
    settings = PolicySettings(max(every_s, min_every_s), min_every_s, min_state_bytes)
    policy = UnitPolicy(settings, MeasuredRates())
    now_s, tried_s, succeeded_s = 0.0, -math.inf, None
    for log_bytes, state_bytes, seconds, works in epochs:
        now_s += seconds
        policy.epoch(log_bytes, state_bytes, now_s)
        succeeded_s = now_s if succeeded_s is None else succeeded_s
        due = policy.is_due(now_s)
        if due:
            assert state_bytes >= min_state_bytes
            assert now_s >= tried_s + min_every_s
            covered = policy.started(now_s)
            tried_s = now_s
            if works:
                policy.succeeded(covered, state_bytes, seconds, now_s)
                succeeded_s = now_s
                assert policy.log_bytes == policy.epochs == 0
            else:
                policy.failed(now_s)
        elif state_bytes >= min_state_bytes and now_s >= tried_s + 64 * max(min_every_s, 1):
            assert now_s < succeeded_s + settings.every_s


def test_the_log_alone_is_better_for_small_state_and_short_logs() -> None:
    """With the defaults, 100 MiB of state are worth a checkpoint after 48 MiB of log; small state never is."""
    pays_at = (100 * MIB / DEFAULT_SINK_BYTES_PER_S + DEFAULT_FIXED_S) / DEFAULT_RECOVERY_S_PER_BYTE
    for log_bytes, due in ((int(pays_at) - MIB, False), (int(pays_at) + MIB, True)):
        policy = UnitPolicy(PolicySettings(), MeasuredRates())
        policy.epoch(log_bytes, 100 * MIB, 0.0)
        assert policy.is_due(0.0) is due
    policy = UnitPolicy(PolicySettings(), MeasuredRates())
    policy.epoch(1 << 40, PolicySettings().min_state_bytes - 1, 0.0)
    assert not policy.is_due(1e9)


def test_measurements_move_the_decision() -> None:
    """A sink that proves slow makes checkpoints rarer, a log that proves slow to read makes them more frequent."""

    def log_that_pays(costs: MeasuredRates) -> int:
        low, high = 0, 1 << 50
        while high - low > 1024:
            policy = UnitPolicy(PolicySettings(), costs)
            middle = (low + high) // 2
            policy.epoch(middle, 1 << 30, 0.0)
            low, high = (low, middle) if policy.is_due(0.0) else (middle, high)
        return high

    usual, slow_sink, slow_log = MeasuredRates(), MeasuredRates(), MeasuredRates()
    for _ in range(20):
        slow_sink.written(1 << 30, 100.0)
        slow_log.recovered(MIB, 10.0)
    assert log_that_pays(slow_sink) > 5 * log_that_pays(usual)
    assert log_that_pays(slow_log) < log_that_pays(usual) / 5


@given(st.lists(st.tuples(st.integers(-1, 1 << 62), st.floats(allow_nan=True, allow_infinity=True)), max_size=50))
def test_estimates_stay_finite_whatever_is_measured(measured: list[tuple[int, float]]) -> None:
    """No measurement makes a cost negative, infinite or nothing."""
    costs = MeasuredRates()
    for size_bytes, seconds in measured:
        costs.written(size_bytes, seconds)
        costs.recovered(size_bytes, seconds)
        assert 0 < costs.recovery_s(MIB) < 1e6
        assert 0 < costs.write_s(MIB) < 1e6


def test_failures_are_tried_again_later_each_time() -> None:
    """The wait doubles with each failure, up to 64 times the shortest, and a success ends it."""
    policy = UnitPolicy(PolicySettings(every_s=1.0, min_every_s=1.0, min_state_bytes=0), MeasuredRates())
    policy.epoch(1, 1, 0.0)
    now_s, waits = 10.0, []
    for _ in range(9):
        policy.started(now_s)
        policy.failed(now_s)
        wait_s = next(seconds for seconds in range(1, 1000) if policy.is_due(now_s + seconds))
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64, 64]
    policy.succeeded(policy.started(now_s), 1, 1.0, now_s)
    policy.epoch(1, 1, now_s)
    assert policy.is_due(now_s + 1.0)


@pytest.mark.parametrize("min_every_s", [0.0, 1.0])
def test_tries_that_find_nothing_new_delay_no_later_epoch(min_every_s: float) -> None:
    """They come later each time while no epoch ends; after an epoch the wait is as short as ever."""
    policy = UnitPolicy(PolicySettings(every_s=1.0, min_every_s=min_every_s, min_state_bytes=0), MeasuredRates())
    policy.epoch(1 << 40, 1, 0.0)
    now_s, waits = 10.0, []
    for _ in range(8):
        policy.started(now_s)
        policy.found_nothing(now_s)
        wait_s = next(seconds for seconds in range(1, 1000) if policy.is_due(now_s + seconds))
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]
    policy.started(now_s)
    policy.found_nothing(now_s)
    policy.epoch(1, 1, now_s)
    assert policy.is_due(now_s + 0.9) is (min_every_s == 0)
    assert policy.is_due(now_s + 1.0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, MIB)), max_size=60), st.integers(0, 20))
def test_a_checkpoint_covers_the_epochs_up_to_its_own(notes: list[tuple[int, int]], frozen: int) -> None:
    """All up to the last note of such an epoch are covered, once; those behind stay, and are covered by a later one."""
    logged = LoggedEpochs()
    for epoch, log_bytes in notes:
        logged.add(epoch, log_bytes)
    last = max((place for place, note in enumerate(notes) if note[0] <= frozen), default=-1)
    assert logged.take(frozen) == (sum(note[1] for note in notes[: last + 1]), last + 1)
    assert logged.take(frozen) == (0, 0)
    assert logged.take(20) == (sum(note[1] for note in notes[last + 1 :]), len(notes) - last - 1)


def test_epochs_that_no_checkpoint_covers_are_bounded() -> None:
    """Of very many epochs the oldest are counted together, and as covered only when all of them are."""
    logged = LoggedEpochs()
    for epoch in range(2 * MAX_LOGGED):
        logged.add(epoch, 1)
    assert logged.take(MAX_LOGGED - 1) == (0, 0)
    assert logged.take(MAX_LOGGED) == (MAX_LOGGED + 1, MAX_LOGGED + 1)
    assert logged.take(3 * MAX_LOGGED) == (MAX_LOGGED - 1, MAX_LOGGED - 1)


@pytest.mark.parametrize("values", [{"every_s": -1}, {"weight": math.nan}, {"min_every_s": 700}, {"every_s": True}])
def test_settings_out_of_range_are_named(values: dict[str, float]) -> None:
    """The message has the name and the value."""
    with pytest.raises(CheckpointUrlRefused, match=str(next(iter(values)))):
        PolicySettings(**values)  # type: ignore[arg-type]


class VirtualClock:
    """A clock that moves when somebody waits."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """The time."""
        return self.now_s

    def wall_ms(self) -> int:
        """The time."""
        return int(self.now_s * 1000)

    def wait(self, seconds: float) -> bool:
        """Time goes by."""
        self.now_s += seconds
        return False


@given(st.lists(st.integers(1, 10 * MIB), min_size=1, max_size=50), st.integers(MIB, 100 * MIB))
def test_the_rate_is_bounded(pieces: list[int], rate: int) -> None:
    """Over any run of pieces: at most the rate times the time, and a burst."""
    clock = VirtualClock()
    throttle = Throttle(rate, clock, clock.wait)
    passed = 0
    for piece in pieces:
        throttle.take(piece)
        passed += piece
        assert passed <= rate * (clock.now_s + BURST_S) * 1.000001
