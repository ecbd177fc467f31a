"""Every metric of the table is alive: it moves when its cause is made to happen on a real sidecar."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.control import FOOTPRINTS_TYPE, MARK_TYPE, encode_control_record
from logstore.format.epoch_api import AbortRequest, EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.reader_api import ReaderOffset
from logstore.format.records import Record, encode_batch
from logstore.monitoring.metrics import MAX_PARTITION_SERIES, METRICS
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import FETCH, WireClient, fetch_values
from tests.monitoring.support import Samples, ask, family, http_port, samples, scrape, value, watched
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

MIB = 1 << 20
CONNECTIONS = 12
STATE_BYTES = 900_000
BATCH = bytes(encode_batch([Record(0, NOW_MS, None, os.urandom(MIB // 2))]))
OUT = TopicPartition("out", 0)
CONSTANT = {
    "cairn_info", "cairn_disk_total_bytes", "process_max_fds", "process_start_time_seconds", "process_threads",
}  # fmt: skip
"""What need not move: these are compared with what the operating system says."""
OVER_TIME = {
    "cairn_disk_free_bytes", "cairn_event_loop_lag_seconds", "cairn_snapshot_seconds", "process_cpu_seconds_total",
    "cairn_scrubbed_bytes_total", "cairn_state_bytes", "process_resident_memory_bytes", "process_virtual_memory_bytes",
}  # fmt: skip
"""What moves some time between the first scrape and the last: by the machine, or counted every few seconds."""


SCRUB = {
    "cairn_scrubbed_chunks_total", "cairn_scrub_damaged_chunks_total", "cairn_scrub_unreadable_chunks_total",
    "cairn_scrub_completed_timestamp_seconds",
}  # fmt: skip
"""What moves within days: `tests/disk/test_scrub.py` sees its figures move."""


class Scenario:
    """A sidecar, its clients, and what happens to it."""

    def __init__(self, sidecar: Sidecar, stack: ExitStack, state: Path) -> None:
        self.sidecar = sidecar
        self._stack = stack
        self._state = state
        self.connect()

    def connect(self) -> None:
        """A connection of its own, as after a start."""
        self.wire = self._stack.enter_context(WireClient(self.sidecar.port))

    def client(self) -> Client:
        """A client of Cairn's own requests."""
        return self._stack.enter_context(Client(parse_addresses(self.sidecar.address), limit_s=120))

    def produce(self) -> None:
        """A topic with 4 MiB in several chunks, by a client that has just connected."""
        client = self._stack.enter_context(WireClient(self.sidecar.port))
        assert client.create_topic("orders", 2) == 0
        for _ in range(8):
            assert client.produce("orders", BATCH).error == 0

    def fetch(self) -> None:
        """A read of the oldest records, which are not in memory any more."""
        assert self.wire.fetch("orders", 0).error_code == 0

    def commit_offsets(self) -> None:
        """A consumer group that is behind."""
        consumer = Consumer({"bootstrap.servers": self.sidecar.address, "group.id": "readers"})
        consumer.commit(offsets=[ConfluentPartition("orders", 0, 5)], asynchronous=False)
        consumer.close()

    def join(self) -> None:
        """A member of a group."""
        session = timedelta(seconds=300)
        protocols = [{"name": "range", "metadata": b""}]
        joining = {"group_id": "members", "protocol_type": "consumer", "protocols": protocols}
        self.wire.request(11, 2, session_timeout=session, rebalance_timeout=session, **joining)

    def publish_state(self) -> None:
        """Epochs with 7 MB of state that its reader does not need any more; one epoch is aborted."""
        client = self.client()
        client.create_topic(OUT.topic, 1, {"retention.ms": "-1"})
        for epoch in range(8):
            self._stage(client, epoch, "a")
            tasks = (TaskOutput(0, "a", 1),)
            client.commit(EpochCommitRequest("query", "r", epoch, "error", tasks, f"{epoch}", forget=False))
        self._stage(client, 8, "b")
        client.abort(AbortRequest("query", "r", 8))
        self._stage(client, 9, "c")
        end = self.wire.latest(OUT.topic)
        client.register_reader("owner", [ReaderOffset(OUT.topic, OUT.partition, end)], state="query")

    @staticmethod
    def _stage(client: Client, epoch: int, attempt: str) -> None:
        body = {"query": "query", "epoch": epoch}
        data = bytes(encode_control_record(FOOTPRINTS_TYPE, body, bytes(STATE_BYTES), NOW_MS))
        data += bytes(encode_control_record(MARK_TYPE, body, b"", NOW_MS))
        part = Part(OUT.topic, OUT.partition, len(data), 2, 2)
        client.stage(StageRequest("query", "r", epoch, 0, attempt, 0, (part,), data))

    def lose_a_reader(self) -> None:
        """A registered reader that holds more than it may, so that retention passes over it."""
        client = self.client()
        client.create_topic("short", 1, {"retention.bytes": "1000000"})
        client.register_reader("slow", [ReaderOffset("short", 0, 0)])
        for _ in range(6):
            assert self.wire.produce("short", BATCH).error == 0

    def delete_records(self) -> None:
        """A client trims a stream."""
        self.client().delete_records(TopicPartition("orders", 0), 6)

    def keep_state(self) -> None:
        """A query's shared state."""
        query = self._state / "query"
        query.mkdir(parents=True)
        (query / "lock").touch()
        (query / "page").write_bytes(bytes(100_000))

    def crowd(self) -> None:
        """More clients than there are places."""
        for _ in range(CONNECTIONS + 1):
            self._stack.enter_context(WireClient(self.sidecar.port))
        self.connect()

    def fill_the_disk(self) -> None:
        """A disk that takes nothing more: the process may write no file."""
        self._limit_files(0)
        assert self.wire.produce("orders", BATCH).error != 0
        until(lambda: ask(http_port(self.sidecar), "/health").status == 503, "it says that its disk takes nothing")
        health = ask(http_port(self.sidecar), "/health")
        assert (health.status, health.value["status"], health.value["disk"]["writable"]) == (503, "failing", False)
        assert health.value["disk"]["error"]
        assert ask(http_port(self.sidecar), "/ready").status == 200

    def free_the_disk(self) -> None:
        """A disk that has room again."""
        self._limit_files(resource.RLIM_INFINITY)
        until(lambda: self.wire.produce("orders", BATCH).error == 0, "appends are taken")
        until(lambda: ask(http_port(self.sidecar), "/health").status == 200, "it says that its disk is well")

    def _limit_files(self, size_bytes: int) -> None:
        _, hard = resource.prlimit(self.sidecar.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.sidecar.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))

    def make_many_partitions(self) -> None:
        """More partitions than have series of their own."""
        assert self.wire.create_topic("wide", MAX_PARTITION_SERIES) == 0

    def leave_answers_unread(self) -> None:
        """A client that asks for much more than the sockets hold, and reads none of it."""
        for _ in range(64):
            self.wire.send(FETCH, 11, **fetch_values("orders", 6))

    def press(self) -> None:
        """Requests that wait for their sync."""
        for _ in range(8):
            self.wire.send_produce("orders", BATCH)


