"""Hosts are asked for a sign of life: who waits for it, for how long, and which signs count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from logstore.cluster.streams.owner_calls import BOUNDS
from logstore.cluster.streams.signs_of_life import LOOK_S, PATIENCE_S, SILENT_S, SignsOfLife
from logstore.errors import HostUnreachable
from logstore.format.fields import decode_fields
from logstore.interfaces import Buffer

ANSWER_S = 0.01


class Hosts:
    """Other hosts, by their calls: a host answers after its time, or never."""

    def __init__(self, **answer_s: float) -> None:
        self.answer_s = answer_s
        self.linked = set(answer_s)
        self.asked: list[tuple[str, float]] = []
        self.under_way = self.most_under_way = 0

    async def call(self, host: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """See Calls."""
        assert kind == BOUNDS
        assert decode_fields(payload[0])[0] == {"streams": []}
        self.asked.append((host, trio.current_time()))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if host not in self.linked:
                raise HostUnreachable(host)
            asked_s = trio.current_time()
            while trio.current_time() < asked_s + self.answer_s[host]:  # noqa: ASYNC110 - it may become quick meanwhile
                await trio.sleep(ANSWER_S / 10)
        finally:
            self.under_way -= 1
        return memoryview(b"")

    @property
    def signs(self) -> SignsOfLife:
        """Of these hosts, for host `a`."""
        return SignsOfLife("a", self, self.linked.__contains__, trio.lowlevel.spawn_system_task)


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run in time that passes when all tasks wait."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def about(time_s: float) -> Any:
    """A time, or a look later."""
    return pytest.approx(time_s + LOOK_S / 2, abs=LOOK_S * 0.6)


async def waited_s(signs: SignsOfLife, *hosts: str) -> float:
    """For how long a client waits."""
    begun_s = trio.current_time()
    await signs.wait(hosts)
    return trio.current_time() - begun_s


def test_who_answers_is_waited_for_and_this_host_is_not_asked() -> None:
    """All are asked at once."""

    async def main() -> None:
        hosts = Hosts(b=ANSWER_S, c=2 * ANSWER_S)
        signs = hosts.signs
        assert await waited_s(signs, "a", "b", "c") == about(2 * ANSWER_S)
        assert [host for host, _ in hosts.asked if host == "a"] == []
        assert await waited_s(signs, "a") == 0

    in_virtual_time(main)


def test_a_host_that_is_silent_is_waited_for_once_in_a_while() -> None:
    """It may be busy or cut off: clients that ask again are not to wait each time."""

    async def main() -> None:
        hosts = Hosts(b=10 * SILENT_S, c=ANSWER_S)
        signs = hosts.signs
        assert await waited_s(signs, "b") == about(PATIENCE_S)
        assert await waited_s(signs, "b") == 0
        assert await waited_s(signs, "b", "c") == about(ANSWER_S)
        await trio.sleep(1.5 * SILENT_S)
        assert await waited_s(signs, "b") == about(PATIENCE_S)
        hosts.answer_s["b"] = ANSWER_S
        await trio.sleep(1.5 * SILENT_S)
        assert await waited_s(signs, "b") == about(ANSWER_S)
        assert await waited_s(signs, "b") == about(ANSWER_S)

    in_virtual_time(main)


def test_nobody_waits_for_a_host_whose_link_has_ended() -> None:
    """Its calls fail before that is seen, or hang; then it is no silent one."""

    async def main() -> None:
        hosts = Hosts(b=10 * SILENT_S)
        signs = hosts.signs
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(_end_link, hosts, 4 * LOOK_S))
                assert await waited_s(signs, "b") == about(4 * LOOK_S)
            hosts.linked.add("b")

    in_virtual_time(main)


async def _end_link(hosts: Hosts, after_s: float) -> None:
    await trio.sleep(after_s)
    hosts.linked.clear()


def test_a_sign_from_before_a_client_has_asked_does_not_count() -> None:
    """Clients that come while a question is under way share the next one, which is put when that is answered."""

    async def main() -> None:
        hosts = Hosts(b=ANSWER_S)
        signs, ended_s = hosts.signs, list[float]()

        async def client(after_s: float) -> None:
            await trio.sleep(after_s)
            await signs.wait(["b"])
            ended_s.append(trio.current_time() - begun_s)

        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(client, number * ANSWER_S / 5)
        assert len(hosts.asked) == 2
        assert hosts.most_under_way == 1
        assert ended_s == [about(ANSWER_S), *[about(2 * ANSWER_S)] * 3]

    in_virtual_time(main)


def test_a_client_that_goes_takes_no_answer_away_from_the_others() -> None:
    """A question that they share is answered all the same."""

    async def main() -> None:
        hosts = Hosts(b=ANSWER_S)
        signs = hosts.signs
        async with trio.open_nursery() as nursery:
            nursery.start_soon(signs.wait, ["b"])
            await trio.sleep(ANSWER_S / 4)
            with trio.CancelScope() as gone:
                async with trio.open_nursery() as others:
                    others.start_soon(signs.wait, ["b"])
                    await trio.sleep(ANSWER_S / 4)
                    nursery.start_soon(signs.wait, ["b"])
                    await trio.sleep(ANSWER_S)
                    gone.cancel()
        assert len(hosts.asked) == 2
        assert hosts.under_way == 0

    in_virtual_time(main)


def test_a_question_to_a_busy_host_is_not_given_up() -> None:
    """To give up a call in the middle of its bytes ends all calls to that host. It is one question, however many wait:
    those behind the first share the next one.
    """

    async def main() -> None:
        hosts = Hosts(b=10 * SILENT_S)
        signs = hosts.signs
        for _ in range(4):
            assert await waited_s(signs, "b") == about(PATIENCE_S)
            assert (len(hosts.asked), hosts.under_way) == (1, 1)
            await trio.sleep(1.5 * SILENT_S)
        hosts.answer_s["b"] = ANSWER_S
        assert await waited_s(signs, "b") <= 2 * ANSWER_S
        assert (len(hosts.asked), hosts.under_way) == (2, 0)

    in_virtual_time(main)
