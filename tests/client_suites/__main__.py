"""Runs a client's own tests against the sidecar, or against a real Kafka to compare: `./run test-clients NAME`.

The sources come through package registries into a cache that is not under version control. The exit code is 0 if
nothing failed but what is known not to be served (`KNOWN`, with the reason), 1 if anything else failed, 2 if something
is missing on the machine or the server does not start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks.harness.jars import KafkaUnavailable
from benchmarks.harness.kafka import KafkaPeer
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.sidecar import SidecarPeer
from tests.client_suites.sources import CACHE, Missing
from tests.client_suites.suites import SUITES, Outcome
from tests.support.limits import PATIENCE_S

PARTITIONS = "4"
"""Of a topic that is created by its first use, as librdkafka's tests expect."""
KAFKA_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": PARTITIONS}
TRANSACTIONS = "transactions are refused"
COMPACTION = "there is no compaction"
KNOWN: Mapping[str, Mapping[str, str]] = {
    "librdkafka": {
        "0011": COMPACTION,
        "0077": COMPACTION,
        "0081": "batches are stored as their producers compress them: compression.type is refused",
        "0103": TRANSACTIONS,
        "0119": "its refusals come as it expects, and then its time is over",
        "0129": TRANSACTIONS,
    },
    "kafka-python": {
        "test_group": "its group does not come to rest in the time it gives; so with a real Kafka",
        "test_transactional_producer_messages": TRANSACTIONS,
        "test_transactional_producer_offsets": TRANSACTIONS,
    },
    "franz-go": {
        "TestConsumeRegex": "there is no topic __consumer_offsets",
        "TestTxnEtl": TRANSACTIONS,
    },
}
"""Tests that fail against the sidecar, and why."""


def allow_everything(bootstrap: str) -> None:
    """Allow everybody everything by lists: the first list of a test of rights would lock its client out, and what the
    test denies must still be denied. Raises KafkaException.
    """
    resources = ((ResourceType.TOPIC, "*"), (ResourceType.GROUP, "*"), (ResourceType.BROKER, "kafka-cluster"))
    everybody = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind, name in resources
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its end would end its requests
    for made in admin.create_acls(everybody).values():
        made.result(PATIENCE_S)


@contextmanager
def server(kind: str, directory: Path) -> Iterator[str]:
    """A server to test against; its host:port. Raises KafkaUnavailable, PeerFailed."""
    peer: SidecarPeer | KafkaPeer
    if kind == "cairn":
        peer = SidecarPeer(directory, flags=("--default-partitions", PARTITIONS))
    else:
        peer = KafkaPeer(directory, heap="512m", overrides=KAFKA_SETTINGS)
    peer.start()
    try:
        peer.wait_serving(PATIENCE_S)
        if kind == "cairn":
            allow_everything(peer.bootstrap)
        yield peer.bootstrap
    finally:
        peer.stop()


def report(outcome: Outcome, known: Mapping[str, str], logs: Path) -> int:
    """Print what became of the tests; the exit code."""
    for name in sorted(outcome.failed):
        print(f"failed   {name}" + (f"  ({known[name]})" if name in known else ""))
    for name in sorted(outcome.skipped):
        print(f"skipped  {name}")
    unknown = outcome.failed - set(known)
    counts = (len(outcome.passed), len(outcome.failed), len(outcome.failed) - len(unknown), len(outcome.skipped))
    print("{} passed, {} failed ({} of them known), {} skipped".format(*counts))
    print(f"logs: {logs}")
    return 1 if unknown or not outcome.passed else 0


def main() -> int:
    """Run a suite."""
    parser = argparse.ArgumentParser(prog="./run test-clients", description="A client's own tests against the sidecar.")
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--peer", choices=("cairn", "kafka"), default="cairn", help="the server that is tested")
    parser.add_argument("--bootstrap", help="HOST:PORT of a server that runs already, instead of one started for this")
    parser.add_argument("--only", help="tests whose names contain this")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    logs = Path(tempfile.mkdtemp(dir=CACHE, prefix=f"logs-{arguments.suite}-"))
    run = SUITES[arguments.suite]
    try:
        if arguments.bootstrap:
            outcome = run(arguments.bootstrap, logs, arguments.only)
        else:
            with server(arguments.peer, logs) as bootstrap:
                outcome = run(bootstrap, logs, arguments.only)
    except (Missing, KafkaUnavailable, PeerFailed) as missing:
        print(f"cannot run {arguments.suite}'s tests: {missing}", file=sys.stderr)
        return 2
    return report(outcome, KNOWN[arguments.suite] if arguments.peer == "cairn" else {}, logs)


if __name__ == "__main__":
    sys.exit(main())
