"""A host with links in a process of its own: `python -m tests.cluster_processes.link_process NAME PEER PEER-PORT`.

It writes its port to standard output, and `connected` when it is connected; it sends what it gets from the peer back to
it, and ends when it is killed.
"""

import sys

import trio

from logstore.base.addresses import Address
from logstore.cluster.links.peers import Peer
from logstore.replica.messages import Message
from tests.cluster.links_world import LOOPBACK, LinkedHost


async def main(name: str, peer: str, port: int) -> None:
    """Serve until killed."""
    host = LinkedHost(name)

    def echo(sender: str, message: Message) -> None:
        host.links.send(sender, message)

    host.seen.on_received = echo
    async with trio.open_nursery() as nursery:
        await host.start(nursery)
        print(host.address.port, flush=True)
        host.links.set_peers({peer: Peer(Address(LOOPBACK, port), f"disk-{peer}")})
        await host.until_connected([peer])
        print("connected", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
