"""What a command says of an address at which nobody answers, in pretended time."""

import socket

import pytest

from logstore.base.addresses import Address
from logstore.client.blocking import Client
from logstore.client.errors import Unavailable
from logstore.client.told_network import SILENT_S, TELL_S, ToldNetwork

REFUSING, SILENT, SERVING = Address("h", 1), Address("h", 2), Address("h", 3)
LIMIT_S = 60.0


class PretendedNetwork:
    """One address refuses, one says nothing, and one takes connections; time passes with sleeps and timeouts."""

    def __init__(self, *, serves_after_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._serves_after_s = serves_after_s

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """See Network."""
        if address == SILENT:
            self.now_s += timeout_s
            raise TimeoutError("timed out")
        if address == REFUSING or self.now_s < self._serves_after_s:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def monotonic_s(self) -> float:
        """See Network."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """See Network."""
        self.now_s += seconds


@pytest.mark.parametrize(("address", "why"), [(REFUSING, "Connection refused"), (SILENT, "no answer")])
def test_an_address_where_nobody_answers_is_named_soon(address: Address, why: str) -> None:
    """Within some two seconds, once, with why; the command goes on trying until its limit, and no longer: a silent
    address does not take the whole time that answers may take.
    """
    network, told = PretendedNetwork(), list[tuple[float, str]]()
    asked = ToldNetwork(LIMIT_S, network, lambda text: told.append((network.now_s, text)))
    with Client([address], asked, limit_s=LIMIT_S, request_timeout_s=500) as client, pytest.raises(Unavailable):
        client.topics()
    ((at_s, text),) = told
    assert at_s <= SILENT_S + 0.2
    assert text == f"cairn: no answer from {address} ({why}); retrying for 60 s in all"
    assert network.now_s >= LIMIT_S - 1
    assert network.now_s <= LIMIT_S + 1


def test_several_silent_addresses_share_the_time_of_a_strict_call() -> None:
    """A command's call ends at its limit, however many addresses it tries, and each of them is tried."""
    network, told = PretendedNetwork(), list[str]()
    asked = ToldNetwork(LIMIT_S, network, told.append)
    addresses = [Address("h", 2), Address("h", 2), REFUSING]
    with (
        Client(addresses, asked, limit_s=LIMIT_S, request_timeout_s=LIMIT_S, is_strict=True) as client,
        pytest.raises(Unavailable),
    ):
        client.topics()
    assert len(told) == 2
    assert LIMIT_S - 1 <= network.now_s <= LIMIT_S + 1


def test_a_sidecar_that_is_restarted_is_no_news() -> None:
    """Refused for less than TELL_S, and then there: nothing is said."""
    network, told = PretendedNetwork(serves_after_s=TELL_S * 0.9), list[str]()
    asked = ToldNetwork(LIMIT_S, network, told.append)
    while True:
        try:
            asked.connect(SERVING, 5).close()
            break
        except ConnectionRefusedError:
            asked.sleep(0.1)
    assert told == []
    assert network.now_s >= TELL_S * 0.9


def test_each_of_several_addresses_is_named() -> None:
    """Both addresses of a cluster's hosts are wrong: both are named, in the order of what is known of them."""
    network, told = PretendedNetwork(), list[str]()
    asked = ToldNetwork(LIMIT_S, network, told.append)
    with (
        Client([REFUSING, SILENT], asked, limit_s=LIMIT_S, request_timeout_s=5.0) as client,
        pytest.raises(Unavailable),
    ):
        client.topics()
    assert {text.split(" (")[0] for text in told} == {
        f"cairn: no answer from {REFUSING}", f"cairn: no answer from {SILENT}",
    }  # fmt: skip
