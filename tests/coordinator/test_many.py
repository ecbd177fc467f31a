"""Many writers at once: real connections to a real process, every chunk done once, nothing left over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from scheduler.client.trio_client import TrioCoordinatorClient
from scheduler.coordinator.testing import CoordinatorProcess
from tests.coordinator.support import topology_file


async def write_all(url: str, writers: int, chunks: int, hosts: list[str]) -> dict[str, float]:
    """Every writer submits and writes; requests per second and the time of a submission (p99)."""
    submits: list[float] = []
    done: list[tuple[str, int]] = []
    questions = 0

    async def writer(number: int) -> None:
        nonlocal questions
        async with TrioCoordinatorClient(url) as client:
            await client.status() if number % 100 == 0 else None
            began = trio.current_time()
            write = await client.submit(hosts[number % len(hosts)], chunks=chunks, name=f"w{number}")
            submits.append(trio.current_time() - began)
            async for go in write.goes():
                assert await go.done()
                done.append((write.name, go.chunk))
                questions += 2
            questions += 2

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(writers):
            nursery.start_soon(writer, number)
    seconds = time.perf_counter() - began
    assert sorted(done) == sorted((f"w{number}", chunk) for number in range(writers) for chunk in range(chunks))
    submits.sort()
    return {
        "seconds": seconds,
        "questions_s": questions / seconds,
        "submit_p50_ms": 1000 * submits[len(submits) // 2],
        "submit_p99_ms": 1000 * submits[int(len(submits) * 0.99)],
    }


def run(tmp_path: Path, writers: int, chunks: int) -> dict[str, Any]:
    """A process and its writers; what was measured. At the end every token is back."""
    path, topology = topology_file(tmp_path, (20, 20, 20), uplink=20)
    with CoordinatorProcess(path, tmp_path / "data") as process:
        measured = trio.run(write_all, process.url, writers, chunks, [server.name for server in topology.servers])
        status = trio.run(_status, process.url)
        assert status["requests"] == {"finished": writers}
        assert status["in_flight"] == status["capacities"] == status["queue"] == []
        assert process.terminate() == 0
    return measured


async def _status(url: str) -> dict[str, Any]:
    async with TrioCoordinatorClient(url) as client:
        return await client.status()


def test_200_writers_at_once(tmp_path: Path) -> None:
    """200 connections, each with a request: all finish, each chunk exactly once, and no token is left in use."""
    print(run(tmp_path, 200, 2))


@pytest.mark.slow
def test_1000_writers_at_once(tmp_path: Path) -> None:
    """1,000 connections at the same time, against one process."""
    print(run(tmp_path, 1000, 2))
