"""Pictures of networks: well-formed, complete, nothing on top of anything else, as small as the network allows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from scheduler.topology import Link, Server, Topology, both_ways, racks
from scheduler.topology.description import load_network
from scheduler.topology.drawing import draw
from scheduler.topology.overview import overview
from scheduler.topology.picture import MOST_RACKS, picture
from tests.topology.test_topology_file import networks

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
BOX_COLOURS = {"#4f81bd", "#7b8794"}


def texts(svg: str) -> list[str]:
    """All text that the picture shows."""
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def rectangles(svg: str) -> Iterator[tuple[float, float, float, float]]:
    """The boxes of switches and racks, without the shadows of stacks."""
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        boxes = [rect for rect in group.iter(f"{SVG}rect") if rect.get("stroke") in BOX_COLOURS]
        if boxes:
            x, y, width, height = (float(boxes[-1].get(name, "nan")) for name in ("x", "y", "width", "height"))
            yield x, y, x + width, y + height


def check(svg: str) -> None:
    """No box overlaps another, and all lie on the page."""
    page = ET.fromstring(svg)
    width, height = float(page.get("width", 0)), float(page.get("height", 0))
    boxes = list(rectangles(svg))
    assert boxes
    assert all(box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height for box in boxes)
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


@settings(max_examples=40)
@given(networks())
def test_any_network(topology: Topology) -> None:
    """Trees, rings, odd names: well-formed XML, the same twice, every server in one box, no two boxes overlap."""
    svg = draw(topology)
    assert svg == draw(topology)
    check(svg)
    scene = picture(topology)
    shown = [server.name for box in scene.boxes for server in box.servers]
    assert sorted(shown) == sorted(topology.index)
    assert sorted(box for column in scene.columns for box in column) == list(range(len(scene.boxes)))


def test_few_hosts_are_shown_one_by_one() -> None:
    """The paper's cluster: every host by name, the link between the racks with capacity and rate, both racks."""
    network = load_network(DOCS / "topologies" / "paper.toml")
    shown = texts(draw(network.topology, timestep_s=network.timestep_s))
    assert set(network.topology.index) <= set(shown)
    assert {"rack1", "rack2", "⇅ 5 · 1 Gbit/s", "17 hosts, 2 racks · chunks of 64 MiB"} <= set(shown)
    assert "Numbers are capacities: chunks per timestep (2.98 s)." in shown


def test_a_thousand_hosts_are_dots() -> None:
    """25 racks of 40: every rack has a box that says how many, and as many small squares."""
    svg = draw(racks([40] * 25, 20))
    check(svg)
    shown = texts(svg)
    assert shown.count("40 hosts · send 2 · receive 2") == 25
    assert svg.count('rx="2"') == 1000
    assert "r1h1" not in shown


def test_ten_thousand_hosts_are_a_stack() -> None:
    """250 like racks are one box; different ones stay apart, as far as they are not too many."""
    svg = draw(racks([40] * 250, 20))
    assert "250 racks of 40 hosts · send 2 · receive 2" in " ".join(texts(svg))
    assert len(svg) < 10_000
    mixed = [Server(f"h{rack}-{host}", f"rack{rack:03}", 1 + rack % 3) for rack in range(60) for host in range(4)]
    links = [link for rack in range(60) for link in both_ways(f"rack{rack:03}", "core", 5)]
    topology = Topology(mixed, links, switches=["core", *(f"rack{rack:03}" for rack in range(60))])
    assert [len(box.names) for box in picture(topology).boxes] == [1, 20, 20, 20]
    different = racks([10 + rack for rack in range(2 * MOST_RACKS)], 20)
    assert [len(box.names) for box in picture(different).boxes] == [1, 2 * MOST_RACKS]
    assert "80 racks of 10–89 hosts" in " ".join(texts(draw(different)))


