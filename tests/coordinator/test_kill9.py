"""kill -9 of a real coordinator under load: no chunk is lost or handed out twice, and no token is lost or doubled."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from logstore.testing.ports import free_port
from scheduler.client import core
from scheduler.client.trio_client import TrioCoordinatorClient, TrioGo
from scheduler.coordinator.testing import CoordinatorProcess
from scheduler.topology import Topology
from tests.coordinator.support import topology_file

CHUNKS = 6
WRITERS = 16


class Watch:
    """What writers see from outside: who sends and receives how many chunks at a time, and what came twice."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.sending: Counter[str] = Counter()
        self.receiving: Counter[str] = Counter()
        self.gos: Counter[tuple[str, int, int]] = Counter()
        self.news: Counter[tuple[str, int]] = Counter()

    def begin(self, go: TrioGo) -> None:
        """A chunk is under way: within what every host may do at a time, and told for the first time."""
        self.gos[go.request, go.chunk, go.attempt] += 1
        assert self.gos[go.request, go.chunk, go.attempt] == 1, f"{go} came twice"
        for source, target in pairwise(go.hosts):
            self.sending[source] += 1
            self.receiving[target] += 1
            server = self.topology.servers[self.topology.index[source]]
            assert self.sending[source] <= server.send, f"{source} sends {self.sending[source]} chunks"
            assert self.receiving[target] <= server.receive, f"{target} receives {self.receiving[target]} chunks"

    def end(self, go: TrioGo) -> None:
        """It is about to be reported."""
        for source, target in pairwise(go.hosts):
            self.sending[source] -= 1
            self.receiving[target] -= 1


async def write(client: TrioCoordinatorClient, name: str, host: str, watch: Watch, random: Random) -> None:
    """One writer: writes each chunk for a moment, and fails one attempt in ten."""
    request = await client.submit(host, chunks=CHUNKS, name=name)
    async for go in request.goes():
        watch.begin(go)
        await trio.sleep(random.random() * 0.05)
        watch.end(go)
        if random.random() < 0.1:
            await go.failed()
        else:
            watch.news[name, go.chunk] += await go.done()
    assert request.state == "finished"


async def kill_and_restart(process: CoordinatorProcess, kills: int, random: Random, ended: trio.Event) -> int:
    """Kill it at random moments until so many kills, or until the writers have ended."""
    done = 0
    while done < kills and not ended.is_set():
        with trio.move_on_after(random.random() * 0.4):
            await ended.wait()
        process.kill()
        await trio.to_thread.run_sync(process.start)
        done += 1
    return done


async def story(process: CoordinatorProcess, topology: Topology, rounds: int, kills: int, seed: int) -> int:
    """Rounds of writers while the coordinator is killed; returns how often it was."""
    watch, random, killed = Watch(topology), Random(seed), 0
    hosts = [server.name for server in topology.servers]
    for round_ in range(rounds):
        names = [f"{round_}/{number}" for number in range(WRITERS)]
        ended = trio.Event()

        async def write_all(names: list[str] = names, ended: trio.Event = ended) -> None:
            async with TrioCoordinatorClient(process.url, random=random) as client, trio.open_nursery() as nursery:
                for number, name in enumerate(names):
                    nursery.start_soon(write, client, name, hosts[number % len(hosts)], watch, random)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_all)
            killed += await kill_and_restart(process, kills, random, ended)
        async with TrioCoordinatorClient(process.url) as client:
            await check(client, names, watch)
    return killed


async def check(client: TrioCoordinatorClient, names: list[str], watch: Watch) -> None:
    """Everything was done once, in one attempt after the other, and everything that was used is free."""
    for name in names:
        view = await client.request(name)
        assert (view["state"], view["done"]) == ("finished", CHUNKS)
        answer: Any = await client.call(_events(name))
        numbers = [event["number"] for event in answer["events"]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert answer["events"][-1]["event"] == "finished"
        for chunk in range(CHUNKS):
            attempts = [event["attempt"] for event in answer["events"] if event["chunk"] == chunk]
            assert attempts == list(range(1, len(attempts) + 1)), f"chunk {chunk} of {name}: {attempts}"
            assert watch.news[name, chunk] <= 1, "done counted twice"
    status = await client.status()
    assert status["in_flight"] == status["capacities"] == status["queue"] == []


def _events(name: str) -> Any:
    return core.events(name, 0, 0)


def run(tmp_path: Path, rounds: int, kills: int, seed: int, *flags: str) -> None:
    """The story with a real process."""
    print(f"seed={seed}")
    path, topology = topology_file(tmp_path, (5, 5), uplink=6)
    with CoordinatorProcess(path, tmp_path / "data", "--planner", "paper", *flags, port=free_port()) as process:
        killed = trio.run(story, process, topology, rounds, kills, seed)
        assert process.terminate() == 0
    print(f"killed {killed} times")


def test_a_few_kills_under_load(tmp_path: Path) -> None:
    """Writers do not notice: every chunk is written once, and all capacity is free at the end."""
    run(tmp_path, rounds=1, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["continuous", "timesteps"])
def test_many_kills_under_load(tmp_path: Path, mode: str) -> None:
    """The same over 6 rounds of up to 8 kills each, in both modes."""
    # A timestep is planned on the whole network, also while the last one's stragglers are under way: here are none.
    run(tmp_path, 6, 8, 2, "--mode", mode, "--finish-fraction", "1")
