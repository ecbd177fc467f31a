"""Faults of the network between real processes: what one host sends does not reach another, or comes late."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.cluster.hello import Hello, encode_hello
from logstore.replica.registrations import Member
from logstore.testing.cluster import Cluster
from logstore.testing.namespaces import NamespaceNetwork, why_not
from logstore.testing.network import ETCD, Network, NetworkUnavailable, RelayedNetwork
from logstore.testing.relay import source_of
from tests.cluster.test_processes import AFTER, WARM, check, create, leader_of, producing, wait_for_more
from tests.metadata.support import needs_etcd

NO_NAMESPACES = why_not()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=NO_NAMESPACES or "")
pytestmark = [needs_etcd, pytest.mark.clients]


@pytest.mark.parametrize("for_calls", [False, True])
def test_a_relay_knows_who_connects(*, for_calls: bool) -> None:
    """Links and calls between hosts are cut alike: a connection is known by its hello."""
    assert source_of(encode_hello(Hello("cluster", Member("a", "disk"), "b", for_calls=for_calls))) == "a"


@pytest.mark.parametrize(
    "make",
    [
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
    network = RelayedNetwork()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            for other in cluster:
                if other is not host:
                    network.cut(host.name, other.name)
                    break
            wait_for_more(load, AFTER)
            network.reset()
            wait_for_more(load, WARM)
            network.heal()
            wait_for_more(load, WARM)
        check(cluster, load)


def test_a_network_without_faults_says_so(tmp_path: Path) -> None:
    """On loopback alone there is nothing to cut; the error names what there is instead."""
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(NetworkUnavailable, match="network=RelayedNetwork"):
        cluster.network.cut("a", "b")
