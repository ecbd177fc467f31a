"""`cairn topology check` and `cairn topology draw`: print and draw the network that a file describes.

Invariant: both commands only read the description; `draw` writes the picture's file, and nothing else.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from logstore.base.packages import how_to_get
from scheduler.errors import SchedulerError, TopologyError
from scheduler.topology.description import NetworkDescription, load_network, topology_mapping, topology_toml
from scheduler.topology.overview import Overview, RackOverview, overview
from scheduler.topology.quantities import duration_for_people, rate_for_people, size_text

FORMS: Final = ("svg", "png", "pdf")
"""The forms of a picture, each the ending of its files."""
MAX_LINES: Final = 40
"""Racks and links that `check` lists; the rest is counted. `--all` lists everything."""


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topology check`."""
    _add_file(parser)
    parser.add_argument("--all", action="store_true", help=f"list every rack and link, not the first {MAX_LINES}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--toml", action="store_true", help="print the description with every capacity written out")


def add_draw_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topology draw`."""
    _add_file(parser)
    parser.add_argument(
        "-o", "--output", type=Path,
        help="file of the picture: .svg, .png or .pdf (default: SVG on standard output)",
    )  # fmt: skip


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="topology file: TOML, or JSON if the name ends in .json"
    )


def run_draw(arguments: argparse.Namespace) -> int:
    """Draw the network. Raises SchedulerError, OSError."""
    output: Path | None = arguments.output
    form = "svg" if output is None else output.suffix.lower().removeprefix(".")
    if form not in FORMS:
        endings = ", ".join(f".{known}" for known in FORMS)
        raise TopologyError(f"--output {output}: must end in one of {endings}")
    network = load_network(arguments.file)
    content = _drawing().draw(network.topology, timestep_s=network.timestep_s, form=form)
    if output is None:
        sys.stdout.buffer.write(content)
    else:
        output.write_bytes(content)
        print(f"drawn: {output}")
    return 0


def _drawing() -> ModuleType:
    """The module that draws, which alone needs matplotlib. Raises SchedulerError that names the missing package."""
    try:
        return import_module("scheduler.topology.drawing")
    except ModuleNotFoundError as error:
        raise SchedulerError(f"drawing needs {how_to_get(error.name, 'scheduler,draw')}") from None


def run_check(arguments: argparse.Namespace) -> int:
    """Print what the description of the network says. Raises SchedulerError, OSError."""
    network = load_network(arguments.file)
    if arguments.toml:
        print(topology_toml(network.topology, network.timestep_s), end="")
    elif arguments.json:
        seen = overview(network.topology)
        print(json.dumps(topology_mapping(network.topology, network.timestep_s) | {"overview": seen.values()}))
    else:
        for line in _report(network, None if arguments.all else MAX_LINES):
            print(line)
    return 0


def _report(network: NetworkDescription, most: int | None) -> Iterator[str]:
    topology, seen = network.topology, overview(network.topology)
    yield (
        f"{topology.name}: {len(topology.servers)} servers in {len(seen.racks)} racks, {len(topology.switches)} "
        f"switches, {len(topology.links)} links between them"
    )
    lasts = "" if network.timestep_s is None else f", a timestep is {duration_for_people(network.timestep_s)}"
    yield f"chunks of {size_text(topology.chunk_bytes)}{lasts}; capacities are chunks per timestep"
    yield _shape(seen)
    yield ""
    head = ("rack", "servers", "send", "receive", "disk", "out", "in", "oversubscribed out", "in")
    yield from _limited(_rows(head, [_rack_row(rack) for rack in seen.racks]), most, len(seen.racks), "racks")
    if topology.links:
        yield ""
        rows = [[f"{link.source} → {link.target}", str(link.capacity), _rate(link.bytes_s)] for link in topology.links]
        yield from _limited(_rows(("link", "capacity", "rate"), rows), most, len(rows), "links")
    if network.derived:
        many = len(network.derived)
        yield f"\n{many} capacit{'y' if many == 1 else 'ies'} from rates (rate × timestep ÷ chunk, rounded down):"
        yield from _limited((f"  {text}" for text in ["", *network.derived]), most, many, "capacities", head=False)
    for warning in seen.warnings:
        yield f"\nwarning: {warning}"


def _shape(seen: Overview) -> str:
    if seen.is_tree:
        levels = f"{seen.levels} level{'' if seen.levels == 1 else 's'}"
        return f"a tree with {levels} of switches: every planner can plan on it"
    return f"not a tree ({seen.why_no_tree}): planner `paper` can plan on it, `tree` and `repaired` cannot"


def _rack_row(rack: RackOverview) -> list[str]:
    ratios = [f"{ratio:.3g} : 1" if ratio else "–" for ratio in (rack.over_out, rack.over_in)]
    disk = "–" if rack.disk is None else rack.disk
    sums = (rack.servers, rack.send, rack.receive, disk, rack.out, rack.into)
    return [rack.name, *map(str, sums), *ratios]


def _rate(bytes_s: float | None) -> str:
    return "–" if bytes_s is None else rate_for_people(bytes_s)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _limited(lines: Iterator[str], most: int | None, many: int, what: str, *, head: bool = True) -> Iterator[str]:
    """The first lines, then the number of the others; the head, or an empty first line, is not counted."""
    for number, line in enumerate(lines):
        if number == 0 and not head:
            continue
        if most is not None and number > most:
            yield f"… and {many - most} more {what} (--all lists them)"
            return
        yield line
