"""A stateful query on a cluster that loses a host; `tests/cluster_processes/test_spark.py` has the long runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from logstore.testing.cluster import Cluster
from tests.cluster_processes.spark_world import run_stateful
from tests.metadata.support import needs_etcd
from tests.support.cluster_network import new_network

pytestmark = [needs_etcd, pytest.mark.spark]


def test_a_stateful_query_outlives_the_loss_of_a_host(spark: SparkSession, tmp_path: Path) -> None:
    """`kill -9` of the host that has its epochs, while it runs; then a new driver that has nothing in memory loads the
    state from the log, with that host still away.
    """
    with Cluster(tmp_path / "hosts", network=new_network()) as cluster:
        run_stateful(spark, cluster, tmp_path, 4, "a")
