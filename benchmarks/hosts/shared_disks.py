"""A host comes back with an empty disk while checkpoints are written on the same hosts: with one plan, and with two.

`python -m benchmarks.hosts.shared_disks [--rounds 2] [--held-mb 96] [--chunks 4] [--appends]` starts three sidecars
with coordinators and an etcd. In each round a host loses its disk, twice: once the hosts of the coordinator's network
are the members (*one* plan: copies that are faster than the least rate need slots), and once they have other names
(*two* plans). As soon as it is back, each host writes a checkpoint of some chunks; a chunk goes as a file with a sync
to the folders of the two hosts of its chain. `--appends`: a producer at a steady rate beside it.

Invariants:
* The same processes on both sides; the network's file is changed between, and the sides take turns.
* What a copy and a chunk do on one host at a time is counted: copied bytes in a time in which a chunk is written on the
  host that they come to, and how long that was. The seconds of a busy machine say little.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.harness.meter import percentiles
from benchmarks.harness.raw import RawConnection
from benchmarks.harness.steady import SteadyOrders, SteadyProducer
from benchmarks.harness.trios import NODES, CairnTrio
from benchmarks.hosts.copies import ENOUGH, RATE_S, fill, wait_without
from benchmarks.hosts.topics import HELD, IN_SYNC, STEADY, wait_whole
from logstore.testing.ports import free_ports
from scheduler.client import CoordinatorClient

NAMES = "abc"
PARTITIONS = 6
"""Large chunks: with small ones the calls of copies take longer than their bytes."""
CHUNK_BYTES = 16 << 20
PIECE = os.urandom(1 << 20)
RATE_BYTES_S = 20e6
"""Of a chunk: what a disk that several write to has for one of them (SGuard, table 8: 22.5 MB/s)."""
LOOK_S = 0.05
PATIENCE_S = 180.0


class Side(NamedTuple):
    """What the hosts of the network are called."""

    name: str
    prefix: str

    def host(self, member: str) -> str:
        """A member's name in the network."""
        return self.prefix + member

    def network(self) -> str:
        """The network's file: one chunk, or one slot, at a time on each host."""
        servers = "".join(f'[[server]]\nname = "{self.host(name)}"\nrack = "rack"\n' for name in NAMES)
        return (
            f'name = "{self.name}"\n[defaults]\nsend = 1\nreceive = 1\ndisk = 1\n[[switch]]\nname = "rack"\n{servers}'
        )


SIDES = (Side("two plans", "node-"), Side("one plan", ""))


