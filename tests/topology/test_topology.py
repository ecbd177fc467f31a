"""The network as planners see it: numbers, trees, and the graph of the paper's figure 5."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import TopologyError
from scheduler.topology import UNLIMITED, Link, Server, Topology, both_ways, racks
from tests.support.figure5 import figure5_graph


def figure5() -> Topology:
    """The paper's example, every capacity 1."""
    servers = [Server(f"SVR{rack}.{host}", f"SW{rack}", 1, 1) for rack in (1, 2) for host in (1, 2)]
    return Topology(servers, both_ways("SW1", "SW2", 1), switches=["SW1", "SW2"], name="figure 5")


def test_figure_5() -> None:
    """The graph is the figure's: solid edges (wires) cost 1, dashed ones (inside a switch) 0; nothing else is there."""
    graph = figure5_graph(figure5())
    wires, inside = {("snd", "up"), ("dn", "rcv")}, {("up", "sw"), ("sw", "dn")}
    costs: dict[tuple[str, str], set[int]] = {}
    for (kind, _), (other, _), cost in graph.edges(data="cost"):
        costs.setdefault((kind, other), set()).add(cost)
    expected = {wire: {1} for wire in wires} | {passage: {0} for passage in inside}
    assert costs == expected | {("sw", "sw"): {1}, ("rcv", "disk"): {0}}
    assert sum(kind != "disk" for kind, _ in graph) == 4 * 4 + 2
    assert {(a, b) for (kind, a), (other, b) in graph.edges if kind == other == "sw"} == {
        ("SW1", "SW2"),
        ("SW2", "SW1"),
    }
    path = nx.shortest_path(graph, ("snd", "SVR1.1"), ("rcv", "SVR2.2"), weight="cost")
    assert path == [
        ("snd", "SVR1.1"), ("up", "SVR1.1"), ("sw", "SW1"), ("sw", "SW2"), ("dn", "SVR2.2"), ("rcv", "SVR2.2")
    ]  # fmt: skip
    assert nx.path_weight(graph, path, "cost") == 3
    near = nx.shortest_path_length(graph, ("snd", "SVR1.1"), ("rcv", "SVR1.2"), weight="cost")
    assert near == 2


