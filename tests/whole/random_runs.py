"""Random histories of whole hosts and their clients: every fault from one seed, then healing, and every check.

Invariants:
* The promises are those of `tests.whole.promises`. A disk is wiped only while every chunk has all its copies, and never
  two before they are made again; nothing else loses what was synced. So nothing acknowledged may be lost.
* After the healing everything goes on within SETTLE_S: producers, readers, epochs, and copies of chunks.
* At the end each host in turn is away, and the whole log is read from the others: what was acknowledged is everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

import trio

from logstore.errors import CairnError
from logstore.format.topic_partition import TopicPartition
from tests.replica.history import PromiseBroken
from tests.support.virtual_time import Trace, run_virtual
from tests.whole.clients import EpochClient, SimulatedClient, SimulatedProducer, SimulatedReader
from tests.whole.hosts import NAMES, WholeCluster, whole_cluster
from tests.whole.network import NetworkFaults
from tests.whole.promises import ClientHistory

ACTIONS: Final = 15
SETTLE_S: Final = 120
RESTART_S: Final = 1.0
SEGMENT_BYTES: Final = 4096
EVENTS: Final = "events"
RESULTS: Final = "results"
PRODUCERS: Final = 2
"""Of one partition."""
KINDS: Final = (
    "kill", "power", "start", "start", "cut", "cut host", "cut client", "loss", "slow disk", "slow net", "heal",
    "meta off", "meta on", "meta cut", "reset", "wipe", "lost answers", "lost answers",
)  # fmt: skip


class WholeRun:
    """One run."""

    def __init__(self, cluster: WholeCluster, seed: int, actions: int = ACTIONS, kinds: Sequence[str] = KINDS) -> None:
        self.cluster = cluster
        self.actions = actions
        self.kinds = kinds
        self.random = Random(f"actions {seed}")
        self.faults: Counter[str] = Counter()
        self.histories = {TopicPartition(EVENTS, 0): ClientHistory("events-0")}
        self.histories |= {TopicPartition(RESULTS, i): ClientHistory(f"results-{i}") for i in range(2)}
        self.producers: list[SimulatedProducer] = []
        self.readers: list[SimulatedReader] = []
        self.query: EpochClient | None = None

    async def run(self) -> None:
        """Faults under load, healing, and every check."""
        admin = SimulatedClient(self.cluster, "admin")
        await admin.create_topic(EVENTS, 1, **{"segment.bytes": str(SEGMENT_BYTES)})
        await admin.create_topic(RESULTS, 2)
        events = next(iter(self.histories))
        results = {stream: history for stream, history in self.histories.items() if stream.topic == RESULTS}
        self.producers = [
            SimulatedProducer(self.cluster, f"p{i}", events, self.histories[events]) for i in range(PRODUCERS)
        ]
        self.readers = [
            SimulatedReader(self.cluster, f"r{i}", stream, history)
            for i, (stream, history) in enumerate(self.histories.items())
        ]
        self.query = EpochClient(self.cluster, "q", results)
        async with trio.open_nursery() as readers:
            async with trio.open_nursery() as writers:
                for reader in self.readers:
                    readers.start_soon(reader.run)
                writers.start_soon(self.query.run)
                for producer in self.producers:
                    writers.start_soon(producer.run)
                for _ in range(self.actions):
                    await trio.sleep(self.random.choice((0.01, 0.1, 0.5, 1, 3)))
                    await self._fault()
                await self._heal()
                await self._in_time("everything goes on", self._settled)
                writers.cancel_scope.cancel()
            readers.cancel_scope.cancel()
        await self._check_everywhere()

    # ---- faults

    async def _fault(self) -> None:
        kind, cluster, network = self.random.choice(self.kinds), self.cluster, self.cluster.network
        host, other = self.random.sample(NAMES, 2)
        self.faults[kind] += 1
        if kind in ("kill", "power") and host in cluster.hosts:
            await cluster.kill(host, is_power_cut=kind == "power")
        elif kind == "start":
            self._start_those_down()
        elif kind == "cut":
            network.cut(host, other)
        elif kind == "cut host":
            for each in NAMES:
                network.cut(host, each)
                network.cut(each, host)
        elif kind == "cut client":
            client = self.random.choice([each.name for each in (*self.producers, *self.readers)])
            network.cut(*self.random.sample((client, host), 2))
        elif kind == "loss":
            network.faults.lost = self.random.choice((0.0, 0.05, 0.2))
            network.faults.doubled = self.random.choice((0.0, 0.1))
        elif kind == "slow disk":
            cluster.machines[host].slowness = self.random.choice((1, 30, 300))
        elif kind == "slow net":
            network.faults.max_delay_s = self.random.choice((NetworkFaults.max_delay_s, 0.02, 0.2))
        elif kind == "heal":
            self._heal_network()
        elif kind == "reset":
            cluster.network.reset(host)
        elif kind == "lost answers":
            await self._lose_answers(host)
        elif kind == "wipe":
            await self._wipe(host)
        else:
            self._fail_metadata(kind, host)

    def _fail_metadata(self, kind: str, host: str) -> None:
        metadata = self.cluster.metadata
        if kind == "meta off":
            metadata.stop()
        elif kind == "meta on":
            metadata.start()
        elif kind == "meta cut":
            metadata.cut_off(host)

    def _heal_network(self) -> None:
        self.cluster.network.heal()
        for each in NAMES:
            self.cluster.metadata.heal(each)
            self.cluster.machines[each].slowness = 1

    def _start_those_down(self) -> None:
        for name in NAMES:
            if name not in self.cluster.hosts and name not in self.cluster.starting:
                self.cluster.starting.add(name)
                self.cluster.nursery.start_soon(self._start, name)

    async def _start(self, name: str) -> None:
        """Start a host as a service manager does: again, if it ends with an error."""
        while True:
            try:
                await self.cluster.start(name)
            except* (CairnError, OSError) as group:
                self.faults[f"not started: {type(group.exceptions[0]).__name__}"] += 1
            else:
                return
            await trio.sleep(RESTART_S)

    async def _lose_answers(self, name: str) -> None:
        """A host serves clients that hear nothing of it, and is gone: they send again to another one what it has
        appended.
        """
        if name not in self.cluster.hosts:
            return
        for client in (*self.producers, *self.readers):
            self.cluster.network.cut(name, client.name)
        await trio.sleep(self.random.choice((0.05, 0.2, 3)))
        if name in self.cluster.hosts:
            await self.cluster.kill(name, is_power_cut=self.random.random() < 0.5)
            self._start_those_down()
        for client in (*self.producers, *self.readers):
            self.cluster.network.cuts.discard((name, client.name))
        self.cluster.network.change()

    async def _wipe(self, name: str) -> None:
        """The machine gets an empty disk, if every chunk has all its copies."""
        if name in self.cluster.hosts and self._is_whole():
            self.faults["wiped"] += 1
            await self.cluster.kill(name, is_power_cut=True)
            self.cluster.machines[name].wipe()
            self._start_those_down()

    def _is_whole(self) -> bool:
        """Whether every chunk of every stream has a copy on every host, as its owner knows, and all hosts are there."""
        streams, whole = set[str](), set[str]()
        for running in self.cluster.hosts.values():
            streams |= running.host._parts.view.heads.keys()
            for stream, owner in running.host.owners.items():
                is_ready = running.host.owns(stream)
                if is_ready and all(len(chunk.members) == len(NAMES) for chunk in owner.registration.chunks):
                    whole.add(stream)
        return len(self.cluster.hosts) == len(NAMES) and streams == whole

    async def _heal(self) -> None:
        self.cluster.metadata.start()
        self._heal_network()
        self._start_those_down()

    # ---- the end

    async def _in_time(self, what: str, wait: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(SETTLE_S) as limit:
            await wait()
        if limit.cancelled_caught:
            clients = [each for each in (*self.producers, *self.readers, self.query) if each is not None]
            outcomes = [(each.name, dict(each.outcomes)) for each in clients]
            raise PromiseBroken(f"not after {SETTLE_S} s: {what}; {self.faults}; {outcomes}\n{self.cluster.describe()}")

    async def _settled(self) -> None:
        """Wait until everybody goes on, and every chunk has all its copies."""
        assert self.query is not None
        produced = [producer.outcomes["produced"] for producer in self.producers]
        epochs, ends = self.query.committed, [history.shown for history in self.histories.values()]
        while (  # noqa: ASYNC110  clients tell nobody
            any(each.outcomes["produced"] <= before for each, before in zip(self.producers, produced, strict=True))
            or self.query.committed <= epochs + 1
            or any(reader.offset <= end for reader, end in zip(self.readers, ends, strict=True))
            or not self._is_whole()
        ):
            await trio.sleep(0.1)

    async def _check_everywhere(self) -> None:
        for away in ("", *NAMES):
            if away:
                await self.cluster.kill(away, is_power_cut=False)
            await self._in_time(f"all is read, without {away!r}", self._check_all)
            if away:
                self._start_those_down()
                await self._in_time(f"copies are whole after {away!r} was away", self._until_whole)

    async def _until_whole(self) -> None:
        while not self._is_whole():  # noqa: ASYNC110  hosts tell nobody
            await trio.sleep(0.1)

    async def _check_all(self) -> None:
        """Read and check every partition, until each epoch is in all of its partitions or in none."""
        found: set[int] = set()
        while len(found) != 1:
            found = {await self._check(stream) for stream in self.histories if stream.topic == RESULTS}
        await self._check(next(iter(self.histories)))

    async def _check(self, stream: TopicPartition) -> int:
        """Check the whole log of a partition; returns the number of the query's last record in it."""
        history = self.histories[stream]
        reader = SimulatedReader(self.cluster, f"check {stream.topic}-{stream.partition}", stream, history)
        await reader.read_to(max((history.shown, *(offset + 1 for offset in history.at_offset))))
        await reader.read()
        history.check(reader.log, f"read from {sorted(self.cluster.hosts)}")
        numbers = [history.numbers[value] for value in reader.log.values() if value]
        return max((number for producer, number in numbers if producer == "q"), default=-1)


def run_one(
    seed: int,
    *,
    order: int | None = None,
    actions: int = ACTIONS,
    trace: Trace | None = None,
    kinds: Sequence[str] = KINDS,
) -> WholeRun:
    """One run with faults of these kinds; raises PromiseBroken, or whatever a host raises. `order`: the seed of the
    order of tasks, `seed` if none is given.
    """
    runs: list[WholeRun] = []

    async def main() -> None:
        async with whole_cluster(seed) as cluster:
            run = WholeRun(cluster, seed, actions, kinds)
            runs.append(run)
            await run.run()

    run_virtual(main, seed=seed if order is None else order, trace=trace)
    return runs[0]