def test_wider_lines_carry_more() -> None:
    """The width grows with the capacity; nothing passes over a dashed line; both ways are told apart."""
    links = [Link("a", "core", 1), Link("core", "a", 4), *both_ways("b", "core", 9), *both_ways("c", "core", 0)]
    servers = [Server(f"h{rack}", rack) for rack in "abc"]
    svg = draw(Topology(servers, links, switches=["core", "a", "b", "c"]))
    lines = re.findall(r'stroke="(#\w+)" stroke-width="([\d.]+)"( stroke-dasharray)?', svg)
    there, back, both, dead = (
        next((float(width), dashes) for found, width, dashes in lines if found == colour)
        for colour in ("#c05621", "#2b6cb0", "#44546a", "#c53030")
    )
    assert both[0] > there[0] > back[0] > dead[0]
    assert dead[1]
    assert not there[1]
    assert {"→ 4", "← 1", "⇄ 9", "⇄ 0"} <= set(texts(svg))


def test_columns_follow_the_depth() -> None:
    """A tree hangs from its middle switch without servers; leaf and spine stand in two columns; a ring in one."""
    network = load_network(DOCS / "topologies" / "three-levels.toml")
    scene = picture(network.topology)
    named = [[scene.boxes[box].title for box in column] for column in scene.columns]
    assert named[:2] == [["core"], ["hall-1", "hall-2"]]
    assert len(named) == 3
    links = [link for leaf in "abc" for spine in ("s1", "s2") for link in both_ways(leaf, spine, 3)]
    leaves = Topology([Server(f"h{leaf}", leaf) for leaf in "abc"], links, switches=["s1", "s2", *"abc"])
    assert [len(column) for column in picture(leaves).columns] == [2, 3]
    check(draw(leaves))
    ring = Topology(
        [Server(f"h{x}", x) for x in "abcd"], [y for x in ("ab", "bc", "cd", "da") for y in both_ways(x[0], x[1], 1)]
    )
    assert [len(column) for column in picture(ring).columns] == [4]
    check(draw(ring))


def test_long_names_are_shortened() -> None:
    """The picture stays small; the whole name is in the tooltip."""
    name = "host-" + "x" * 150 + "-1 <&>"
    svg = draw(Topology([Server(name, "r")]))
    assert float(ET.fromstring(svg).get("width", 0)) < 800
    assert not any(name in text for text in texts(svg))
    assert any(name in (title.text or "") for title in ET.fromstring(svg).iter(f"{SVG}title"))


@pytest.mark.parametrize("name", ["paper", "three-levels"])
def test_the_pictures_in_the_documentation_are_current(name: str) -> None:
    """docs/topology-NAME.svg is what `cairn topology draw` draws today."""
    network = load_network(DOCS / "topologies" / f"{name}.toml")
    drawn = draw(network.topology, timestep_s=network.timestep_s)
    assert (DOCS / f"topology-{name}.svg").read_text(encoding="utf-8") == drawn, "draw it again"


# ---- overview


def test_oversubscription() -> None:
    """How many times more a rack's servers could send than its links carry."""
    seen = overview(load_network(DOCS / "topologies" / "paper.toml").topology)
    assert [(rack.name, rack.servers, rack.send, rack.out, rack.over_out) for rack in seen.racks] == [
        ("rack1", 8, 40, 5, 8.0), ("rack2", 9, 45, 5, 9.0)
    ]  # fmt: skip
    assert (seen.is_tree, seen.levels, seen.warnings) == (True, 2, ())


def test_what_is_odd_is_said() -> None:
    """Rings, one-way links and capacities of 0 are allowed, but said."""
    servers = [Server("a", "x", send=0), Server("b", "y", receive=0), Server("c", "z", disk=0)]
    ring = [link for pair in ("xy", "yz", "zx") for link in both_ways(pair[0], pair[1], 1)]
    assert "rings: 3 connections between 3 switches" in overview(Topology(servers, ring)).why_no_tree
    one_way = [Link("x", "y", 0), Link("y", "z", 1), Link("z", "x", 1)]
    seen = overview(Topology(servers, one_way))
    assert "from 'x' to 'y' has none back" in seen.why_no_tree
    assert [
        word for word in ("capacity is 0", "send is 0", "receive is 0", "disk is 0") if word not in str(seen.warnings)
    ] == []
    apart = overview(Topology([Server("a", "x")], switches=["x", "alone"]))
    assert "not all switches are connected" in apart.why_no_tree


def test_values_are_plain() -> None:
    """The overview as JSON has it."""
    values = overview(racks([1, 1], 3)).values()
    assert values["is_tree"] is True
    assert isinstance(values["racks"], list)
    assert values["racks"][0]["over_out"] == pytest.approx(2 / 3)