def test_capacities_lie_on_wires() -> None:
    """Send, receive, disk and links limit their own edge; passages inside a switch limit nothing."""
    servers = [Server("a", "x", send=3, receive=4, disk=5), Server("b", "y", send=1, receive=2)]
    graph = figure5_graph(Topology(servers, [Link("x", "y", 7, cost=4), Link("y", "x", 8)]))
    seen = {(a, b): (data["capacity"], data["cost"]) for a, b, data in graph.edges(data=True)}
    assert seen[("snd", "a"), ("up", "a")] == (3, 1)
    assert seen[("dn", "a"), ("rcv", "a")] == (4, 1)
    assert seen[("rcv", "a"), ("disk", "a")] == (5, 0)
    assert seen[("rcv", "b"), ("disk", "b")] == (UNLIMITED, 0)
    assert seen[("sw", "x"), ("sw", "y")] == (7, 4)
    assert seen[("sw", "y"), ("sw", "x")] == (8, 1)
    assert seen[("up", "a"), ("sw", "x")] == seen[("sw", "x"), ("dn", "a")] == (UNLIMITED, 0)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Connected networks: a random tree of switches, a few more connections, servers on some switches."""
    count = draw(st.integers(1, 7))
    names = [f"s{n}" for n in draw(st.permutations(range(count)))]
    pairs = [(names[n], names[draw(st.integers(0, n - 1))]) for n in range(1, count)]
    others = [pair for pair in combinations(names, 2) if pair not in pairs and pair[::-1] not in pairs]
    more = draw(st.integers(0, min(3, len(others))))
    pairs += draw(st.permutations(others))[:more]
    links = [link for a, b in pairs for link in both_ways(a, b, draw(st.integers(0, 5)))]
    links = draw(st.permutations(links))
    homes = draw(st.lists(st.sampled_from(names), min_size=1, max_size=8))
    return Topology([Server(f"h{n}", rack) for n, rack in enumerate(homes)], links, switches=sorted(names))


@given(networks())
def test_numbers_follow_the_order_given(topology: Topology) -> None:
    """Names, numbers, racks, members and hops all say the same."""
    assert [topology.index[server.name] for server in topology.servers] == list(range(len(topology.servers)))
    assert [topology.switch_index[switch] for switch in topology.switches] == list(range(len(topology.switches)))
    for number, server in enumerate(topology.servers):
        assert topology.switches[topology.rack_of[number]] == server.rack
        assert number in topology.members[topology.rack_of[number]]
    assert sorted(host for members in topology.members for host in members) == list(range(len(topology.servers)))
    assert topology.racks == tuple(sorted(set(topology.rack_of)))
    seen = {(switch, hop.target, hop.link, hop.cost) for switch, hops in enumerate(topology.hops) for hop in hops}
    assert seen == {
        (topology.switch_index[link.source], topology.switch_index[link.target], number, link.cost)
        for number, link in enumerate(topology.links)
    }


@given(networks())
def test_a_tree_is_found_where_there_is_one(topology: Topology) -> None:
    """As networkx says; and its parents, links, depths and order fit together."""
    graph = nx.Graph([(link.source, link.target) for link in topology.links])
    graph.add_nodes_from(topology.switches)
    tree = topology.tree
    assert (tree is not None) == nx.is_tree(graph)
    if tree is None:
        return
    root = tree.order[0]
    assert sorted(tree.order) == list(range(len(topology.switches)))
    assert (tree.parent[root], tree.up[root], tree.down[root], tree.depth[root]) == (-1, -1, -1, 0)
    for switch in tree.order[1:]:
        parent = tree.parent[switch]
        assert tree.order.index(parent) < tree.order.index(switch)
        assert tree.depth[switch] == tree.depth[parent] + 1
        up, down = topology.links[tree.up[switch]], topology.links[tree.down[switch]]
        assert (up.source, up.target) == (down.target, down.source)
        assert (up.source, up.target) == (topology.switches[switch], topology.switches[parent])


def test_no_tree() -> None:
    """One way only is not a tree; nor is a ring beside a switch that stands apart, though the numbers would fit."""
    servers = [Server(f"h-{rack}", rack) for rack in "abc"]
    ring = [link for a, b in ("ab", "bc", "ca") for link in both_ways(a, b, 1)]
    assert Topology(servers, ring).tree is None
    assert Topology(servers, ring, switches=["alone", "a", "b", "c"]).tree is None
    assert Topology(servers, ring, switches=["a", "b", "c", "alone"]).tree is None
    assert Topology(servers, [Link("a", "b", 1), Link("b", "c", 1), Link("c", "a", 1)]).tree is None


def test_racks_below_one_switch() -> None:
    """The usual network: r1h1, r1h2, … below a switch of their own, that below `core`."""
    topology = racks([2, 1], 5, send=3)
    assert [server.name for server in topology.servers] == ["r1h1", "r1h2", "r2h1"]
    assert topology.tree is not None
    assert topology.switches[topology.tree.order[0]] == "core"
    assert {(link.source, link.target): link.capacity for link in topology.links} == {
        ("rack1", "core"): 5, ("core", "rack1"): 5, ("rack2", "core"): 5, ("core", "rack2"): 5
    }  # fmt: skip
    assert {(server.send, server.receive) for server in topology.servers} == {(3, 3)}


A, B = Server("a", "x"), Server("b", "y")
PAIR = both_ways("x", "y", 1)


@pytest.mark.parametrize(
    ("servers", "links", "switches", "message"),
    [
        ([], [], [], "no servers"),
        ([A, A], [], [], "server 'a' appears twice"),
        ([A], [], ["x", "x"], "switch 'x' appears twice"),
        ([A, B], PAIR, ["x"], "server 'b': unknown rack 'y'"),
        ([Server("a", "x", send=-1)], [], [], "server 'a': send=-1"),
        ([Server("a", "x", receive=True)], [], [], "server 'a': receive=True"),
        ([Server("a", "x", disk=UNLIMITED + 1)], [], [], "server 'a': disk="),
        ([Server("a", "x", link_bytes_s=0.0)], [], [], "server 'a': link_bytes_s=0.0"),
        ([Server("a", "x", disk_bytes_s=float("nan"))], [], [], "server 'a': disk_bytes_s=nan"),
        ([A, B], [Link("x", "y", -2), Link("y", "x", 1)], [], "link 'x' to 'y': capacity=-2"),
        ([A, B], [*PAIR, Link("x", "z", 1)], [], "link 'x' to 'z': unknown switch 'z'"),
        ([A, B], [*PAIR, Link("x", "x", 1)], [], "link 'x' to 'x': a switch needs no link to itself"),
        ([A, B], [*PAIR, PAIR[0]], [], "link 'x' to 'y' appears twice"),
        ([A, B], [], [], "server 'b' cannot be reached from server 'a'"),
        ([A, B], [Link("x", "y", 1)], [], "server 'a' cannot be reached from server 'b'"),
        ([A, B], [Link("x", "y", 1, bytes_s=-1.0), Link("y", "x", 1)], [], "bytes_s=-1.0"),
    ],
)
def test_contradictions_are_named(servers: list[Server], links: list[Link], switches: list[str], message: str) -> None:
    """Every error names the entry and the value."""
    with pytest.raises(TopologyError) as caught:
        Topology(servers, links, switches=switches)
    assert message in str(caught.value)


def test_a_chunk_has_bytes() -> None:
    """A chunk of nothing is refused."""
    with pytest.raises(TopologyError, match="chunk_bytes=0"):
        Topology([A], chunk_bytes=0)
