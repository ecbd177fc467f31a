"""Flags of a test cluster's hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.testing.cluster import Cluster


def test_flags_of_a_host_that_the_cluster_lacks_are_refused(tmp_path: Path) -> None:
    """By name, before anything starts."""
    with pytest.raises(ValueError, match=r"host_flags=\['d'\].* a, b, c"):
        Cluster(tmp_path, host_flags={"a": ["--rack", "r1"], "d": ["--rack", "r2"]})
