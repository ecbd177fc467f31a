"""Connections to etcd: used again where that is safe, bounded, and given back whatever becomes of a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
import trio.testing

from logstore.base.events import ignore
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.etcd import connections
from logstore.base.metadata.etcd.connections import KEEP_IDLE_S, EtcdConnections
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.etcd.transport import AT_ONCE_BYTES, MAX_CONNECTIONS
from logstore.base.metadata.interface import Committed, Put, Transaction
from tests.metadata.slow_etcd import ONE, TWO, SlowEtcd, store_on
from tests.support.limits import PATIENCE_S

CHANGE = Transaction((), (Put("a", b"1"),))
LARGE = Transaction((), (Put("a", bytes(AT_ONCE_BYTES)),))


async def test_one_connection_is_enough_for_calls_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    """For KEEP_IDLE_S behind each; calls at the same time have one each, which are there for later ones."""
    etcd = SlowEtcd(one=0.01)
    store = store_on(etcd)
    for _ in range(3):
        await store.get("a")
        await trio.sleep(KEEP_IDLE_S - 1)
    assert etcd.connected == 1
    await trio.sleep(2)
    await store.get("a")
    assert (etcd.connected, len(etcd.open)) == (2, 1)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(store.get, "a")
    assert (etcd.connected, len(etcd.open)) == (6, 5)


@pytest.mark.parametrize("change", [CHANGE, LARGE])
async def test_the_connection_of_a_call_that_is_given_up_is_closed(
    autojump_clock: trio.testing.MockClock, change: Transaction
) -> None:
    """Its answer may be on its way, and would be taken for that of the next call. Its place is free again."""
    etcd = SlowEtcd(one=0.5)
    store = store_on(etcd)
    for given_up in range(MAX_CONNECTIONS + 1):
        with trio.move_on_after(0.2):
            await store.commit(change)
        assert (etcd.connected, len(etcd.open)) == (given_up + 1, 0)
    assert isinstance(await store.commit(change), Committed)


async def test_an_answer_in_pieces_is_read_as_one(autojump_clock: trio.testing.MockClock) -> None:
    """However long the pauses between them, within the time of an attempt."""
    etcd = SlowEtcd(one=0.15)
    etcd.pieces = 6
    store = store_on(etcd)
    assert isinstance(await store.commit(CHANGE), Committed)
    assert etcd.asked["one", "kv/txn"] == 1
    etcd.pieces = 10
    store = store_on(etcd)
    with pytest.raises(OutcomeUnknown, match="did not answer within 1 s"):
        await store.commit(CHANGE)


async def test_connections_are_bounded_over_all_endpoints(autojump_clock: trio.testing.MockClock) -> None:
    """Those that nobody uses are closed for others; who finds none free waits for one, and for no longer than that."""
    etcd = SlowEtcd(one=0.5, two=0.5)
    pool = EtcdConnections(etcd.connect, 3)
    done: list[str] = []

    async def call(endpoint: str) -> None:
        exchange = pool.exchange(endpoint)
        try:
            if not await exchange.take_kept():
                await exchange.open(2.2, 1.0)
            await exchange.send(b"/v3/kv/range", [(b"Host", b"x"), (b"Content-Length", b"2")], b"{}")
            await exchange.answer()
            done.append(endpoint)
        except connections.ConnectionFailed as failure:
            done.append(str(failure))
        finally:
            await exchange.end()

    for endpoint in (ONE, TWO):
        async with trio.open_nursery() as nursery:
            for _ in range(15):
                nursery.start_soon(call, endpoint)
        assert done == [endpoint] * 15
        done.clear()
    assert etcd.most_open == 3
    async with trio.open_nursery() as nursery:
        for _ in range(18):
            nursery.start_soon(call, ONE)
    assert sorted(done) == [ONE] * 15 + ["no connection was free within 2.2 s"] * 3
    assert len(etcd.open) == 3
    await pool.close()
    assert not etcd.open
    await call(ONE)
    assert done[-1] == "the store is closed"


async def test_an_answer_is_bounded(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer is not read to its end, and no answer."""
    monkeypatch.setattr(connections, "MAX_ANSWER_BYTES", 20)
    etcd = SlowEtcd()
    with pytest.raises(MetadataUnavailable, match="an answer above 20 bytes"):
        await store_on(etcd).get("a")
    assert not etcd.open


async def test_a_watch_whose_receiver_gives_up_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """Over the same connection; one that was given up before the watch had begun is made anew."""
    etcd = SlowEtcd(one=0.5)
    etcd.is_quiet = True
    async with store_on(etcd).watch("", 1) as watch:
        for asked in (1, 2, 2, 2):
            with trio.move_on_after(0.3 if asked == 1 else 3.0):
                await watch.receive()
            assert etcd.asked["one", "watch"] == asked


# ---- real sockets


@asynccontextmanager
async def store_at(answers: list[bytes | None]) -> AsyncIterator[EtcdMetadataStore]:
    """A store on a server that gives these answers, one to each request; None: it closes the connection instead."""

    async def serve(stream: trio.SocketStream) -> None:
        async for _ in stream:
            answer = answers.pop(0)
            if answer is None:
                return
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
            if answers and answers[0] is None:
                answers.pop(0)
                return

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
            settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{listener.socket.getsockname()[1]}",))
            async with open_etcd(settings, Random(0), ignore) as store:
                yield store
            nursery.cancel_scope.cancel()


COMMITTED = b'{"header": {"cluster_id": "1", "revision": "1"}, "succeeded": true}'


async def test_a_connection_that_the_endpoint_has_closed_is_not_used_again() -> None:
    """Between two calls: a change would be told that its outcome is not known."""
    async with store_at([COMMITTED, None, COMMITTED]) as store:
        assert isinstance(await store.commit(CHANGE), Committed)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert isinstance(await store.commit(CHANGE), Committed)


async def test_a_connection_that_ends_without_an_answer() -> None:
    """The outcome of a change is not known then; what may be repeated is asked again."""
    async with store_at([None]) as store:
        with pytest.raises(OutcomeUnknown, match="has ended without an answer"):
            await store.commit(CHANGE)
    async with store_at([None, None, COMMITTED]) as store:
        assert (await store.get("a")).revision == 1