STEPS: tuple[tuple[Callable[[Scenario], None], set[str]], ...] = (
    (Scenario.produce, {
        "kafka_server_brokertopicmetrics_messagesin_total", "kafka_server_brokertopicmetrics_bytesin_total",
        "kafka_controller_kafkacontroller_globaltopiccount", "kafka_server_replicamanager_partitioncount",
        "kafka_log_log_size", "kafka_log_log_logendoffset", "kafka_log_log_numlogsegments", "cairn_log_bytes",
        "cairn_tail_bytes", "kafka_network_requestmetrics_requests_total", "cairn_request_seconds",
        "kafka_server_socket_server_metrics_connection_count",
        "kafka_server_socket_server_metrics_connection_creation_total", "cairn_disk_sync_seconds",
        "cairn_disk_writes_total", "cairn_disk_written_bytes_total", "cairn_events_total", "process_open_fds",
    }),
    (Scenario.fetch, {
        "kafka_server_brokertopicmetrics_bytesout_total", "cairn_disk_read_bytes_total", "cairn_index_bytes",
    }),
    (Scenario.commit_offsets, {
        "kafka_consumergroup_current_offset", "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum",
        "kafka_coordinator_group_groupmetadatamanager_numgroups",
    }),
    (Scenario.join, {"kafka_consumergroup_members"}),
    (Scenario.publish_state, {
        "cairn_epochs_committed_total", "cairn_epochs_aborted_total", "cairn_staged_bytes", "cairn_disk_needed_bytes",
        "cairn_queries",
        "cairn_query_epoch", "cairn_query_committed_timestamp_seconds", "cairn_readers", "cairn_cleaned_bytes_total",
    }),
    (Scenario.lose_a_reader, {"cairn_reader_released_streams_total"}),
    (Scenario.delete_records, {
        "kafka_log_log_logstartoffset", "cairn_trimmed_records_total", "cairn_trimmed_bytes_total",
    }),
    (Scenario.crowd, {"cairn_connections_given_way_total"}),
    (Scenario.fill_the_disk, {"cairn_disk_failing"}),
    (Scenario.free_the_disk, {"cairn_disk_failing"}),
    (Scenario.make_many_partitions, {"cairn_series_left_out"}),
)  # fmt: skip
APART = {"cairn_request_bytes", "cairn_ready", "cairn_appends_refused"}


