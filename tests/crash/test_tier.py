"""Chunks go to the tier and leave it: whatever a crash leaves, every record is in one of the two, and nothing stays."""

from __future__ import annotations

import pytest

from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.simdisk import CrashBounds
from tests.crash.tiers import STORIES, tiered

pytestmark = pytest.mark.crash
TIER_POINT = 60
"""The first calls found the directory and the topic, as they do without a tier."""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_no_crash_loses_a_record_or_leaves_an_object(
    story: Workload, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Power is cut at every call of disk and store: acknowledged records are there, all that the ledger names can be
    read back, and after the next sweep the store holds nothing else.
    """
    is_long = pytestconfig.getoption("--long")
    bounds = CrashBounds(states=64 if is_long else 3, file_states=64 if is_long else 3, torn_bytes=16 if is_long else 3)
    plan = CrashPlan(
        bounds=bounds,
        second_share=2 if is_long else 8,
        recovery_share=20 if is_long else 400,
        kill_share=2 if is_long else 40,
        first_point=0 if is_long else TIER_POINT,
        point_share=1 if is_long else 12,
    )
    report = Enumerator(story, tiered(), plan).run()
    with capsys.disabled():
        print(f"\n  {story.__name__}: {report}")
    assert report.second > 10
