"""A network as an SVG picture that a person understands: racks with their hosts, switches, what each link carries.

The topmost switch stands on the left, what hangs below it to its right; so names of any length stay readable, and a
thousand racks make a long page instead of small print. A line is the wider the more it carries.

Invariants: the same network gives the same bytes; the text is well-formed XML whatever the names; no box overlaps
another.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from scheduler.topology.model import Server, Topology
from scheduler.topology.picture import MOST_DOTS, Box, Connection, Direction, Picture, picture
from scheduler.topology.quantities import duration_for_people, size_text

FONT: Final = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, PALE, PAPER = "#1f2933", "#66727f", "#ffffff"
RACK_FILL, RACK_LINE, CELL_FILL, CELL_LINE = "#eaf2fb", "#4f81bd", "#ffffff", "#a9c3e2"
SWITCH_FILL, SWITCH_LINE = "#eef0f2", "#7b8794"
THERE, BACK, BOTH, NONE = "#c05621", "#2b6cb0", "#44546a", "#c53030"

MARGIN: Final = 28
TITLE: Final = 20  # sizes of text, pixels
HEAD: Final = 14
SMALL: Final = 11.5
GAP: Final = 22  # between boxes of a column
PADDING: Final = 12
CELL_HEIGHT: Final = 24
CELL_HEIGHT_TWO: Final = 38
DOT: Final = 9
GRID_WIDTH: Final = 560  # of a rack's hosts, at most
LONGEST_TEXT: Final = 34  # characters of a name that is not shortened
LINE_LEAST, LINE_MOST = 1.6, 9.0
FOOT: Final = 64
BOLD: Final = 1.13  # how much wider bold text is


def draw(topology: Topology, *, timestep_s: float | None = None) -> str:
    """The picture of a network as the text of an SVG file."""
    scene = picture(topology)
    shapes = [_Shape.of(box) for box in scene.boxes]
    width, height = _place(scene, shapes)
    canvas = _Canvas()
    most = max((way.capacity.most for one in scene.connections for way in (one.there, one.back) if way), default=1)
    _draw_connections(canvas, scene, shapes, most)
    for shape in shapes:
        _draw_box(canvas, shape)
    return "\n".join(_document(topology, timestep_s, canvas, max(width, 560), height, scene)) + "\n"


# ---- shapes and where they stand


@dataclass(slots=True)
class _Shape:
    """A box with its size, and its place once it has one."""

    box: Box
    width: float
    height: float
    cell_width: float = 0
    cell_height: float = 0
    per_row: int = 1
    x: float = 0
    y: float = 0

    @classmethod
    def of(cls, box: Box) -> "_Shape":
        title = _text_width(_short(box.title), HEAD) * BOLD + 2 * PADDING
        if not box.servers:
            return cls(box, max(title, 90), 40)
        summary = max(_text_width(line, SMALL) for line in _summary(box)) + 2 * PADDING
        head = 30 + 15 * len(_summary(box))
        many = len(box.servers)
        if box.cells:
            differing = len({_numbers(server) for server in box.servers}) > 1
            texts = [_short(server.name) for server in box.servers]
            texts += [_numbers(server) for server in box.servers] if differing else []
            cell_width = max(_text_width(text, SMALL) for text in texts) + 14
            cell_height = CELL_HEIGHT_TWO if differing else CELL_HEIGHT
            gap = 6.0
        elif many <= MOST_DOTS and len(box.names) == 1:
            cell_width = cell_height = DOT
            gap = 3.0
        else:
            return cls(box, max(title, summary), head + 4)
        rows = -(-many // max(1, int(GRID_WIDTH // (cell_width + gap))))
        per_row = -(-many // rows)
        rows = -(-many // per_row)
        grid = per_row * (cell_width + gap) - gap + 2 * PADDING
        height = head + rows * (cell_height + gap) - gap + PADDING
        return cls(box, max(title, summary, grid), height, cell_width, cell_height, per_row)

    @property
    def head(self) -> float:
        """The height of the title and the summary."""
        return 30 + 15 * len(_summary(self.box))

    @property
    def middle(self) -> float:
        """Where links arrive at its side."""
        return self.y + self.height / 2


def _place(scene: Picture, shapes: Sequence[_Shape]) -> tuple[float, float]:
    """Gives every shape its place; returns the extent of all."""
    top = MARGIN + 66.0
    x = float(MARGIN)
    for number, column in enumerate(scene.columns):
        inside = _inside(scene, column)
        lanes = [_label_width(one) for one in inside if not _adjacent(one, column)]
        x += sum(34.0 for _ in lanes) + max(lanes, default=0)
        if number:
            x += _gap(scene, scene.columns[number - 1], column)
        for box in column:
            shapes[box].x = x
        x += max((shapes[box].width for box in column), default=0)
    if any(parent is not None for parent in scene.parent):
        bottom = _place_tree(scene, shapes, top)
    else:
        bottom = _place_columns(scene, shapes, top)
    beside = max((_label_width(one) for column in scene.columns for one in _inside(scene, column)), default=0)
    return x + MARGIN + (max(0, beside - 60) if len(scene.columns) == 1 else 0), bottom + FOOT + MARGIN


def _place_tree(scene: Picture, shapes: Sequence[_Shape], top: float) -> float:
    """Each box in the middle of what hangs below it; returns the bottom."""
    children: dict[int, list[int]] = {}
    for column in scene.columns:
        for box in column:
            if (parent := scene.parent[box]) is not None:
                children.setdefault(parent, []).append(box)
    extent: dict[int, float] = {}
    for column in reversed(scene.columns):
        for box in column:
            heights = [extent[child] for child in children.get(box, ())]
            extent[box] = max(shapes[box].height, sum(heights) + GAP * max(0, len(heights) - 1))
    start = {scene.columns[0][0]: top}
    for column in scene.columns:
        for box in column:
            shapes[box].y = start[box] + (extent[box] - shapes[box].height) / 2
            below = children.get(box, [])
            y = start[box] + (extent[box] - sum(extent[child] for child in below) - GAP * max(0, len(below) - 1)) / 2
            for child in below:
                start[child] = y
                y += extent[child] + GAP
    return top + extent[scene.columns[0][0]]


def _place_columns(scene: Picture, shapes: Sequence[_Shape], top: float) -> float:
    """Each column stacked, all centred on the tallest; returns the bottom."""
    heights = []
    for column in scene.columns:
        gaps = [_row_gap(scene, a, b) for a, b in pairwise(column)]
        heights.append(sum(shapes[box].height for box in column) + sum(gaps))
    tallest = max(heights)
    for column, height in zip(scene.columns, heights, strict=True):
        # Fewer boxes than in the tallest column are spread over its height.
        spread = (tallest - height) / (len(column) + 1) if len(scene.columns) > 1 else 0
        y = top + spread
        for place, box in enumerate(column):
            shapes[box].y = y
            following = column[place + 1] if place + 1 < len(column) else None
            y += shapes[box].height + spread + (0 if following is None else _row_gap(scene, box, following))
    return top + tallest


def _row_gap(scene: Picture, a: int, b: int) -> float:
    return 74 if any({one.a, one.b} == {a, b} for one in scene.connections) else GAP


def _gap(scene: Picture, left: Sequence[int], right: Sequence[int]) -> float:
    """The space between two columns: room for the links' labels, and for turns."""
    crossing = [one for one in scene.connections if _crosses(one, left, right)]
    labels = max((_label_width(one) for one in crossing), default=0)
    tangle = 0 if any(parent is not None for parent in scene.parent) else 60 + 12 * max(len(left), len(right))
    return 70 + labels + min(tangle, 260)


