"""Clients with several addresses of a coordinator: they find who leads, ask nobody else, and take no longer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from logstore.testing.ports import free_port
from scheduler.client import (
    CoordinatorClient,
    CoordinatorError,
    CoordinatorUnavailable,
    Go,
    NotFound,
    NotUnderstood,
    Unauthorized,
    core,
)
from scheduler.client.addresses import MAX_ADDRESSES, AddressRound, Url, parse_addresses
from scheduler.client.errors import LedElsewhere
from scheduler.client.trio_client import TrioCoordinatorClient
from scheduler.coordinator.testing import CoordinatorProcess
from tests.coordinator.support import Reply, stand_in, topology_file
from tests.support.limits import PATIENCE_S

HERE = Reply(200, {"here": 1})
OTHER_TOKEN = Reply(401, {"error": "the token is missing or wrong"})
NOBODY_LEADS = Reply(503, {"error": "nobody leads"}, headers={"Retry-After": "0"})
Ask = Callable[[core.ApiRequest], dict[str, Any]]


def leads(url: str) -> Reply:
    """What a host that stands by answers: this one leads."""
    return Reply(307, {}, headers={"Location": f"{url}/v1/status?of=the-leader"})


class Hosts:
    """Stand-ins for the coordinators of a cluster, each with what it answers at present, and all that was asked."""

    def __init__(self, urls: Sequence[str], replies: list[Reply], asked: list[tuple[int, str]]) -> None:
        self.urls, self.replies, self.asked = urls, replies, asked
        self.later: list[Reply] | None = None
        """The answers as soon as each host has been asked."""

    def reply(self, number: int, what: str) -> Reply:
        """What this host answers."""
        self.asked.append((number, what))
        found = self.replies[number]
        if self.later is not None and len({host for host, _ in self.asked}) == len(self.urls):
            self.replies[:], self.later = self.later, None
        return found

    def who(self) -> list[int]:
        """The hosts that were asked, in order, since the last question."""
        found = [number for number, _ in self.asked]
        self.asked.clear()
        return found


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """So many of them."""
    found = Hosts([], [HERE] * count, [])
    with ExitStack() as stack:
        found.urls = [stack.enter_context(stand_in(partial(found.reply, number))) for number in range(count)]
        yield found


def with_both(urls: Sequence[str], use: Callable[[Ask], None], **settings: Any) -> None:
    """Use a blocking client of these addresses, then one for trio from a thread of its own."""
    text = ", ".join(urls)
    with CoordinatorClient(text, **settings) as client:
        use(client.call)

    async def main() -> None:
        async with TrioCoordinatorClient(text, **settings) as client:
            await trio.to_thread.run_sync(use, lambda request: trio.from_thread.run(client.call, request))

    trio.run(main)


# ---- which address


def test_the_leader_is_followed_and_remembered() -> None:
    """A host that stands by sends a request on, whatever its method; the next request goes to the leader at once."""
    with hosts(3) as found:
        found.replies[:2] = [leads(found.urls[2])] * 2

        def use(ask: Ask) -> None:
            assert ask(core.registration("h", "address")) == {"here": 1}
            assert found.asked == [(0, "POST /v1/hosts"), (2, "POST /v1/hosts")]
            found.asked.clear()
            ask(core.STATUS)
            ask(core.host("DELETE", "h"))
            assert found.who() == [2, 2]

        with_both(found.urls, use)


def test_a_leader_that_leaves_is_found_again() -> None:
    """While nobody leads all are asked again and again; who leads next is found, and remembered."""
    with hosts(3) as found:

        def use(ask: Ask) -> None:
            found.replies[:] = [HERE, leads(found.urls[0]), leads(found.urls[0])]
            ask(core.STATUS)
            assert found.who() == [0]
            found.replies[:] = [NOBODY_LEADS] * 3
            found.later = [leads(found.urls[1]), HERE, leads(found.urls[1])]
            ask(core.STATUS)
            assert {0, 1, 2} <= set(found.who())
            ask(core.STATUS)
            assert found.who() == [1]

        with_both(found.urls, use)


def answers(ask: Ask) -> None:
    """A use of a client: it gets an answer."""
    assert ask(core.STATUS) == {"here": 1}


def test_a_host_that_is_gone_costs_no_keep_alive() -> None:
    """Nobody listens at the first address: a single request without patience, as a keep-alive is, finds the leader."""
    with hosts(2) as found:
        found.replies[0] = leads(found.urls[1])
        with_both([f"http://127.0.0.1:{free_port()}", *found.urls], answers, patience_s=0)
        assert found.who() == [0, 1, 0, 1]


def test_a_frozen_leader_is_not_waited_for() -> None:
    """It takes connections and answers nothing, and the others still say that it leads, until one of them does."""
    with hosts(2) as found, socket.create_server(("127.0.0.1", 0)) as server:
        frozen = f"http://127.0.0.1:{server.getsockname()[1]}"
        found.replies[0] = leads(frozen)
        with_both([frozen, *found.urls], answers, timeout_s=0.2, patience_s=PATIENCE_S)
        assert 1 in found.who()


def test_an_answer_of_the_leader_is_final() -> None:
    """What the leader refuses is an error at once; no other host is asked."""
    with hosts(2) as found:
        found.replies[:] = [Reply(404, {"error": "no such request"}), HERE]

        def use(ask: Ask) -> None:
            with pytest.raises(NotFound):
                ask(core.request("GET", "unknown"))
            assert found.who() == [0]

        with_both(found.urls, use)


def test_an_address_that_is_no_coordinators_any_more_hides_no_leader() -> None:
    """Something else listens at the first address: the leader is asked, and remembered. Where it is the only address,
    the error comes at once.
    """
    with hosts(2) as found:
        found.replies[:] = [Reply(404, body=b"<html>no such page</html>"), HERE]

        def use(ask: Ask) -> None:
            assert ask(core.STATUS) == ask(core.STATUS) == {"here": 1}
            assert found.who() == [0, 1, 1]

        def use_one(ask: Ask) -> None:
            with pytest.raises(NotUnderstood):
                ask(core.STATUS)
            assert found.who() == [0]

        with_both(found.urls, use)
        with_both(found.urls[:1], use_one)


def test_a_host_with_another_token_hides_no_leader() -> None:
    """A token is changed host by host: a host that refuses the new one is passed over, the leader that accepts it is
    found and remembered.
    """
    with hosts(3) as found:

        def use(ask: Ask) -> None:
            found.replies[:] = [OTHER_TOKEN, leads(found.urls[2]), HERE]
            assert ask(core.STATUS) == ask(core.STATUS) == {"here": 1}
            assert found.who() == [0, 1, 2, 2]

        with_both(found.urls, use, token="the-new-token-of-all", patience_s=0)


def test_a_token_is_wrong_when_every_host_refuses_it() -> None:
    """Each of them is asked once, whatever the patience; a single one is asked once too."""
    for count in (1, 2):
        with hosts(count) as found:
            found.replies[:] = [OTHER_TOKEN] * count

            def use(ask: Ask, found: Hosts = found) -> None:
                with pytest.raises(Unauthorized, match="missing or wrong") as caught:
                    ask(core.STATUS)
                assert caught.value.status == 401
                assert found.who() == list(range(len(found.urls)))

            with_both(found.urls, use, patience_s=PATIENCE_S)


def test_a_leader_that_restarts_is_waited_for_though_another_host_refuses_the_token() -> None:
    """The host with the new token does not lead yet, the other has the old token: both are asked again for the client's
    patience, and its error says what each of them said.
    """
    with hosts(2) as found:

        def use(ask: Ask) -> None:
            found.replies[:], found.later = [OTHER_TOKEN, NOBODY_LEADS], [OTHER_TOKEN, HERE]
            assert ask(core.STATUS) == {"here": 1}
            found.who()

        def use_once(ask: Ask) -> None:
            found.replies[:] = [OTHER_TOKEN, NOBODY_LEADS]
            with pytest.raises(CoordinatorUnavailable, match=r"missing or wrong.*nobody leads"):
                ask(core.STATUS)
            assert found.who() == [0, 1]

        with_both(found.urls, use, patience_s=PATIENCE_S)
        with_both(found.urls, use_once, patience_s=0)


def test_only_the_addresses_that_were_given_are_asked() -> None:
    """The token is the user's: whoever else an answer names gets no request, and the error names it."""
    with hosts(3) as found:
        found.replies[:2] = [leads(found.urls[2])] * 2
        said = f"{found.urls[2]}.*none of the addresses given"

        def use(ask: Ask) -> None:
            with pytest.raises(CoordinatorUnavailable, match=said):
                ask(core.STATUS)
            assert sorted(found.who()) == [0, 1]

        with_both(found.urls[:2], use, token="a-secret-of-the-user", patience_s=0)
        with_one = CoordinatorClient(found.urls[0], token="a-secret-of-the-user", patience_s=0)
        with with_one as client, pytest.raises(CoordinatorUnavailable, match=said):
            client.status()
        assert found.who() == [0]


