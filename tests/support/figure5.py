"""A topology as the directed graph of the paper's figure 5, for tests that read the paper literally."""

import networkx as nx

from scheduler.topology import UNLIMITED, Topology, disk_capacity


def figure5_graph(topology: Topology) -> "nx.DiGraph[tuple[str, str]]":
    """The directed graph of figure 5, edges with `cost` and `capacity`.

    Vertices are pairs of a kind (`snd`, `up`, `dn`, `rcv`, `disk` of a server, `sw` of a switch) and a name. As in the
    paper, a wire costs 1 (`snd` to `up`, `dn` to `rcv`, switch to switch) and a passage inside a switch 0 (`up` to
    `sw`, `sw` to `dn`). What a wire carries is the capacity of its edge, so passages need none. Beyond the paper, a
    disk is a vertex behind `rcv`; a replica on the writer's own host passes no edge and takes the disk's capacity
    alone.
    """
    graph: nx.DiGraph[tuple[str, str]] = nx.DiGraph()
    for server in topology.servers:
        snd, up, dn, rcv, disk = ((kind, server.name) for kind in ("snd", "up", "dn", "rcv", "disk"))
        switch = ("sw", server.rack)
        graph.add_edge(snd, up, cost=1, capacity=server.send)
        graph.add_edge(up, switch, cost=0, capacity=UNLIMITED)
        graph.add_edge(switch, dn, cost=0, capacity=UNLIMITED)
        graph.add_edge(dn, rcv, cost=1, capacity=server.receive)
        graph.add_edge(rcv, disk, cost=0, capacity=disk_capacity(server))
    for link in topology.links:
        graph.add_edge(("sw", link.source), ("sw", link.target), cost=link.cost, capacity=link.capacity)
    return graph
