"""Logins at etcd: each costs etcd as much as thousands of calls, so a host makes few of them, and one that is refused
costs no lease that etcd keeps.
"""

import pytest
import trio
import trio.testing

from logstore.base.metadata.errors import LeaseEnded, MetadataRefused, MetadataUnavailable
from logstore.base.metadata.etcd.store import EtcdMetadataStore
from logstore.base.metadata.held_lease import HeldLease
from tests.metadata.slow_etcd import ONE, TWO, SlowEtcd, store_on

CALLS = 30
LOGIN = "auth/authenticate"
WRONG_PASSWORD = b'{"error":"etcdserver: authentication failed, invalid user ID or password","code":3}'
LEASE_S = 3


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


async def test_a_refused_password_is_not_sent_with_each_call(autojump_clock: trio.testing.MockClock) -> None:
    """Calls that come quickly one after the other, as clients send them, cost etcd a login in each second; a password
    that is right then is sent at once where it is another one, and in the next second where it is the same.
    """
    etcd, words = SlowEtcd(one=0.01), ["former"]
    etcd.tokens = set()
    etcd.errors[LOGIN] = WRONG_PASSWORD
    store = store_on(etcd, user="cairn", password=lambda: words[0])
    for _ in range(100):
        with pytest.raises(MetadataRefused, match="check user and password"):
            await store.get("key")
        await trio.sleep(0.02)
    assert etcd.asked["one", LOGIN] <= 3
    words[0] = "newer"
    with pytest.raises(MetadataRefused, match="check user and password"):
        await store.get("key")
    assert etcd.asked["one", LOGIN] <= 4
    del etcd.errors[LOGIN]
    await trio.sleep(1.0)
    await store.get("key")


# ---- leases


def is_held(lease: HeldLease) -> bool:
    """Whether it is held now; mypy takes a property for constant."""
    return lease.held


def refuse_logins(etcd: SlowEtcd) -> None:
    """etcd has another password than its client, and has ended its tokens for that."""
    etcd.tokens = set()
    etcd.errors[LOGIN] = WRONG_PASSWORD


async def test_a_refused_login_costs_no_lease(autojump_clock: trio.testing.MockClock) -> None:
    """etcd before 3.4.42 keeps leases for whoever asks: its password may be another one for as long as it likes. Calls
    that need a login are refused meanwhile.
    """
    etcd = SlowEtcd(one=0.01)
    etcd.asks_for_nothing = {"lease/keepalive"}
    store = store_on(etcd, user="cairn")
    lease = HeldLease(store, LEASE_S)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        await trio.sleep(0.5)
        refuse_logins(etcd)
        with pytest.raises(MetadataRefused, match="check user and password"):
            await store.get("key")
        logins = etcd.asked["one", LOGIN]
        for _ in range(600):
            await trio.sleep(0.1)
            assert is_held(lease)
        assert etcd.asked["one", LOGIN] == logins
        nursery.cancel_scope.cancel()
    assert etcd.asked["one", "lease/grant"] == 1


async def test_a_hanging_login_costs_no_lease(autojump_clock: trio.testing.MockClock) -> None:
    """Nor one that etcd does not answer, as under load."""
    etcd = SlowEtcd(one=0.01)
    etcd.asks_for_nothing = {"lease/keepalive"}
    lease = HeldLease(store_on(etcd, user="cairn"), LEASE_S)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        etcd.tokens = set()
        etcd.silent.add(LOGIN)
        for _ in range(600):
            await trio.sleep(0.1)
            assert is_held(lease)
        nursery.cancel_scope.cancel()
    assert etcd.asked["one", "lease/grant"] == 1


async def test_a_login_that_comes_back_keeps_the_lease(autojump_clock: trio.testing.MockClock) -> None:
    """etcd that asks for a login before it keeps a lease alive, and refuses it for a while: the lease is asked for
    until the password is right, and goes on.
    """
    etcd = SlowEtcd(one=0.01)
    lease = HeldLease(store_on(etcd, user="cairn"), LEASE_S)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        for _ in range(5):
            await trio.sleep(LEASE_S * 1.5)
            refuse_logins(etcd)
            await trio.sleep(LEASE_S * 0.6)
            del etcd.errors[LOGIN]
            await trio.sleep(LEASE_S * 0.4)
            assert is_held(lease)
        nursery.cancel_scope.cancel()
    assert etcd.asked["one", "lease/grant"] == 1


async def test_a_login_that_does_not_come_back_ends_the_lease(autojump_clock: trio.testing.MockClock) -> None:
    """By then etcd has ended it. etcd is asked for few logins until then."""
    etcd = SlowEtcd(one=0.01)
    lease = HeldLease(store_on(etcd, user="cairn"), LEASE_S)
    begun_s = trio.current_time()

    async def refuse() -> None:
        await trio.sleep(0.5)
        refuse_logins(etcd)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)
            with pytest.raises(LeaseEnded):
                await lease.run()
            scope.cancel()
    assert LEASE_S * 1.5 < trio.current_time() - begun_s < LEASE_S * 3
    assert etcd.asked["one", LOGIN] < 30
