"""Random histories of clients, an operator, failing calls, a full disk, kills and power cuts keep every promise."""

from __future__ import annotations

import pytest

from tests.crash.histories import run_history
from tests.support.examples import is_long

pytestmark = pytest.mark.crash

SEEDS = range(2000 if is_long() else 40)
STEPS = 60
"""Of one history; most have several lives, and several failures in one life."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rest", range(8))
def test_no_history_breaks_a_promise(rest: int) -> None:
    """Acknowledged is there, once and in order, nothing else is; every start opens every stream, and a disk that works
    again takes appends again.
    """
    for seed in SEEDS[rest::8]:
        run_history(seed, STEPS)