@pytest.mark.parametrize("location", ["", "nonsense", "http://[", "ftp://127.0.0.1:1/", "//127.0.0.1:1", "http://:5"])
def test_a_location_that_is_none_is_as_good_as_none(location: str) -> None:
    """The next address is asked."""
    with hosts(2) as found:
        found.replies[0] = Reply(307, {}, headers={"Location": location})
        with_both(found.urls, answers, patience_s=0)


def test_hosts_that_name_each_other_are_no_loop() -> None:
    """A round asks each host once; the error says what each of them said."""
    with hosts(2) as found:
        found.replies[:] = [leads(found.urls[1]), leads(found.urls[0])]

        def use(ask: Ask) -> None:
            with pytest.raises(CoordinatorUnavailable, match=f"{found.urls[0]}: says .*; {found.urls[1]}: says "):
                ask(core.STATUS)
            assert found.who() == [0, 1]

        with_both(found.urls, use, patience_s=0)


def test_addresses_are_checked() -> None:
    """Each of them must be an address, all with TLS or all without; a client has no more than it can ask in a round."""
    assert parse_addresses(" http://a:1,http://b , http://a:1") == (Url(False, "a", 1), Url(False, "b", 9880))
    for text, said in (
        ("http://a:1,", "''"),
        ("http://a:1,b:2", "'b:2'"),
        ("http://a:1,https://b:2", "some addresses are http"),
        (",".join(f"http://h{number}" for number in range(MAX_ADDRESSES + 1)), "at most 16"),
    ):
        with pytest.raises(CoordinatorError, match=said):
            parse_addresses(text)


