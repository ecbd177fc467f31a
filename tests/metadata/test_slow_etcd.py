"""An etcd that gets too little processor time: its answers are waited for, and leases do not lapse for want of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
import trio
import trio.testing

from logstore.base.events import ignore
from logstore.base.metadata.errors import LeaseEnded, MetadataUnavailable
from logstore.base.metadata.etcd.attempts import SLICE_S, AttemptLimits, AttemptTime
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.etcd.transport import MAX_CONNECTIONS
from logstore.base.metadata.held_lease import HeldLease
from logstore.base.metadata.interface import Transaction
from tests.metadata.slow_etcd import ANSWERS, ONE, TWO, SlowEtcd, store_on
from tests.support.limits import PATIENCE_S

WATCHES = 8


async def watch_for(etcd: SlowEtcd, seconds: float, beside: Callable[[EtcdMetadataStore], Awaitable[None]]) -> None:
    """WATCHES watches that are told nothing, for so long."""
    etcd.is_quiet = True
    store = store_on(etcd, (ONE, TWO))

    async def watch() -> None:
        async with store.watch("", 1) as changes:
            await changes.receive()

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(WATCHES):
                nursery.start_soon(watch)
            nursery.start_soon(beside, store)


async def nothing(_: EtcdMetadataStore) -> None:
    """Beside the watches."""


# ---- watches that are told nothing


async def test_quiet_watches_ask_once_for_all(autojump_clock: trio.testing.MockClock) -> None:
    """Of several watches on an endpoint that says nothing, one asks whether it is alive, about once a second."""
    etcd = SlowEtcd(one=0.01)
    await watch_for(etcd, 30.0, nothing)
    assert etcd.asked["one", "watch"] == WATCHES
    assert 30 <= etcd.asked["one", "kv/range"] <= 60


async def test_other_calls_say_that_an_endpoint_is_alive(autojump_clock: trio.testing.MockClock) -> None:
    """Where calls are answered all the time, no watch asks."""

    async def change(store: EtcdMetadataStore) -> None:
        while True:
            await store.commit(Transaction((), ()))
            await trio.sleep(0.3)

    etcd = SlowEtcd(one=0.01)
    await watch_for(etcd, 30.0, change)
    assert etcd.asked["one", "kv/range"] == 0
    assert etcd.asked["one", "kv/txn"] > 90


@pytest.mark.parametrize("pause_s", [0.3, 100.0])
async def test_quiet_watches_leave_a_frozen_endpoint(autojump_clock: trio.testing.MockClock, pause_s: float) -> None:
    """Within `watch_idle_s` and one attempt all of them are elsewhere, however lately other calls were answered."""

    async def freeze(store: EtcdMetadataStore) -> None:
        for _ in range(int(10.0 / pause_s)):
            await store.commit(Transaction((), ()))
            await trio.sleep(pause_s)
        await trio.sleep_until(10.0)
        etcd.delays_s["one"] = float("inf")

    etcd = SlowEtcd()
    await watch_for(etcd, 10.0 + 1.0 + 1.0 + 0.2, freeze)
    assert etcd.asked["two", "watch"] == WATCHES


# ---- the limit of an attempt


async def test_the_limit_follows_what_answers_take(autojump_clock: trio.testing.MockClock) -> None:
    """The least one while all is quick; three times the longest answer lately; doubled by rounds; never too long."""
    limits = AttemptLimits(1.0, 5.0)
    limits.answered(0.01)
    assert [limits.limit_s(rounds) for rounds in range(4)] == [1.0, 2.0, 4.0, 5.0]
    limits.answered(0.9)
    assert limits.limit_s() == pytest.approx(2.7)
    limits.answered(3.0)
    assert limits.limit_s() == 5.0
    await trio.sleep(100)
    assert limits.limit_s() == 1.0
    assert AttemptLimits(60.0, 5.0).limit_s(3) == 60.0


@pytest.mark.parametrize("stall_s", [0.0, 30.0])
async def test_a_stall_of_this_process_ends_no_attempt(autojump_clock: trio.testing.MockClock, stall_s: float) -> None:
    """An attempt is over when its time has passed while the loop was running; a stall counts for a moment."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AttemptTime().cancel_after, 1.0, scope)
            await trio.sleep(0.5)
            autojump_clock.jump(stall_s)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            assert not scope.cancel_called
            await trio.sleep(0.5 + SLICE_S)
    assert scope.cancelled_caught


