"""Descriptions of networks in files: what is read, what is derived, what is refused, and that writing gives it back."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import TopologyError
from scheduler.topology import CHUNK_BYTES, Link, Server, Topology, both_ways, racks
from scheduler.topology.description import (
    load_network,
    load_topology,
    parse_network,
    parse_topology,
    topology_mapping,
    topology_toml,
)
from scheduler.topology.keys import SECTIONS, ValueKind
from scheduler.topology.quantities import parse_duration, parse_rate, parse_size, rate_for_people, rate_text, size_text

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "topologies").glob("*.toml"))


def read(text: str) -> Topology:
    """The network that a TOML text describes."""
    return parse_topology(tomllib.loads(text), "net.toml")


def same(one: Topology, other: Topology) -> None:
    """Two networks are equal in everything."""
    assert one.servers == other.servers
    assert one.links == other.links
    assert one.switches == other.switches
    assert (one.name, one.chunk_bytes) == (other.name, other.chunk_bytes)


# ---- reading


def test_the_papers_cluster() -> None:
    """17 hosts in racks of 8 and 9; each link carries 5 chunks in the time a disk takes for one."""
    network = load_network(next(path for path in EXAMPLES if path.stem == "paper"))
    topology = network.topology
    assert [len(members) for members in topology.members] == [8, 9]
    assert {(server.send, server.receive, server.disk) for server in topology.servers} == {(5, 2, None)}
    assert {server.link_bytes_s for server in topology.servers} == {125e6}
    assert [(link.capacity, link.bytes_s) for link in topology.links] == [(5, 125e6)] * 2
    assert network.timestep_s == pytest.approx(CHUNK_BYTES / 22.5e6)
    assert len(network.derived) == 3  # the link between the racks, and what each rack's hosts may send


def test_figure_5_from_a_file() -> None:
    """The worked example's network: two switches with a link each way, two servers each, every capacity 1."""
    topology = load_topology(next(path for path in EXAMPLES if path.stem == "figure5"))
    assert [server.name for server in topology.servers] == ["SVR1.1", "SVR1.2", "SVR2.1", "SVR2.2"]
    assert topology.links == both_ways("SW1", "SW2", 1)


def test_three_levels() -> None:
    """Patterns, defaults and parents: numbers are padded, `*` finds racks, the deepest switch is two below the core."""
    topology = load_topology(next(path for path in EXAMPLES if path.stem == "three-levels"))
    assert topology.switches[3:6] == ("rack-101", "rack-102", "rack-103")
    assert topology.servers[7].name == "rack-102-h2"
    assert topology.servers[7].address == "10.1.2.2"
    assert topology.tree is not None
    assert max(topology.tree.depth) == 2
    capacities = {(link.source, link.target): link.capacity for link in topology.links}
    assert capacities["hall-1", "core"] == 18
    assert capacities["core", "hall-1"] == 37
    assert capacities["archive", "hall-2"] == 4
    assert topology.servers[-1] == Server("archive-h3", "archive", 4, 6, 6, "10.1.100.3", 312.5e6)


def test_a_small_description() -> None:
    """Without switches, racks are what servers name; without numbers, capacities are the paper's 2."""
    topology = read('[[server]]\nname = "a"\nrack = "r"\n[[server]]\nname = "b"\nrack = "r"')
    assert topology.servers == (Server("a", "r", 2, 2), Server("b", "r", 2, 2))
    assert topology.switches == ("r",)


def test_json_says_the_same(tmp_path: Path) -> None:
    """The same keys in JSON."""
    for path in EXAMPLES:
        copy = tmp_path / f"{path.stem}.json"
        copy.write_text(json.dumps(tomllib.loads(path.read_text(encoding="utf-8"))))
        same(load_topology(copy), load_topology(path))


def test_capacities_from_rates() -> None:
    """rate × timestep ÷ chunk, rounded down, at least 1; the paper's 2 for a disk whose link says nothing of it."""
    text = """
        chunk = 1000
        timestep = "2 s"
        [[switch]]
        name = "core"
        [[switch]]
        name = "r"
        parent = "core"
        up_rate = "3499 B/s"
        down_rate = "1 B/s"
        [[server]]
        name = "a"
        rack = "r"
        link_rate = "1500 B/s"
        disk_rate = "500 B/s"
        [[server]]
        name = "b"
        rack = "r"
        link_rate = "1500 B/s"
        disk_rate = "500 B/s"
        send = 7
        receive = 1
        [[server]]
        name = "c"
        rack = "r"
    """
    topology = read(text)
    assert [link.capacity for link in topology.links] == [6, 1]
    assert [(server.send, server.receive, server.disk) for server in topology.servers] == [
        (3, 3, 2),
        (7, 1, None),
        (2, 2, None),
    ]


