"""All metrics of a sidecar in one table: name, kind, labels, meaning, and how to read the value from a snapshot.

If Kafka's exporters have the same figure, a metric has their name (the JMX exporter's usual rules, and kafka_exporter
for groups). Metrics of the process have the names of Prometheus' client libraries, all others begin with `cairn_`.
docs/metrics.md is generated from the table.

Invariants: reading changes nothing. The number of samples is bounded (MAX_PARTITION_SERIES, MAX_TOPIC_SERIES,
MAX_GROUP_SERIES, MAX_QUERY_SERIES), in the order of creation, so that a series does not appear and disappear.
`cairn_series_left_out` is the number of entries without a series; totals count all entries.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from kio.schema.index import api_key_map

from logstore.base.histogram import Histogram
from logstore.base.prometheus import Metric, Sample, histogram_samples
from logstore.format import epoch_api, reader_api
from logstore.monitoring.cluster_metrics import read_cluster
from logstore.monitoring.health import Phase
from logstore.monitoring.sampler import GroupFigures, LagFigures, SampledFigures, Watched
from logstore.monitoring.tier_metrics import read_tier

MAX_PARTITION_SERIES: Final = 1_000
"""Streams with series of their own: four metrics of each are some 400 KB of a scrape."""
MAX_TOPIC_SERIES: Final = 1_000
MAX_GROUP_SERIES: Final = 1_000
"""Positions of groups, groups, and pairs of group and topic with series of their own."""
MAX_QUERY_SERIES: Final = 200
_OWN_REQUESTS: Final = {
    epoch_api.STAGE: "CairnStage",
    epoch_api.EPOCH_COMMIT: "CairnEpochCommit",
    epoch_api.ABORT: "CairnAbort",
    epoch_api.DESCRIBE: "CairnDescribe",
    epoch_api.SCAN: "CairnScan",
    reader_api.REGISTER_READER: "CairnRegisterReader",
    reader_api.ACKNOWLEDGE: "CairnAcknowledge",
    reader_api.REMOVE_READER: "CairnRemoveReader",
    reader_api.DESCRIBE_READERS: "CairnDescribeReaders",
}


def request_name(api_key: int) -> str:
    """A request's name as Kafka writes it, such as `ListOffsets`."""
    if api_key in _OWN_REQUESTS:
        return _OWN_REQUESTS[api_key]
    words = api_key_map.get(api_key)
    return f"Request{api_key}" if words is None else "".join(word.capitalize() for word in words.split("_"))


class TopicTotals(NamedTuple):
    """What went through a topic since the start."""

    messages: int
    appended_bytes: int
    fetched_bytes: int


class GroupPosition(NamedTuple):
    """A group's position in a stream, with the group's name."""

    group: str
    at: LagFigures


@dataclass(frozen=True)
class Look:
    """A sidecar's parts and a snapshot of them, with what several metrics need."""

    watched: Watched
    now: SampledFigures
    version: str

    @cached_property
    def topics(self) -> dict[str, TopicTotals]:
        """Totals by topic."""
        appended: Counter[str] = Counter()
        fetched: Counter[str] = Counter()
        for figures in self.now.streams.values():
            appended[figures.topic.name] += figures.appended_bytes
            fetched[figures.topic.name] += figures.fetched_bytes
        return {name: TopicTotals(count, appended[name], fetched[name]) for name, count in self.now.messages.items()}

    @property
    def partition_count(self) -> int:
        """The streams whose newest chunk is on this host."""
        return len(self.now.streams) if self.now.cluster is None else self.now.cluster.replicas_open

    @property
    def reader_count(self) -> int:
        """The registered readers that this host has."""
        readers = self.watched.served.here.readers()
        return 0 if readers is None else len(readers.names())

    @property
    def staged_bytes(self) -> int:
        """Bytes of output that is staged and not committed, of the epochs that this host has."""
        return sum(self.now.staged_bytes.values())

    @property
    def log_bytes(self) -> int:
        """Bytes of the chunks on this host: of its streams, and of its copies of a cluster's chunks."""
        if self.now.cluster is not None:
            return self.now.cluster.replica_bytes
        return sum(figures.size_bytes for figures in self.now.streams.values())

    @cached_property
    def positions(self) -> list[GroupPosition]:
        """The positions of all groups."""
        return [GroupPosition(group.name, at) for group in self.now.groups for at in group.positions]

    @cached_property
    def lag_by_topic(self) -> Counter[tuple[str, str]]:
        """Lag by group and topic."""
        lags: Counter[tuple[str, str]] = Counter()
        for group, at in self.positions:
            lags[group, at.topic] += at.lag or 0
        return lags


