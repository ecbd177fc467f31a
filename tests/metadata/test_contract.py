"""Every metadata store passes the one contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing

from logstore.testing import check_metadata_store
from tests.metadata.support import EtcdMember, etcd_members, making_etcd, making_simulated, making_sqlite, needs_etcd
from tests.support.virtual_time import run_virtual


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdMember]]:
    """One etcd for all tests of this module."""
    with etcd_members(tmp_path_factory.mktemp("etcd")) as members:
        yield members


def test_sqlite_keeps_the_contract(tmp_path: Path) -> None:
    """The store of one host does all that the interface promises."""
    clock = trio.testing.MockClock()
    run_virtual(lambda: check_metadata_store(making_sqlite(tmp_path, clock)), clock=clock)


@pytest.mark.parametrize("seed", range(20))
def test_the_simulated_store_keeps_the_contract(seed: int) -> None:
    """The store of simulations means what the real ones mean."""
    clock = trio.testing.MockClock()
    run_virtual(lambda: check_metadata_store(making_simulated(clock), seed=seed), seed=seed, clock=clock)


@needs_etcd
async def test_etcd_keeps_the_contract(etcd: list[EtcdMember]) -> None:
    """The store of several hosts does all that the interface promises, on a real etcd."""
    await check_metadata_store(making_etcd(etcd))
