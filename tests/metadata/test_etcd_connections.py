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
from logstore.base.metadata.errors import MetadataRefused, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.etcd import connections
from logstore.base.metadata.etcd.connections import KEEP_IDLE_S, EtcdConnections
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.etcd.transport import AT_ONCE_BYTES, MAX_CONNECTIONS, REFUSED_LOGIN_S
from logstore.base.metadata.interface import Committed, Put, Transaction
from tests.metadata.slow_etcd import HEADER, ONE, TWO, SlowEtcd, store_on
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
    etcd = SlowEtcd(one=0.2)
    etcd.is_quiet, etcd.pieces = True, 2
    async with store_on(etcd).watch("", 1) as watch:
        for asked in (1, 2, 3, 3):
            with trio.move_on_after({1: 0.1, 2: 0.3, 3: 3.0}[asked]):  # before it is answered, while it is, and later
                await watch.receive()
            assert etcd.asked["one", "watch"] == asked


REFUSALS = {
    "rights": (b'{"code": 7, "message": "etcdserver: permission denied"}', MetadataRefused, "give a user with rights"),
    "login": (b'{"code": 16, "message": "etcdserver: invalid auth token"}', MetadataRefused, "check user and password"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_quiet_watch_whose_host_is_refused_says_so(
    autojump_clock: trio.testing.MockClock, refusal: str
) -> None:
    """etcd does not end a watch when it takes away rights, or has another password: the question whether it is alive
    is what is refused. The watch raises what any other call does, and not in a group, so its user can wait for better.
    """
    error, kind, said = REFUSALS[refusal]
    etcd = SlowEtcd()
    etcd.is_quiet = True
    store = store_on(etcd, user="cairn", password="secret")
    async with store.watch("", 1) as watch:
        with trio.move_on_after(10.0):
            await watch.receive()
        etcd.errors["kv/range"] = error
        etcd.errors["auth/authenticate"] = b'{"code": 3, "message": "etcdserver: authentication failed"}'
        with trio.fail_after(10.0), pytest.raises(kind, match=said):
            await watch.receive()
        etcd.errors.clear()
        await trio.sleep(REFUSED_LOGIN_S)
        with trio.move_on_after(10.0):
            await watch.receive()
    assert etcd.asked["one", "watch"] == 1, "what was refused was the question, so the watch is as good as before"


async def test_an_error_that_is_none_of_a_watch(autojump_clock: trio.testing.MockClock) -> None:
    """An endpoint that answers as etcd does not, as a gateway to something else: a watch waits and asks again."""
    etcd = SlowEtcd()
    etcd.is_quiet = True
    etcd.errors["watch"] = b'{"code": 5, "message": "Not Found"}'
    async with store_on(etcd).watch("", 1) as watch:
        with trio.move_on_after(10.0):
            await watch.receive()
        etcd.errors = {"kv/range": etcd.errors["watch"]}
        with trio.move_on_after(10.0):
            await watch.receive()
    assert etcd.asked["one", "watch"] > 5


async def test_a_read_that_no_etcd_refuses(autojump_clock: trio.testing.MockClock) -> None:
    """The same gateway, asked for entries: an error that whoever starts a host is told, not one of etcd's protocol."""
    etcd = SlowEtcd()
    not_found = b'{"code": 5, "message": "Not Found"}'
    etcd.errors = {"kv/range": not_found, "kv/txn": not_found}
    store = store_on(etcd)
    for read in (lambda: store.get("a"), lambda: store.page("a"), lambda: store.page("a", beside="b")):
        with pytest.raises(MetadataRefused, match="Not Found; etcd-endpoints must name members"):
            await read()


OLD_LOGIN = b'{"code": 3, "message": "etcdserver: revision of auth store is old"}'


async def test_a_login_of_before_a_change_of_users_is_renewed(autojump_clock: trio.testing.MockClock) -> None:
    """etcd says so of a call during which somebody changes a user or a right, and of each later one with a token that
    names the revision of the users (JWT). Nothing was made: the call logs in again, and is made again, however often.
    """
    etcd = SlowEtcd()
    store = store_on(etcd, user="cairn", password="secret")
    etcd.errors_once = {"kv/range": [OLD_LOGIN], "kv/txn": [OLD_LOGIN] * 5}
    assert (await store.get("a")).revision == 1
    assert etcd.asked["one", "auth/authenticate"] == 2
    assert isinstance(await store.commit(CHANGE), Committed)
    assert etcd.asked["one", "kv/txn"] == 6


async def test_a_watch_logs_in_again_behind_a_change_of_users(autojump_clock: trio.testing.MockClock) -> None:
    """As any other call: etcd ends such a watch as it begins, with the same words."""
    reason = "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"
    ended = {"result": {"header": HEADER, "created": True, "canceled": True, "cancel_reason": reason}}
    etcd = SlowEtcd()
    etcd.is_quiet = True
    store = store_on(etcd, user="cairn", password="secret")
    await store.get("a")
    etcd.answers["watch"] = ended
    async with store.watch("", 1) as watch, trio.open_nursery() as nursery:
        nursery.start_soon(watch.receive)
        await trio.sleep(0.01)
        assert etcd.asked["one", "watch"] == 1
        etcd.answers.clear()
        await trio.sleep(3.0)
        assert etcd.asked["one", "auth/authenticate"] == 2
        nursery.cancel_scope.cancel()


TOKENS = ("", "a b", "a\r\nX: y", "\ud800", "\u20ac", None, 7, {"a": 1})


@pytest.mark.parametrize("token", TOKENS)
async def test_a_token_that_no_header_may_have_is_no_token(
    autojump_clock: trio.testing.MockClock, token: object
) -> None:
    """An endpoint that gives such a token has failed, as one that does not answer: nothing is sent with it."""
    etcd = SlowEtcd()
    etcd.answers["auth/authenticate"] = {"token": token}
    with pytest.raises(MetadataUnavailable, match="no token"):
        await store_on(etcd, user="cairn", password="secret").get("a")
    assert not etcd.asked["one", "kv/range"]


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
