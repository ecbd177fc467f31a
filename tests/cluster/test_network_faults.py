"""Faults of networks and disks of real processes: what one host sends does not reach another, or comes late; a disk is
full. With `--docker` the hosts are in containers.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.checked.faults import Disk
from logstore.cluster.hello import Hello, encode_hello
from logstore.replica.registrations import Member
from logstore.testing.cluster import Cluster
from logstore.testing.containers import ContainerNetwork
from logstore.testing.namespaces import NamespaceNetwork, why_not
from logstore.testing.network import ETCD, Network, NetworkUnavailable, RelayedNetwork
from logstore.testing.processes import ClusterHostProcess
from logstore.testing.relay import source_of
from tests.cluster.test_processes import (
    AFTER,
    WARM,
    check,
    create,
    leader_of,
    partitions_of,
    producing,
    wait_for_more,
)
from tests.metadata.support import needs_etcd
from tests.support.cluster_network import are_containers, new_faulty_network, new_network
from tests.support.waiting import until

NO_NAMESPACES = why_not()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=NO_NAMESPACES or "")
pytestmark = [needs_etcd, pytest.mark.clients]
REPLICAS = 3
SLOW_BYTES_S = 1_000
"""Far less than a member's confirmations take."""


def slow_on_processes(test: Callable[..., None]) -> Callable[..., None]:
    """A mark of stories that the long run has on processes, and each run in containers."""
    return test if are_containers() else pytest.mark.slow(test)


def member_of(cluster: Cluster) -> ClusterHostProcess:
    """A host that has the open chunk and does not lead."""
    shown = partitions_of(cluster)[0]
    return cluster.by_node(next(node for node in shown["isr_nodes"] if node != shown["leader_id"]))


@pytest.mark.parametrize("for_calls", [False, True])
def test_a_relay_knows_who_connects(*, for_calls: bool) -> None:
    """Links and calls between hosts are cut alike: a connection is known by its hello."""
    assert source_of(encode_hello(Hello("cluster", Member("a", "disk"), "b", for_calls=for_calls))) == "a"


@pytest.mark.parametrize(
    "make",
    [ContainerNetwork]
    if are_containers()
    else [
        pytest.param(NamespaceNetwork, marks=needs_namespaces),
        pytest.param(RelayedNetwork, marks=() if NO_NAMESPACES else pytest.mark.slow),
    ],
)
def test_a_host_that_is_cut_off_is_replaced(tmp_path: Path, make: Callable[[], Network]) -> None:
    """The owner is cut off from the other hosts and from etcd, and clients still reach it: it acknowledges nothing that
    is lost, the others go on, and it is one of them when the cut heals.
    """
    network = make()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            for other in (*(each.name for each in cluster if each is not host), ETCD):
                network.cut(host.name, other)
                network.cut(other, host.name)
            wait_for_more(load, AFTER)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_cut_in_one_direction_costs_a_member(tmp_path: Path) -> None:
    """What the owner sends to a member does not arrive, what the member sends does: the chunk goes on without it."""
    network = new_faulty_network()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            network.cut(host.name, member_of(cluster).name)
            wait_for_more(load, AFTER)
            if isinstance(network, RelayedNetwork):
                network.reset()
            wait_for_more(load, WARM)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


@slow_on_processes
def test_a_slow_member_is_replaced(tmp_path: Path) -> None:
    """What a member sends arrives too slowly: of four hosts the one that has no copy takes its place."""
    network = new_faulty_network()
    with Cluster(tmp_path / "cluster", ("a", "b", "c", "d"), network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            host, member = leader_of(cluster), member_of(cluster)
            wait_for_more(load, WARM)
            network.slow(member.name, host.name, bytes_s=SLOW_BYTES_S)
            until(lambda: has_other_members(cluster, member), "the chunk goes on with another member")
            wait_for_more(load, AFTER)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def has_other_members(cluster: Cluster, host: ClusterHostProcess) -> bool:
    """Whether the open chunk has all its copies without a host."""
    members = [cluster.by_node(node) for node in partitions_of(cluster)[0]["isr_nodes"]]
    return len(members) == REPLICAS and host not in members


@slow_on_processes
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The disk of the owner is full: the stream goes on with other hosts, and the owner goes on when it has room."""
    cluster = Cluster(tmp_path / "cluster", ("a", "b", "c", "d"), network=new_network())
    with ExitStack() as stack:
        disks = {host.name: Disk(host) for host in cluster}
        for disk in disks.values():
            stack.callback(disk.unmount)
            if not disk.mount():
                pytest.skip("a file system of its own for each host needs root, and the right to mount")
        stack.enter_context(cluster)
        create(cluster)
        with producing(cluster) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            disks[host.name].fill()
            until(lambda: "disk_low" in host.log, "the host says that its disk is full")
            until(lambda: has_other_members(cluster, host), "the chunk goes on with others")
            wait_for_more(load, AFTER)
            disks[host.name].empty()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_network_without_faults_says_so(tmp_path: Path) -> None:
    """On loopback alone there is nothing to cut; the error names what there is instead."""
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(NetworkUnavailable, match="network=RelayedNetwork"):
        cluster.network.cut("a", "b")