class Writers:
    """The checkpoints of all hosts: chunks that are written now, and how long they took."""

    def __init__(self, side: Side, folder: Path, client: CoordinatorClient) -> None:
        self.side = side
        self.writes: Counter[str] = Counter()
        self.took_s: list[float] = []
        self._folder = folder
        self._client = client
        self._lock = threading.Lock()

    def write(self, member: str, chunks: int) -> None:
        """One host's checkpoint."""
        writer = self.side.host(member)
        request = self._client.submit(writer, chunks, 2, placement=["anywhere", "anywhere"])
        for go in request.goes():
            begun_s = time.monotonic()
            hosts = go.hosts[1:]
            with self._lock:
                self.writes.update(hosts)
            both = [threading.Thread(target=self._file, args=(host, f"{request.name}-{go.chunk}")) for host in hosts]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
            with self._lock:
                self.writes.subtract(hosts)
                self.took_s.append(time.monotonic() - begun_s)
            go.done()

    def _file(self, host: str, name: str) -> None:
        folder = self._folder / host
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            for _ in range(CHUNK_BYTES // len(PIECE)):
                file.write(PIECE)
                time.sleep(len(PIECE) / RATE_BYTES_S)
            os.fsync(file.fileno())
        (folder / name).unlink()


def lose_disk(trio: CairnTrio, side: Side, folder: Path, urls: str, chunks: int, *, appends: bool) -> dict[str, float]:
    """One loss."""
    leader = wait_whole(trio, STEADY).partitions[0].leader
    wait_whole(trio, HELD, PARTITIONS)
    lost = next(node for node in NODES if node != leader)
    with ExitStack() as stack:
        client = stack.enter_context(CoordinatorClient(urls, patience_s=PATIENCE_S))
        orders = SteadyOrders(trio.ports(), STEADY, RATE_S)
        producer = stack.enter_context(SteadyProducer(orders)) if appends else None
        trio.kill(lost)
        trio.wipe(lost)
        wait_without(trio, lost, PARTITIONS)
        trio.begin(lost)
        trio.wait_ready(lost)
        ready_s = time.monotonic()
        writers = Writers(side, folder, client)
        threads = [threading.Thread(target=writers.write, args=(name, chunks), daemon=True) for name in NAMES]
        for thread in threads:
            thread.start()
        written_s = copied_s = both_s = 0.0
        both_bytes, before, wanted = 0, trio.kept_bytes(lost, HELD), trio.kept_bytes(leader, HELD)
        target = side.host(NAMES[lost - 1])
        while not (written_s and copied_s):
            began_s, is_written = time.monotonic(), writers.writes[target] > 0
            time.sleep(LOOK_S)
            now_s, held = time.monotonic(), trio.kept_bytes(lost, HELD)
            if is_written and writers.writes[target] > 0 and not copied_s:
                both_s += now_s - began_s
                both_bytes += held - before
            before = held
            copied_s = copied_s or (now_s - ready_s if held >= ENOUGH * wanted else 0.0)
            written_s = written_s or (now_s - ready_s if not any(thread.is_alive() for thread in threads) else 0.0)
            if now_s - ready_s > PATIENCE_S:
                raise TimeoutError(f"{side.name}: copied {held:,} of {wanted:,} bytes, {len(writers.took_s)} chunks")
        load = None if producer is None else producer.stop()
    asked = [] if load is None else load.between(ready_s, ready_s + max(written_s, copied_s))
    return {
        "copies_s": copied_s,
        "checkpoints_s": written_s,
        "chunk_s": sum(writers.took_s) / len(writers.took_s),
        "both_s": both_s,
        "both_mb": both_bytes / 1e6,
        "both_mb_s": both_bytes / 1e6 / both_s if both_s else 0.0,
        "p99_ms": percentiles(asked).p99_ms if asked else 0.0,
    }


def follow(urls: str, path: Path, side: Side) -> None:
    """Have the coordinator plan on a side's network."""
    path.write_text(side.network(), encoding="utf-8")
    deadline_s = time.monotonic() + PATIENCE_S
    with CoordinatorClient(urls, patience_s=PATIENCE_S) as client:
        while client.topology()["name"] != side.name:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the coordinator does not follow {path}")
            time.sleep(0.2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--held-mb", type=int, default=96)
    parser.add_argument("--chunks", type=int, default=4, help="of each host's checkpoint, 16 MiB each on two hosts")
    parser.add_argument("--appends", action="store_true", help="with a producer at a steady rate")
    given = parser.parse_args()
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        data = Path(scratch)
        path = data / "network.toml"
        path.write_text(SIDES[0].network(), encoding="utf-8")
        ports = free_ports(len(NAMES))
        flags = {
            name: ["--coordinate", str(path), "--coordinator", f"127.0.0.1:{port}"]
            for name, port in zip(NAMES, ports, strict=True)
        }
        urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        trio = CairnTrio(data, flags)
        trio.start(stack)
        with RawConnection(trio.ports()[0], PATIENCE_S) as connection:
            for topic, partitions in ((STEADY, 1), (HELD, PARTITIONS)):
                connection.create_topic(topic, partitions, IN_SYNC, replicas=len(NODES))
        fill(trio, given.held_mb, PARTITIONS)
        for number in range(given.rounds):
            for side in SIDES if number % 2 else SIDES[::-1]:
                follow(urls, path, side)
                found = lose_disk(trio, side, data / "chunks", urls, given.chunks, appends=given.appends)
                said = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
                console.print(f"{number} {side.name:9}  {said}", markup=False)


if __name__ == "__main__":
    main()