def test_own_values_come_before_common_ones() -> None:
    """A server's or switch's own rate beats a default capacity; its own capacity beats everything."""
    text = """
        chunk = 100
        timestep = 1
        [defaults]
        send = 1
        receive = 1
        up = 9
        down = 9
        [[switch]]
        name = "core"
        [[switch]]
        name = "r{n}"
        count = 3
        first = 0
        parent = "core"
        [[switch]]
        name = "q"
        parent = "core"
        rate = 300
        down = 2
        [[server]]
        name = "a"
        rack = "q"
        link_rate = 400
        receive = 2
        [[server]]
        name = "{rack}-{n}"
        rack = "r*"
        count = 2
    """
    topology = read(text)
    assert topology.servers[0] == Server("a", "q", 4, 2, None, None, 400.0)
    assert [server.name for server in topology.servers[1:]] == ["r0-1", "r0-2", "r1-1", "r1-2", "r2-1", "r2-2"]
    assert [(link.capacity, link.bytes_s) for link in topology.links[-2:]] == [(3, 300.0), (2, 300.0)]
    assert {link.capacity for link in topology.links[:-2]} == {9}


def test_the_slowest_tells_the_timestep() -> None:
    """Without `timestep`, it is the time a chunk takes at the slowest disk or link of a server."""
    values: dict[str, Any] = {"chunk": 1000, "server": [{"name": "a", "rack": "r", "link_rate": 100, "disk_rate": 50}]}
    network = parse_network(values)
    assert network.timestep_s == 20
    assert network.topology.servers[0].send == 2
    values["server"].append({"name": "b", "rack": "r", "link_rate": 10})
    network = parse_network(values)
    assert network.timestep_s == 100
    assert [server.send for server in network.topology.servers] == [10, 1]


# ---- refusing

