"""The metrics that only a host of a cluster has, in one table, as `logstore.monitoring.metrics` has all others.

Invariant: there are as many samples as hosts were linked with, MAX_HOST_SERIES of each at most.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from logstore.base.prometheus import Metric, Sample
from logstore.cluster.figures import ClusterFigures, LinkFigures

MAX_HOST_SERIES: Final = 200


class ClusterMetricEntry(NamedTuple):
    """One metric of the table. `read` gives its samples."""

    name: str
    kind: str
    labels: tuple[str, ...]
    says: str
    read: Callable[[ClusterFigures], Iterable[Sample]]


def _one(read: Callable[[ClusterFigures], float]) -> Callable[[ClusterFigures], list[Sample]]:
    return lambda figures: [Sample({}, read(figures))]


def _by_host(read: Callable[[LinkFigures], float]) -> Callable[[ClusterFigures], list[Sample]]:
    return lambda figures: [Sample({"host": link.host}, read(link)) for link in figures.links[:MAX_HOST_SERIES]]


def _replicas(figures: ClusterFigures) -> list[Sample]:
    return [Sample({"state": "open"}, figures.replicas_open), Sample({"state": "sealed"}, figures.replicas_sealed)]


_HOST: Final = ("host",)
CLUSTER_METRICS: Final[tuple[ClusterMetricEntry, ...]] = (
    ClusterMetricEntry("kafka_controller_kafkacontroller_activebrokercount", "gauge", (), "hosts that are alive",
                       _one(lambda x: x.members)),
    ClusterMetricEntry("kafka_server_replicamanager_leadercount", "gauge", (), "streams that this host owns",
                       _one(lambda x: x.owned_streams)),
    ClusterMetricEntry(
        "kafka_controller_kafkacontroller_offlinepartitionscount", "gauge", (),
        "streams without a live owner, as this host sees it", _one(lambda x: x.streams_without_owner),
    ),
    ClusterMetricEntry(
        "kafka_server_replicamanager_underreplicatedpartitions", "gauge", (),
        "streams of this host whose newest chunk has fewer live copies than wanted, or that refuse producers, "
        "including streams that accept nothing yet after a takeover", _one(lambda x: x.short_streams),
    ),
    ClusterMetricEntry(
        "kafka_server_replicamanager_underminisrpartitioncount", "gauge", (),
        "streams of this host with fewer live copies of the newest chunk than `min.insync.replicas`, or that refuse "
        "producers because a member confirms nothing", _one(lambda x: x.under_min_streams),
    ),
    ClusterMetricEntry(
        "kafka_server_replicamanager_atminisrpartitioncount", "gauge", (),
        "streams of this host with exactly `min.insync.replicas` live copies: losing one more host may stop producers",
        _one(lambda x: x.at_min_streams),
    ),
    ClusterMetricEntry("kafka_server_replicamanager_isrshrinks_total", "counter", (),
                       "members that this host's streams have dropped after failures",
                       _one(lambda x: x.member_failures)),
    ClusterMetricEntry(
        "cairn_underreplicated_chunks", "gauge", (),
        "chunks of this host's streams with fewer live copies than wanted, including sealed chunks",
        _one(lambda x: x.short_chunks),
    ),
    ClusterMetricEntry(
        "cairn_crowded_chunks", "gauge", (),
        "chunks of this host's streams with all their copies, more of them in one rack or zone than need be",
        _one(lambda x: x.crowded_chunks),
    ),
    ClusterMetricEntry("cairn_replicas", "gauge", ("state",), "copies of chunks on this host, `open` and `sealed`",
                       _replicas),
    ClusterMetricEntry("cairn_unacknowledged_batches", "gauge", (),
                       "batches of this host's streams that not all members have confirmed",
                       _one(lambda x: x.waiting_batches)),
    ClusterMetricEntry("cairn_copies_going", "gauge", (), "chunks of this host's streams that may be copied now",
                       _one(lambda x: x.copies.going)),
    ClusterMetricEntry("cairn_copies_waiting", "gauge", (), "streams of this host that wait to have a chunk copied",
                       _one(lambda x: x.copies.waiting)),
    ClusterMetricEntry("cairn_copies_unplanned", "gauge", (),
                       "1: copies of this host's streams run at its own pace, because no host plans them",
                       _one(lambda x: int(x.copies.is_unplanned))),
    ClusterMetricEntry("cairn_copy_coordinator", "gauge", (), "1: this host plans the copies of the cluster",
                       _one(lambda x: int(x.copies.is_coordinator))),
    ClusterMetricEntry("cairn_copy_slots", "gauge", (),
                       "hosts whose copies may come as fast as appends allow, by the coordinator of checkpoints",
                       _one(lambda x: x.copies.slots)),
    ClusterMetricEntry("cairn_copy_slots_waiting", "gauge", (),
                       "hosts from which copies come at the minimum rate, as checkpoints or other copies go first",
                       _one(lambda x: x.copies.slots_waiting)),
    ClusterMetricEntry("cairn_copied_bytes_total", "counter", (), "bytes of chunks that were copied to this host",
                       _one(lambda x: x.copies.made_bytes)),
    ClusterMetricEntry("cairn_copies_served_bytes_total", "counter", (),
                       "bytes of chunks that were copied from this host",
                       _one(lambda x: x.copies.served_bytes)),
    ClusterMetricEntry("cairn_takeovers_total", "counter", (),
                       "streams that this host took over from another owner, or from its own previous start",
                       _one(lambda x: x.takeovers)),
    ClusterMetricEntry("cairn_waiting_takeovers", "gauge", (),
                       "streams of this host of which a takeover or an epoch waits for an unreadable chunk, or a "
                       "takeover waits for members",
                       _one(lambda x: x.waiting_takeovers)),
    ClusterMetricEntry("cairn_link_up", "gauge", _HOST, "1: the link to the host is up",
                       _by_host(lambda x: int(x.is_up))),
    ClusterMetricEntry("cairn_link_sent_bytes_total", "counter", _HOST, "bytes of messages sent to the host",
                       _by_host(lambda x: x.sent_bytes)),
    ClusterMetricEntry("cairn_link_sent_messages_total", "counter", _HOST, "messages sent to the host",
                       _by_host(lambda x: x.sent_messages)),
    ClusterMetricEntry("cairn_link_received_bytes_total", "counter", _HOST, "bytes of messages from the host",
                       _by_host(lambda x: x.received_bytes)),
    ClusterMetricEntry("cairn_link_received_messages_total", "counter", _HOST, "messages from the host",
                       _by_host(lambda x: x.received_messages)),
    ClusterMetricEntry("cairn_link_dropped_messages_total", "counter", _HOST,
                       "messages dropped because too many bytes were queued for the host",
                       _by_host(lambda x: x.dropped_messages)),
    ClusterMetricEntry("cairn_link_queued_bytes", "gauge", _HOST, "bytes queued for the host",
                       _by_host(lambda x: x.queued_bytes)),
    ClusterMetricEntry("cairn_metadata_away", "gauge", (), "1: the metadata store does not answer",
                       _one(lambda x: int(x.is_metadata_away))),
    ClusterMetricEntry("cairn_metadata_calls_total", "counter", (), "calls to the metadata store",
                       _one(lambda x: x.metadata_calls)),
    ClusterMetricEntry("cairn_metadata_failures_total", "counter", (), "attempts of calls without an answer",
                       _one(lambda x: x.metadata_failures)),
)  # fmt: skip


def read_cluster(figures: ClusterFigures) -> list[Metric]:
    """All metrics of the cluster with their samples."""
    return [Metric(entry.name, entry.kind, entry.says, list(entry.read(figures))) for entry in CLUSTER_METRICS]
