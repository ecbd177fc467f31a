"""Links through a network that cuts, garbles and holds back: what arrives was sent, in order, and links come back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import trio

from logstore.base.addresses import Address
from logstore.cluster.links.peers import Peer
from logstore.replica.messages import LookAtRegistration, Message, StreamRates
from tests.cluster.links_world import LOOPBACK, SETTINGS, LinkedHost, append, look


class BadNetwork:
    """Carries connections to a host; breaks each of them somewhere, until it is healed."""

    def __init__(self, target: Address, random: Random) -> None:
        self._target = target
        self._random = random
        self.is_healed = False
        self.faults: list[str] = []

    async def serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._carry, listeners)

    async def _carry(self, near: trio.SocketStream) -> None:
        try:
            async with await trio.open_tcp_stream(*self._target) as far, trio.open_nursery() as nursery:
                limit = self._random.choice((5, 40, 3_000, 100_000))
                nursery.start_soon(self._copy, near, far, self._random.randrange(limit), nursery.cancel_scope)
                nursery.start_soon(self._copy, far, near, self._random.randrange(limit), nursery.cancel_scope)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, fault_at: int, scope: trio.CancelScope
    ) -> None:
        done = 0
        while piece := bytearray(await source.receive_some(self._random.choice((1, 100, 65_536)))):
            if not self.is_healed and done + len(piece) > fault_at:
                fault = self._random.choice(("garble", "cut", "shorten"))
                self.faults.append(fault)
                if fault == "garble":
                    piece[fault_at - done] ^= 1 << self._random.randrange(8)
                elif fault == "shorten":
                    del piece[fault_at - done]
                else:
                    break
                fault_at = done + len(piece) + self._random.randrange(10_000)
            done += len(piece)
            await target.send_all(piece)
        scope.cancel()


def number_of(message: Message) -> int:
    """The number that the test gave to a message."""
    if isinstance(message, StreamRates):
        return message.rates[0][1]
    return message.revision if isinstance(message, LookAtRegistration) else message.epoch


@pytest.mark.parametrize("seed", range(5))
async def test_a_bad_network(seed: int) -> None:
    """Through any cuts and flipped bits each message arrives whole, once and in order, or not at all; when the network
    is good again, so is the link.
    """
    random = Random(seed)
    settings = replace(SETTINGS, handshake_s=1.0)  # for what is missing of a hello
    a, b = LinkedHost("a", settings=settings), LinkedHost("b", settings=settings)
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        network = BadNetwork(b.address, random)
        b.links.set_peers({"a": a.peer})
        a.links.set_peers({"b": Peer(Address(LOOPBACK, await nursery.start(network.serve)), b.me.disk)})
        sent: dict[int, Message] = {}

        async def send_on() -> None:
            while True:
                number = len(sent)
                if random.random() < 0.8:
                    sent[number] = look(number)
                else:
                    sent[number] = append(random.randbytes(random.choice((0, 1000, 100_000))), epoch=number)
                a.links.send("b", sent[number])
                await trio.sleep(0.001)

        nursery.start_soon(send_on)
        await a.seen.until(lambda: len(network.faults) >= 15)
        network.is_healed = True
        before = len(sent)
        await b.seen.until(lambda: b.seen.messages and number_of(b.seen.messages[-1][1]) > before + 100)
        arrived = [message for _, message in b.seen.messages]
        numbers = [number_of(message) for message in arrived]
        assert numbers == sorted(set(numbers))
        assert all(sent[number] == message for number, message in zip(numbers, arrived, strict=True))
        assert {name for name, _ in a.seen.events + b.seen.events} <= {
            *("peer_connected", "peer_lost", "peer_not_reached", "peer_disconnected", "link_closed"),
            *("peer_slow", "peer_slow_over"),  # where the network gets too little processor time
        }
        nursery.cancel_scope.cancel()
