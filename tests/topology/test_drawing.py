"""Pictures of networks: well-formed, complete, nothing on top of anything else, as small as the network allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox
from matplotlib.transforms import Bbox

from scheduler.topology import Link, Server, Topology, both_ways, racks
from scheduler.topology.description import load_network
from scheduler.topology.drawing import draw, figure
from scheduler.topology.overview import overview
from scheduler.topology.scene import MAX_RACKS, scene_of
from tests.support.examples import examples
from tests.topology.test_topology_file import networks

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
GLYPHS = pytest.mark.filterwarnings("ignore:Glyph .* missing:UserWarning")
LEAVES = [link for leaf in "abc" for spine in ("s1", "s2") for link in both_ways(leaf, spine, 3)]
LEAF_AND_SPINE = Topology([Server(f"h{leaf}", leaf) for leaf in "abc"], LEAVES, switches=["s1", "s2", *"abc"])
RING = Topology(
    [Server(f"h{x}", x) for x in "abcd"], [y for x in ("ab", "bc", "cd", "da") for y in both_ways(x[0], x[1], 1)]
)


def texts(svg: bytes) -> list[str]:
    """All text that the picture shows."""
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def rectangles(drawn: Figure) -> Iterator[Bbox]:
    """The boxes of switches and racks on the page, one point less on each side: frames have a width."""
    canvas: Any = FigureCanvasAgg(drawn)
    renderer = canvas.get_renderer()
    for artist in drawn.axes[0].artists:
        if isinstance(artist, AnnotationBbox) and artist.patch.get_visible():
            yield artist.get_window_extent(renderer).padded(-1)


def check(topology: Topology) -> None:
    """No box overlaps another, and all lie on the page."""
    drawn = figure(topology)
    boxes = list(rectangles(drawn))
    assert len(boxes) == len(scene_of(topology).boxes)
    assert all(drawn.bbox.x0 <= box.x0 and box.x1 <= drawn.bbox.x1 for box in boxes)
    assert all(drawn.bbox.y0 <= box.y0 and box.y1 <= drawn.bbox.y1 for box in boxes)
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other), (one, other)


@GLYPHS
@settings(max_examples=examples(12, long=500))
@given(networks())
def test_any_network(topology: Topology) -> None:
    """Trees, rings, odd names: well-formed XML, the same twice, every server in one box, no two boxes overlap."""
    svg = draw(topology)
    assert svg == draw(topology)
    assert texts(svg)
    check(topology)
    scene = scene_of(topology)
    shown = [server.name for box in scene.boxes for server in box.servers]
    assert sorted(shown) == sorted(topology.index)
    if scene.layers is not None:
        assert sorted(box for layer in scene.layers for box in layer) == list(range(len(scene.boxes)))
        layer_of = {box: number for number, layer in enumerate(scene.layers) for box in layer}
        assert all(layer_of[cable.a] < layer_of[cable.b] for cable in scene.cables)


def test_few_hosts_are_shown_one_by_one() -> None:
    """The paper's cluster: every host by name, the link between the racks with capacity and rate, both racks."""
    network = load_network(DOCS / "topologies" / "paper.toml")
    shown = texts(draw(network.topology, timestep_s=network.timestep_s))
    assert set(network.topology.index) <= set(shown)
    assert {"rack1", "rack2", "⇄ 5 · 1 Gbit/s", "17 hosts, 2 racks · chunks of 64 MiB"} <= set(shown)
    assert "Numbers are capacities: chunks per timestep (2.98 s)." in shown


def test_a_thousand_hosts_are_squares() -> None:
    """25 racks of 40: every rack has a box that says how many, and as many small squares."""
    topology = racks([40] * 25, 20)
    check(topology)
    shown = texts(draw(topology))
    assert shown.count("40 hosts · send 2 · receive 2") == 25
    assert sum(text.count("▪") for text in shown if " " not in text) == 1000
    assert "r1h1" not in shown


def test_ten_thousand_hosts_are_a_stack() -> None:
    """250 like racks are one box; different ones stay apart, as far as they are not too many."""
    svg = draw(racks([40] * 250, 20))
    assert "250 racks of 40 hosts · send 2 · receive 2" in " ".join(texts(svg))
    assert len(svg) < 20_000
    mixed = [Server(f"h{rack}-{host}", f"rack{rack:03}", 1 + rack % 3) for rack in range(60) for host in range(4)]
    links = [link for rack in range(60) for link in both_ways(f"rack{rack:03}", "core", 5)]
    topology = Topology(mixed, links, switches=["core", *(f"rack{rack:03}" for rack in range(60))])
    assert [len(box.names) for box in scene_of(topology).boxes] == [1, 20, 20, 20]
    different = racks([10 + rack for rack in range(2 * MAX_RACKS)], 20)
    assert [len(box.names) for box in scene_of(different).boxes] == [1, 2 * MAX_RACKS]
    assert "80 racks of 10–89 hosts" in " ".join(texts(draw(different)))


def test_wider_lines_carry_more() -> None:
    """The width grows with the capacity; nothing passes over a dashed line; both ways are told apart."""
    links = [Link("a", "core", 1), Link("core", "a", 4), *both_ways("b", "core", 9), *both_ways("c", "core", 0)]
    servers = [Server(f"h{rack}", rack) for rack in "abc"]
    topology = Topology(servers, links, switches=["core", "a", "b", "c"])
    lines: Any = figure(topology).axes[0].collections[0]
    different, both, dead = lines.get_linewidths()
    assert both > different > dead
    assert [dashes is None for _, dashes in lines.get_linestyles()] == [True, True, False]
    assert len({tuple(colour) for colour in lines.get_edgecolors()}) == 3
    shown = texts(draw(topology))
    assert {"→ 4", "← 1", "⇄ 9", "⇄ 0", "nothing may pass"} <= set(shown)


def test_layers_follow_the_depth() -> None:
    """A tree hangs from its middle switch without servers; leaf and spine are two layers; a ring is a circle."""
    network = load_network(DOCS / "topologies" / "three-levels.toml")
    scene = scene_of(network.topology)
    assert scene.layers is not None
    named = [[scene.boxes[box].title for box in layer] for layer in scene.layers]
    assert named[:2] == [["core"], ["hall-1", "hall-2"]]
    assert len(named) == 3
    assert [len(layer) for layer in scene_of(LEAF_AND_SPINE).layers or ()] == [2, 3]
    check(LEAF_AND_SPINE)
    assert scene_of(RING).layers is None
    check(RING)


def test_long_names_are_shortened() -> None:
    """The picture stays small, whatever the names."""
    name = "host-" + "x" * 150 + "-1 <&> $x$"
    svg = draw(Topology([Server(name, "r")]))
    assert float(ET.fromstring(svg).get("width", "").removesuffix("pt")) < 800
    assert not any(name in text for text in texts(svg))
    assert any(text.endswith("x-1 <&> $x$") for text in texts(svg))


@pytest.mark.parametrize("name", ["paper", "three-levels"])
def test_the_pictures_in_the_documentation_are_current(name: str) -> None:
    """docs/topology-NAME.svg is what `cairn topology draw` draws today."""
    network = load_network(DOCS / "topologies" / f"{name}.toml")
    drawn = draw(network.topology, timestep_s=network.timestep_s)
    assert (DOCS / f"topology-{name}.svg").read_bytes() == drawn, "draw it again"


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
