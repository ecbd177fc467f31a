"""Turns from Peace, from a real coordinator: by its plan, without one while it is away, and with a plan again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.errors import TierUnavailable
from logstore.testing.ports import free_port
from logstore.tier.interface import HostFailed, Turn
from logstore.tier.peace import PeaceTurns
from scheduler.client import CoordinatorClient, CoordinatorUnavailable
from scheduler.client.core import ApiRequest
from scheduler.coordinator.testing import running
from scheduler.topology import Server, Topology
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

PATIENT_S = 0.3
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
NODES = ("n1", "n2", "n3")


def small_network() -> Topology:
    """A writer that sends one chunk at a time, and three hosts for the replicas."""
    servers = [Server("writer", "rack", send=1), *(Server(node, "rack", address=f"{node}:1") for node in NODES)]
    return Topology(servers, [], switches=["rack"], name="small")


@contextmanager
def turns_of(url: str) -> Iterator[PeaceTurns]:
    """Turns for chunks of the writer, with two replicas."""
    # A relay serves one request at a time: a report waits behind a request for events.
    turns = PeaceTurns(CoordinatorClient(url, patience_s=PATIENT_S, poll_s=0.5), "writer", 2, Random(1))
    yield turns
    turns.close()


def chain_of(turn: Turn) -> tuple[str, ...]:
    """A chunk that is stored at once: where."""
    return tuple(turn.chain)


def is_planned(chain: tuple[str, ...]) -> bool:
    """Whether a chunk went to two hosts that the coordinator chose."""
    return len(set(chain)) == 2 and set(chain) <= {f"{node}:1" for node in NODES}


def test_a_host_that_the_coordinator_does_not_know_stores_nothing(tmp_path: Path) -> None:
    """The tier waits and says why: the network of the coordinator lacks the host."""
    with running(small_network(), data_dir=tmp_path) as url:
        turns = PeaceTurns(CoordinatorClient(url), "nobody", 2, Random(1))
        with pytest.raises(TierUnavailable, match="refuses a request of host 'nobody'"):
            turns.run(chain_of)
        turns.close()


def test_a_coordinator_that_is_lost_with_a_request_stops_nothing(tmp_path: Path) -> None:
    """It is lost when a chunk waits for its turn: the chunk is stored without a plan, and so are others. It is back,
    with what it knew: it plans, and the request that nobody waits for does not keep the writer's turn.
    """
    port = free_port()
    with turns_of(f"http://127.0.0.1:{port}") as turns, ThreadPoolExecutor(1) as pool:
        with running(small_network(), data_dir=tmp_path, port=port) as url, CoordinatorClient(url) as other:
            assert is_planned(turns.run(chain_of))
            holder = other.submit("writer", 1, 2)
            next(holder.goes())  # the writer sends no other chunk until this one is done
            waiting = pool.submit(turns.run, chain_of)
            until(lambda: len(other.status()["queue"]) == 2, "the chunk waits for its turn")
        assert waiting.result(PATIENCE_S) == ()
        assert turns.run(chain_of) == ()
        with running(small_network(), data_dir=tmp_path, port=port) as url, CoordinatorClient(url) as other:
            other.cancel(holder.name)
            assert is_planned(pool.submit(turns.run, chain_of).result(PATIENCE_S))
            assert other.status()["queue"] == []


def test_a_host_that_ends_stores_nothing_without_a_plan(tmp_path: Path) -> None:
    """A chunk waits for its turn when the turns are closed: it is not stored, though nobody says its turn any more."""
    stored: list[Turn] = []
    with ExitStack() as stack:
        url = stack.enter_context(running(small_network(), data_dir=tmp_path))
        other = stack.enter_context(CoordinatorClient(url))
        next(other.submit("writer", 1, 2).goes())  # the writer sends no other chunk
        turns = PeaceTurns(CoordinatorClient(url), "writer", 2, Random(1))
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(turns.run, stored.append)
        until(lambda: len(other.status()["queue"]) == 2, "the chunk waits for its turn")
        turns.close()
        with pytest.raises(TierUnavailable):
            waiting.result(PATIENCE_S)
    assert stored == []


def test_a_chunk_that_was_stored_too_late_is_not_stored_again(tmp_path: Path) -> None:
    """The coordinator gives the first attempt up while it is read back, and plans another: that is done already."""
    with ExitStack() as stack:
        url = stack.enter_context(running(small_network(), data_dir=tmp_path))
        other, turns = stack.enter_context(CoordinatorClient(url)), stack.enter_context(turns_of(url))
        chains: list[tuple[str, ...]] = []

        def store(turn: Turn) -> int:
            chains.append(tuple(turn.chain))
            if len(chains) == 1:
                (entry,) = other.status()["queue"]
                assert other.report_failed(entry["request"], 0, 1)
            return len(chains)

        assert stack.enter_context(ThreadPoolExecutor(1)).submit(turns.run, store).result(PATIENCE_S) == 1
        assert len(chains) == 1
        assert other.status()["queue"] == []


class Listener:
    """Takes connections and closes them: a coordinator that does not answer. `asked`: how many."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if self.asked >= 0:
                self.asked += 1  # before the client hears of it
            connection.close()
            if self.asked < 0:
                return

    def close(self) -> None:
        """End it."""
        self.asked = -1
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def silent() -> Iterator[Listener]:
    """A coordinator that does not answer."""
    listener = Listener()
    yield listener
    listener.close()


def test_only_the_first_chunk_waits_for_a_coordinator_that_is_away(silent: Listener) -> None:
    """The first one asks again for the client's patience; each of the others asks once."""
    with turns_of(silent.url) as turns:
        assert turns.run(chain_of) == ()
        first = silent.asked
        assert first > 1
        for number in range(1, 11):
            assert turns.run(chain_of) == ()
            assert silent.asked == first + number


