"""What is gathered in a burst goes when it ends, once; outside a burst it goes soon."""

import pytest
import trio
import trio.testing

from logstore.cluster.links.bursts import Bursts
from logstore.replica.messages import Message
from tests.cluster.links_world import LinkedHost, append, linked, look


def test_what_is_gathered_goes_at_the_end() -> None:
    """Of the outermost burst, in order, each callback once; what callbacks gather goes before it ends."""
    bursts, called = Bursts(), list[str]()

    def one() -> None:
        called.append("one")
        bursts.gather(three)

    def two() -> None:
        called.append("two")

    def three() -> None:
        assert bursts.is_open
        called.append("three")

    bursts.begin()
    for callback in (one, two, one):
        bursts.gather(callback)
    bursts.begin()
    bursts.end()
    assert not called
    bursts.end()
    assert called == ["one", "two", "three"]
    assert not bursts.is_open
    bursts.begin()
    bursts.end()
    assert called == ["one", "two", "three"]


def test_a_callback_that_fails_ends_the_burst() -> None:
    """Its error goes to whoever ended the burst, and the other callbacks go with the next one."""
    bursts, called = Bursts(), list[str]()

    def fail() -> None:
        raise OSError("no")

    bursts.begin()
    bursts.gather(fail)
    bursts.gather(lambda: called.append("other"))
    with pytest.raises(OSError, match="no"):
        bursts.end()
    assert not bursts.is_open
    bursts.flush()
    assert called == ["other"]


async def test_what_is_gathered_outside_a_burst_goes_soon() -> None:
    """By `flush`, or in a later turn; also what was gathered before `run`."""
    bursts = Bursts()
    event = trio.Event()
    bursts.gather(event.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bursts.run)
        with trio.fail_after(60):
            await event.wait()
            for _ in range(3):
                event = trio.Event()
                bursts.gather(event.set)
                assert not event.is_set()
                await event.wait()
        event = trio.Event()
        bursts.gather(event.set)
        bursts.flush()
        assert event.is_set()
        nursery.cancel_scope.cancel()


async def test_nobody_is_woken_for_what_its_caller_flushes() -> None:
    """It goes with that `flush`, or with the next burst."""
    bursts, called = Bursts(), list[str]()

    def call() -> None:
        called.append("call")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bursts.run)
        await trio.testing.wait_all_tasks_blocked()
        bursts.is_flush_coming = True
        bursts.gather(call)
        bursts.is_flush_coming = False
        await trio.testing.wait_all_tasks_blocked()
        assert not called
        bursts.flush()
        assert called == ["call"]
        bursts.gather(call)
        await trio.testing.wait_all_tasks_blocked()
        assert called == ["call", "call"]
        nursery.cancel_scope.cancel()


async def test_messages_of_a_burst_leave_when_it_ends() -> None:
    """Without a turn of the event loop; more than a socket takes at once follows behind, in order."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b):
        bursts, counts = a.links._own.bursts, a.links.counts["b"]
        before = counts.sent_bytes
        bursts.begin()
        a.links.send("b", look(0))
        a.links.send("b", look(1))
        assert counts.sent_bytes == before
        bursts.end()
        assert counts.sent_bytes > before
        assert a.links.queued_bytes("b") == 0
        sent: list[Message] = [look(0), look(1)]
        bursts.begin()
        for number in range(20):
            sent += [append(bytes(700_000)), look(number)]
            for message in sent[-2:]:
                a.links.send("b", message)
        bursts.end()
        sent.append(look(99))
        a.links.send("b", look(99))
        await b.until_received(len(sent))
        assert [message for _, message in b.seen.messages] == sent
        await a.seen.until(lambda: a.links.queued_bytes("b") == 0)
        assert counts.sent_messages == len(sent)
        assert counts.sent_bytes == b.links.counts["a"].received_bytes


async def test_messages_to_oneself_let_others_run() -> None:
    """Each causes the next: other tasks have their turns all the same."""
    a = LinkedHost("a")
    async with linked(a):
        a.seen.on_received = lambda host, message: a.links.send("a", look(0))
        bursts = a.links._own.bursts
        bursts.begin()
        a.links.send("a", look(0))
        bursts.end()
        for _ in range(10):
            before = len(a.seen.messages)
            await a.until_received(before + 1)
            assert len(a.seen.messages) < before + 1_000
        a.seen.on_received = lambda host, message: None
