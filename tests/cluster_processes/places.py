"""Where hosts of a cluster say that a partition is, and waiting for that.

Invariant: a host may tell what it knew before it stood still, was cut off or was replaced, until it hears otherwise. So
what a test wants of an answer is what it waits for; it asserts nothing of an answer that comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from logstore.format.host_summaries import PlaceSummary
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.support.waiting import until

TOPIC: Final = "orders"
SHORT_S: Final = 5.0
"""For one question: a host that is cut off may not answer, and is asked again."""


def seen_by(host: ClusterHostProcess) -> PlaceSummary | None:
    """Where partition 0 is, as one host says; None: it did not say."""
    try:
        with Client(parse_addresses(host.address), limit_s=SHORT_S) as client:
            reply = Admin(client).places(TOPIC)
    except (CairnError, OSError):
        return None
    return reply.places[0] if reply is not None and reply.places else None


def wait_place(host: ClusterHostProcess, is_so: Callable[[PlaceSummary], bool], what: str) -> PlaceSummary:
    """Where partition 0 is, once a host says that it is as it should be."""
    last: PlaceSummary | None = None

    def found() -> bool:
        nonlocal last
        last = seen_by(host)
        return last is not None and is_so(last)

    until(found, lambda: f"{host.name} says that {what}; it said {last}")
    assert last is not None
    return last


def wait_all_members(cluster: Cluster) -> None:
    """Until each host says that the open chunk has all hosts as members, and that no chunk lacks copies."""
    names = set(cluster.hosts)
    for host in cluster:
        wait_place(host, lambda place: is_whole(place, names), "all hosts are members again, and have everything")


def is_whole(place: PlaceSummary, members: Collection[str]) -> bool:
    """Whether the open chunk has an owner and exactly these members, and no chunk lacks copies."""
    return place.owner != "" and set(place.replicas) == set(members) and place.under_replicated == 0