async def test_a_slow_etcd_is_asked_once(autojump_clock: trio.testing.MockClock) -> None:
    """Where every answer takes 1.5 s, one call learns that; further ones are not given up and asked again."""
    etcd = SlowEtcd(one=1.5)
    store = store_on(etcd)
    await store.get("a")
    assert etcd.asked["one", "kv/range"] == 2
    for _ in range(5):
        await store.get("a")
    assert etcd.asked["one", "kv/range"] == 7
    assert store.statistics.attempts_failed == 1


async def test_a_frozen_endpoint_is_left_as_before(autojump_clock: trio.testing.MockClock) -> None:
    """The other one was quick, so the one that does not answer has the least time."""
    etcd = SlowEtcd()
    store = store_on(etcd, (ONE, TWO))
    await store.get("a")
    etcd.delays_s["one"] = 1_000.0
    begun_s = trio.current_time()
    await store.get("a")
    assert trio.current_time() - begun_s < 1.0 + 2 * SLICE_S
    assert etcd.asked["two", "kv/range"] == 1


async def test_a_stall_of_this_process_teaches_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """An answer that was there all the time of a stall was quick: a frozen endpoint is left as soon as without it."""
    etcd = SlowEtcd(one=0.05)
    store = store_on(etcd, (ONE, TWO))
    for stall_s in (4.0, 30.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, "a")
            await trio.sleep(0.01)
            autojump_clock.jump(stall_s)
    etcd.delays_s["one"] = 1_000.0
    begun_s = trio.current_time()
    await store.get("a")
    assert trio.current_time() - begun_s < 1.0 + 2 * SLICE_S
    assert (etcd.asked["one", "kv/range"], etcd.asked["two", "kv/range"]) == (3, 1)


