"""What TLS and a login cost: the same client produces and fetches over PLAINTEXT and SASL_SSL, in turn, in one run.

`python -m benchmarks.tls [--rounds 7] [--megabytes 48] [--quick]` starts a sidecar with both listeners, prints a table
with the medians of all rounds, and writes results/tls.json with a plot.

Invariants: both ways write to the same sidecar and disk, alternately, in an order that changes from round to round;
every round counts the records that came back; a login is timed on a connection of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import confluent_kafka
import matplotlib as mpl
import trustme
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.harness import results
from benchmarks.harness.disks import settle_disks
from benchmarks.harness.program import content_of, keep, options
from benchmarks.harness.report import Goal, Rows, at_least, at_most, machine, print_goals
from logstore.client.blocking import Client, parse_addresses
from logstore.client.security import parse_security

USER, PASSWORD = "bench", "a password of the benchmark"
PROTOCOLS: Final = ("PLAINTEXT", "SASL_SSL")
WAYS: Final = ("produce_mb_s", "fetch_mb_s")
RECORD_BYTES: Final = 1000
PATIENCE_S: Final = 60.0
FULL_ROUNDS, FULL_MEGABYTES = 7, 48
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
    allowed = ("--super-users", f"User:ANONYMOUS;User:{USER}")
    command = [*serve, *allowed, "--tls-certificate", str(directory / "server.pem")]
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
    consumer.list_topics(topic, timeout=PATIENCE_S)  # connected and logged in, which is timed by itself
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


def find_goals(rows: Rows) -> list[Goal]:
    """What TLS and a login may cost."""
    plain, secured = ({"listener": protocol} for protocol in PROTOCOLS)
    goals = []
    for figure, what in (("produce_mb_s", "produce"), ("fetch_mb_s", "fetch")):
        ratios = rows.ratios(figure, secured, plain)
        if ratios:
            name = f"{what} over {PROTOCOLS[1]}, to {PROTOCOLS[0]}"
            goals.append(at_least(name, median(ratios), "×", 0.5, ratios))
    connects = rows.values("connect_ms", **secured)
    if connects:
        goals.append(at_most(f"connect and log in over {PROTOCOLS[1]}", median(connects), "ms", 100.0, connects))
    return goals


def draw(rows: Rows, path: Path) -> None:
    """Megabytes a second each way over both listeners, every round a dot."""
    mpl.use("Agg")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for index, protocol in enumerate(PROTOCOLS):
        for place, name in enumerate(WAYS):
            rounds = rows.values(name, listener=protocol)
            x = place + 0.35 * index
            label = protocol if not place else None
            axis.bar([x], [median(rounds)], 0.3, color=f"C{index}", label=label)
            axis.plot([x] * len(rounds), rounds, ".", color="black", alpha=0.5)
    axis.set_xticks([place + 0.175 for place in range(len(WAYS))], ["produce", "fetch"])
    axis.set_ylabel("MB/s, median of the rounds")
    axis.set_title(f"Records of {RECORD_BYTES} B through librdkafka, one sidecar")
    axis.legend()
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, keep."""
    parser = options(__doc__, quick="two rounds")
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS, help="how many (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=FULL_MEGABYTES, help="of each round and way")
    given = parser.parse_args(arguments)
    number = 2 if given.quick else given.rounds
    is_full = number >= FULL_ROUNDS and given.megabytes >= FULL_MEGABYTES
    mode = results.FULL if is_full else "quick"
    folder = results.directory(parser, given.results, mode)
    before, rows = machine(Path(tempfile.gettempdir())), Rows()
    records = given.megabytes * 1_000_000 // RECORD_BYTES
    with tempfile.TemporaryDirectory(prefix="cairn-tls-") as name, serving(Path(name)) as (pid, addresses):
        for at in range(number):
            for protocol in PROTOCOLS[:: 1 if at % 2 else -1]:
                settle_disks()
                found = measure(pid, addresses[protocol], protocol, Path(name) / "ca.pem", records)
                rows.add(round=at, listener=protocol, **found._asdict())
    table = Table(
        "listener", "produce MB/s", "CPU ms/MB", "fetch MB/s", "CPU ms/MB", "connect ms", title=f"{number} rounds"
    )
    for protocol in PROTOCOLS:
        middle = Round(*(rows.median(figure, listener=protocol) or 0.0 for figure in Round._fields))
        table.add_row(
            protocol,
            f"{middle.produce_mb_s:.0f}",
            f"{1000 * middle.produce_cpu_s / given.megabytes:.1f}",
            f"{middle.fetch_mb_s:.0f}",
            f"{1000 * middle.fetch_cpu_s / given.megabytes:.1f}",
            f"{middle.connect_ms:.1f}",
        )
    console, goals = Console(width=120), find_goals(rows)
    console.print(table)
    print_goals(console, goals)
    content = content_of(mode, before, goals, rows.all, plan={"rounds": number, "megabytes": given.megabytes})
    keep(folder, "tls", content, partial(draw, rows), console)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
