"""The registry of checkpoints over HTTP and through both clients, over kills, full disks and restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.testing.ports import free_port
from scheduler.client import CompleteCheckpoint, CompleteFile, Conflict, CoordinatorClient, NotFound, NotUnderstood
from scheduler.client.trio_client import TrioCoordinatorClient
from scheduler.coordinator.testing import CoordinatorProcess, running
from scheduler.topology import racks
from tests.coordinator.support import Reply, ask, stand_in, topology_file

NETWORK = racks([4, 4], 4)


@pytest.fixture
def url() -> Iterator[str]:
    """A coordinator of the test's own."""
    with running(NETWORK, planner="paper") as found:
        yield found


def complete(unit: str, seq: int, *bases: int, hosts: tuple[str, ...] = ("r1h1", "r2h1")) -> CompleteCheckpoint:
    """A checkpoint of two files."""
    files = (CompleteFile("000", 1000, 1, hosts), CompleteFile("001", 10 * seq, 0xFFFFFFFF, hosts[:1]))
    return CompleteCheckpoint(
        unit, seq, "hdfs://nn:9870/c", 100 + seq, 4096, 1_790_000_000_000, files, bases, f"a-{seq % 2}"
    )


def test_a_checkpoint_from_registered_to_removed(url: str) -> None:
    """Registered once however often it is said, shown with all that was said, removed when a newer one is there."""
    with CoordinatorClient(url) as client:
        first, second, third = complete("q/0", 1), complete("q/0", 2, 1), complete("q/0", 4)
        for one in (first, first, second, second, third):
            client.register_checkpoint(one)
        assert client.newest_checkpoint("q/0") == third
        assert [one["recoverable"] for one in client.checkpoints("q/0")] == [True, True, True]
        assert client.checkpoint("q/0", 2) == second
        assert client.newest_checkpoint("q/1") is None
        assert [one["seq"] for one in client.checkpoints("q/0")] == [4, 2, 1]
        assert client.checkpoints("q/1") == []
        (unit,) = client.units()
        assert (unit["unit"], unit["checkpoints"], unit["newest"]["seq"]) == ("q/0", 3, 4)
        assert unit["file_bytes"] == 3000 + 10 + 20 + 40
        client.register_checkpoint(complete("q/0", 5, 4))
        for seq in (4, 5):
            with pytest.raises(Conflict, match="the newest checkpoint of unit 'q/0' that can be recovered"):
                client.remove_checkpoint("q/0", seq)
        assert client.newest_checkpoint("q/0") == complete("q/0", 5, 4)
        with pytest.raises(Conflict, match="next number, 6"):
            client.register_checkpoint(complete("q/0", 4, 2))
        assert [client.remove_checkpoint("q/0", seq) for seq in (2, 2, 1, 77)] == [True, False, True, False]
        with pytest.raises(NotFound):
            client.checkpoint("q/0", 2)
        with pytest.raises(Conflict, match="were removed"):
            client.register_checkpoint(first)
        assert client.forget_unit("q/0") == 2
        assert client.forget_unit("q/0") == 0
        assert client.units() == []
        client.register_checkpoint(first)


async def test_the_trio_client_does_the_same(url: str) -> None:
    """Every method once."""
    async with TrioCoordinatorClient(url) as client:
        assert await client.newest_checkpoint("q/0") is None
        for one in (complete("q/0", 1), complete("q/0", 2), complete("r", 1)):
            await client.register_checkpoint(one)
        assert await client.newest_checkpoint("q/0") == complete("q/0", 2)
        assert await client.checkpoint("q/0", 1) == complete("q/0", 1)
        assert [one["seq"] for one in await client.checkpoints("q/0")] == [2, 1]
        assert [one["unit"] for one in await client.units()] == ["q/0", "r"]
        assert (await client.hosts_of_unit("q/0", limit=1))[0]["host"] == "r1h1"
        assert await client.remove_checkpoint("q/0", 1) is True
        assert await client.forget_unit("q/0") == 1


def test_lists_come_in_pages(url: str) -> None:
    """A page names where the next one begins; all pages together are the whole."""
    with CoordinatorClient(url) as client:
        for seq in range(1, 8):
            client.register_checkpoint(complete("q", seq))
            client.register_checkpoint(complete(f"u{seq}", 1))
    seqs: list[int] = []
    before: int | None = 0
    while before is not None:
        page = ask(url, "GET", f"/v1/units/q/checkpoints?limit=3&before={before}").json()
        seqs += [one["seq"] for one in page["checkpoints"]]
        before = page["next"]
    assert seqs == list(range(7, 0, -1))
    page = ask(url, "GET", "/v1/units?limit=5&after=u1").json()
    assert ([one["unit"] for one in page["units"]], page["next"]) == (["u2", "u3", "u4", "u5", "u6"], "u6")
    assert ask(url, "GET", "/v1/units?limit=501").status == 400
    assert ask(url, "GET", "/v1/units/q/checkpoints?before=1").json()["checkpoints"] == []


