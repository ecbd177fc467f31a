"""Both clients against real coordinators: the same surface, typed errors, and patience with restarts."""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.testing.clock import ManualClock
from logstore.testing.ports import free_port
from scheduler.client import (
    BadRequest,
    Conflict,
    CoordinatorClient,
    CoordinatorError,
    CoordinatorRequest,
    CoordinatorUnavailable,
    Go,
    NotFound,
    NotUnderstood,
    RequestCancelled,
    RequestFailed,
    core,
)
from scheduler.client.base import BaseGo, BaseRequest
from scheduler.client.trio_client import TrioCoordinatorClient, TrioCoordinatorRequest, TrioGo
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.testing import CoordinatorProcess, in_thread, running
from scheduler.peace.online import Settings
from scheduler.topology import racks
from tests.coordinator.support import Reply, raw, stand_in, topology_file
from tests.support.limits import PATIENCE_S

NETWORK = racks([4, 4], 4)


@pytest.fixture
def url() -> Iterator[str]:
    """A coordinator of the test's own."""
    with running(NETWORK, planner="paper") as found:
        yield found


def public(kind: type) -> dict[str, list[str]]:
    """A class's public methods, inherited ones too, and the names of their parameters."""
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_surface() -> None:
    """The trio client's methods are the blocking one's, with the same parameters; it closes with `aclose`."""
    blocking, of_trio = public(CoordinatorClient), public(TrioCoordinatorClient)
    assert blocking.pop("close") == of_trio.pop("aclose")
    assert blocking == of_trio
    assert public(CoordinatorRequest) == public(TrioCoordinatorRequest)
    assert public(Go) == public(TrioGo)


def test_a_blocking_writer(url: str) -> None:
    """The example of the guide: every chunk comes once, with hosts and addresses; then the loop ends."""
    with CoordinatorClient(url) as client:
        client.register("r1h1", address="10.0.0.1")
        write = client.submit(writer="r1h1", chunks=8, replicas=3)
        chunks = []
        for go in write.goes():
            assert go.hosts[0] == "r1h1"
            assert go.addresses == ("10.0.0.1", None, None, None)
            chunks.append(go.chunk)
            assert go.done()
            assert not go.done()
        assert sorted(chunks) == list(range(8))
        assert write.state == "finished"


async def test_a_trio_writer(url: str) -> None:
    """The same for trio."""
    async with TrioCoordinatorClient(url) as client:
        await client.register("r1h1", address="10.0.0.1")
        write = await client.submit(writer="r1h1", chunks=8)
        chunks = []
        async for go in write.goes():
            assert go.addresses[0] == "10.0.0.1"
            chunks.append(go.chunk)
            assert await go.done()
        assert sorted(chunks) == list(range(8))
        assert await client.status()
        assert (await client.topology())["name"] == NETWORK.name


def test_many_threads_share_a_client(url: str) -> None:
    """Gos are handed to threads of the writer's own, which report them while it waits for more."""
    with CoordinatorClient(url) as client:
        writes = [client.submit(writer=f"r{rack}h{host}", chunks=6) for rack in (1, 2) for host in (1, 2, 3, 4)]
        done: Queue[tuple[str, int]] = Queue()

        def chunk(go: Go) -> None:
            if go.done():
                done.put((go.request, go.chunk))

        def write(number: int) -> None:
            threads = []
            for go in writes[number].goes():
                threads.append(threading.Thread(target=chunk, args=(go,)))
                threads[-1].start()
            for thread in threads:
                thread.join()

        writers = [threading.Thread(target=write, args=(number,)) for number in range(len(writes))]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert done.qsize() == 48
        assert client.status()["capacities"] == []


def test_errors_have_types_and_fields(url: str) -> None:
    """Who is to blame, and for which field."""
    with CoordinatorClient(url) as client:
        with pytest.raises(BadRequest, match="nowhere") as caught:
            client.submit(writer="nowhere", chunks=1)
        assert (caught.value.field, caught.value.status) == ("writer", 400)
        with pytest.raises(NotFound):
            client.request("nothing")
        with pytest.raises(NotFound, match="did you mean 'r1h1'"):
            client.register("r1h11")
        with pytest.raises(Conflict, match="register it"):
            client.alive("r1h1")
        client.submit(writer="r1h1", chunks=1, name="taken")
        with pytest.raises(Conflict) as conflict:
            client.submit(writer="r1h1", chunks=2, name="taken")
        assert conflict.value.field == "name"
    with pytest.raises(CoordinatorError, match="closed"):
        client.status()
    with pytest.raises(CoordinatorError, match="http://HOST:PORT"):
        CoordinatorClient("127.0.0.1:9880")