def have_moved(before: Samples, sidecar: Sidecar, names: set[str]) -> set[str]:
    """Which of the metrics are not what they were."""
    now = scrape(sidecar)
    return {name for name in names if family(before, name) != family(now, name)}


def test_every_metric_moves_with_its_cause(tmp_path: Path) -> None:
    """Each step's metrics are others than before it; no metric of the table is left out."""
    named = {entry.name for entry in METRICS}
    assert named == CONSTANT | OVER_TIME | APART | SCRUB | {name for _, names in STEPS for name in names}
    state = tmp_path / "state"
    flags = (
        "--tail-bytes", str(2 * MIB), "--segment-bytes", str(MIB), "--retention-check-interval-ms", "200",
        "--reader-hold-bytes", "0", "--max-connections", str(CONNECTIONS), "--state-directory", str(state),
    )  # fmt: skip
    with watched(tmp_path / "data", *flags) as sidecar, ExitStack() as stack:
        scenario = Scenario(sidecar, stack, state)
        first = scrape(sidecar)
        assert set(_families(ask(http_port(sidecar), "/metrics").text)) == named
        scenario.keep_state()
        for cause, names in STEPS:
            before = scrape(sidecar)
            cause(scenario)
            until(lambda: have_moved(before, sidecar, names) == names, f"{cause.__name__}: {names}")  # noqa: B023
        moved: set[str] = set()

        def all_have_moved() -> bool:
            moved.update(have_moved(first, sidecar, OVER_TIME))
            return moved == OVER_TIME

        until(all_have_moved, f"over time: {OVER_TIME}")
        until(lambda: _sees_requests(scenario), "requests under way")
        _check_constants(sidecar, scrape(sidecar))
        _check_ready(scenario)


def _families(text: str) -> list[str]:
    return [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]


def _sees_requests(scenario: Scenario) -> bool:
    scenario.press()
    seen = value(scrape(scenario.sidecar), "cairn_request_bytes")
    for _ in range(8):
        assert scenario.wire.receive_produced().error == 0
    return seen > 0 and value(scrape(scenario.sidecar), "cairn_request_bytes") == 0


def _check_constants(sidecar: Sidecar, found: Samples) -> None:
    room = os.statvfs(sidecar.data_dir)
    assert value(found, "cairn_disk_total_bytes") == room.f_blocks * room.f_frsize
    assert value(found, "process_max_fds") == resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)[0]
    # Threads for short work come and go; those that write stay.
    assert 8 <= value(found, "process_threads") <= len(os.listdir(f"/proc/{sidecar.pid}/task")) + 16
    fields = Path(f"/proc/{sidecar.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    up_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    age_s = up_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    started = value(found, "process_start_time_seconds")
    assert abs(sidecar.data_dir.stat().st_ctime - started) < age_s + 5
    identity = (sidecar.data_dir / "cairn.json").read_text(encoding="utf-8")
    (labels,) = found["cairn_info"]
    assert dict(labels)["cluster_id"] in identity


def _check_ready(scenario: Scenario) -> None:
    """Ready until it is told to stop; it then drains for a client that does not read its answer."""
    assert value(scrape(scenario.sidecar), "cairn_ready") == 1
    assert ask(http_port(scenario.sidecar), "/ready").status == 200
    until(lambda: _says_that_it_stops(scenario), "what it says while it stops is heard before its end")


def _says_that_it_stops(scenario: Scenario) -> bool:
    """Stop it, and ask. It drains for some seconds: False if it ended first, as where this test gets no time; then it
    runs again.
    """
    sidecar, port = scenario.sidecar, http_port(scenario.sidecar)
    scenario.leave_answers_unread()
    sidecar.process.terminate()
    try:
        until(lambda: ask(port, "/ready").status == 503, "not ready")
        said = ask(port, "/ready").value
        ready = value(samples(ask(port, "/metrics").text), "cairn_ready")
    except (OSError, HTTPException):
        sidecar.terminate()
        sidecar.start()
        scenario.connect()
        return False
    assert said == {"status": "stopping"}
    assert ready == 0
    return True
