"""The plan table in a running NameNode: what it takes, whom it believes, and that a restart empties it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler.hdfs.errors import PlanTableError
from scheduler.hdfs.plan_table import PlanTable
from tests.hdfs.writers import table_of, wait_until
from tests.support.hdfs.cluster import HdfsCluster


@pytest.fixture
def table(hdfs: HdfsCluster) -> Iterator[PlanTable]:
    """A client of the plan table. However the test ends, no plan of it is left for the next one."""
    with table_of(hdfs) as client:
        try:
            yield client
        finally:
            client.forget(*client.plans().chains)


def test_plans_are_pushed_listed_and_forgotten(table: PlanTable) -> None:
    """Names go in and come back, addresses travel; several at once; what is not there is not forgotten."""
    table.push("/plans/a", ["r1h2", "r2h1"])
    table.push_all({"/plans/b": ["r1h1"], "/plans/a": ["r2h2"]})
    assert table.plans().chains == {"/plans/a": ["r2h2"], "/plans/b": ["r1h1"]}
    assert table.plans().run == table.run
    assert table.forget("/plans/a", "/plans/b", "/plans/c") == {"/plans/a": (0, 0), "/plans/b": (0, 0)}
    assert table.plans().chains == {}


def test_a_plans_time_is_limited(table: PlanTable) -> None:
    """A plan that has had its time is gone, without anybody's doing; others stay."""
    table.push("/plans/long", ["r1h1"])
    table.push("/plans/short", ["r1h1"], ttl_s=0.001)
    wait_until(lambda: table.plans().chains == {"/plans/long": ["r1h1"]}, "the time of the short plan is over")


def test_without_the_token_nothing_is_taken(hdfs: HdfsCluster, table: PlanTable) -> None:
    """A stranger can neither put nor see plans."""
    with PlanTable(hdfs.plan_url, "guess") as stranger, pytest.raises(PlanTableError, match="401"):
        stranger.push("/plans/x", ["r1h1"])
    assert table.plans().chains == {}


def test_bad_plans_are_refused_by_name(table: PlanTable) -> None:
    """The message says which field is wrong; nothing of the call is kept; the connection goes on."""
    with pytest.raises(PlanTableError, match="path: 'plans/x'"):
        table.push_all({"/plans/good": ["r1h1"], "plans/x": ["r1h1"]})
    with pytest.raises(PlanTableError, match="hosts"):
        table.push("/plans/x", [])
    with pytest.raises(PlanTableError, match="ttl_ms"):
        table.push("/plans/x", ["r1h1"], ttl_s=1e9)
    assert table.plans().chains == {}


def test_addresses_that_lead_nowhere_are_errors_with_a_reason(hdfs: HdfsCluster) -> None:
    """A wrong URL, a port where nobody is, a server that is no plan table."""
    with pytest.raises(PlanTableError, match=r"http://HOST:PORT"):
        PlanTable("namenode:9875", "t")
    with PlanTable("http://127.0.0.1:1", "t") as table, pytest.raises(PlanTableError, match="does not answer"):
        table.plans()
    with PlanTable(hdfs.webhdfs_url, "t") as table, pytest.raises(PlanTableError, match="no plan table"):
        table.plans()
