"""Faults of networks and disks of sidecars in containers, with `./run test cluster --docker`: nft drops what one host
sends to another, tc slows it, a disk is full.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from logstore.testing.cluster import Cluster, ClusterHostProcess
from logstore.testing.containers import ContainerNetwork
from logstore.testing.disks import Disk
from logstore.testing.network import ETCD
from tests.cluster.test_processes import AFTER, WARM, check, create, leader_of, partitions_of, producing, wait_for_more
from tests.support.cluster_network import are_containers
from tests.support.waiting import until

if not are_containers():
    pytest.skip("`./run test cluster --docker` runs it", allow_module_level=True)

pytestmark = pytest.mark.clients
REPLICAS = 3
SLOW_BYTES_S = 1_000
"""Far less than a member's confirmations take."""


def members_of(cluster: Cluster) -> list[ClusterHostProcess]:
    """The hosts that have the open chunk, and live."""
    return [cluster.by_node(node) for node in partitions_of(cluster)[0]["isr_nodes"]]


def follower_of(cluster: Cluster, leader: ClusterHostProcess) -> ClusterHostProcess:
    """A host that has the open chunk and does not lead."""
    return next(host for host in members_of(cluster) if host is not leader)


def goes_on_without(cluster: Cluster, host: ClusterHostProcess) -> bool:
    """Whether the open chunk has all its copies, none of them at this host."""
    members = members_of(cluster)
    return len(members) == REPLICAS and host not in members


def test_an_owner_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    """From the other hosts and from etcd, while clients reach it: it acknowledges nothing that is lost."""
    network = ContainerNetwork()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            owner = leader_of(cluster)
            wait_for_more(load, WARM)
            for other in (*(each.name for each in cluster if each is not owner), ETCD):
                network.cut(owner.name, other)
                network.cut(other, owner.name)
            wait_for_more(load, AFTER)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_cut_in_one_direction_costs_a_member(tmp_path: Path) -> None:
    """What the owner sends to a member does not arrive: the chunk goes on without it."""
    network = ContainerNetwork()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            owner = leader_of(cluster)
            wait_for_more(load, WARM)
            network.cut(owner.name, follower_of(cluster, owner).name)
            wait_for_more(load, AFTER)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_slow_member_is_replaced(tmp_path: Path) -> None:
    """What a member sends arrives too slowly: of four hosts the one that has no copy takes its place."""
    network = ContainerNetwork()
    with Cluster(tmp_path / "cluster", ("a", "b", "c", "d"), network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            owner = leader_of(cluster)
            member = follower_of(cluster, owner)
            wait_for_more(load, WARM)
            network.slow(member.name, owner.name, bytes_s=SLOW_BYTES_S)
            until(lambda: goes_on_without(cluster, member), "the chunk goes on with another member")
            wait_for_more(load, AFTER)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The disk of the owner is full: the stream goes on with other hosts, and the owner goes on when it has room."""
    cluster = Cluster(tmp_path / "cluster", ("a", "b", "c", "d"), network=ContainerNetwork())
    with ExitStack() as stack:
        disks = {host.name: Disk(host.data_dir) for host in cluster}
        for disk in disks.values():
            stack.callback(disk.unmount)
            if not disk.mount():
                pytest.skip("a file system of its own for each host needs root, and the right to mount")
        stack.enter_context(cluster)
        create(cluster)
        with producing(cluster) as load:
            owner = leader_of(cluster)
            wait_for_more(load, WARM)
            disks[owner.name].fill()
            until(lambda: "disk_low" in owner.log, "the host says that its disk is full")
            until(lambda: goes_on_without(cluster, owner), "the chunk goes on with others")
            wait_for_more(load, AFTER)
            disks[owner.name].empty()
            wait_for_more(load, WARM)
        check(cluster, load)