def test_an_end_that_is_not_the_good_one_is_an_error() -> None:
    """Cancelled by somebody, and given up after too many attempts."""
    with running(NETWORK, planner="paper", max_attempts=2) as url, CoordinatorClient(url) as client:
        write = client.submit(writer="r1h1", chunks=2)
        revoked: list[Go] = []
        gos = write.goes(revoked.append)
        first, second = next(gos), next(gos)
        client.cancel(write.name)
        with pytest.raises(RequestCancelled, match=write.name):
            next(gos)
        assert revoked == [first, second]
        assert first.revoked
        assert not first.done()
        write = client.submit(writer="r1h1", chunks=1)
        with pytest.raises(RequestFailed, match=write.name):
            for go in write.goes():
                assert go.failed(suspects=[go.hosts[1]])
        assert "last of 2 attempts" in client.request(write.name)["why"]


HOST_DEADLINE_MS = 600
STEP_MS = 100
"""Less than a coordinator takes for a stop of its own, for which hosts get more time."""


@contextmanager
def by_hand(directory: Path, **deadlines: int) -> Iterator[tuple[str, ManualClock]]:
    """A coordinator of the test's own, for which time passes when the test says so; its tick goes by the real clock."""
    settings = CoordinatorSettings(Settings(), tick_s=0.05, **deadlines)
    clock, served = ManualClock(), ServeSettings(Address("127.0.0.1", 0), settings)
    environment = CoordinatorEnvironment(NETWORK, make_planner("paper", NETWORK), clock, Random(0), ignore)
    with opened(directory) as metadata, in_thread(environment, metadata, served) as url:
        yield url, clock


