"""One small HDFS for all tests of this folder; skipped, with the reason, where Java or Maven is missing."""

import shutil
from collections.abc import Iterator

import pytest

from tests.hdfs.writers import table_of
from tests.support.hdfs.cluster import HdfsCluster, loopback_nodes
from tests.support.hdfs.launch import Runtime
from tests.support.hdfs.runtime import hadoop

DATANODES = 6


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """Jars and all that is prepared once. A policy that does not build is a failure, not a reason to skip."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return hadoop()


@pytest.fixture(autouse=True)
def _no_plan_is_left(request: pytest.FixtureRequest) -> None:
    """A test that failed may have left plans; the next one begins with an empty table."""
    if "hdfs" in request.fixturenames:
        with table_of(request.getfixturevalue("hdfs")) as table:
            left = table.plans().chains
            if left:
                table.forget(*left)


@pytest.fixture(scope="session")
def hdfs(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """Six DataNodes in two racks. A test that breaks something of it mends it."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs"), loopback_nodes(DATANODES, racks=2), runtime=runtime) as cluster:
        yield cluster