RACKS = """
[[switch]]
name = "core"
[[switch]]
name = "rack1"
parent = "core"
capacity = 2
[[switch]]
name = "rack2"
parent = "core"
capacity = 2
"""
LINK = '[[link]]\nfrom = "rack1"\nto = "rack2"\n'
HOST = '[[server]]\nname = "h1"\nrack = "rack1"\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (RACKS + '[[server]]\nname = "h1"\nrack = "rak1"', ["server 'h1'", "rack='rak1'", "did you mean 'rack1'?"]),
        (RACKS + '[[server]]\nname = "h1"\nrack = "z*"', ["server 'h1'", "rack='z*'"]),
        (RACKS + '[[switch]]\nname = "r"\nparent = "corr"\ncapacity = 1', ["switch 'r'", "parent='corr'", "'core'?"]),
        (RACKS + HOST + "send = -1", ["server 'h1'", "send=-1"]),
        (RACKS + HOST + "send = 1.5", ["server 'h1'", "send=1.5", "whole number", "fraction"]),
        (RACKS + HOST + 'send = "2"', ["server 'h1'", "send='2'", "not a text"]),
        (RACKS + HOST + "send = true", ["server 'h1'", "send=True", "not a truth value"]),
        (RACKS + HOST + "disk = 99999999999", ["server 'h1'", "disk=99999999999"]),
        (RACKS + HOST + "sent = 2", ["server 'h1'", "unknown key 'sent'", "did you mean 'send'?"]),
        (RACKS + HOST + 'link_rate = "fast"', ["server 'h1'", "link_rate='fast'", "1 Gbit/s"]),
        (RACKS + HOST + 'link_rate = "1 GiB"', ["server 'h1'", "link_rate='1 GiB'"]),
        (RACKS + HOST + "link_rate = 0", ["server 'h1'", "link_rate=0", "above 0"]),
        (RACKS + HOST + "disk_rate = inf", ["server 'h1'", "disk_rate=inf", "above 0"]),
        (RACKS + HOST + "count = 0", ["server 'h1'", "count=0"]),
        (RACKS + HOST + "count = 2", ["server 'h1'", "'h1' already", "the name needs {n}"]),
        (RACKS + '[[server]]\nname = "h{n}"\nrack = "rack*"', ["server 'h{n}'", "'h1' already", "needs {rack}"]),
        (RACKS + '[[server]]\nname = "h{x}"\nrack = "rack1"', ["server 'h{x}'", "brace"]),
        (RACKS + '[[switch]]\nname = "{rack}"', ["switch '{rack}'", "{n} only"]),
        (RACKS + HOST + HOST, ["server 'h1'", "name='h1' is taken"]),
        (RACKS + '[[switch]]\nname = "rack1"' + "\n" + HOST, ["switch 'rack1'", "name='rack1' is taken"]),
        (RACKS + '[[server]]\nrack = "rack1"', ["server number 1", "name is missing"]),
        (RACKS + '[[server]]\nname = "h1"', ["server 'h1'", "rack is missing"]),
        (RACKS + '[[server]]\nname = ""\nrack = "rack1"', ["server number 1", "name=''"]),
        (RACKS + '[[server]]\nname = " h"\nrack = "rack1"', ["server ' h'", "no space around"]),
        (RACKS + "[[server]]\nname = 7\nrack = 8", ["server number 1", "name=7", "must be a text"]),
        (RACKS + '[[switch]]\nname = "far"\n[[server]]\nname = "h1"\nrack = "far"\n' + HOST.replace("h1", "h2"),
         ["server 'h2' cannot be reached from server 'h1'"]),
        ('[[switch]]\nname="a"\nparent="b"\ncapacity=1\n[[switch]]\nname="b"\nparent="a"\ncapacity=1\n',
         ["switch 'a'", "parent='b'", "own ancestor", "'a' → 'b' → 'a'"]),
        ("".join(f'[[switch]]\nname="{a}"\nparent="{b}"\ncapacity=1\n' for a, b in ("xa", "ab", "bc", "ca")),
         ["switch 'a'", "parent='b'", "ancestor: 'a' → 'b' → 'c' → 'a'"]),
        ('[[switch]]\nname = "a"\nparent = "a"\ncapacity = 1', ["switch 'a'", "'a' → 'a'"]),
        ('[[switch]]\nname = "core"\n[[switch]]\nname = "r"\nparent = "core"', ["switch 'r'", "up is missing"]),
        ('[[switch]]\nname = "core"\ncapacity = 3', ["switch 'core'", "capacity=3", "needs a parent"]),
        (RACKS.replace("capacity = 2", "rate = 5", 1) + HOST, ["switch 'rack1'", "up is left out", "timestep"]),
        (RACKS + '[[link]]\nfrom = "rack1"\nto = "rack3"\ncapacity = 1', ["link number 1", "to='rack3'", "'rack"]),
        (RACKS + LINK, ["link number 1", "'rack1' to 'rack2'", "capacity is missing"]),
        (RACKS + LINK + "capacity = -3", ["'rack1' to 'rack2'", "capacity=-3"]),
        (RACKS + LINK.replace("rack2", "core") + "capacity = 1\n" + HOST, ["link 'rack1' to 'core' appears twice"]),
        (RACKS + LINK + "capacity = 1\nboth_ways = 1", ["both_ways=1", "true or false"]),
        ("servers = 3", ["unknown key 'servers'", "did you mean 'server'?"]),
        ("server = 3", ["server must be a list of tables", "a whole number"]),
        ("server = [3]", ["server number 1 must be a table"]),
        ("defaults = []", ["defaults must be a table", "a list"]),
        ("[defaults]\nrack = 'x'", ["[defaults]", "unknown key 'rack'"]),
        ('chunk = "64 MB/s"', ["chunk='64 MB/s'", "64 MiB"]),
        ("chunk = 0.5", ["chunk=0.5", "whole number of bytes"]),
        ('timestep = "1 h"', ["timestep='1 h'", "2.5 s"]),
        ("name = 3", ["name=3"]),
        ("", ["no servers"]),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, parts: list[str]) -> None:
    """The error names the file, the entry and the value, and what was expected."""
    with pytest.raises(TopologyError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith("net.toml: ")
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.toml", b"name = 'x'\n[[server]\n", ["a.toml", "TOML", "line 2"]),
        ("a.json", b'{"name": "x",\n "server": [}', ["a.json", "JSON", "line 2"]),
        ("a.json", b'{"name": "x", "name": "y"}', ["a.json", "'name' appears twice"]),
        ("a.json", b"[]", ["a.json", "must be a table"]),
        ("a.toml", b"\xff", ["a.toml", "text"]),
        ("a.json", b"[" * 100_000, ["a.json"]),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, parts: list[str]) -> None:
    """Bad TOML, JSON and bytes are errors of ours with the file's name and the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        load_topology(tmp_path / name)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "server", "switch", "link", "defaults", "rack", "parent", "count", "rate", "chunk"]),
        inner, max_size=5,
    ),
    max_leaves=20,
))  # fmt: skip
def test_nonsense_is_an_error_of_ours(value: object) -> None:
    """Whatever the values: a network or a TopologyError."""
    mapping = value if isinstance(value, dict) else {"server": value, "switch": value}
    with suppress(TopologyError):
        parse_topology(mapping)


# ---- writing

NAMES = st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="{}*"), min_size=1, max_size=6)
RATES = (
    st.none() | st.floats(0.001, 1e15) | st.integers(1, 10**12).map(float) | st.sampled_from([125e6, 1.25e9, 22.5e6])
)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Networks of all sorts: trees and others, links in any order, costs, rates, addresses."""
    switches = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    count = st.integers(0, 40)
    links: list[Link] = []
    for place in range(1, len(switches)):
        other = switches[draw(st.integers(0, place - 1))]
        costs = draw(st.sampled_from([(1, 1), (1, 1), (0, 2)]))
        ends = [(switches[place], other), (other, switches[place])]
        links += [Link(a, b, draw(count), cost, draw(RATES)) for (a, b), cost in zip(ends, costs, strict=True)]
    if draw(st.booleans()):
        links = draw(st.permutations(links))
    usual = draw(st.sampled_from([None, 125e6]))
    servers = [
        Server(
            name, draw(st.sampled_from(switches)), draw(count), draw(count), draw(st.none() | count),
            draw(st.none() | NAMES), draw(st.just(usual) | RATES), draw(RATES),
        )
        for name in draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    ]  # fmt: skip
    chunk = draw(st.just(CHUNK_BYTES) | st.integers(1, 1 << 40))
    return Topology(servers, links, switches=switches, name=draw(NAMES), chunk_bytes=chunk)


@settings(max_examples=50)
@given(networks(), st.none() | st.floats(1e-6, 1e6))
def test_what_is_written_reads_the_same(topology: Topology, timestep_s: float | None) -> None:
    """As TOML and as JSON: the same servers, links, switches, in the same order; and the timestep."""
    text = topology_toml(topology, timestep_s, comment="two\nlines")
    network = parse_network(tomllib.loads(text))
    same(network.topology, topology)
    assert network.derived == ()
    assert timestep_s is None or network.timestep_s == timestep_s
    same(parse_topology(json.loads(json.dumps(topology_mapping(topology, timestep_s)))), topology)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_written_and_read(path: Path) -> None:
    """The shipped examples too."""
    network = load_network(path)
    same(parse_topology(tomllib.loads(topology_toml(network.topology, network.timestep_s))), network.topology)


def test_rings_are_written_as_links() -> None:
    """Switches in a ring have no parents that could be written: each would be its own ancestor."""
    ring = [link for a, b in ("ab", "bc", "ca") for link in both_ways(a, b, 1)]
    topology = Topology([Server(name, name) for name in "abc"], ring)
    same(parse_topology(tomllib.loads(topology_toml(topology))), topology)
    assert "link" in topology_mapping(topology)


def test_common_values_are_written_once() -> None:
    """A network of like servers has its values in [defaults], and parents instead of links."""
    mapping = topology_mapping(racks([2, 2], 5))
    assert mapping["defaults"] == {"send": 2, "receive": 2}
    assert mapping["server"] == [{"name": f"r{r}h{h}", "rack": f"rack{r}"} for r in (1, 2) for h in (1, 2)]
    assert "link" not in mapping


# ---- quantities


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("1 Gbit/s", 125e6), ("1Gbps", 125e6), ("100 Mb/s", 12.5e6), ("117 MB/s", 117e6), ("22.5 MB/s", 22.5e6),
        ("1 MiB/s", 1 << 20), ("1_000 B/s", 1000.0), (7, 7.0), (2.5, 2.5), ("1e3 kB/s", 1e6),
    ],
)  # fmt: skip
def test_rates(text: object, bytes_s: float) -> None:
    """Bits and bytes, decimal and binary."""
    assert parse_rate(text) == bytes_s


def test_sizes_and_durations() -> None:
    """As people write them."""
    assert [parse_size(text) for text in ("64 MiB", "64MB", "2 GiB", 5)] == [64 << 20, 64_000_000, 2 << 30, 5]
    assert [parse_duration(text) for text in ("2.5 s", "300 ms", "2 min", 4)] == [2.5, 0.3, 120.0, 4.0]
    assert [rate_for_people(rate) for rate in (125e6, 22.5e6, 104.86e6, 7.0)] == [
        "1 Gbit/s",
        "22.5 MB/s",
        "105 MB/s",
        "7 B/s",
    ]


@given(st.floats(1e-9, 1e18), st.integers(1, 1 << 50))
def test_texts_are_exact(bytes_s: float, size: int) -> None:
    """Reading what was written gives the same number."""
    assert parse_rate(rate_text(bytes_s)) == bytes_s
    assert parse_size(size_text(size)) == size


def test_every_kind_is_used() -> None:
    """No kind of key without a key."""
    assert {key.kind for keys in SECTIONS.values() for key in keys} == set(ValueKind)