def test_a_lost_host_is_missed_and_comes_back(tmp_path: Path) -> None:
    """Keep-alives hold a host; when they stop it is lost, its chains are planned again and its writer is told."""
    with by_hand(tmp_path, host_deadline_ms=HOST_DEADLINE_MS) as (url, clock), CoordinatorClient(url) as client:
        write = client.submit(writer="r1h1", chunks=1, replicas=1, placement=["other-rack:0"])
        gos = write.goes()
        go = next(gos)
        with CoordinatorClient(url) as host:
            host.register(go.hosts[1])
            assert [one["registered"] for one in client.status()["hosts"]] == [True]

        def is_lost() -> bool:
            clock.advance(STEP_MS)
            return [one["lost"] for one in client.status()["hosts"]] == [True]

        wait_for(is_lost)
        again = next(gos)
        assert go.revoked
        assert (again.attempt, again.hosts[1] != go.hosts[1]) == (2, True)
        with pytest.raises(Conflict, match="lost"):
            client.submit(writer=go.hosts[1], chunks=1)
        client.register(go.hosts[1])
        assert client.submit(writer=go.hosts[1], chunks=1).state == "running"
        # The client's own thread keeps this one alive for longer than its deadline.
        for _ in range(HOST_DEADLINE_MS // STEP_MS + 1):
            clock.advance(STEP_MS)
            wait_for(lambda: [one["deadline_ms"] for one in client.status()["hosts"]] == [HOST_DEADLINE_MS])
        assert [one["lost"] for one in client.status()["hosts"]] == [False]
        assert again.done()
        assert list(gos) == []


async def test_a_trio_client_keeps_its_hosts_alive(tmp_path: Path) -> None:
    """The same keep-alives, from a task; a coordinator that forgot the host gets it registered again."""
    with by_hand(tmp_path, host_deadline_ms=HOST_DEADLINE_MS) as (url, clock):
        async with TrioCoordinatorClient(url) as client:
            await client.register("r1h1", "a")
            await client.call(core.host("DELETE", "r1h1"))
            while (await client.status())["hosts"][0]["lost"]:  # noqa: ASYNC110  another thread's doing
                await trio.sleep(0.02)
            for _ in range(HOST_DEADLINE_MS // STEP_MS + 1):
                clock.advance(STEP_MS)
                while (await client.status())["hosts"][0]["deadline_ms"] != HOST_DEADLINE_MS:  # noqa: ASYNC110
                    await trio.sleep(0.02)
            assert (await client.status())["hosts"][0]["registered"]


def wait_for(condition: Callable[[], bool]) -> None:
    """Ask until it holds; the test's own time limit ends what never does."""
    while not condition():
        threading.Event().wait(0.01)


def test_a_silent_writer_is_given_up(tmp_path: Path) -> None:
    """A writer that never asks again holds its capacity for a bounded time; one that polls keeps it."""
    with by_hand(tmp_path, writer_deadline_ms=400) as (url, clock), CoordinatorClient(url, poll_s=0.1) as client:
        client.submit(writer="r1h1", chunks=1, name="silent")
        polling = client.submit(writer="r1h2", chunks=1, name="polling")
        go = next(polling.goes())
        states: dict[str, str] = {}
        while states.get("silent") != "cancelled":
            clock.advance(100)
            client.call(core.events("polling", 1, 0.1))
            states = {"silent": "running"} | dict.fromkeys(_ended(client), "cancelled")
        assert go.done()


def _ended(client: CoordinatorClient) -> list[str]:
    """Names of requests that are over, found without asking after them."""
    queued = {one["request"] for one in client.status()["queue"]}
    return [name for name in ("silent",) if name not in queued]


def test_what_is_over_is_forgotten() -> None:
    """Requests that ended are remembered for a bounded time and number; what is live never is forgotten."""
    settings = CoordinatorSettings(Settings(), remember_ms=100_000, max_remembered=3, tick_s=0.05)
    with running(NETWORK, planner="paper", settings=settings) as url, CoordinatorClient(url) as client:
        client.submit(writer="r2h1", chunks=1, name="live")
        for number in range(6):
            for go in client.submit(writer="r1h1", chunks=1, name=f"n{number}").goes():
                go.done()
        wait_for(lambda: client.status()["requests"] == {"running": 1, "finished": 3})
        with pytest.raises(NotFound, match="forgotten"):
            client.request("n2")
        assert client.request("n3")["state"] == "finished"
        assert client.submit(writer="r1h1", chunks=4, name="n2").state == "running"


def test_a_restart_goes_unnoticed(tmp_path: Path) -> None:
    """kill -9 while a writer waits for its go and another reports: both go on when it is back."""
    path, _ = topology_file(tmp_path)
    with (
        CoordinatorProcess(path, tmp_path / "data", "--planner", "paper", port=free_port()) as process,
        CoordinatorClient(process.url) as client,
    ):
        first = client.submit(writer="r1h1", chunks=2)
        gos = list(zip(range(2), first.goes(), strict=False))
        second = client.submit(writer="r1h1", chunks=1)
        assert second.place is not None
        assert second.place.requests_ahead == 0
        came: Queue[Go] = Queue()

        def wait() -> None:
            for go in second.goes():
                came.put(go)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        process.kill()
        process.start()
        assert [go.done() for _, go in gos] == [True, True]
        assert came.get(timeout=PATIENCE_S).done()
        waiter.join(PATIENCE_S)
        assert second.state == "finished"


def test_patience_ends() -> None:
    """Nobody listens: CoordinatorUnavailable after `patience_s`, with the request and the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = f"GET http://127.0.0.1:{port}/v1/status.*refused"
    url = f"http://127.0.0.1:{port}"
    with CoordinatorClient(url, patience_s=0.2) as client, pytest.raises(CoordinatorUnavailable, match=said):
        client.status()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"]
)
def test_somebody_else_is_not_understood(answer: bytes) -> None:
    """An answer that no coordinator gives is named as such, and not asked for again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with CoordinatorClient(url) as client, pytest.raises(NotUnderstood, match="is this a coordinator's address"):
            client.status()
        thread.join()


def both(url: str, use: Callable[[CoordinatorClient], None], use_trio: Callable[..., Any]) -> None:
    """Use a blocking client, then one for trio."""
    with CoordinatorClient(url) as client:
        use(client)

    async def main() -> None:
        async with TrioCoordinatorClient(url) as client:
            await use_trio(client)

    trio.run(main)


def test_connections_that_died_idle_cost_no_keep_alive() -> None:
    """After a restart every pooled connection is dead: a question without patience, as a keep-alive is, still works."""
    together = threading.Barrier(3)

    def answer(asked: str) -> Reply:
        if asked.endswith("/first"):
            together.wait(PATIENCE_S)
        return Reply(200, {}, close=True)

    first, later = core.ApiRequest("GET", "/first"), core.ApiRequest("GET", "/later")

    def use(client: CoordinatorClient) -> None:
        threads = [threading.Thread(target=client.call, args=(first,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(3):
            assert client.call(later, patience_s=0) == {}

    async def use_trio(client: TrioCoordinatorClient) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.call, first)
        for _ in range(3):
            assert await client.call(later, patience_s=0) == {}

    with stand_in(answer) as url:
        both(url, use, use_trio)


def test_a_host_that_leaves_is_not_brought_back() -> None:
    """A keep-alive that is under way when its host is deregistered must not register it again."""
    log: list[str] = []
    asked, gone, back = threading.Event(), threading.Event(), threading.Event()

    def answer(what: str) -> Reply:
        method = what.partition(" ")[0]
        log.append(method)
        if method == "PUT":
            asked.set()
            gone.wait(0.1)
            return Reply(409, {"error": "was lost"})
        if method == "DELETE":
            gone.set()
            back.clear()
            back.wait(0.1)
        if method == "POST":
            back.set()
        return Reply(200, {"deadline_ms": 30})

    def use(client: CoordinatorClient) -> None:
        client.register("r1h1")
        assert asked.wait(PATIENCE_S)
        client.deregister("r1h1")
        assert log[-1] == "DELETE"
        asked.clear()
        gone.clear()

    async def use_trio(client: TrioCoordinatorClient) -> None:
        await client.register("r1h1")
        assert await trio.to_thread.run_sync(asked.wait, PATIENCE_S)
        await client.deregister("r1h1")
        assert log[-1] == "DELETE"

    with stand_in(answer) as url:
        both(url, use, use_trio)


def test_keep_alives_follow_the_coordinators_deadline() -> None:
    """A coordinator that came back with another deadline is told as often as that one asks for."""

    def answer(what: str) -> Reply:
        return Reply(200, {"deadline_ms": 60 if what.startswith("POST") else 90})

    def use(client: CoordinatorClient) -> None:
        client.register("r1h1")
        wait_for(lambda: client._keep_every_s == 0.03)

    async def use_trio(client: TrioCoordinatorClient) -> None:
        await client.register("r1h1")
        while client._keep_every_s != 0.03:  # noqa: ASYNC110  another task's doing
            await trio.sleep(0.01)

    with stand_in(answer) as url:
        both(url, use, use_trio)


def test_closing_ends_what_waits() -> None:
    """A thread that waits for its go learns at once that its client was closed; a closed client asks no more."""
    waiting, over = threading.Event(), threading.Event()
    caught: Queue[Exception] = Queue()

    def answer(what: str) -> Reply:
        waiting.set()
        over.wait(PATIENCE_S)
        return Reply(200, {})

    def ask(client: CoordinatorClient) -> None:
        try:
            client.status()
        except CoordinatorError as error:
            caught.put(error)

    with stand_in(answer) as url:
        client = CoordinatorClient(url, timeout_s=PATIENCE_S)
        thread = threading.Thread(target=ask, args=(client,), daemon=True)
        thread.start()
        assert waiting.wait(PATIENCE_S)
        client.close()
        assert isinstance(caught.get(timeout=PATIENCE_S), CoordinatorUnavailable)
        over.set()

        async def main() -> None:
            async with TrioCoordinatorClient(url) as client:
                await client.status()
            with pytest.raises(CoordinatorError, match="closed"):
                await client.status()

        trio.run(main)


@pytest.mark.parametrize(
    "broken",
    [Reply(200, body=b'{"half": ', claimed=100, close=True), Reply(502, body=b"<html>Bad Gateway</html>")],
    ids=["cut", "bad gateway"],
)
def test_an_answer_that_is_cut_is_asked_for_again(broken: Reply) -> None:
    """A coordinator killed in mid-answer, or a gateway before it that finds it away: patience, not an error."""
    replies: Queue[Reply] = Queue()

    def use(client: CoordinatorClient) -> None:
        replies.put(broken)
        replies.put(Reply(200, {"whole": 1}))
        assert client.status() == {"whole": 1}

    async def use_trio(client: TrioCoordinatorClient) -> None:
        replies.put(broken)
        replies.put(Reply(200, {"whole": 1}))
        assert await client.status() == {"whole": 1}

    with stand_in(lambda _: replies.get()) as url:
        both(url, use, use_trio)


def test_who_does_not_even_greet_is_not_waited_for() -> None:
    """To connect may take `timeout_s`, whatever the question may take after that."""
    question = core.events("a", 0, 60)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://127.0.0.1:{mute.getsockname()[1]}"
        with CoordinatorClient(url, timeout_s=0.1, patience_s=0) as client, pytest.raises(CoordinatorUnavailable):
            client.call(question)

        async def main() -> None:
            async with TrioCoordinatorClient(url, timeout_s=0.1, patience_s=0) as client:
                with trio.fail_after(PATIENCE_S), pytest.raises(CoordinatorUnavailable):
                    await client.call(question)

        trio.run(main)


def test_patience_begins_with_the_first_failure() -> None:
    """A question that waited for long, as it was meant to, has all its patience left when its connection is lost."""
    replies: Queue[Reply] = Queue()

    def answer(asked: str) -> Reply:
        reply = replies.get()
        if reply.close:
            threading.Event().wait(0.15)
        return reply

    def use(client: CoordinatorClient) -> None:
        replies.put(Reply(200, body=b"{", claimed=2, close=True))
        replies.put(Reply(200, {"whole": 1}))
        assert client.call(core.events("a", 0, 30), patience_s=0.1) == {"whole": 1}

    async def use_trio(client: TrioCoordinatorClient) -> None:
        replies.put(Reply(200, body=b"{", claimed=2, close=True))
        replies.put(Reply(200, {"whole": 1}))
        assert await client.call(core.events("a", 0, 30), patience_s=0.1) == {"whole": 1}

    with stand_in(answer) as url:
        both(url, use, use_trio)


@given(st.integers(0, 1000), st.floats(0, 100), st.lists(st.floats(0, 5), max_size=30))
def test_backing_off_is_bounded(seed: int, patience_s: float, pauses: list[float]) -> None:
    """Delays grow, with jitter, to at most three seconds; none goes beyond the end of patience."""
    backoff = core.Backoff(Random(seed), patience_s)
    now_s, end_s = 100.0, 100.0 + patience_s
    for pause_s in pauses:
        if now_s >= end_s:
            with pytest.raises(CoordinatorUnavailable, match="GET /: away"):
                backoff.after(OSError("away"), now_s, "GET /")
            return
        delay_s = backoff.after(OSError("away"), now_s, "GET /")
        assert 0 <= delay_s <= min(1.5 * core.MAX_DELAY_S, end_s - now_s + 1e-9)
        now_s += pause_s + delay_s


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20))
def test_repeated_answers_change_nothing(total: int, pieces: list[tuple[int, int]]) -> None:
    """Events that come twice, or in any pieces with overlaps, are taken once and in order."""
    events = [
        {"number": n, "event": "go", "chunk": n, "attempt": 1, "hosts": ["a"], "addresses": [None]}
        for n in range(1, total + 1)
    ]
    view = {"request": "r", "state": "waiting", "last_event": 0, "go": [], "place": None}
    request = BaseRequest(view, lambda event: BaseGo("r", event))
    taken: list[int] = []
    for start, end in [*pieces, (0, total)]:
        answer = {"events": events[min(start, request._after) : end], "state": "running"}
        taken += [go.chunk for go in request._new_goes(answer, None)]
    assert taken == list(range(1, total + 1))


def test_the_answer_ends_with_its_connection(url: str) -> None:
    """HTTP/1.0 and `Connection: close` are served too, as simple tools speak."""
    for request in (b"GET /health HTTP/1.0\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        assert raw(url, request, end=False).startswith(b"HTTP/1.1 200 OK")
