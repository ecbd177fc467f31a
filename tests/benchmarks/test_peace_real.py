"""The chunk server keeps its promises over loopback, writers report what failed, and disks keep their pace."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.racks.chunks import (
    BLOCK_BYTES,
    Answer,
    Chunk,
    ChunkFailed,
    ChunkServer,
    Connection,
    Hop,
    Sender,
    send_chunk,
)
from benchmarks.racks.pace import Pace
from benchmarks.racks.writer import write_planned
from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.topology import racks
from tests.support.limits import PATIENCE_S

DATA = memoryview(Random(5).randbytes(5 * BLOCK_BYTES + 17))
CHUNK = Chunk("checkpoint 1", 3)
SILENCE_S = 0.3

Start = Callable[..., ChunkServer]


def unpaced() -> Pace:
    """A disk or client as fast as it goes."""
    return Pace(None, 0, time.monotonic, time.sleep)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts chunk servers with a directory each; all are closed afterwards."""
    with ExitStack() as stack:

        def starter(name: str, disk: Pace | None = None) -> ChunkServer:
            own = tmp_path / name
            own.mkdir()
            server = ChunkServer(name, own, disk or unpaced(), silence_s=PATIENCE_S)
            stack.callback(server.close)
            return server

        yield starter


def files(directory: Path) -> dict[str, bytes]:
    """All chunks below a directory, by host and name."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def dying_disk(server: list[ChunkServer]) -> Pace:
    """A disk at whose first block its server dies."""
    return Pace(lambda _: 1.0, 0.0, time.monotonic, lambda _: server[0].close())


# ---- one chunk


@pytest.mark.parametrize("length", [0, 1, BLOCK_BYTES, len(DATA)])
def test_chunk_reaches_the_whole_chain(start: Start, tmp_path: Path, length: int) -> None:
    """All hosts of the chain have exactly the bytes, and the answer names them in the chain's order."""
    chain = [start(name).hop for name in ("c", "a", "b")]
    answer = send_chunk(CHUNK, DATA[:length], chain, unpaced())
    assert answer == Answer(("c", "a", "b"))
    assert files(tmp_path) == {f"{name}/{CHUNK.file}": bytes(DATA[:length]) for name in "abc"}


def test_wrong_crc_is_refused(start: Start, tmp_path: Path) -> None:
    """Bytes that do not match their CRC are stored nowhere, and no host is suspected."""
    servers = [start(name) for name in "abc"]
    sender = Sender(CHUNK, len(DATA), [server.hop for server in servers])
    sender.send(DATA)
    sender.end(crc32c.crc32c(DATA) ^ 1)
    with pytest.raises(ChunkFailed, match=r"a: checkpoint 1\.3\.1: CRC .* was sent") as failed:
        sender.answer()
    sender.close()
    assert failed.value.suspects == ()
    for server in servers:
        server.wait_served(1, PATIENCE_S)
    assert files(tmp_path) == {}


def test_sender_that_vanishes_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """A chunk that is cut short leaves no file, and the same chunk can be sent again."""
    servers = [start(name) for name in "ab"]
    sender = Sender(CHUNK, len(DATA), [server.hop for server in servers])
    sender.send(DATA[: 2 * BLOCK_BYTES])
    sender.close()
    for server in servers:
        server.wait_served(1, PATIENCE_S)
    assert files(tmp_path) == {}
    send_chunk(CHUNK, DATA, [server.hop for server in servers], unpaced())
    assert set(files(tmp_path).values()) == {bytes(DATA)}


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_host_that_is_down_is_suspected(start: Start, tmp_path: Path, dead: str) -> None:
    """Wherever in the chain a host cannot be reached, it is the one that is named, and nothing is stored."""
    servers = {name: start(name) for name in "abc"}
    servers[dead].close()
    with pytest.raises(ChunkFailed) as failed:
        send_chunk(CHUNK, DATA, [server.hop for server in servers.values()], unpaced())
    assert failed.value.suspects == (dead,)
    for name in "abc"[: "abc".index(dead)]:
        servers[name].wait_served(1, PATIENCE_S)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_host_that_dies_in_mid_chain_is_suspected(start: Start, tmp_path: Path, dead: str) -> None:
    """A host that dies after the first block fails the chunk, and is the one that is named."""
    own: list[ChunkServer] = []
    servers = {name: start(name, dying_disk(own) if name == dead else None) for name in "abc"}
    own.append(servers[dead])
    with pytest.raises(ChunkFailed) as failed:
        send_chunk(CHUNK, DATA, [server.hop for server in servers.values()], unpaced())
    assert failed.value.suspects == (dead,)
    for name in set("abc") - {dead}:
        servers[name].wait_served(1, PATIENCE_S)
    assert not [name for name in files(tmp_path) if not name.startswith(dead)]


def test_connection_is_closed_where_the_header_cannot_be_sent() -> None:
    """A sender that fails before its first byte of data leaves no open socket (pytest fails a test that does)."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hop = Hop("a", *silent.getsockname()[:2])
        with pytest.raises(ChunkFailed, match="a: no sign of life"):
            Sender(CHUNK, len(DATA), [hop] * 300_000, SILENCE_S)


def test_host_that_falls_silent_is_suspected() -> None:
    """A host that takes the connection and then nothing more fails the chunk within the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hop = Hop("a", *silent.getsockname()[:2])
        with pytest.raises(ChunkFailed, match="a: no sign of life") as failed:
            send_chunk(CHUNK, DATA, [hop], unpaced(), SILENCE_S)
    assert failed.value.suspects == ("a",)