class MetricEntry(NamedTuple):
    """One metric of the table. `read` gives its samples."""

    name: str
    kind: str
    labels: tuple[str, ...]
    says: str
    read: Callable[[Look], Iterable[Sample]]


def _one(read: Callable[[Look], float]) -> Callable[[Look], list[Sample]]:
    return lambda look: [Sample({}, read(look))]


def _by_topic(read: Callable[[TopicTotals], float]) -> Callable[[Look], list[Sample]]:
    return lambda look: [
        Sample({"topic": name}, read(totals)) for name, totals in islice(look.topics.items(), MAX_TOPIC_SERIES)
    ]


def _by_partition(field: str) -> Callable[[Look], list[Sample]]:
    return lambda look: [
        Sample({"topic": figures.topic.name, "partition": figures.partition}, getattr(figures, field))
        for figures in islice(look.now.streams.values(), MAX_PARTITION_SERIES)
    ]


def _by_position(field: str) -> Callable[[Look], list[Sample]]:
    return lambda look: [
        Sample({"consumergroup": group, "topic": at.topic, "partition": at.partition}, getattr(at, field))
        for group, at in islice(look.positions, MAX_GROUP_SERIES)
        if getattr(at, field) is not None
    ]


def _lag_sums(look: Look) -> list[Sample]:
    return [
        Sample({"consumergroup": group, "topic": topic}, lag)
        for (group, topic), lag in islice(look.lag_by_topic.items(), MAX_GROUP_SERIES)
    ]


def _group_members(look: Look) -> list[Sample]:
    return [Sample({"consumergroup": group.name}, group.members) for group in islice(look.now.groups, MAX_GROUP_SERIES)]


def _request_counts(look: Look) -> list[Sample]:
    return [Sample({"request": request_name(key)}, times.count) for key, times in look.watched.requests.used()]


def _request_times(look: Look) -> list[Sample]:
    return [
        part
        for key, times in look.watched.requests.used()
        for part in histogram_samples({"request": request_name(key)}, times)
    ]


def _sync_times(look: Look) -> list[Sample]:
    disk = look.watched.disk
    kinds: tuple[tuple[str, Histogram], ...] = (("file", disk.syncs), ("directory", disk.directory_syncs))
    return [part for kind, times in kinds for part in histogram_samples({"of": kind}, times)]


def _epoch_of_queries(look: Look) -> list[Sample]:
    queries = [query for query in look.now.queries if query.epoch is not None]
    return [Sample({"query": query.name}, query.epoch or 0) for query in queries[:MAX_QUERY_SERIES]]


def _times_of_queries(look: Look) -> list[Sample]:
    queries = [query for query in look.now.queries if query.committed_ms is not None]
    return [Sample({"query": query.name}, (query.committed_ms or 0) / 1000) for query in queries[:MAX_QUERY_SERIES]]


def _events(look: Look) -> list[Sample]:
    counts = sorted(look.watched.events.counts.items(), key=lambda entry: entry[0].name)
    return [Sample({"event": event.name, "level": event.level.label}, count) for event, count in counts]


