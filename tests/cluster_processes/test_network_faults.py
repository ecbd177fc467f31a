"""Faults of the network and of disks between real processes: what one host sends does not reach another, or comes late;
a disk is full. Who owns the stream and who is a member of its chunk follows, and follows back. With `--docker` the
hosts are in containers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.cluster.links.hello import Hello, encode_hello
from logstore.replica.registrations import Member
from logstore.testing.cluster import Cluster
from logstore.testing.containers import ContainerNetwork
from logstore.testing.disks import Disk
from logstore.testing.namespaces import NamespaceNetwork, why_not
from logstore.testing.network import ETCD, ClusterNetwork, NetworkUnavailable, RelayedNetwork
from logstore.testing.processes import ClusterHostProcess
from logstore.testing.relay import source_of
from tests.cluster_processes.places import is_whole, wait_all_members, wait_place
from tests.cluster_processes.test_processes import AFTER, WARM, check, create, leader_of, producing, wait_for_more
from tests.metadata.support import needs_etcd
from tests.support.cluster_network import are_containers, new_faulty_network, new_network
from tests.support.waiting import until

NO_NAMESPACES = why_not()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=NO_NAMESPACES or "")
pytestmark = [needs_etcd, pytest.mark.clients]
ALL = {"a", "b", "c"}


def slow_on_processes(test: Callable[..., None]) -> Callable[..., None]:
    """A mark of stories that the long run has on processes, and each run in containers."""
    return test if are_containers() else pytest.mark.slow(test)


def touched(
    network: ClusterNetwork, sources: Iterable[ClusterHostProcess], targets: Iterable[ClusterHostProcess]
) -> int:
    """How many bytes between hosts met a fault of the network; 1 where it does not count them."""
    if not isinstance(network, RelayedNetwork):
        return 1
    return sum(network.touched_bytes(source.name, target.name) for source in sources for target in targets)


def a_member(cluster: Cluster) -> tuple[ClusterHostProcess, list[ClusterHostProcess]]:
    """A host that does not own the stream, once all are members; and the others."""
    place = wait_place(cluster["a"], lambda place: is_whole(place, ALL), "all three hosts are members")
    member = next(each for each in cluster if each.name != place.owner)
    return member, [each for each in cluster if each is not member]


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
def test_a_host_that_is_cut_off_is_replaced(tmp_path: Path, make: Callable[[], ClusterNetwork]) -> None:
    """The owner is cut off from the other hosts and from etcd, and clients still reach it: it acknowledges nothing that
    is lost, another one owns the stream and goes on without it, and it is a member again when the cut heals.
    """
    network = make()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            before = wait_place(cluster["a"], lambda place: is_whole(place, ALL), "all three hosts are members")
            host = cluster[before.owner]
            others = [each for each in cluster if each is not host]
            for name in (*(each.name for each in others), ETCD):
                network.cut(host.name, name)
                network.cut(name, host.name)
            wait_for_more(load, AFTER)
            for other in others:
                wait_place(
                    other,
                    lambda place: (
                        place.owner in ALL - {host.name}
                        and place.epoch > before.epoch
                        and host.name not in place.replicas
                    ),
                    "another host owns the stream and goes on without the owner before",
                )
            network.heal()
            wait_for_more(load, WARM)
            # Until its way to etcd is back, the host that was cut off tells what it knew before the cut.
            wait_place(host, lambda place: place.epoch > before.epoch, "it was replaced")
            wait_all_members(cluster)
        check(cluster, load)


def test_a_cut_in_one_direction_costs_a_member(tmp_path: Path) -> None:
    """What is sent to a member does not arrive, what the member sends does: the chunk goes on without it, and with it
    when the cut heals.
    """
    network = new_faulty_network()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            member, others = a_member(cluster)
            for other in others:
                network.cut(other.name, member.name)
            wait_for_more(load, AFTER)
            until(lambda: touched(network, others, [member]) > 0, "something was sent to the member")
            assert not isinstance(network, RelayedNetwork) or touched(network, [member], others) == 0
            left = ALL - {member.name}
            for other in others:
                wait_place(
                    other,
                    lambda place: set(place.replicas) == left and place.owner in left,
                    f"{member.name} is no member, and another host owns the stream",
                )
            if isinstance(network, RelayedNetwork):
                network.reset()
            wait_for_more(load, WARM)
            network.heal()
            wait_for_more(load, WARM)
            wait_all_members(cluster)
        check(cluster, load)


def delay_or_skip(network: ClusterNetwork, source: str, target: str) -> None:
    """Every message is late by a twentieth of a second; skipped where the kernel cannot delay packets."""
    try:
        network.slow(source, target, delay_s=0.05)
    except NetworkUnavailable as error:
        pytest.skip(f"no netem in this kernel: {error}")


@slow_on_processes
def test_slow_links_are_no_faults_of_hosts(tmp_path: Path) -> None:
    """Every message between hosts is late by a twentieth of a second: producers go on, and nobody loses anything."""
    network = new_faulty_network()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            for source in cluster:
                for target in cluster:
                    if source is not target:
                        delay_or_skip(network, source.name, target.name)
            wait_for_more(load, AFTER)
            owner = leader_of(cluster)
            until(
                lambda: all(touched(network, [owner], [other]) for other in cluster if other is not owner),
                "something was sent to each other host",
            )
            network.heal()
            wait_for_more(load, WARM)
            wait_all_members(cluster)
        check(cluster, load)


@slow_on_processes
def test_a_link_that_is_too_slow_costs_a_member(tmp_path: Path) -> None:
    """At a few bytes a second what is sent to a member is on the way for minutes, or what it answers where a host is
    slow to all: the chunk goes on without that member until its links are as quick as before.
    """
    network = new_faulty_network()
    with Cluster(tmp_path / "cluster", network=network) as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            member, others = a_member(cluster)
            if are_containers():  # a host is slow to all, also to clients and etcd
                network.slow(member.name, others[0].name, bytes_s=50.0)
            else:
                for other in others:
                    network.slow(other.name, member.name, bytes_s=50.0)
            left = ALL - {member.name}
            wait_place(others[0], lambda place: set(place.replicas) == left, f"{member.name} is no member")
            wait_for_more(load, AFTER)
            network.heal()
            if isinstance(network, RelayedNetwork):
                network.reset()
            wait_for_more(load, WARM)
            wait_all_members(cluster)
        check(cluster, load)


@pytest.mark.slow
def test_a_killed_host_is_found_through_relays(tmp_path: Path) -> None:
    """Its address refuses connections, as without relays: another host goes on long before the lease ends."""
    with Cluster(tmp_path / "cluster", ("a", "b", "c"), "--lease-s", "3600", network=RelayedNetwork()) as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            host = leader_of(cluster)
            host.kill()
            wait_for_more(load, AFTER)
            other = next(each for each in cluster if each is not host)
            wait_place(other, lambda place: place.owner in ALL - {host.name}, "another host owns the stream")
        check(cluster, load)


@contextmanager
def on_small_disks(cluster: Cluster) -> Iterator[dict[str, Disk]]:
    """Each host's directory is a file system of its own. Before the cluster starts."""
    disks = {host.name: Disk(host.data_dir, size_mb=256) for host in cluster}
    try:
        if not all(disk.mount() for disk in disks.values()):
            pytest.skip("no right to mount small file systems")
        yield disks
    finally:
        for disk in disks.values():
            disk.unmount()


