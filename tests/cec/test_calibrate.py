"""Calibration measures what it says, by the clock it is given."""

from __future__ import annotations

import numpy as np
import pytest

from logstore.errors import InvalidConfig
from spe_adapter.cec.calibrate import calibrate
from spe_adapter.cec.control import encode_footprints
from tests.cec.model import Window, footprint_rows

ROWS = footprint_rows([((b"%d" % index, 0), Window(1, index)) for index in range(500)])


class Clock:
    """Stands still until it is moved."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        """The time, which then goes on by a step."""
        self.now_s += self.step_s
        return self.now_s


def test_bytes_are_charged_by_what_writing_them_takes() -> None:
    """What every write costs, however small, is not a check's cost: the mark is written anyway."""
    clock = Clock()
    written: list[int] = []

    def write(data: bytes) -> None:
        written.append(len(data))
        clock.now_s += 0.5 + len(data) * 1e-6

    costs = calibrate(ROWS, clock=clock, write=write, record_s=3e-6)
    assert costs.byte_s == pytest.approx(1e-6)
    assert costs.footprint_bytes * 500 == pytest.approx(max(written) - min(written))
    assert (costs.footprint_s, costs.tuple_s, costs.record_s) == (0.0, 0.0, 3e-6)


def test_steps_are_charged_by_the_window() -> None:
    """A clock that takes a second per look: a second for each step, over 500 windows."""
    costs = calibrate(ROWS, clock=Clock(1.0), write=lambda data: None, record_s=0.0, rounds=1)
    assert costs.footprint_s == costs.tuple_s == 1 / 500
    assert costs.byte_s == 0.0
    assert costs.check_s == 1 / 500


@pytest.mark.parametrize(("rows", "rounds"), [(0, 1), (5, 0)])
def test_nothing_to_measure_is_refused(rows: int, rounds: int) -> None:
    """No windows, or no rounds."""
    with pytest.raises(InvalidConfig):
        calibrate(ROWS.slice(0, rows), clock=Clock(), write=lambda data: None, record_s=0.0, rounds=rounds)


def test_what_is_measured_is_what_is_written() -> None:
    """The bytes are those of control batches, not an estimate."""
    written: list[bytes] = []
    calibrate(ROWS, clock=Clock(), write=written.append, record_s=0.0, rounds=1)
    batch = next(encode_footprints("calibration", 0, ROWS, np.zeros(500, np.bool_), 0))
    assert any(data.startswith(batch) for data in written)
