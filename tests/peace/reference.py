"""Algorithm 1 read literally, on networkx's graph of figure 5: every cheapest path is listed, every chance exact.

For small networks only. It shares no code with the planners: paths are all simple paths of the graph that
`figure5_graph` makes; a path's chance is the product over its vertices of one in as many continuations as there are.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from typing import TypeVar

import networkx as nx

from scheduler.peace.placement import PlacementRule, Relation
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind
from scheduler.topology import Topology
from tests.support.figure5 import figure5_graph

Vertex = tuple[str, str]
Chances = dict[HostChain | None, Fraction]
Ways = dict[tuple[int, tuple[int, ...]], Fraction]
"""(host, links to it) with its chance."""
Key = TypeVar("Key", bound=Hashable)

END = ("d", "")


def chances_of_chain(topology: Topology, request: Request, chunk: int, residual: Residual) -> Chances:
    """Every chain that Algorithm 1 may choose for this chunk, and None for none at all, with exact chances."""
    if request.kind is TransferKind.WRITE:
        return _pipelines(topology, request, chunk, residual, (request.writer,), ())
    number, reader = request.number(chunk), request.writer
    sources = [host for host in request.sources[chunk] if host not in request.avoid and residual.disk[host] > 0]
    if request.kind is TransferKind.READ and reader in sources:
        return {HostChain(request.name, number, (reader, reader), ((),), TransferKind.READ): Fraction(1)}
    lists: dict[int, tuple[int, list[list[Vertex]]]] = {}
    for source in sources:
        if request.kind is TransferKind.READ:
            candidates = [reader]
        else:
            closed = {*request.sources[chunk], *request.avoid}
            candidates = _candidates(topology, request.placement[0], (source,), closed, residual)
        cost, paths = _cheapest(topology, source, candidates, residual)
        if paths:
            lists[source] = (cost, paths)
    if not lists:
        return {None: Fraction(1)}
    least = min(cost for cost, _ in lists.values())
    cheapest = {source: paths for source, (cost, paths) in lists.items() if cost == least}
    return {
        HostChain(request.name, number, (source, host), (route,), request.kind): chance / len(cheapest)
        for source, paths in cheapest.items()
        for (host, route), chance in _walks(topology, paths).items()
    }


def _pipelines(
    topology: Topology,
    request: Request,
    chunk: int,
    residual: Residual,
    hosts: tuple[int, ...],
    routes: tuple[tuple[int, ...], ...],
) -> Chances:
    """What may become of a chain that has come as far as `hosts`."""
    if len(routes) == len(request.placement):
        return {HostChain(request.name, request.number(chunk), hosts, routes): Fraction(1)}
    rules, source = request.placement[len(routes)], hosts[-1]
    ways: Ways
    if any(rule.relation is Relation.SAME_HOST for rule in rules):
        stays = source not in request.avoid and residual.disk[source] > 0 and _allowed(topology, rules, hosts, source)
        ways = {(source, ()): Fraction(1)} if stays else {}
    else:
        candidates = _candidates(topology, rules, hosts, {*hosts, *request.avoid}, residual)
        ways = _walks(topology, _cheapest(topology, source, candidates, residual)[1])
    if not ways:
        return {None: Fraction(1)}
    chances: Chances = {}
    for (host, route), chance in ways.items():
        after = residual.copy()
        if host != source:
            after.send[source] -= 1
            after.receive[host] -= 1
            for link in route:
                after.link[link] -= 1
        after.disk[host] -= 1
        for chain, rest in _pipelines(topology, request, chunk, after, (*hosts, host), (*routes, route)).items():
            chances[chain] = chances.get(chain, Fraction(0)) + chance * rest
    return chances


def _candidates(
    topology: Topology, rules: Iterable[PlacementRule], hosts: tuple[int, ...], closed: set[int], residual: Residual
) -> list[int]:
    return [
        host
        for host in range(len(topology.servers))
        if host not in closed and residual.disk[host] > 0 and _allowed(topology, rules, hosts, host)
    ]


def _allowed(topology: Topology, rules: Iterable[PlacementRule], hosts: tuple[int, ...], host: int) -> bool:
    holds: dict[Relation, Callable[[int], bool]] = {
        Relation.SAME_HOST: lambda other: host == other,
        Relation.OTHER_HOST: lambda other: host != other,
        Relation.SAME_RACK: lambda other: topology.rack_of[host] == topology.rack_of[other],
        Relation.OTHER_RACK: lambda other: topology.rack_of[host] != topology.rack_of[other],
    }
    return all(holds[rule.relation](hosts[rule.of]) for rule in rules)


def _cheapest(
    topology: Topology, source: int, candidates: Iterable[int], residual: Residual
) -> tuple[int, list[list[Vertex]]]:
    """All cheapest simple paths from a sender to candidates over edges with capacity left, and their cost."""
    graph = figure5_graph(topology)
    for host, server in enumerate(topology.servers):
        graph["snd", server.name]["up", server.name]["capacity"] = residual.send[host]
        graph["dn", server.name]["rcv", server.name]["capacity"] = residual.receive[host]
    for number, link in enumerate(topology.links):
        graph["sw", link.source]["sw", link.target]["capacity"] = residual.link[number]
    graph.remove_edges_from([(a, b) for a, b, capacity in graph.edges(data="capacity") if capacity < 1])
    graph.add_node(END)
    for host in candidates:
        graph.add_edge(("rcv", topology.servers[host].name), END, cost=0)
    paths = list(nx.all_simple_paths(graph, ("snd", topology.servers[source].name), END))
    costs = [nx.path_weight(graph, path, "cost") for path in paths]
    least = min(costs, default=0)
    return least, [path for path, cost in zip(paths, costs, strict=True) if cost == least]


def _walks(topology: Topology, paths: list[list[Vertex]], place: int = 1, chance: Fraction = Fraction(1)) -> Ways:
    """Walk the paths from their common beginning: at each vertex every continuation is as likely as the others."""
    if not paths:
        return {}
    if all(path[place] == END for path in paths):
        links = {(link.source, link.target): number for number, link in enumerate(topology.links)}
        switches = [name for kind, name in paths[0] if kind == "sw"]
        route = tuple(links[pair] for pair in pairwise(switches))
        return {(topology.index[paths[0][place - 1][1]], route): chance}
    onward: dict[Vertex, list[list[Vertex]]] = {}
    for path in paths:
        onward.setdefault(path[place], []).append(path)
    ways: Ways = {}
    for those in onward.values():
        ways |= _walks(topology, those, place + 1, chance / len(onward))
    return ways


def check_samples(seen: Counter[Key], chances: Mapping[Key, Fraction]) -> None:
    """Raise AssertionError if `seen` are no samples of `chances`: chi-squared, wrong by chance once in a million.

    Outcomes too rare to count (expected fewer than 5 times) are put together.
    """
    total = sum(seen.values())
    impossible = [key for key in seen if not chances.get(key)]
    assert not impossible, f"chosen, but it cannot be: {impossible[:3]}"
    cells, rare_seen, rare_expected = list[tuple[int, float]](), 0, 0.0
    for key, chance in chances.items():
        expected = float(chance * total)
        if expected < 5:
            rare_seen, rare_expected = rare_seen + seen[key], rare_expected + expected
        else:
            cells.append((seen[key], expected))
    if rare_expected >= 5:
        cells.append((rare_seen, rare_expected))
    freedom = len(cells) - 1
    if freedom < 1:
        return
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 4.76 * sqrt(spread)) ** 3  # Wilson and Hilferty; 4.76: the normal's 1e-6 quantile
    assert statistic <= limit, f"chi-squared {statistic:.1f} with {freedom} degrees of freedom, limit {limit:.1f}"
