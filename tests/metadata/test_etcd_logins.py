"""Logins at etcd: each costs etcd as much as thousands of calls, so a host makes few of them."""

import pytest
import trio
import trio.testing

from logstore.base.metadata.errors import MetadataUnavailable
from logstore.base.metadata.etcd.store import EtcdMetadataStore
from tests.metadata.slow_etcd import ONE, TWO, SlowEtcd, store_on

CALLS = 30
LOGIN = "auth/authenticate"


async def call(store: EtcdMetadataStore, calls: int = CALLS, pause_s: float = 0.0) -> None:
    """So many calls at the same time, or one a little after the other, each of which is answered."""
    async with trio.open_nursery() as nursery:
        for number in range(calls):
            nursery.start_soon(store.get, f"key-{number}")
            if pause_s:
                await trio.sleep(pause_s)


async def test_calls_at_the_same_time_log_in_once(autojump_clock: trio.testing.MockClock) -> None:
    """Reads, leases and watches that begin together wait for one login."""
    etcd = SlowEtcd(one=0.01)
    etcd.login_s, etcd.is_quiet = 0.5, True
    store = store_on(etcd, user="cairn")

    async def watch() -> None:
        async with store.watch("", 1) as changes:
            await changes.receive()

    with trio.move_on_after(3):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(watch)
            nursery.start_soon(store.grant_lease, 3)
            nursery.start_soon(call, store)
    assert etcd.asked["one", LOGIN] == 1
    assert etcd.asked["one", "watch"] == 4


async def test_a_slow_login_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """Where a login takes three seconds, the third one is waited for: those before it were given up, and etcd makes
    them all the same. All calls are answered then.
    """
    etcd = SlowEtcd(one=0.01)
    etcd.login_s = 3.0
    store = store_on(etcd, user="cairn")
    with trio.fail_after(10):
        await call(store)
    assert etcd.asked["one", LOGIN] == 3


async def test_a_token_is_given_up_once(autojump_clock: trio.testing.MockClock) -> None:
    """etcd has forgotten all tokens, as after its restart: calls that come back one after the other, refused with the
    former token, do not give up the new one.
    """
    etcd = SlowEtcd(one=0.2)
    store = store_on(etcd, user="cairn")
    await call(store)
    assert etcd.asked["one", LOGIN] == 1
    etcd.tokens = set()
    etcd.login_s = 0.05
    await call(store, pause_s=0.02)
    assert etcd.asked["one", LOGIN] == 2


async def test_an_endpoint_whose_login_hangs_is_left(autojump_clock: trio.testing.MockClock) -> None:
    """Who waits for its login hears that it failed, and all go to the next endpoint."""
    etcd = SlowEtcd(one=100.0)
    store = store_on(etcd, (ONE, TWO), user="cairn")
    with trio.fail_after(3):
        await call(store)
    assert (etcd.asked["one", LOGIN], etcd.asked["two", LOGIN]) == (1, 1)


async def test_who_logs_in_may_give_up(autojump_clock: trio.testing.MockClock) -> None:
    """Another call logs in then, and waits longer."""
    etcd = SlowEtcd(one=0.01)
    etcd.login_s = 1.5
    store = store_on(etcd, user="cairn")

    async def impatient() -> None:
        with trio.move_on_after(0.9):
            await store.get("impatient")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(impatient)
            await trio.sleep(0.1)
            nursery.start_soon(call, store)
    assert etcd.asked["one", LOGIN] == 2


async def test_all_hear_that_nobody_logs_in(autojump_clock: trio.testing.MockClock) -> None:
    """An etcd that answers no login costs each call its patience, and etcd few logins."""
    etcd = SlowEtcd(one=0.01)
    etcd.silent.add(LOGIN)
    store, failed = store_on(etcd, user="cairn"), 0

    async def ask() -> None:
        nonlocal failed
        with pytest.raises(MetadataUnavailable):
            await store.get("key")
        failed += 1

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(CALLS):
                nursery.start_soon(ask)
    assert failed == CALLS
    assert etcd.asked["one", LOGIN] <= 5