@slow_on_processes
def test_a_full_disk_costs_a_host_its_streams(tmp_path: Path) -> None:
    """The owner's disk has no block free: it says so and takes nothing more, the stream goes on at the other hosts, and
    is on all three again when there is room.
    """
    cluster = Cluster(tmp_path / "cluster", network=new_network())
    with on_small_disks(cluster) as disks, cluster:
        create(cluster)
        with producing(cluster) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            assert disks[host.name].fill() > 0
            until(lambda: "event=disk_low " in host.log, f"{host.name} says that its disk is full")
            other = next(each for each in cluster if each is not host)
            wait_place(other, lambda place: host.name not in place.replicas, f"{host.name} is no member")
            wait_for_more(load, AFTER)
            disks[host.name].empty()
            until(lambda: "event=disk_low_over " in host.log, f"{host.name} says that there is room again")
            wait_for_more(load, WARM)
            wait_all_members(cluster)
            assert host.is_running
        check(cluster, load)


@slow_on_processes
def test_all_disks_full_lose_nothing(tmp_path: Path) -> None:
    """No host can write a block: nothing is acknowledged, nobody ends, and producers go on when there is room."""
    cluster = Cluster(tmp_path / "cluster", network=new_network())
    with on_small_disks(cluster) as disks, cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            for disk in disks.values():
                disk.fill()
            for host in cluster:
                until(lambda host=host: "event=disk_low " in host.log, f"{host.name} says that its disk is full")  # type: ignore[misc]
            for disk in disks.values():
                disk.empty()
            wait_for_more(load, WARM)
            assert [host.name for host in cluster if host.died is not None] == []
            wait_all_members(cluster)
        check(cluster, load, is_exact=False)


def test_a_network_without_faults_says_so(tmp_path: Path) -> None:
    """On loopback alone there is nothing to cut; the error names what there is instead."""
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(NetworkUnavailable, match="network=RelayedNetwork"):
        cluster.network.cut("a", "b")