def _crosses(one: Connection, left: Sequence[int], right: Sequence[int]) -> bool:
    return (one.a in left and one.b in right) or (one.b in left and one.a in right)


def _inside(scene: Picture, column: Sequence[int]) -> list[Connection]:
    return [one for one in scene.connections if one.a in column and one.b in column]


def _adjacent(one: Connection, column: Sequence[int]) -> bool:
    return abs(column.index(one.a) - column.index(one.b)) == 1


# ---- links


class _Label(NamedTuple):
    """What stands at a link: one text for both ways, or one for each."""

    lines: tuple[tuple[str, str], ...]  # text, colour


def _label(one: Connection, *, forward: str = "→", backward: str = "←", both: str = "⇄") -> _Label:
    if one.there == one.back and one.there is not None:
        return _Label(((f"{both} {one.there.text}", INK),))
    lines = [(f"{forward} {one.there.text}", THERE)] if one.there else []
    lines += [(f"{backward} {one.back.text}", BACK)] if one.back else []
    return _Label(tuple(lines))


def _label_width(one: Connection) -> float:
    return max(_text_width(text, SMALL) for text, _ in _label(one).lines) + 12


def _line_width(way: Direction, most: float) -> float:
    share = way.capacity.most / most if most else 0
    return LINE_LEAST + (LINE_MOST - LINE_LEAST) * share**0.5