async def test_a_watch_waits_for_the_others_of_a_member_that_is_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A member that begins the watch is behind what was seen, and no majority says whether that is damage: it waits."""
    etcd = SlowEtcd()
    etcd.silent.add("kv/range")
    store = store_on(etcd)
    async with store.watch("", 5) as watch:
        with trio.move_on_after(60) as scope:
            await watch.receive()
    assert scope.cancelled_caught
    assert etcd.asked["one", "watch"] > 1


# ---- leases


def is_held(lease: HeldLease) -> bool:
    """Whether it is held now; mypy takes a property for constant."""
    return lease.held


async def test_a_lease_is_granted_beside_a_frozen_endpoint(autojump_clock: trio.testing.MockClock) -> None:
    """The next endpoint is asked when any other call would leave the first one; both are asked once."""
    etcd = SlowEtcd(one=1_000.0)
    store = store_on(etcd, (ONE, TWO))
    begun_s = trio.current_time()
    assert (await store.grant_lease(3)).lease_id == 7
    assert trio.current_time() - begun_s < 1.0 + 2 * SLICE_S
    assert (etcd.asked["one", "lease/grant"], etcd.asked["two", "lease/grant"]) == (1, 1)
    assert not store.statistics.away


async def test_slow_endpoints_grant_a_lease_each(autojump_clock: trio.testing.MockClock) -> None:
    """Whichever answer comes first counts, and the first one that is slow teaches how long to wait: further leases are
    granted once. An endpoint that is alone is asked once.
    """
    etcd = SlowEtcd(one=1.5, two=1.5)
    store = store_on(etcd, (ONE, TWO))
    begun_s = trio.current_time()
    await store.grant_lease(3)
    assert trio.current_time() - begun_s == pytest.approx(1.5)
    for _ in range(3):
        await store.grant_lease(3)
    assert (etcd.asked["one", "lease/grant"], etcd.asked["two", "lease/grant"]) == (4, 1)
    await store_on(etcd).grant_lease(3)
    assert etcd.asked["one", "lease/grant"] == 5


async def test_where_no_endpoint_grants_a_lease(autojump_clock: trio.testing.MockClock) -> None:
    """It is said in bounded time, and no endpoint is asked more often than its attempts may take."""
    etcd = SlowEtcd(one=1_000.0, two=1_000.0)
    store = store_on(etcd, (ONE, TWO))
    settings = EtcdSettings(endpoints=(ONE, TWO))
    begun_s = trio.current_time()
    with pytest.raises(MetadataUnavailable, match="did not answer within"):
        await store.grant_lease(3)
    took_s = trio.current_time() - begun_s
    assert took_s < settings.patience_s + 2 * settings.longest_attempt_s
    assert sum(etcd.asked.values()) <= 2 * (took_s / settings.longest_attempt_s + 1)


async def test_a_lease_outlasts_slow_answers(autojump_clock: trio.testing.MockClock) -> None:
    """Each answer takes 1.5 s, half of the lease: it is held all the time, for calls do not wait for one another."""
    etcd = SlowEtcd()
    lease = HeldLease(store_on(etcd), 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        etcd.delays_s["one"] = 1.5
        for _ in range(600):
            await trio.sleep(0.1)
            assert is_held(lease)
        etcd.delays_s["one"] = 0.0
        nursery.cancel_scope.cancel()
    assert etcd.asked["one", "lease/grant"] == 1


async def test_a_lease_outlasts_an_endpoint_that_freezes(autojump_clock: trio.testing.MockClock) -> None:
    """The next call is sent to the other endpoint, while the one to the frozen endpoint waits still."""
    etcd = SlowEtcd()
    lease = HeldLease(store_on(etcd, (ONE, TWO)), 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        await trio.sleep(2)
        etcd.delays_s["one"] = 1_000.0
        for _ in range(100):
            await trio.sleep(0.1)
            assert is_held(lease)
        nursery.cancel_scope.cancel()


async def test_a_holder_that_stood_still_keeps_its_lease(autojump_clock: trio.testing.MockClock) -> None:
    """For as long as the store may have ended it, it is not held; the store says that it lasts, and it is held again:
    what is bound to it is never taken away.
    """
    etcd = SlowEtcd(one=0.01)
    lease = HeldLease(store_on(etcd), 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(lease.run)
        await trio.sleep(0.5)
        autojump_clock.jump(2.4)
        assert not is_held(lease)
        await trio.sleep(0.5)
        assert is_held(lease)
        nursery.cancel_scope.cancel()
    assert etcd.asked["one", "lease/grant"] == 1


async def test_a_lease_of_which_nothing_is_heard_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    """Not for ever: behind a lease's time without certainty it is given up."""
    etcd = SlowEtcd()
    lease = HeldLease(store_on(etcd), 3)
    begun_s = trio.current_time()

    async def fall_silent() -> None:
        await trio.sleep(0.5)
        etcd.delays_s["one"] = 1_000.0

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fall_silent)
            with pytest.raises(LeaseEnded, match="lease 7 has ended"):
                await lease.run()
            scope.cancel()
    assert 5.0 < trio.current_time() - begun_s < 8.0
    assert not is_held(lease)


class StuckEtcd:
    """Answers calls about leases, and nothing else, on real connections."""

    def __init__(self) -> None:
        self.stuck = 0
        self._more = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        """See trio.serve_tcp."""
        received = b""
        async for part in stream:
            received += part
            if b"\r\n\r\n" not in received or not received.rstrip().endswith(b"}"):
                continue
            path = received.split(b" ", 2)[1].decode().removeprefix("/v3/")
            if not path.startswith("lease/"):
                self.stuck += 1
                self._more.set()
                await trio.sleep_forever()
            received, body = b"", json.dumps(ANSWERS[path]).encode()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def all_stuck(self) -> None:
        """Wait until all connections of calls are in use."""
        while self.stuck < MAX_CONNECTIONS:
            self._more = trio.Event()
            await self._more.wait()


async def test_calls_do_not_hold_up_leases() -> None:
    """As many calls as there are connections for wait for an answer that does not come: a lease is kept alive."""
    etcd = StuckEtcd()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), etcd.serve, 0)
            endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
            settings = EtcdSettings(endpoints=(endpoint,), attempt_s=2 * PATIENCE_S)
            async with open_etcd(settings, Random(0), ignore) as store, trio.open_nursery() as calls:
                for _ in range(MAX_CONNECTIONS + 1):
                    calls.start_soon(store.get, "a")
                await etcd.all_stuck()
                assert (await store.keep_alive(7)).ttl_s == 3
                calls.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
