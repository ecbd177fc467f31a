"""Copies with and without the plan, in virtual time: what producers feel, what is copied, and how long it takes.

`python -m benchmarks.hosts.planned_copies [--hosts 12] [--chunks 240]` runs the same loss twice for each seed, with a
plan and without one, on simulated hosts in four racks (`tests.cluster.memory`): the code of hosts, owners, replicas,
pace and plan is the product's; links take half a millisecond, and each disk carries out one write at a time, with
2 ms for a sync and 100 MB a second. A host with a share of all chunks is lost for good. Producers append 1 KB every
50 ms to a stream of their own each.

Invariants:
* Both sides of a pair have the same seed, hosts and chunks; nothing but the plan differs.
* Time is virtual: the figures are the same on any machine, and say nothing of processors.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import trio

from logstore.cluster.copies.copy_pace import CopyRates
from tests.cluster.memory import LIMITS, Heard, MemoryCluster, simulated

RACKS = 4
CHUNK_BYTES = 1_000_000
BATCH = b"x" * 250_000
EVERY_S = 0.05
CALM_S = 20.0
LOOK_S = 0.05
MIN_RATE = 8 << 20


@dataclass
class Timed(Heard):
    """Notes how long each append took until it was acknowledged."""

    begun_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    def acked(self, high_watermark: int) -> None:
        """See StreamObserver: a batch has one record."""
        while self.high_watermark < high_watermark:
            self.took_s.append(trio.current_time() - self.begun_s[self.high_watermark])
            self.high_watermark += 1


class Outcome(NamedTuple):
    """What a loss has cost."""

    copied_bytes: int
    took_s: float
    calm_p99_ms: float
    beside_p99_ms: float
    beside_most_ms: float
    most_to_a_host: int
    by_target: Counter[str]


def lose_a_host(hosts: int, chunks: int, seed: int, *, is_planned: bool) -> Outcome:
    """One run."""
    found: list[Outcome] = []

    async def test(cluster: MemoryCluster) -> None:
        found.append(await _measure(cluster, hosts, chunks, is_planned=is_planned))

    simulated(test, limits=replace(LIMITS, chunk_bytes=CHUNK_BYTES), seed=seed)
    return found[0]


async def _measure(cluster: MemoryCluster, hosts: int, chunks: int, *, is_planned: bool) -> Outcome:
    cluster.is_planned, cluster.bytes_per_s, cluster.write_s = is_planned, 100e6, 0.002
    cluster.copy_rates = CopyRates(min_bytes_per_s=MIN_RATE)
    names = [f"h{number:02d}" for number in range(hosts)]
    for number, name in enumerate(names):
        await cluster.start(name, rack=f"/r{number % RACKS}", node_id=number)
    await cluster.until(lambda: all(len(each.view.members) == hosts for each in cluster.hosts.values()))
    streams = await cluster.create_topic("held", partitions=2 * hosts)
    steady = await cluster.create_topic("steady", partitions=hosts)
    async with trio.open_nursery() as filling:
        for stream in streams:
            filling.start_soon(_fill, cluster, stream, chunks // len(streams))
    timed: dict[str, Timed] = {}
    async with trio.open_nursery() as nursery:
        owned = Counter[str]()
        for stream in steady:
            owner = await cluster.owner(stream)
            owned[owner.host.name] += 1
            heard = timed[stream] = Timed()
            owner.host.observe(stream, heard)
        lost = min(names, key=lambda name: (owned[name], name))
        for stream in steady:
            owner = await cluster.owner(stream)
            if owner.host.name != lost:
                nursery.start_soon(_produce, cluster, owner.host.name, stream, timed[stream])
        await trio.sleep(CALM_S)
        calm = [took for each in timed.values() for took in each.took_s]
        done = {stream: len(each.took_s) for stream, each in timed.items()}
        before = {name: each.host.copies.flow.copied_bytes for name, each in cluster.hosts.items()}
        cluster.nursery.start_soon(cluster.kill, lost)
        begun_s, most = trio.current_time(), 0
        while not await _is_whole(cluster, streams, lost):
            going = [go for each in cluster.hosts.values() for go in each.host.copy_tokens.held.values()]
            most = max(most, *Counter(go.target for go in going).values(), 0)
            await trio.sleep(LOOK_S)
        took_s = trio.current_time() - begun_s
        beside = [took for stream, each in timed.items() for took in each.took_s[done[stream] :]]
        copied = Counter(
            {name: each.host.copies.flow.copied_bytes - before[name] for name, each in cluster.hosts.items()}
        )
        nursery.cancel_scope.cancel()
    return Outcome(copied.total(), took_s, _p99_ms(calm), _p99_ms(beside), max(beside) * 1000, most, copied)


async def _fill(cluster: MemoryCluster, stream: str, chunks: int) -> None:
    for _ in range(chunks * CHUNK_BYTES // len(BATCH) + 1):
        await cluster.append(stream, BATCH)


async def _produce(cluster: MemoryCluster, name: str, stream: str, timed: Timed) -> None:
    host = cluster.hosts[name].host
    while host.owns(stream):
        if host.may_append(stream, 1000):
            timed.begun_s.append(trio.current_time())
            host.append(stream, b"y" * 1000, 1)
        await trio.sleep(EVERY_S)


async def _is_whole(cluster: MemoryCluster, streams: list[str], lost: str) -> bool:
    host = next(each for name, each in cluster.hosts.items() if name != lost).host
    alive = {each.identity.member for name, each in cluster.hosts.items() if name != lost}
    for stream in streams:
        registration = await host.read_registration(stream)
        sealed = (chunk for chunk in registration.chunks if not chunk.is_open)
        if any(sum(member in alive for member in chunk.members) < registration.copies for chunk in sealed):
            return False
    return True


def _p99_ms(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100] * 1000


def rows(hosts: int, chunks: int, seeds: int) -> Iterator[str]:
    """A line for each run."""
    yield "plan     seed  copied MB  took s  p99 calm ms  p99 beside ms  ratio  longest ms  most to a host  targets MB"
    for seed in range(seeds):
        for is_planned in (False, True):
            each = lose_a_host(hosts, chunks, seed, is_planned=is_planned)
            targets = sorted(bytes_ // 1_000_000 for bytes_ in each.by_target.values() if bytes_)
            yield (
                f"{'with' if is_planned else 'without':8} {seed:4} {each.copied_bytes / 1e6:10.1f} {each.took_s:7.1f} "
                f"{each.calm_p99_ms:12.1f} {each.beside_p99_ms:14.1f} {each.beside_p99_ms / each.calm_p99_ms:6.2f} "
                f"{each.beside_most_ms:11.1f} {each.most_to_a_host:15}  {targets[0]} to {targets[-1]} at {len(targets)}"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--chunks", type=int, default=240, help="of all streams together, 1 MB each")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for line in rows(given.hosts, given.chunks, given.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