def _draw_connections(canvas: "_Canvas", scene: Picture, shapes: Sequence[_Shape], most: float) -> None:
    column_of = {box: number for number, column in enumerate(scene.columns) for box in column}
    is_tree = any(parent is not None for parent in scene.parent)
    lanes: dict[int, int] = {}
    for one in scene.connections:
        if column_of[one.a] == column_of[one.b]:
            column = scene.columns[column_of[one.a]]
            if _adjacent(one, column):
                _draw_neighbours(canvas, one, shapes, most)
            else:
                lane = lanes[column_of[one.a]] = lanes.get(column_of[one.a], 0) + 1
                _draw_bracket(canvas, one, shapes, most, lane)
            continue
        if column_of[one.a] > column_of[one.b]:
            one = Connection(one.b, one.a, one.back, one.there)
        if is_tree:
            turn = max(shapes[box].x + shapes[box].width for box in scene.columns[column_of[one.a]]) + 26
            _draw_branch(canvas, one, shapes, most, turn)
        else:
            _draw_curve(canvas, scene, one, shapes, most)


def _strokes(one: Connection, most: float) -> list[tuple[float, float, str, bool]]:
    """The lines of a connection: offset from its middle, width, colour, and whether nothing may pass."""
    ways = [(way, colour) for way, colour in ((one.there, THERE), (one.back, BACK)) if way is not None]
    if one.there == one.back and one.there is not None:
        ways = [(one.there, BOTH)]
    widths = [_line_width(way, most) for way, _ in ways]
    offsets = [0.0] if len(ways) == 1 else [-(widths[0] + 2) / 2, (widths[1] + 2) / 2]
    blocked = [way.capacity.most == 0 for way, _ in ways]
    colours = [NONE if dead else colour for (_, colour), dead in zip(ways, blocked, strict=True)]
    return list(zip(offsets, widths, colours, blocked, strict=True))


def _tooltip(one: Connection, shapes: Sequence[_Shape]) -> str:
    a, b = shapes[one.a].box.title, shapes[one.b].box.title
    there = [f"{a} → {b}: {one.there.text}"] if one.there else []
    return "\n".join(there + ([f"{b} → {a}: {one.back.text}"] if one.back else []))


def _draw_branch(canvas: "_Canvas", one: Connection, shapes: Sequence[_Shape], most: float, turn: float) -> None:
    """From a box to one below it: along a trunk that all its branches share, then level to the right."""
    above, below = shapes[one.a], shapes[one.b]
    x, y = above.x + above.width, above.middle
    trunk = f"M{x:.1f} {y:.1f}H{turn:.1f}V{below.middle:.1f}"
    canvas.under(f'<path d="{trunk}" fill="none" stroke="#b8c2cc" stroke-width="3" stroke-linejoin="round"/>')
    canvas.link(_tooltip(one, shapes))
    strokes = _strokes(one, most)
    for offset, width, colour, blocked in strokes:
        at = below.middle + offset
        canvas.line(f"M{turn:.1f} {at:.1f}H{below.x:.1f}", width, colour, blocked)
    canvas.end()
    reach = max(abs(offset) + width / 2 for offset, width, _, _ in strokes)
    _draw_label(canvas, _label(one), below.x - 8, below.middle, reach, "end")


