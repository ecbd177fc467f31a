"""What the status page shows of a host's cluster: hosts, owners, links, and copies that are missing."""

from typing import Any, Final

from logstore.cluster.figures import ClusterFigures

MAX_HOSTS: Final = 100


def cluster_status(figures: ClusterFigures) -> dict[str, Any]:
    """The page's figures, as values for JSON. At most MAX_HOSTS hosts are shown."""
    links = {link.host: link for link in figures.links}
    return {
        "hosts_found": len(figures.hosts),
        "hosts": [
            {
                "host": host.host,
                "node_id": host.node_id,
                "rack": host.rack,
                "owned_streams": host.owned_streams,
                "link": None if host.host not in links else links[host.host].is_up,
                "queued_bytes": 0 if host.host not in links else links[host.host].queued_bytes,
            }
            for host in figures.hosts[:MAX_HOSTS]
        ],
        "owned_streams": figures.owned_streams,
        "streams_without_owner": figures.streams_without_owner,
        "waiting_takeovers": figures.waiting_takeovers,
        "short_streams": figures.short_streams,
        "short_chunks": figures.short_chunks,
        "crowded_chunks": figures.crowded_chunks,
        "under_min_streams": figures.under_min_streams,
        "at_min_streams": figures.at_min_streams,
        "short": [{"topic": each.topic, "partition": each.partition, "chunks": each.chunks} for each in figures.short],
        "copies_open": figures.replicas_open,
        "copies_sealed": figures.replicas_sealed,
        "unacknowledged_batches": figures.waiting_batches,
        "takeovers": figures.takeovers,
        "is_metadata_away": figures.is_metadata_away,
    }