class Relay:
    """In front of a coordinator. While it `loses_answers` the coordinator takes requests, and nobody hears of it; while
    it `stores_nothing` nothing changes, as with a coordinator whose disk is full. `refused`: how often that was so.
    `asked`: the first lines of all requests.
    """

    def __init__(self, url: str) -> None:
        self._there = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.loses_answers = self.stores_nothing = False
        self.refused = 0
        self.asked: list[bytes] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                if self._is_closed:
                    return
                asked = message(connection)
                self.asked.append(asked.partition(b"\r\n")[0])
                if self.stores_nothing and not asked.startswith(b"GET"):
                    self.refused += 1
                    connection.sendall(REFUSAL)
                    continue
                with socket.create_connection(self._there) as there:
                    there.sendall(asked)
                    answer = message(there)
                if not self.loses_answers:
                    connection.sendall(answer)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()


def message(connection: socket.socket) -> bytes:
    """A request or an answer, as bytes."""
    with connection.makefile("rb") as lines:
        head = [line for line in iter(lines.readline, b"\r\n") if line]
        sizes = [int(line.partition(b":")[2]) for line in head if line.lower().startswith(b"content-length:")]
        return b"".join([*head, b"\r\n", lines.read(sum(sizes))])


def test_only_the_first_chunk_waits_for_a_coordinator_that_answers_and_stores_nothing(tmp_path: Path) -> None:
    """Its disk is full, say: that it answers what changes nothing is no reason to wait for it."""
    with running(small_network(), data_dir=tmp_path) as url, Relay(url) as relay, turns_of(relay.url) as turns:
        relay.stores_nothing = True
        assert turns.run(chain_of) == ()
        first = relay.refused
        assert first > 1
        for number in range(1, 4):
            assert turns.run(chain_of) == ()
            assert relay.refused == first + number
        relay.stores_nothing = False
        assert is_planned(turns.run(chain_of))


def test_a_request_whose_answer_was_lost_keeps_no_turn(tmp_path: Path) -> None:
    """The coordinator has taken it, and the chunk was stored without a plan: when answers come again, it is cancelled,
    and the writer's turn is the next chunk's.
    """
    with ExitStack() as stack:
        url = stack.enter_context(running(small_network(), data_dir=tmp_path))
        other, relay = stack.enter_context(CoordinatorClient(url)), stack.enter_context(Relay(url))
        turns, pool = stack.enter_context(turns_of(relay.url)), stack.enter_context(ThreadPoolExecutor(1))
        relay.loses_answers = True
        assert turns.run(chain_of) == ()
        assert len(other.status()["queue"]) == 1
        relay.loses_answers = False
        assert is_planned(pool.submit(turns.run, chain_of).result(PATIENCE_S))
        assert other.status()["queue"] == []


class WatchedClient(CoordinatorClient):
    """A client that says when its patience has ended."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience_s=PATIENT_S, poll_s=0.1)
        self.gave_up = threading.Event()

    def call(self, request: ApiRequest, *, patience_s: float | None = None) -> dict[str, Any]:
        """As ever."""
        try:
            return super().call(request, patience_s=patience_s)
        except CoordinatorUnavailable:
            self.gave_up.set()
            raise


def test_a_chunk_that_is_still_written_keeps_its_tokens(tmp_path: Path) -> None:
    """The coordinator is silent for the client's patience while a chunk is written, and is back before it is stored:
    the writer's next chunk waits until then, for the first one's request is not cancelled under it.
    """
    with ExitStack() as stack:
        url = stack.enter_context(running(small_network(), data_dir=tmp_path))
        other, relay = stack.enter_context(CoordinatorClient(url)), stack.enter_context(Relay(url))
        client, pool = WatchedClient(relay.url), stack.enter_context(ThreadPoolExecutor(2))
        turns = PeaceTurns(client, "writer", 2, Random(1))
        stack.callback(turns.close)
        writes, stored = threading.Event(), threading.Event()
        stack.callback(stored.set)

        def write(turn: Turn) -> tuple[str, ...]:
            writes.set()
            assert stored.wait(PATIENCE_S)
            return chain_of(turn)

        first = pool.submit(turns.run, write)
        assert writes.wait(PATIENCE_S)
        (entry,) = other.status()["queue"]
        relay.loses_answers = True
        assert client.gave_up.wait(PATIENCE_S)
        relay.loses_answers = False
        known = len(relay.asked)
        second = pool.submit(turns.run, chain_of)
        until(
            lambda: any(line.startswith(b"GET") for line in relay.asked[known:]),
            "the second chunk waits for its turn, after all that it cancels",
        )
        assert [each["request"] for each in other.status()["queue"]][:1] == [entry["request"]]
        assert not second.done()
        stored.set()
        assert is_planned(first.result(PATIENCE_S))
        assert is_planned(second.result(PATIENCE_S))
        assert other.status()["queue"] == []


def test_a_failure_that_the_coordinator_does_not_hear_of_is_still_the_hosts(tmp_path: Path) -> None:
    """A DataNode fails, and the coordinator is away when it is told: the chunk's error is the DataNode's, for which the
    tier tries again.
    """
    with ExitStack() as coordinator, ExitStack() as stack:
        url = coordinator.enter_context(running(small_network(), data_dir=tmp_path))
        turns = stack.enter_context(turns_of(url))

        def fail(turn: Turn) -> None:
            coordinator.close()
            raise HostFailed(turn.chain[0], "a DataNode has failed")

        with pytest.raises(HostFailed, match="a DataNode has failed"):
            turns.run(fail)