def _draw_curve(canvas: "_Canvas", scene: Picture, one: Connection, shapes: Sequence[_Shape], most: float) -> None:
    """From a box to one in a column further right, where the network is no tree: a curve, its label near the right."""
    left, right = shapes[one.a], shapes[one.b]
    start, end = _dock(scene, one.a, one, shapes), _dock(scene, one.b, one, shapes)
    x, to = left.x + left.width, right.x
    level = to - _label_width(one) - 14
    bend = (level - x) / 2
    canvas.link(_tooltip(one, shapes))
    strokes = _strokes(one, most)
    for offset, width, colour, blocked in strokes:
        a, b = start + offset, end + offset
        path = f"M{x:.1f} {a:.1f}C{x + bend:.1f} {a:.1f} {level - bend:.1f} {b:.1f} {level:.1f} {b:.1f}H{to:.1f}"
        canvas.line(path, width, colour, blocked)
    canvas.end()
    reach = max(abs(offset) + width / 2 for offset, width, _, _ in strokes)
    _draw_label(canvas, _label(one), to - 8, end, reach, "end")


def _dock(scene: Picture, box: int, one: Connection, shapes: Sequence[_Shape]) -> float:
    """Where on a box's side a curve begins or ends: all of a side's curves apart, in the order of their other ends."""
    others = {
        (other.b if other.a == box else other.a): other for other in scene.connections if box in (other.a, other.b)
    }
    mine = one.b if one.a == box else one.a
    same_side = sorted(
        (other for other in others if (shapes[other].x > shapes[box].x) == (shapes[mine].x > shapes[box].x)),
        key=lambda other: shapes[other].middle,
    )
    shape = shapes[box]
    step = shape.height / (len(same_side) + 1)
    return shape.y + step * (same_side.index(mine) + 1)


def _draw_neighbours(canvas: "_Canvas", one: Connection, shapes: Sequence[_Shape], most: float) -> None:
    """Between two boxes of a column, one below the other."""
    if shapes[one.a].y > shapes[one.b].y:
        one = Connection(one.b, one.a, one.back, one.there)
    above, below = shapes[one.a], shapes[one.b]
    x = above.x + min(above.width, below.width, 160) / 2
    canvas.link(_tooltip(one, shapes))
    strokes = _strokes(one, most)
    for offset, width, colour, blocked in strokes:
        canvas.line(f"M{x + offset:.1f} {above.y + above.height:.1f}V{below.y:.1f}", width, colour, blocked)
    canvas.end()
    reach = max(abs(offset) + width / 2 for offset, width, _, _ in strokes)
    label = _label(one, forward="↓", backward="↑", both="⇅")
    middle = (above.y + above.height + below.y) / 2 + 4 - 8 * (len(label.lines) - 1)
    for number, (text, colour) in enumerate(label.lines):
        canvas.label(x + reach + 9, middle + 16 * number, text, colour, "start")


def _draw_bracket(canvas: "_Canvas", one: Connection, shapes: Sequence[_Shape], most: float, lane: int) -> None:
    """Between two boxes of a column with others between them: out to the left and back."""
    if shapes[one.a].y > shapes[one.b].y:
        one = Connection(one.b, one.a, one.back, one.there)
    a, b = shapes[one.a], shapes[one.b]
    start, end = a.y + a.height * 0.7, b.y + b.height * 0.3
    x = min(a.x, b.x) - 10 - 24 * lane
    canvas.link(_tooltip(one, shapes))
    for offset, width, colour, blocked in _strokes(one, most):
        path = f"M{a.x:.1f} {start + offset:.1f}H{x + 10 + offset:.1f}Q{x + offset:.1f} {start + offset:.1f} "
        path += f"{x + offset:.1f} {start + 10:.1f}V{end - 10:.1f}Q{x + offset:.1f} {end - offset:.1f} "
        path += f"{x + 10 + offset:.1f} {end - offset:.1f}H{b.x:.1f}"
        canvas.line(path, width, colour, blocked)
    canvas.end()
    label = _label(one, forward="↓", backward="↑", both="⇅")
    _draw_label(canvas, label, a.x - 8, start, 6, "end")


def _draw_label(canvas: "_Canvas", label: _Label, x: float, y: float, reach: float, anchor: str) -> None:
    places = [y - reach - 5, y + reach + 13]
    for (text, colour), at in zip(label.lines, places, strict=False):
        canvas.label(x, at, text, colour, anchor)


# ---- boxes