def test_the_hosts_follow_what_is_known(url: str) -> None:
    """Files of bases count, lost hosts do not; addresses are those of the registrations."""
    with CoordinatorClient(url) as client:
        client.register("r2h1", address="10.0.0.9:50010")
        client.register_checkpoint(complete("q", 1))
        client.register_checkpoint(complete("q", 2, 1, hosts=("r2h1", "r2h2")))
        answer = ask(url, "GET", "/v1/units/q/hosts?limit=3").json()
        assert (answer["seq"], answer["bytes"]) == (2, 2030)
        first, second, third = answer["hosts"]
        assert (first["host"], first["address"], first["bytes"]) == ("r2h1", "10.0.0.9:50010", 2020)
        assert [(one["host"], one["bytes"]) for one in (second, third)] == [("r1h1", 1010), ("r2h2", 1000)]
        client.register_checkpoint(complete("a", 1, hosts=("10.0.0.9:9866", "10.0.0.8:9866")))
        by_address = ask(url, "GET", "/v1/units/a/hosts?limit=2").json()["hosts"]
        assert [(one["host"], one["bytes"]) for one in by_address] == [("r2h1", 1010), ("10.0.0.8:9866", 1000)]
        client.deregister("r2h1")
        assert client.hosts_of_unit("q", limit=1)[0]["host"] == "r1h1"
        with pytest.raises(NotFound):
            client.hosts_of_unit("r")


def test_they_are_counted_where_people_look(url: str) -> None:
    """Status, metrics and page name units, checkpoints and bytes."""
    with CoordinatorClient(url) as client:
        for seq in (1, 2):
            client.register_checkpoint(complete("q", seq))
        client.remove_checkpoint("q", 1)
        assert client.status()["checkpoints"] == {"units": 1, "checkpoints": 1, "file_bytes": 1020}
    metrics = dict(re.findall(r"^cairn_coordinator_(\S+) (\S+)$", ask(url, "GET", "/metrics").text, re.MULTILINE))
    assert (metrics["checkpoint_units"], metrics["checkpoints"], metrics["checkpoint_bytes"]) == ("1", "1", "1020")
    assert metrics['checkpoint_changes_total{change="registered"}'] == "2"
    assert metrics['checkpoint_changes_total{change="removed"}'] == "1"
    assert "1 of 1 units" in ask(url, "GET", "/").text


def test_an_answer_that_is_no_checkpoint_is_named() -> None:
    """Another service at that address is found out."""
    with (
        stand_in(lambda path: Reply(value={"unit": "q"})) as url,
        CoordinatorClient(url) as client,
        pytest.raises(NotUnderstood, match="is not a checkpoint"),
    ):
        client.newest_checkpoint("q")


UNITS = 6
SEQS = 12


async def own(client: TrioCoordinatorClient, unit: str, random: Random, known: dict[str, tuple[int, int]]) -> None:
    """A manager: writes checkpoints, every third a full one, and keeps the newest chain. `known`: what was answered."""
    full = 0
    for seq in range(1, SEQS + 1):
        bases = () if seq % 3 == 1 else tuple(range(full, seq))
        full = seq if not bases else full
        await client.register_checkpoint(complete(unit, seq, *bases))
        known[unit] = (known.get(unit, (0, 0))[0], seq)
        if not bases and seq > 1:
            for old in range(seq - 1, seq - 4, -1):
                await client.remove_checkpoint(unit, old)
            known[unit] = (seq - 1, seq)
        await trio.sleep(random.random() * 0.02)


async def story(process: CoordinatorProcess, seed: int, kills: int) -> int:
    """Managers at work while the coordinator is killed; after each start everything answered is there."""
    random, known, done = Random(seed), dict[str, tuple[int, int]](), trio.Event()
    killed = 0

    async def work() -> None:
        async with TrioCoordinatorClient(process.url, random=random) as client, trio.open_nursery() as nursery:
            for number in range(UNITS):
                nursery.start_soon(own, client, f"q/{number}", random, known)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        while killed < kills and not done.is_set():
            with trio.move_on_after(random.random() * 0.3):
                await done.wait()
            process.kill()
            answered = dict(known)
            await trio.to_thread.run_sync(process.start)
            killed += 1
            async with TrioCoordinatorClient(process.url, random=random) as client:
                for unit, (removed, newest) in answered.items():
                    found = [one["seq"] for one in await client.checkpoints(unit)]
                    assert found[0] >= newest, f"{unit}: {newest} was answered, and is gone"
                    assert found[-1] > removed, f"{unit}: {removed} was removed, and is back"
    async with TrioCoordinatorClient(process.url) as client:
        for number in range(UNITS):
            assert [one["seq"] for one in await client.checkpoints(f"q/{number}")] == [12, 11, 10]
    return killed


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_lose_no_checkpoint_and_bring_none_back(tmp_path: Path, kills: int) -> None:
    """What was answered is true after every kill; managers do not notice, and end with the newest chain of three."""
    seed = 28
    print(f"seed={seed}")
    path, _ = topology_file(tmp_path, (3, 3))
    with CoordinatorProcess(path, tmp_path / "data", "--planner", "paper", port=free_port()) as process:
        killed = trio.run(story, process, seed, kills)
        assert process.terminate() == 0
    print(f"killed {killed} times")
