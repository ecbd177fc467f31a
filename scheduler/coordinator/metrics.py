"""Counters and gauges in Prometheus' text format.

Invariants: names start with `cairn_coordinator_`; label values are bounded in number: states, kinds, operations. A host
that stands by loads nothing that plans for its own metrics.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Protocol

from logstore.base import prometheus
from logstore.base.histogram import Histogram
from logstore.base.prometheus import Metric, Sample, histogram_samples

if TYPE_CHECKING:
    from scheduler.coordinator.service import Coordinator

PREFIX = "cairn_coordinator_"


class Traffic(Protocol):
    """The server's own numbers."""

    def answered(self) -> Mapping[tuple[str, int], int]:
        """Answers by operation and status."""
        ...

    def connections(self) -> tuple[int, int]:
        """Clients connected now, and clients refused so far."""
        ...


def text(coordinator: "Coordinator", traffic: Traffic) -> str:
    """All metrics of a coordinator that plans."""
    return prometheus.text(chain(_plan_metrics(coordinator), _host_metrics(traffic, leads=True)))


def standby_text(traffic: Traffic, *, awaits_state: bool, network_differs: bool) -> str:
    """All metrics of a host of a cluster that stands by."""
    beside = [
        _gauge("awaits_state", "1: this host is to lead, but cannot read the state yet", int(awaits_state)),
        _gauge("network_differs", "1: the leader plans on a network other than this host's", int(network_differs)),
    ]
    return prometheus.text(chain(_host_metrics(traffic, leads=False), beside))


def _plan_metrics(coordinator: "Coordinator") -> Iterable[Metric]:
    status, journal = coordinator.status(), coordinator.journal
    states = Counter(str(entry.state) for entry in coordinator.registry.requests.values())
    hosts = coordinator.hosts.known()
    used: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for use in status.uses:
        used[use.resource] += use.used
        total[use.resource] += use.total
    yield _gauge("uptime_seconds", "time since this process began to plan", coordinator.uptime_ms() / 1000)
    yield _metric(
        "requests", "gauge", "requests by state", [({"state": name}, states[name]) for name in sorted(states)]
    )
    yield _gauge("chunks_in_flight", "chunks in flight", len(status.in_flight))
    oldest_s = coordinator.registry.oldest_ms(coordinator.now_ms()) / 1000
    yield _gauge("oldest_chunk_age_seconds", "age of the oldest chunk in flight; 0: none", oldest_s)
    yield _gauge("chunk_deadline_seconds", "age at which a chunk is revoked", coordinator.chunk_deadline_ms / 1000)
    yield _gauge("requests_stranded", "requests without a path, because hosts are lost", len(coordinator.unreachable))
    yield _histogram("chunk_waiting_seconds", "how long chunks waited for their go", coordinator.registry.waiting)
    yield _histogram("chunk_writing_seconds", "how long chunks took from go to done", coordinator.registry.moving)
    yield _gauge("chunks_waiting", "chunks that wait for their go", sum(one.waiting for one in status.requests))
    going, waiting = coordinator.copy_slots.counts
    yield _metric(
        "copy_slots", "gauge", "pairs of hosts whose copies of log chunks may be fast, or wait for a slot",
        [({"state": "going"}, going), ({"state": "waiting"}, waiting)],
    )  # fmt: skip
    yield _counter("copy_slots_total", "slots granted for copies of log chunks", coordinator.copy_slots.told)
    yield _metric(
        "hosts", "gauge", "hosts that registered or were lost",
        [({"state": "registered"}, sum(host.registered for host in hosts)),
         ({"state": "lost"}, sum(host.lost for host in hosts))],
    )  # fmt: skip
    yield _metric(
        "capacity_used", "gauge", "chunks that use the resource", [({"resource": n}, used[n]) for n in sorted(used)]
    )
    yield _metric(
        "capacity_total",
        "gauge",
        "chunks that the resource carries at a time",
        [({"resource": n}, total[n]) for n in sorted(total)],
    )
    stored = coordinator.checkpoints.registry.counts()
    yield _gauge("checkpoint_units", "units with a complete checkpoint", stored["units"])
    yield _gauge("checkpoints", "complete checkpoints registered", stored["checkpoints"])
    yield _gauge("checkpoint_bytes", "bytes of the checkpoints' files", stored["file_bytes"])
    yield _metric(
        "checkpoint_changes_total", "counter", "checkpoints registered, removed and forgotten",
        [({"change": name}, value) for name, value in coordinator.checkpoints.counts.items()],
    )  # fmt: skip
    yield _metric(
        "events_total",
        "counter",
        "events reported",
        [({"event": n}, v) for n, v in coordinator.counts.items()],
    )
    yield _counter("commits_total", "transactions stored", journal.commits)
    yield _counter("changes_total", "changes stored in transactions", journal.changes)
    yield _counter("commit_failures_total", "transactions that could not be stored", journal.failures)
    if journal.limit_bytes != inf:
        stored_bytes = journal.limit_bytes - journal.left_bytes
        yield _gauge("state_limit_bytes", "maximum bytes of keys and values in the metadata store", journal.limit_bytes)
        yield _gauge("state_bytes", "bytes of the state's keys and values", stored_bytes)
        yield _gauge("state_promised_bytes", "bytes reserved for requests under way", coordinator.room.promised_bytes)
    yield _gauge("store_failing", "1: nothing can be stored", int(coordinator.failing is not None))


def _host_metrics(traffic: Traffic, *, leads: bool) -> Iterable[Metric]:
    yield _gauge("up", "1: running", 1)
    yield _gauge("leads", "1: this coordinator plans; 0: it stands by", int(leads))
    answers = sorted(traffic.answered().items())
    yield _metric(
        "answers_total", "counter", "answers by operation and status",
        [({"operation": operation, "status": code}, value) for (operation, code), value in answers],
    )  # fmt: skip
    connected, refused = traffic.connections()
    yield _gauge("connections", "clients connected", connected)
    yield _counter("connections_refused_total", "clients refused because there were too many", refused)


def _gauge(name: str, says: str, value: float) -> Metric:
    return _metric(name, "gauge", says, [({}, value)])


def _counter(name: str, says: str, value: float) -> Metric:
    return _metric(name, "counter", says, [({}, value)])


def _metric(name: str, kind: str, says: str, samples: Iterable[tuple[Mapping[str, object], float]]) -> Metric:
    return Metric(PREFIX + name, kind, says, [Sample(labels, value) for labels, value in samples])


def _histogram(name: str, says: str, by_kind: Mapping[str, Histogram]) -> Metric:
    samples = [part for kind, histogram in by_kind.items() for part in histogram_samples({"kind": kind}, histogram)]
    return Metric(PREFIX + name, "histogram", says, samples)