def _draw_box(canvas: "_Canvas", shape: _Shape) -> None:
    box = shape.box
    fill, line = (RACK_FILL, RACK_LINE) if box.servers else (SWITCH_FILL, SWITCH_LINE)
    canvas.link("\n".join(box.names[:50]) + (f"\n… {len(box.names)} in all" if len(box.names) > 50 else ""))
    if len(box.names) > 1:
        for shift in (8, 4):
            canvas.box(shape.x + shift, shape.y + shift, shape.width, shape.height, fill, line)
    canvas.box(shape.x, shape.y, shape.width, shape.height, fill, line)
    if not box.servers:
        middle = shape.x + shape.width / 2
        canvas.text(middle, shape.y + 18, _short(box.title), size=HEAD, bold=True, anchor="middle")
        canvas.text(middle, shape.y + 32, "switch", size=10, colour=PALE, anchor="middle")
        canvas.end()
        return
    canvas.text(shape.x + PADDING, shape.y + 22, _short(box.title), size=HEAD, bold=True)
    for number, line_text in enumerate(_summary(box)):
        canvas.text(shape.x + PADDING, shape.y + 38 + 15 * number, line_text, size=SMALL, colour=PALE)
    canvas.end()
    if shape.cell_width:
        _draw_hosts(canvas, shape)


def _draw_hosts(canvas: "_Canvas", shape: _Shape) -> None:
    gap = 6.0 if shape.box.cells else 3.0
    differing = shape.cell_height == CELL_HEIGHT_TWO
    for number, server in enumerate(shape.box.servers):
        row, place = divmod(number, shape.per_row)
        x = shape.x + PADDING + place * (shape.cell_width + gap)
        y = shape.y + shape.head + row * (shape.cell_height + gap)
        canvas.link(f"{server.name}\n{_numbers(server)}" + (f"\n{server.address}" if server.address else ""))
        canvas.box(x, y, shape.cell_width, shape.cell_height, CELL_FILL, CELL_LINE, 4 if shape.box.cells else 2)
        if shape.box.cells:
            middle = x + shape.cell_width / 2
            canvas.text(middle, y + 16, _short(server.name), size=SMALL, anchor="middle")
            if differing:
                canvas.text(middle, y + 31, _numbers(server), size=10, colour=PALE, anchor="middle")
        canvas.end()


def _summary(box: Box) -> list[str]:
    """The summary in lines that are not too wide."""
    lines: list[str] = []
    for part in box.summary.split(" · "):
        if lines and len(lines[-1]) + len(part) < 44:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _numbers(server: Server) -> str:
    """A host's capacities, short: sent, received, onto its disk."""
    disk = "" if server.disk is None else f"  disk {server.disk}"
    return f"↑{server.send}  ↓{server.receive}{disk}"


# ---- the document


def _document(
    topology: Topology, timestep_s: float | None, canvas: "_Canvas", width: float, height: float, scene: Picture
) -> Iterator[str]:
    hosts, racks, links = len(topology.servers), len(topology.racks), len(topology.links)
    others = len(topology.switches) - racks
    count = [_many(hosts, "host"), _many(racks, "rack"), *([_many(others, "more switch", "es")] if others else [])]
    lasts = "" if timestep_s is None else f" ({duration_for_people(timestep_s)})"
    about = f"{', '.join(count)} · chunks of {size_text(topology.chunk_bytes)}"
    numbers = f"Numbers are capacities: chunks per timestep{lasts}."
    title = _short(topology.name, 70)
    width = max(
        width,
        *(_text_width(text, 13) + 2 * MARGIN for text in (about, numbers, _notes(scene))),
        _text_width(title, TITLE) * BOLD + 2 * MARGIN,
    )
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family={quoteattr(FONT)} role="img">'
    )
    yield f"<title>{_clean(topology.name)}: {hosts} hosts, {racks} racks, {links} links</title>"
    yield f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    head = _Canvas()
    head.text(MARGIN, MARGIN + 16, title, size=TITLE, bold=True)
    head.text(MARGIN, MARGIN + 36, about, size=13, colour=PALE)
    head.text(MARGIN, MARGIN + 53, numbers, size=13, colour=PALE)
    yield from head.above
    yield from canvas.below
    yield from canvas.above
    yield from canvas.labels
    yield from _legend(scene, height)
    yield "</svg>"