# ---- how long

ADDRESSES = tuple(Url(False, f"h{number}", 1) for number in range(MAX_ADDRESSES))
ELSEWHERE = Url(False, "elsewhere", 1)
SLACK_S = 1e-6


@given(
    st.integers(1, len(ADDRESSES)),
    st.floats(0.1, 60),
    st.sampled_from([0.0, 5.0, 30.0]),
    st.data(),
)
def test_a_round_asks_each_once_and_takes_no_longer_than_one_address(
    count: int, timeout_s: float, wait_s: float, data: st.DataObject
) -> None:
    """However long each of them takes of the time that it has, and whoever it says leads."""
    addresses = ADDRESSES[:count]
    first = data.draw(st.integers(0, count - 1))
    now_s = 100.0
    asked = AddressRound(addresses, first, now_s, timeout_s, wait_s)
    seen: list[Url] = []
    end_s = now_s + timeout_s + wait_s
    while True:
        seen.append(asked.at)
        assert now_s + asked.limit_s(now_s) <= end_s + SLACK_S
        now_s += data.draw(st.sampled_from([0.0, 0.5, 1.0])) * asked.limit_s(now_s)
        said = data.draw(st.sampled_from([*addresses, ELSEWHERE, None]))
        error: Exception = TimeoutError() if said is None else LedElsewhere(f"{said}/v1/status")
        expected = said if said in addresses and said not in seen else None
        if not asked.goes_on(error, now_s):
            break
        assert expected is None or asked.at == expected
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(addresses)
    assert now_s <= end_s + SLACK_S


def test_patience_ends_with_all_addresses() -> None:
    """Nobody listens at any of them: CoordinatorUnavailable after `patience_s`, with what became of each."""
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(4)]

    def use(ask: Ask) -> None:
        with pytest.raises(CoordinatorUnavailable) as caught:
            ask(core.STATUS)
        assert all(f"{url}: " in str(caught.value) for url in urls)

    with_both(urls, use, patience_s=0.1)


# ---- the whole way


def test_a_writer_goes_on_at_the_next_leader(tmp_path: Path) -> None:
    """The leader is killed while a writer waits for its go, another reports and a host is kept alive; the next leader
    has the state, and another address. All three go on, with one client and without an error.
    """
    path, _ = topology_file(tmp_path)
    ports = free_port(), free_port()
    url = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    flags = ("--planner", "paper")
    with ExitStack() as stack:
        leader = stack.enter_context(CoordinatorProcess(path, tmp_path / "data", *flags, port=ports[0]))
        client = stack.enter_context(CoordinatorClient(url, patience_s=PATIENCE_S))
        client.register("r2h4", "address")
        first = client.submit(writer="r1h1", chunks=2)
        gos = list(zip(range(2), first.goes(), strict=False))
        second = client.submit(writer="r1h1", chunks=1)
        came: Queue[Go] = Queue()

        def wait() -> None:
            for go in second.goes():
                came.put(go)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        leader.kill()
        stack.enter_context(CoordinatorProcess(path, tmp_path / "data", *flags, port=ports[1]))
        assert [go.done() for _, go in gos] == [True, True]
        assert came.get(timeout=PATIENCE_S).done()
        waiter.join(PATIENCE_S)
        assert second.state == "finished"
        client.alive("r2h4")