@pytest.mark.parametrize("bad", ["a", "b", "c"])
def test_disk_that_fails_is_named(start: Start, tmp_path: Path, bad: str) -> None:
    """A host that cannot write its file says so, wherever in the chain it is, however much is still being sent."""
    servers = [start(name) for name in "abc"]
    (tmp_path / bad).rmdir()
    with pytest.raises(ChunkFailed, match=rf"^{bad}: .*No such file") as failed:
        send_chunk(CHUNK, memoryview(bytes(4 << 20)), [server.hop for server in servers], unpaced())
    assert failed.value.suspects == (bad,)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x04nope",
        b'\0\0\0\x0c[["a",1,1]]1',
        b'\0\0\0\x11[["a",1,1],-1,[]]',
        b'\0\0\0\x11[["..",1],-1,[ ]]',
    ],
)
def test_bad_headers_are_answered(start: Start, tmp_path: Path, garbage: bytes) -> None:
    """What is no header gets an error, and the server goes on."""
    server = start("a")
    with socket.create_connection((server.hop.address, server.hop.port), timeout=PATIENCE_S) as sock:
        sock.sendall(garbage)
        answer = Connection(sock).answer()
    assert answer.error is not None
    assert "a header that is none" in answer.error
    assert send_chunk(CHUNK, DATA, [server.hop], unpaced()).stored == ("a",)
    assert list(files(tmp_path)) == [f"a/{CHUNK.file}"]


def test_names_stay_in_the_directory() -> None:
    """No request's name leads out of a host's directory."""
    assert "/" not in Chunk("../../etc/passwd", 1).file


# ---- writers and the coordinator


def test_coordinator_hears_of_a_failure_and_plans_again(start: Start, tmp_path: Path) -> None:
    """A host dies in mid-chain: the writer reports it with its suspect, and all chunks end up on other hosts, whole."""
    topology = racks([2, 3], 2)
    names = [server.name for server in topology.servers]
    writer, dead = "r1h1", "r2h2"
    own: list[ChunkServer] = []
    servers = {name: start(name, dying_disk(own) if name == dead else None) for name in names}
    own.append(servers[dead])
    hops = {name: server.hop for name, server in servers.items()}

    def send(chunk: Chunk, hosts: tuple[str, ...]) -> None:
        send_chunk(chunk, DATA, [hops[name] for name in hosts[1:]], unpaced())

    with running(topology, planner="paper", seed=3) as url, CoordinatorClient(url) as client:
        write = client.submit(writer=writer, chunks=8, replicas=3)
        sent = write_planned("checkpoint", write.goes(), send)  # type: ignore[arg-type]
        view = client.request(write.name)
    failed = [one for one in sent if one.error is not None]
    acked = [one for one in sent if one.error is None]
    assert view["state"] == "finished"
    assert failed, "seed 3: no chain went through the dead host"
    assert all(dead in one.hosts for one in failed)
    assert len({one.chunk for one in failed}) == len(failed), "a suspect was chosen again"
    assert sorted(one.chunk for one in acked) == list(range(8))
    assert not [one for one in acked if dead in one.hosts]
    for one in acked:
        for host in one.hosts[1:]:
            assert (tmp_path / host / Chunk("checkpoint", one.chunk, one.attempt).file).read_bytes() == bytes(DATA)


# ---- pace


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0, 5)), max_size=30),
    st.integers(1, 4),
    st.sampled_from([0, 64, 500]),
)
def test_pace_is_kept(steps: list[tuple[int, float]], users: int, ahead: int) -> None:
    """What passed is never more than the rate allows and memory holds, and nobody waits longer than that takes."""
    at = FakeTime()
    pace = Pace(lambda count: 100.0 * count, ahead, at.clock, at.sleep)
    held = 0.0  # the model: what is written and not yet on the disk
    with ExitStack() as stack:
        for _ in range(users):
            stack.enter_context(pace.using())
        for size, idle in steps:
            at.sleep(idle)
            held = max(0.0, held - idle * 100 * users)
            before = at.now
            pace.wait(size)
            held += size
            due = max(0.0, (held - ahead) / (100 * users))
            assert at.now - before == pytest.approx(due, abs=1e-6)
            held = max(0.0, held - due * 100 * users)


def test_full_memory_makes_the_first_writer_wait() -> None:
    """Memory that is full when a run begins lets nothing pass for nothing; before that moment it does not drain."""
    at = FakeTime()
    pace = Pace(lambda _: 100.0, 500, at.clock, at.sleep)
    pace.fill(10.0)
    at.sleep(10.0)
    pace.wait(100)
    assert at.now == pytest.approx(11.0)


def test_unpaced_never_waits() -> None:
    """Without a rate everything passes, from many threads."""
    pace = Pace(None, 0, time.monotonic, lambda _: pytest.fail("slept"))
    threads = [threading.Thread(target=pace.wait, args=(1 << 40,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