def _legend(scene: Picture, height: float) -> Iterator[str]:
    canvas = _Canvas()
    y = height - MARGIN - 18
    x = float(MARGIN)
    asymmetric = any(one.there != one.back for one in scene.connections)
    entries = [(BOTH, "a link, the same both ways; the wider, the more it carries")] if scene.connections else []
    if asymmetric:
        entries = [(BOTH, "the same both ways"), (THERE, "to the right, or down"), (BACK, "to the left, or up")]
    for colour, text in entries:
        canvas.line(f"M{x:.1f} {y:.1f}h26", 5, colour, False)
        canvas.text(x + 33, y + 4, text, size=SMALL, colour=PALE)
        x += 33 + _text_width(text, SMALL) + 22
    canvas.text(MARGIN, y + 22, _notes(scene), size=SMALL, colour=PALE)
    yield from canvas.above


def _notes(scene: Picture) -> str:
    """What the picture's signs mean, as far as they occur."""
    notes = []
    if any(box.cells and len({_numbers(server) for server in box.servers}) > 1 for box in scene.boxes):
        notes.append("↑ sends, ↓ receives")
    if any(box.servers and not box.cells and len(box.names) == 1 for box in scene.boxes):
        notes.append("a small square is a host")
    if any(len(box.names) > 1 for box in scene.boxes):
        notes.append("a stack stands for several racks; a–b: the least and the most")
    return " · ".join(notes)


@dataclass(slots=True)
class _Canvas:
    """Lines of SVG: what lies below, what lies above it, and labels on top of all."""

    below: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def under(self, element: str) -> None:
        """An element that everything else covers."""
        if element not in self.below[-1:]:
            self.below.append(element)

    def link(self, tooltip: str) -> None:
        """Opens a group that shows a text when pointed at; `end` closes it."""
        self.above.append(f"<g><title>{_clean(tooltip)}</title>")

    def end(self) -> None:
        """Closes the group."""
        self.above.append("</g>")

    def line(self, path: str, width: float, colour: str, blocked: bool) -> None:
        """A line; dashed where nothing may pass."""
        dashes = ' stroke-dasharray="5 4"' if blocked else ""
        self.above.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"{dashes}/>')

    def box(self, x: float, y: float, width: float, height: float, fill: str, line: str, radius: int = 7) -> None:
        """A rectangle with round corners."""
        self.above.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" fill="{fill}" '
            f'stroke="{line}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, size: float, colour: str = INK, bold: bool = False,
        anchor: str = "start",
    ) -> None:  # fmt: skip
        """A line of text."""
        style = ' font-weight="bold"' if bold else ""
        self.above.append(_text(x, y, text, size, colour, anchor, style))

    def label(self, x: float, y: float, text: str, colour: str, anchor: str) -> None:
        """A line of text beside a link; its halo keeps it readable on top of other links."""
        halo = f' paint-order="stroke" stroke="{PAPER}" stroke-width="3"'
        self.labels.append(_text(x, y, text, SMALL, colour, anchor, halo))


def _text(x: float, y: float, text: str, size: float, colour: str, anchor: str, style: str) -> str:
    if anchor != "start":
        style += f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"{style}>{_clean(text)}</text>'


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count:,} {word}{'' if count == 1 else plural}"


def _short(text: str, most: int = LONGEST_TEXT) -> str:
    """A name that is not too long: the middle of a long one is left out, for names differ at their ends."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"


def _text_width(text: str, size: float) -> float:
    """About how wide a text is: we have no font here."""
    wide = sum(1.0 if unicodedata.east_asian_width(one) in "WF" else _WIDTHS.get(one, 0.57) for one in text)
    return wide * size * 1.03


_WIDTHS: Final[Mapping[str, float]] = (
    dict.fromkeys("ijl.,:;'|!()[] ·ftI-r", 0.36) | dict.fromkeys("mwMW@%", 0.9) | dict.fromkeys("→←⇄↓↑⇅", 0.9)
    | dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 0.7)
)  # fmt: skip


def _clean(text: str) -> str:
    """Text for XML, without characters that XML forbids."""
    return escape("".join(one if one in "\n\t" or one.isprintable() else "�" for one in text))
