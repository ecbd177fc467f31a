"""Networks of 17 to 10,000 hosts and what they are asked to write; tiny ones for exhaustive search.

Invariants:
* A case follows from its names, its size and the seed alone.
* Every request has three replicas and the default placement, except on tiny networks, which have other ones too.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from scheduler.peace.placement import default_placement, parse_placement
from scheduler.peace.plan import Request
from scheduler.topology import Link, Server, Topology, both_ways

SMALL_RACKS = (8, 9)
"""Rack sizes up to SMALL hosts: the paper's cluster, several times over."""
SMALL = 70
RACK = 40
RACKS_PER_POD = 10
REPLICAS = 3


class Load(NamedTuple):
    """What hosts can do and want."""

    title: str
    slots: Callable[[Random], int]  # chunks per timestep that a host sends, and takes
    chunks: Callable[[Random], int]  # that it wants to write
    uplink: Callable[[int], int]  # chunks per timestep out of a rack of so many hosts, and into it


LOADS = {
    "one slot": Load("one slot per host, one chunk each", lambda _: 1, lambda _: 1, lambda size: size * 3 // 4),
    "two slots": Load("two slots per host, two chunks each", lambda _: 2, lambda _: 2, lambda size: size * 3 // 4),
    "uplinks bind": Load(
        "two slots per host, two chunks each, a tenth of them may leave a rack",
        lambda _: 2,
        lambda _: 2,
        lambda size: max(1, size // 10),
    ),
    "mixed": Load(
        "one to three slots, every third host writes one to eight chunks",
        lambda random: random.choice([1, 2, 2, 3]),
        lambda random: random.randint(1, 8) if random.random() < 1 / 3 else 0,
        lambda size: size // 2,
    ),
}


class Case(NamedTuple):
    """One network with its requests."""

    topology: Topology
    requests: list[Request]


def rack_sizes(hosts: int) -> list[int]:
    """Racks of 8 and 9 in turn for small networks, else of 40."""
    if hosts > SMALL:
        return [RACK] * (hosts // RACK)
    sizes: list[int] = []
    while sum(sizes) < hosts:
        sizes.append(SMALL_RACKS[len(sizes) % 2])
    return sizes


def case(load: str, hosts: int, levels: int, seed: int) -> Case:
    """Racks below one switch (2 levels), or below pods of ten racks whose links carry half of what theirs do (3)."""
    what, random, sizes = LOADS[load], Random(seed), rack_sizes(hosts)
    names = [f"r{number}" for number in range(len(sizes))]
    servers = []
    for name, size in zip(names, sizes, strict=True):
        for host in range(size):
            slots = what.slots(random)
            servers.append(Server(f"{name}h{host}", name, slots, slots))
    uplinks = dict(zip(names, map(what.uplink, sizes), strict=True))
    if levels == 2:
        links = [link for name in names for link in both_ways(name, "core", uplinks[name])]
        switches = ["core", *names]
    else:
        per_pod = min(RACKS_PER_POD, max(1, len(sizes) // 2))
        pods = [f"p{number}" for number in range(-(-len(sizes) // per_pod))]
        half = max(1, sum(what.uplink(size) for size in sizes[:per_pod]) // 2)
        links = [link for pod in pods for link in both_ways(pod, "core", half)]
        for number, name in enumerate(names):
            links += both_ways(name, pods[number // per_pod], uplinks[name])
        switches = ["core", *pods, *names]
    placement = default_placement(REPLICAS)
    wanted = [what.chunks(random) for _ in servers]
    requests = [Request(f"q{host}", host, count, placement) for host, count in enumerate(wanted) if count]
    return Case(Topology(servers, links, switches=switches, name=f"{hosts} hosts"), requests)


TINY_PLACEMENTS = (
    *(default_placement(3),) * 3,
    *(default_placement(2),) * 2,
    default_placement(1),
    parse_placement(["", ""]),
    parse_placement(["same-host:0", "other-rack:0"]),
    parse_placement(["other-rack:0", "other-rack:0&other-rack:1"]),
)


def tiny(seed: int) -> Case:
    """Two or three racks of two or three hosts with one or two slots; a few writes with one of several placements."""
    random = Random(seed)
    names = [f"r{number}" for number in range(random.choice([2, 2, 3, 3]))]
    slots = [1, 1, 2]
    servers = [
        Server(f"{name}h{host}", name, random.choice(slots), random.choice(slots))
        for name in names
        for host in range(random.choice([2, 3]))
    ]
    links = [link for name in names for link in both_ways(name, "core", random.choice([1, 2, 3]))]
    placement = random.choice(TINY_PLACEMENTS)
    requests = [
        Request(f"q{number}", random.randrange(len(servers)), random.choice([1, 1, 2]), placement)
        for number in range(random.choice([2, 3, 4, 5]))
    ]
    return Case(Topology(servers, links, switches=["core", *names]), requests)


def irregular(seed: int, levels: int) -> Case:
    """A few racks of 3 to 10 hosts below one switch (2 levels) or below pods (3), no two links or racks alike.

    Links between switches carry a sixth to all of what is below them; three or two replicas, one to eight chunks each.
    """
    random = Random(seed)
    names = [f"r{number}" for number in range(random.randint(2, 8) if levels == 2 else random.randint(3, 9))]
    fewest, most = random.choice([(1, 1), (2, 2), (1, 4)])
    servers = [
        Server(f"{name}h{host}", name, random.randint(fewest, most), random.randint(fewest, most))
        for name in names
        for host in range(random.randint(3, 10))
    ]
    below = {name: sum(server.send for server in servers if server.rack == name) for name in names}
    pods = [f"p{number}" for number in range(random.randint(2, max(2, len(names) // 2)) if levels == 3 else 0)]
    parent = {name: pods[number % len(pods)] if pods else "core" for number, name in enumerate(names)}
    links: list[Link] = []
    for name in names:
        capacity = max(1, random.randint(below[name] // 4, below[name]))
        below[parent[name]] = below.get(parent[name], 0) + capacity
        links += _unlike(random, name, parent[name], capacity)
    for pod in pods:
        links += _unlike(random, pod, "core", max(1, random.randint(below[pod] // 6, below[pod])))
    placement = default_placement(REPLICAS if random.random() < 0.8 else 2)
    share = random.choice([0.3, 0.6, 1.0])
    writers = [host for host in range(len(servers)) if random.random() < share] or [0]
    requests = [Request(f"q{host}", host, random.randint(1, 8), placement) for host in writers]
    topology = Topology(servers, links, switches=["core", *pods, *names], name=f"{levels} levels, seed {seed}")
    return Case(topology, requests)


def _unlike(random: Random, low: str, high: str, capacity: int) -> list[Link]:
    """Links each way, every second pair with another capacity on the way down."""
    if random.random() < 1 / 2:
        return list(both_ways(low, high, capacity))
    return [Link(low, high, capacity), Link(high, low, max(1, random.randint(capacity // 2, capacity * 2)))]
