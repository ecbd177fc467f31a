"""The online scheduler against an observer, through everything that can happen (a Hypothesis state machine)."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.peace.online.machine import Machine


def test_promises_hold_through_everything() -> None:
    """After every event: capacities, attempts, records, chains, bounded waits; at the end every request ends."""
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.slow
def test_promises_hold_through_a_long_search() -> None:
    """The same, longer and with longer lives."""
    run_state_machine_as_test(Machine, settings=settings(max_examples=3000, stateful_step_count=120, deadline=None))
