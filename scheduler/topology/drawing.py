"""The picture of a network, drawn with matplotlib: racks with their hosts, switches, and the capacity of every link.

The topmost switch stands on the left and the racks on the right, so that names of any length stay readable and a
network of many racks makes a long page instead of small print; a network without such layers stands in a circle. A
line is the wider, the more it carries.

Invariants: the same network gives the same bytes; no box overlaps another. A page's unit is the point (1/72 inch).
"""

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, HPacker, OffsetBox, TextArea, VPacker

from scheduler.topology.model import Server, Topology
from scheduler.topology.quantities import duration_for_people, size_text
from scheduler.topology.scene import MAX_SQUARES, Box, Cable, Layers, Scene, scene_of

INK, PALE, PAPER = "#1f2933", "#5b6770", "#ffffff"
RACK_FILL, RACK_LINE = "#eaf2fb", "#4f81bd"
SWITCH_FILL, SWITCH_LINE = "#eef0f2", "#7b8794"
SYMMETRIC, ASYMMETRIC, CLOSED = "#44546a", "#c05621", "#c53030"

TITLE, HEAD, SMALL = 17.0, 12.0, 9.5
"""Sizes of text, in points."""
MARGIN: Final = 28.0
HEADER, FOOTER = 66.0, 62.0
MIN_WIDTH: Final = 560.0
PADDING: Final = 9.0
ROW_GAP: Final = 24.0
LAYER_GAP: Final = 60.0
MAX_NAME_CHARACTERS: Final = 34
MAX_SUMMARY_CHARACTERS: Final = 44
HOSTS_PER_COLUMN: Final = 10
SQUARES_PER_LINE: Final = 40
MIN_STROKE, MAX_STROKE = 1.5, 6.5
PNG_DPI: Final = 144
NO_DATES: Final[Mapping[str, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
"""What matplotlib leaves out of a file of each form, so that the same network gives the same bytes."""


def draw(topology: Topology, *, timestep_s: float | None = None, form: str = "svg") -> bytes:
    """The picture of a network as the content of a file; `form` is `svg`, `png` or `pdf`."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # a user's own style would change sizes
        mpl.rcParams.update({"svg.hashsalt": "cairn", "svg.fonttype": "none", "font.size": SMALL})
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        content = io.BytesIO()
        drawn = figure(topology, timestep_s=timestep_s)
        drawn.savefig(content, format=form, dpi=PNG_DPI if form == "png" else 72, metadata=NO_DATES[form])
        return content.getvalue()


def figure(topology: Topology, *, timestep_s: float | None = None) -> Figure:
    """The picture of a network as matplotlib's figure; every box is an AnnotationBbox."""
    scene = scene_of(topology)
    page = Figure(dpi=72, facecolor=PAPER)
    contents = [_content(box) for box in scene.boxes]
    plan = _arrange(scene, [_size(content, page) for content in contents], _label_width(scene, page))
    header = list(_header(topology, timestep_s, scene))
    width = max(MIN_WIDTH, plan.width, *(_size(text, page)[0] + 2 * MARGIN for text in header))
    page.set_size_inches(width / 72, plan.height / 72)
    axes = page.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(plan.height, 0))
    axes.set_axis_off()
    _draw_cables(axes, scene, plan)
    for box, content, at in zip(scene.boxes, contents, plan.places, strict=True):
        fill, line = (RACK_FILL, RACK_LINE) if box.servers else (SWITCH_FILL, SWITCH_LINE)
        frame = {"facecolor": fill, "edgecolor": line, "linewidth": 3 if len(box.names) > 1 else 1}
        axes.add_artist(
            AnnotationBbox(
                content, at, box_alignment=(plan.align, 0.5), fontsize=SMALL,
                bboxprops={"boxstyle": f"round,pad={PADDING / SMALL},rounding_size=0.4", **frame},
                annotation_clip=False, zorder=3,
            )
        )  # fmt: skip
    heading = VPacker(pad=0, sep=4, align="left", children=[*header[:3]])
    axes.add_artist(AnnotationBbox(heading, (MARGIN, MARGIN), box_alignment=(0, 1), frameon=False, pad=0))
    for note in header[3:]:
        axes.add_artist(
            AnnotationBbox(note, (MARGIN, plan.height - MARGIN), box_alignment=(0, 0), frameon=False, pad=0)
        )
    _draw_legend(axes, scene, plan)
    return page


# ---- boxes


def _content(box: Box) -> OffsetBox:
    """The title of a box, the summary of its hosts, and the hosts."""
    title = _area(_short(box.title), size=HEAD, weight="bold", color=INK)
    if not box.servers:
        return VPacker(pad=0, sep=3, align="center", children=[title, _area("switch")])
    words = "\xa0· ".join(part.replace(" ", "\xa0") for part in box.summary)
    summary = "\n".join(textwrap.wrap(words, MAX_SUMMARY_CHARACTERS)).replace("\xa0", " ")
    return VPacker(pad=0, sep=4, align="left", children=[title, _area(summary), *_hosts(box)])


def _hosts(box: Box) -> Iterator[OffsetBox]:
    """The hosts of a rack: their names in columns, with their capacities where these differ; or squares."""
    if box.names_hosts:
        texts = [_short(server.name) + (f" {_numbers(server)}" if box.hosts_differ else "") for server in box.servers]
        columns = [texts[start : start + HOSTS_PER_COLUMN] for start in range(0, len(texts), HOSTS_PER_COLUMN)]
        yield HPacker(pad=0, sep=14, align="top", children=[_area("\n".join(column), color=INK) for column in columns])
    elif len(box.names) == 1 and len(box.servers) <= MAX_SQUARES:
        squares = "▪" * len(box.servers)
        yield _area("\n".join(textwrap.wrap(squares, SQUARES_PER_LINE)), color=RACK_LINE)


def _numbers(server: Server) -> str:
    disk = "" if server.disk is None else f" disk {server.disk}"
    return f"↑{server.send} ↓{server.receive}{disk}"


def _header(topology: Topology, timestep_s: float | None, scene: Scene) -> Iterator[OffsetBox]:
    """Title, size and unit; then the meaning of the signs that occur, if any do."""
    hosts, racks = len(topology.servers), len(topology.racks)
    others = len(topology.switches) - racks
    counts = [_many(hosts, "host"), _many(racks, "rack"), *([_many(others, "more switch", "es")] if others else [])]
    lasts = "" if timestep_s is None else f" ({duration_for_people(timestep_s)})"
    yield _area(_short(topology.name, 70), size=TITLE, weight="bold", color=INK)
    yield _area(f"{', '.join(counts)} · chunks of {size_text(topology.chunk_bytes)}", size=11)
    yield _area(f"Numbers are capacities: chunks per timestep{lasts}.", size=11)
    notes = {
        "↑ sends, ↓ receives": any(box.names_hosts and box.hosts_differ for box in scene.boxes),
        "▪ a host": any(box.servers and not box.names_hosts and len(box.names) == 1 for box in scene.boxes),
        "a thick frame: several racks; a–b: from the smallest to the largest": any(
            len(box.names) > 1 for box in scene.boxes
        ),
    }
    if any(notes.values()):
        yield _area(" · ".join(note for note, occurs in notes.items() if occurs))


# ---- places


Point = tuple[float, float]


class _BoxLayout(NamedTuple):
    """Where the boxes stand: lines lead to the `places`, from the `exits`; both at a box's sides, or in its middle."""

    places: tuple[Point, ...]
    exits: tuple[Point, ...]
    align: float
    """0: a place is the middle of a box's left side; 0.5: its middle."""
    width: float
    height: float


Sizes = Sequence[Point]


def _arrange(scene: Scene, sizes: Sizes, label_width: float) -> _BoxLayout:
    if scene.layers is not None:
        return _in_layers(scene, scene.layers, sizes, label_width)
    widest, tallest = (max(values) for values in zip(*sizes, strict=True))
    chord = math.hypot(widest, tallest) + label_width + ROW_GAP
    radius = chord / (2 * math.sin(math.pi / len(sizes)))
    circle = nx.circular_layout(scene.graph())
    places = tuple(
        (MARGIN + widest / 2 + radius * (1 + float(x)), MARGIN + HEADER + tallest / 2 + radius * (1 + float(y)))
        for x, y in (circle[number] for number in range(len(sizes)))
    )
    height = MARGIN + HEADER + 2 * radius + tallest + FOOTER + MARGIN
    return _BoxLayout(places, places, 0.5, 2 * (MARGIN + radius) + widest, height)


def _in_layers(scene: Scene, layers: Layers, sizes: Sizes, label_width: float) -> _BoxLayout:
    """A column for each layer, whose boxes are spread over the height of the tallest column."""
    heights = [sum(sizes[box][1] + ROW_GAP for box in layer) - ROW_GAP for layer in layers]
    # Lines that are not too steep, and room for the labels of all lines that meet at a box.
    gap = LAYER_GAP + min(max(heights) / 8, 300.0) + 2 * label_width * _max_parents(scene)
    places: dict[int, Point] = {}
    x = MARGIN + PADDING
    for layer, height in zip(layers, heights, strict=True):
        spread = (max(heights) - height) / len(layer)
        y = MARGIN + HEADER
        for box in layer:
            places[box] = (x, y + (spread + sizes[box][1]) / 2)
            y += spread + sizes[box][1] + ROW_GAP
        x += max(sizes[box][0] for box in layer) + gap
    ordered = tuple(places[box] for box in range(len(sizes)))
    exits = tuple((left + width - 2 * PADDING, y) for (left, y), (width, _) in zip(ordered, sizes, strict=True))
    return _BoxLayout(ordered, exits, 0.0, x - gap + MARGIN - PADDING, MARGIN + HEADER + max(heights) + FOOTER + MARGIN)


def _parents(scene: Scene) -> Mapping[int, list[int]]:
    """For each box, the boxes to its left that it has a cable to."""
    parents: dict[int, list[int]] = {}
    for cable in scene.cables:
        parents.setdefault(cable.b, []).append(cable.a)
    return {box: sorted(found) for box, found in parents.items()}


def _max_parents(scene: Scene) -> int:
    return max(map(len, _parents(scene).values()), default=0)


# ---- lines


def _draw_cables(axes: Axes, scene: Scene, plan: _BoxLayout) -> None:
    max_capacity = max((cable.max_capacity for cable in scene.cables), default=0) or 1
    span = MAX_STROKE - MIN_STROKE
    axes.add_collection(
        LineCollection(
            [(plan.exits[cable.a], plan.places[cable.b]) for cable in scene.cables],
            colors=[_colour(cable) for cable in scene.cables],
            linewidths=[MIN_STROKE + span * (cable.max_capacity / max_capacity) ** 0.5 for cable in scene.cables],
            linestyles=["dashed" if cable.max_capacity == 0 else "solid" for cable in scene.cables],
            alpha=0.75,
            zorder=1,
        ),
        autolim=False,
    )
    parents, many = _parents(scene), _max_parents(scene)
    for cable in scene.cables:
        (ax, ay), (bx, by) = plan.exits[cable.a], plan.places[cable.b]
        # Near the right end, where lines are apart; those that meet at a box have their labels at different distances.
        share = 0.42 if scene.layers is None else 0.1 + 0.5 * (parents[cable.b].index(cable.a) + 0.5) / many
        axes.text(
            bx + share * (ax - bx), by + share * (ay - by), "\n".join(_label(cable, scene)), color=_colour(cable),
            ha="center", va="center", zorder=2, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def _label(cable: Cable, scene: Scene) -> list[str]:
    """The capacities of a cable: one text for both directions, or one for each."""
    if cable.is_symmetric and cable.there is not None:
        return [f"⇄ {cable.there.text}"]
    names = [_clean(_short(scene.boxes[box].title, 12)) for box in (cable.a, cable.b)]
    there, back = ("→", "←") if scene.layers is not None else (" → ".join(names) + ":", " → ".join(names[::-1]) + ":")
    return [f"{arrow} {way.text}" for arrow, way in ((there, cable.there), (back, cable.back)) if way is not None]


def _label_width(scene: Scene, page: Figure) -> float:
    texts = [text for cable in scene.cables for text in _label(cable, scene)]
    return _size(TextArea("\n".join(texts)), page)[0] if texts else 0.0


def _colour(cable: Cable) -> str:
    if cable.max_capacity == 0:
        return CLOSED
    return SYMMETRIC if cable.is_symmetric else ASYMMETRIC


def _draw_legend(axes: Axes, scene: Scene, plan: _BoxLayout) -> None:
    directions = "→ to the right, ← to the left" if scene.layers is not None else "a number each"
    entries = {
        SYMMETRIC: "a link, the same both ways (⇄)",
        ASYMMETRIC: f"a link, different each way: {directions}",
        CLOSED: "nothing may pass",
    }
    colours = {_colour(cable) for cable in scene.cables}
    handles = [
        Line2D([], [], color=colour, linewidth=4, linestyle="dashed" if colour == CLOSED else "solid", label=text)
        for colour, text in entries.items()
        if colour in colours
    ]
    if handles:
        axes.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(MARGIN, plan.height - MARGIN - 18), frameon=False,
            bbox_transform=axes.transData, ncols=len(handles), labelcolor=PALE, borderpad=0, borderaxespad=0,
        )  # fmt: skip


# ---- text


def _area(text: str, **properties: Any) -> TextArea:
    return TextArea(_clean(text), textprops={"color": PALE, "size": SMALL} | properties)


def _size(content: OffsetBox, page: Figure) -> tuple[float, float]:
    """The size of a box with this content, in whole points: fractions would depend on the machine."""
    content.set_figure(page)
    canvas: Any = FigureCanvasAgg(page)  # its methods have no types
    extent = content.get_bbox(canvas.get_renderer())
    return math.ceil(extent.width + 2 * PADDING), math.ceil(extent.height + 2 * PADDING)


def _clean(text: str) -> str:
    """Text that matplotlib takes literally: no formulas between dollars, no control characters."""
    shown = "".join(character if character == "\n" or character.isprintable() else "�" for character in text)
    return shown.replace("$", r"\$")


def _short(text: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """A name without its middle if it is long: names differ at their ends."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters // 2 - 1]}…{text[-(max_characters // 2) :]}"


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count:,} {word}{'' if count == 1 else plural}"
