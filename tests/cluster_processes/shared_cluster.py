"""A cluster of processes that one test after the other uses, where each leaves every host with its disk.

Invariants: a test finds all hosts, and no topic of another test. Behind a test that failed the cluster is gone, and
what its hosts said is shown: the next test has a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import UnknownTopicOrPartitionError

from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import asked
from tests.support.cluster_network import new_network
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until


class SharedCluster:
    """Three hosts. `topics`: what tests create."""

    def __init__(self, new_directory: Callable[[], Path], topics: Sequence[str]) -> None:
        self._new_directory = new_directory
        self._topics = topics
        self._cluster: Cluster | None = None

    @contextmanager
    def lent(self) -> Iterator[Cluster]:
        """For one test: all hosts run, and there is no topic of a test."""
        if self._cluster is None:
            self._cluster = Cluster(self._new_directory(), network=new_network()).__enter__()
        cluster = self._cluster
        try:
            yield cluster
            for host in cluster:
                if not host.is_running:
                    host.start()
            cluster.wait_members()
            for topic in self._topics:
                delete(cluster, topic)
        except BaseException as error:
            self._cluster = None
            cluster.__exit__(type(error), error, error.__traceback__)
            raise

    def end(self) -> None:
        """Behind the last test."""
        if self._cluster is not None:
            self._cluster.__exit__(None, None, None)


def knows(host: ClusterHostProcess, topic: str) -> bool:
    """Whether a host has heard of a topic, and not that it is deleted."""
    with Client(parse_addresses(host.address), limit_s=PATIENCE_S) as client:
        return topic in client.topics()


def delete(cluster: Cluster, topic: str) -> None:
    """Delete a topic, and wait until each host has heard of it: one that has not would say that it exists."""

    def ask(admin: KafkaAdminClient) -> None:
        with suppress(UnknownTopicOrPartitionError):  # by a request whose answer came too late
            admin.delete_topics([topic])

    def is_gone() -> bool:
        asked(cluster.bootstrap, ask)
        return not any(knows(host, topic) for host in cluster)

    until(is_gone, "no host knows the topic")
