"""One small HDFS for all tests of this folder; skipped, with the reason, where Java or Maven is missing."""

import shutil
from collections.abc import Iterator

import pytest

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


@pytest.fixture(scope="session")
def hdfs(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """Six DataNodes in two racks. A test that breaks something of it mends it."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs"), loopback_nodes(DATANODES, racks=2), runtime=runtime) as cluster:
        yield cluster
