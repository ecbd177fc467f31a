"""Metadata stores of each kind, for tests of registrations in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing

from tests.metadata.support import Make, etcd_members, making_etcd, making_simulated, making_sqlite, needs_etcd

KINDS = ["sqlite", "simulated", pytest.param("etcd", marks=needs_etcd)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes stores on one etcd for all tests of a module."""
    with etcd_members(tmp_path_factory.mktemp("etcd")) as members:
        yield making_etcd(members)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes stores of a kind."""
    clock = trio.testing.MockClock(rate=1)
    if request.param == "sqlite":
        return making_sqlite(tmp_path, clock)
    if request.param == "simulated":
        return making_simulated(clock)
    making: Make = request.getfixturevalue("etcd")
    return making
