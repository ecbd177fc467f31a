"""What TLS and a login cost: the same client produces and fetches over PLAINTEXT and SASL_SSL, in turn, in one run.

`python -m benchmarks.tls [--seconds 40] [--megabytes 48]` starts a sidecar with both listeners and prints a table: the
medians of all rounds. It writes no result file.

Invariants: both ways write to the same sidecar and disk, alternately, in an order that changes from round to round;
every round counts the records that came back; a login is timed on a connection of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import confluent_kafka
import trustme
from rich.console import Console
from rich.table import Table

from logstore.client.blocking import Client, parse_addresses
from logstore.client.security import parse_security

USER, PASSWORD = "bench", "a password of the benchmark"
PROTOCOLS: Final = ("PLAINTEXT", "SASL_SSL")
RECORD_BYTES: Final = 1000
PATIENCE_S: Final = 60.0
LOGINS: Final = 5
"""Per round."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """One round over one listener; processor times are the sidecar's."""

    produce_mb_s: float
    produce_cpu_s: float
    fetch_mb_s: float
    fetch_cpu_s: float
    connect_ms: float


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def serving(directory: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """A sidecar with a listener of each protocol: its process id, and the addresses."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    cairn = [sys.executable, "-m", "logstore.cli"]
    add = [*cairn, "user", "add", USER, "--data-dir", str(directory / "data")]
    subprocess.run(add, input=f"{PASSWORD}\n", text=True, check=True, stdout=subprocess.DEVNULL)
    listeners = [flag for protocol in PROTOCOLS for flag in ("--kafka", f"{protocol}://127.0.0.1:0")]
    serve = [*cairn, "serve", "--data-dir", str(directory / "data"), *listeners]
    command = [*serve, "--tls-certificate", str(directory / "server.pem")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        places = [part.removeprefix("kafka=") for part in ready.split() if part.startswith("kafka=")]
        try:
            yield process.pid, dict(zip(PROTOCOLS, places, strict=True))
        finally:
            process.terminate()


def configuration(address: str, protocol: str, ca: Path) -> dict[str, Any]:
    """librdkafka's options."""
    secured = {
        "ssl.ca.location": str(ca),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    return {
        "bootstrap.servers": address,
        "security.protocol": protocol,
        **(secured if protocol == "SASL_SSL" else {}),
    }


def measure(pid: int, address: str, protocol: str, ca: Path, records: int) -> Round:
    """Produce, fetch, and log in over one listener."""
    config, topic = configuration(address, protocol, ca), f"t-{uuid.uuid4().hex}"
    size_mb = records * RECORD_BYTES / 1e6
    producer = confluent_kafka.Producer({**config, "linger.ms": 5, "queue.buffering.max.messages": records + 1})
    producer.list_topics(topic, timeout=PATIENCE_S)  # connected, logged in, and the topic is there
    value, cpu, begun = os.urandom(RECORD_BYTES), cpu_s(pid), time.perf_counter()
    for _ in range(records):
        producer.produce(topic, value)
    if producer.flush(PATIENCE_S):
        raise SystemExit("records were not acknowledged in time")
    produce_s, produce_cpu_s = time.perf_counter() - begun, cpu_s(pid) - cpu
    consumer = confluent_kafka.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    cpu, begun, got = cpu_s(pid), time.perf_counter(), 0
    while got < records:
        found = consumer.consume(min(10_000, records - got), timeout=PATIENCE_S)
        if not found or any(message.error() for message in found):
            raise SystemExit(f"{got} of {records} records came back")
        got += len(found)
    fetch_s, fetch_cpu_s = time.perf_counter() - begun, cpu_s(pid) - cpu
    consumer.close()
    return Round(size_mb / produce_s, produce_cpu_s, size_mb / fetch_s, fetch_cpu_s, connect_ms(address, protocol, ca))


def connect_ms(address: str, protocol: str, ca: Path) -> float:
    """From nothing to the first answer, login included: the median of LOGINS connections."""
    properties = {
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    taken = []
    for _ in range(LOGINS):
        with Client(parse_addresses(address), security=parse_security(properties)) as client:
            begun = time.perf_counter()
            client.topics([])
            taken.append(1000 * (time.perf_counter() - begun))
    return median(taken)


def main(arguments: Sequence[str]) -> int:
    """Run rounds until the time is over, two at least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="begin no round after (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=48, help="of each round and way (default: %(default)s)")
    given = parser.parse_args(arguments)
    records = given.megabytes * 1_000_000 // RECORD_BYTES
    found: dict[str, list[Round]] = {protocol: [] for protocol in PROTOCOLS}
    with tempfile.TemporaryDirectory(prefix="cairn-tls-") as name, serving(Path(name)) as (pid, addresses):
        end, number = time.monotonic() + given.seconds, 0
        while number < 2 or time.monotonic() < end:
            for protocol in PROTOCOLS[:: 1 if number % 2 else -1]:
                ca = Path(name) / "ca.pem"
                found[protocol].append(measure(pid, addresses[protocol], protocol, ca, records))
            number += 1
    table = Table(
        "listener", "produce MB/s", "CPU ms/MB", "fetch MB/s", "CPU ms/MB", "connect ms", title=f"{number} rounds"
    )
    for protocol, rounds in found.items():
        middle = Round(*(median(values) for values in zip(*rounds, strict=True)))
        table.add_row(
            protocol,
            f"{middle.produce_mb_s:.0f}",
            f"{1000 * middle.produce_cpu_s / given.megabytes:.1f}",
            f"{middle.fetch_mb_s:.0f}",
            f"{1000 * middle.fetch_cpu_s / given.megabytes:.1f}",
            f"{middle.connect_ms:.1f}",
        )
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
