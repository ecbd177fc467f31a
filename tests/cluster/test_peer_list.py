"""Whom the links of a host connect to: the members of the view, and what is said of those that cannot be reached."""

from dataclasses import replace
from random import Random

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Put, Transaction
from logstore.cluster.links.links import HostLinks
from logstore.cluster.links.peer_list import PeerList
from logstore.cluster.links.peers import OwnEnd
from logstore.events import PEER_NOT_REACHED
from logstore.testing.reports import RecordedReports
from tests.cluster.links_world import Observer
from tests.cluster.memory import MemoryCluster, simulated


def test_a_member_whose_address_cannot_be_used() -> None:
    """It is reported once for each such address, with host and address, and a good one ends it; others are peers."""

    async def test(cluster: MemoryCluster) -> None:
        running, reports = cluster.hosts["a"], RecordedReports()
        links = HostLinks(OwnEnd("c", running.identity.member, Observer(), reports))
        PeerList(running.view, links, reports)
        member = schema.StoredMember(disk="d", start="s", node_id=9, link="nowhere", rack="", addresses={})
        for link in ("nowhere", "nowhere", "host:99999", "host:9192", "nowhere"):
            name = f"r{Random(link).random()}"  # any change makes the list look again
            changed = replace(member, link=link, rack=name[:60])
            await running.store.commit(Transaction((), (Put(schema.member_key("bad"), schema.encode(changed)),)))
            await trio.sleep(1)
        said = reports.of(PEER_NOT_REACHED)
        assert [fields["address"] for fields in said] == ["nowhere", "host:99999", "nowhere"]
        assert {fields["host"] for fields in said} == {"bad"}
        assert all("--peer-listen" in str(fields["why"]) for fields in said)

    simulated(test, "a", "b")