def _left_out(look: Look) -> list[Sample]:
    wanted: tuple[tuple[str, int, int], ...] = (
        ("partitions", len(look.now.streams), MAX_PARTITION_SERIES),
        ("topics", len(look.topics), MAX_TOPIC_SERIES),
        ("positions", len(look.positions), MAX_GROUP_SERIES),
        ("groups", len(look.now.groups) + look.now.groups_left_out, MAX_GROUP_SERIES),
        ("queries", len(look.now.queries) + look.now.queries_left_out, MAX_QUERY_SERIES),
    )
    return [Sample({"of": what}, max(0, count - limit)) for what, count, limit in wanted]


def _groups_total(groups: Sequence[GroupFigures], left_out: int) -> int:
    return len(groups) + left_out


_TOPIC, _STREAM = ("topic",), ("topic", "partition")
_POSITION = ("consumergroup", "topic", "partition")

METRICS: Final[tuple[MetricEntry, ...]] = (
    # ---- topics and streams
    MetricEntry(
        "kafka_server_brokertopicmetrics_messagesin_total", "counter", _TOPIC,
        "records that became visible, including records of epochs and control records", _by_topic(lambda t: t.messages),
    ),
    MetricEntry(
        "kafka_server_brokertopicmetrics_bytesin_total", "counter", _TOPIC,
        "bytes of batches that became visible, as stored on disk", _by_topic(lambda t: t.appended_bytes),
    ),
    MetricEntry(
        "kafka_server_brokertopicmetrics_bytesout_total", "counter", _TOPIC,
        "bytes of batches sent in answers to Fetch", _by_topic(lambda t: t.fetched_bytes),
    ),
    MetricEntry(
        "kafka_controller_kafkacontroller_globaltopiccount", "gauge", (), "topics", _one(lambda x: len(x.topics)),
    ),
    MetricEntry(
        "kafka_server_replicamanager_partitioncount", "gauge", (),
        "partitions whose newest chunk is on this host", _one(lambda x: x.partition_count),
    ),
    MetricEntry("kafka_log_log_size", "gauge", _STREAM, "bytes of the partition's chunks", _by_partition("size_bytes")),
    MetricEntry("kafka_log_log_logstartoffset", "gauge", _STREAM, "log start offset", _by_partition("log_start")),
    MetricEntry(
        "kafka_log_log_logendoffset", "gauge", _STREAM, "high watermark: the offset after the last synced record",
        _by_partition("high_watermark"),
    ),
    MetricEntry("kafka_log_log_numlogsegments", "gauge", _STREAM, "chunks of the partition", _by_partition("chunks")),
    MetricEntry(
        "cairn_log_bytes", "gauge", (), "bytes of all chunks on this host", _one(lambda x: x.log_bytes),
    ),
    MetricEntry(
        "cairn_trimmed_records_total", "counter", (), "records that retention or a client removed",
        _one(lambda x: x.watched.events.trimmed_records),
    ),
    MetricEntry(
        "cairn_trimmed_bytes_total", "counter", (), "bytes of chunks that retention or a client removed",
        _one(lambda x: x.watched.events.trimmed_bytes),
    ),
    MetricEntry(
        "cairn_cleaned_bytes_total", "counter", (), "bytes of unneeded state removed from sealed chunks",
        _one(lambda x: x.watched.events.cleaned_bytes),
    ),
    MetricEntry(
        "cairn_scrubbed_chunks_total", "counter", (), "sealed chunks that the scrub has read and found whole",
        _one(lambda x: x.watched.served.engine.scrub.figures.chunks),
    ),
    MetricEntry("cairn_scrubbed_bytes_total", "counter", (), "bytes that the scrub has read",
                _one(lambda x: x.watched.served.engine.scrub.figures.checked_bytes)),
    MetricEntry(
        "cairn_scrub_damaged_chunks_total", "counter", (), "sealed chunks that the scrub has found damaged",
        _one(lambda x: x.watched.served.engine.scrub.figures.damaged_chunks),
    ),
    MetricEntry(
        "cairn_scrub_unreadable_chunks_total", "counter", (), "sealed chunks that the scrub could not read",
        _one(lambda x: x.watched.served.engine.scrub.figures.unreadable_chunks),
    ),
    MetricEntry(
        "cairn_scrub_completed_timestamp_seconds", "gauge", (),
        "when the scrub had read all sealed chunks of this host the last time, also in an earlier life; 0: never",
        _one(lambda x: x.watched.served.engine.scrub.figures.completed_ms / 1000),
    ),
    MetricEntry("cairn_tail_bytes", "gauge", (), "memory used by the newest batches",
                _one(lambda x: x.watched.served.engine.store.tail.used_bytes)),
    MetricEntry("cairn_index_bytes", "gauge", (), "memory used by indexes", _one(lambda x: x.now.index_bytes)),
    # ---- requests and connections
    MetricEntry(
        "kafka_network_requestmetrics_requests_total", "counter", ("request",),
        "requests answered, with or without an error", _request_counts,
    ),
    MetricEntry(
        "cairn_request_seconds", "histogram", ("request",),
        "time from a request's arrival until its answer is ready, including the waits of Fetch and JoinGroup",
        _request_times,
    ),
    MetricEntry("cairn_request_bytes", "gauge", (), "memory used by requests in flight",
                _one(lambda x: x.watched.served.server.request_bytes)),
    MetricEntry("kafka_server_socket_server_metrics_connection_count", "gauge", (), "Kafka clients connected",
                _one(lambda x: x.watched.served.server.connections)),
    MetricEntry(
        "kafka_server_socket_server_metrics_connection_creation_total", "counter", (), "Kafka clients accepted",
        _one(lambda x: x.watched.served.server.accepted),
    ),
    MetricEntry(
        "cairn_connections_given_way_total", "counter", (),
        "idle connections closed to admit a new one (`max-connections`)",
        _one(lambda x: x.watched.served.server.given_way),
    ),
    # ---- consumer groups and registered readers
    MetricEntry("kafka_consumergroup_current_offset", "gauge", _POSITION, "committed offset", _by_position("offset")),
    MetricEntry("kafka_consumergroup_lag", "gauge", _POSITION, "offsets between the committed offset and the end",
                _by_position("lag")),
    MetricEntry("kafka_consumergroup_lag_sum", "gauge", ("consumergroup", "topic"),
                "lag summed over the topic's partitions",
                _lag_sums),
    MetricEntry("kafka_consumergroup_members", "gauge", ("consumergroup",), "members of the group", _group_members),
    MetricEntry(
        "kafka_coordinator_group_groupmetadatamanager_numgroups", "gauge", (), "groups, with or without members",
        _one(lambda x: _groups_total(x.now.groups, x.now.groups_left_out)),
    ),
    MetricEntry("cairn_readers", "gauge", (), "registered readers",
                _one(lambda x: x.reader_count)),
    MetricEntry(
        "cairn_reader_released_streams_total", "counter", (),
        "times that a registered reader was released from a stream that it had held too much of, or for too long",
        _one(lambda x: 0 if (readers := x.watched.served.here.readers()) is None else readers.released_streams),
    ),
    # ---- epochs
    MetricEntry("cairn_epochs_committed_total", "counter", (), "epochs whose commit became durable",
                _one(lambda x: 0 if (epochs := x.watched.served.here.epochs()) is None else epochs.committed)),
    MetricEntry("cairn_epochs_aborted_total", "counter", (), "aborts that dropped staged output",
                _one(lambda x: 0 if (epochs := x.watched.served.here.epochs()) is None else epochs.aborted)),
    MetricEntry("cairn_staged_bytes", "gauge", (), "bytes of staged output that is not committed",
                _one(lambda x: x.staged_bytes)),
    MetricEntry("cairn_queries", "gauge", (), "known queries",
                _one(lambda x: len(x.now.queries) + x.now.queries_left_out)),
    MetricEntry("cairn_query_epoch", "gauge", ("query",), "last committed epoch of the query", _epoch_of_queries),
    MetricEntry("cairn_query_committed_timestamp_seconds", "gauge", ("query",), "Unix time of that commit",
                _times_of_queries),
    MetricEntry("cairn_state_bytes", "gauge", (), "shared memory used by stateful queries, counted every ten seconds",
                _one(lambda x: sum(x.now.state_bytes.values()))),
    # ---- the disk
    MetricEntry("cairn_disk_sync_seconds", "histogram", ("of",), "duration of syncs of files and directories",
                _sync_times),
    MetricEntry("cairn_disk_writes_total", "counter", (), "disk writes", _one(lambda x: x.watched.disk.writes)),
    MetricEntry("cairn_disk_written_bytes_total", "counter", (), "bytes written to disk, including indexes and ledgers",
                _one(lambda x: x.watched.disk.written_bytes)),
    MetricEntry("cairn_disk_read_bytes_total", "counter", (), "bytes read from disk",
                _one(lambda x: x.watched.disk.read_bytes)),
    MetricEntry("cairn_disk_free_bytes", "gauge", (), "free space on the data directory's file system",
                _one(lambda x: x.now.disk.free_bytes)),
    MetricEntry("cairn_disk_total_bytes", "gauge", (), "size of that file system",
                _one(lambda x: x.now.disk.total_bytes)),
    MetricEntry("cairn_disk_failing", "gauge", (), "1: the disk refused the last write, and `/health` fails",
                _one(lambda x: int(x.watched.served.engine.disk_error is not None))),
    MetricEntry("cairn_disk_needed_bytes", "gauge", (),
                "space that appends leave free: the reserve plus the staged bytes",
                _one(lambda x: x.watched.served.engine.store.space.needed_bytes)),
    MetricEntry("cairn_appends_refused", "gauge", (),
                "1: less than `cairn_disk_needed_bytes` is free, and appends are refused",
                _one(lambda x: int(x.watched.served.engine.store.space.is_low))),
    # ---- the process
    MetricEntry("cairn_events_total", "counter", ("event", "level"), "events reported, logged or not", _events),
    MetricEntry("cairn_event_loop_lag_seconds", "histogram", (),
                "delay with which the event loop wakes a task, sampled twice a second",
                lambda x: histogram_samples({}, x.watched.health.lateness)),
    MetricEntry("cairn_ready", "gauge", (), "1: `/ready` reports ready",
                _one(lambda x: int(x.watched.health.phase is Phase.READY))),
    MetricEntry("cairn_snapshot_seconds", "gauge", (), "time taken to collect these metrics",
                _one(lambda x: x.now.took_s)),
    MetricEntry("cairn_series_left_out", "gauge", ("of",), "entries without their own series, as there are too many",
                _left_out),
    MetricEntry(
        "cairn_info", "gauge", ("version", "cluster_id"), "always 1",
        lambda x: [Sample({"version": x.version, "cluster_id": x.watched.served.store.cluster_id}, 1)],
    ),
    MetricEntry("process_cpu_seconds_total", "counter", (), "processor time", _one(lambda x: x.now.process.cpu_s)),
    MetricEntry("process_resident_memory_bytes", "gauge", (), "memory",
                _one(lambda x: x.now.process.resident_bytes)),
    MetricEntry("process_virtual_memory_bytes", "gauge", (), "address space",
                _one(lambda x: x.now.process.virtual_bytes)),
    MetricEntry("process_open_fds", "gauge", (), "open files and sockets", _one(lambda x: x.now.process.open_files)),
    MetricEntry("process_max_fds", "gauge", (), "limit of open files and sockets",
                _one(lambda x: x.now.process.max_files)),
    MetricEntry("process_threads", "gauge", (), "threads", _one(lambda x: x.now.process.threads)),
    MetricEntry("process_start_time_seconds", "gauge", (), "when the process started, Unix time",
                _one(lambda x: x.now.process.started_s)),
)  # fmt: skip


def read_all(look: Look) -> list[Metric]:
    """All metrics with their samples."""
    found = [Metric(entry.name, entry.kind, entry.says, list(entry.read(look))) for entry in METRICS]
    found += [] if look.now.cluster is None else read_cluster(look.now.cluster)
    return found if look.watched.served.tier is None else [*found, *read_tier(look.watched.served.tier)]
