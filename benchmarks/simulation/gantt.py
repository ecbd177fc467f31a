"""Who writes when on which disk and link: a row per disk and per link between racks, a colour per checkpoint.

Invariant: drawn from a traced run. A bar is a chunk, from its start to its ack; its share of the row's height is one
of as many lanes as the row has chunks at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.run import ChunkRun, SimulatedRun

Colour = tuple[float, float, float, float]

_COLOURS = mpl.colormaps["tab20"]
_MIN_LANES = 2
_DISK_HEIGHT, _LINK_HEIGHT, _GAP = 1.0, 2.6, 0.16


def draw(cluster: SimulatedCluster, runs: Sequence[SimulatedRun], path: Path) -> None:
    """Write the picture: the runs below each other, on one scale of time."""
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(13, 6.4 * len(runs)), layout="constrained")
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        end = max(run.comp_s() for run in runs)
        for axes, run in zip(panels, runs, strict=True):
            _panel(axes, cluster, run, end)
        panels[-1].set_xlabel("seconds")
        figure.suptitle(
            "Who writes when: every chunk on the disks and links between racks that it passes. A colour is one\n"
            "checkpoint, the square beside a host's name that of its own; black lines: how full a link is.",
            fontsize=10,
        )
        figure.savefig(path, dpi=120)


def _panel(axes: Axes, cluster: SimulatedCluster, run: SimulatedRun, end: float) -> None:
    order = sorted(run.requests, key=lambda request: (request.go_s, request.name))
    colour = {request.name: _COLOURS(place % _COLOURS.N) for place, request in enumerate(order)}
    own = {request.host: colour[request.name] for request in run.requests}
    top, ticks, labels = 0.0, [], []
    racks = cluster.topology.rack_of
    for link in range(len(cluster.topology.links)):
        chunks = [chunk for chunk in run.chunks if link in _links(cluster, chunk)]
        top = _row(axes, chunks, colour, top, _LINK_HEIGHT)
        _load(axes, cluster, run, link, top)
        used = run.carried[cluster.link(link)] / cluster.capacity[cluster.link(link)] / run.comp_s()
        ticks.append(top - _LINK_HEIGHT / 2 - _GAP / 2)
        labels.append(f"{cluster.resource_name(cluster.link(link))}\n{used:.0%} used")
    previous = -1
    for host, server in enumerate(cluster.topology.servers):
        if racks[host] != previous:
            axes.axhline(top + 0.25, color="#999999", linewidth=0.8)
            top += 0.5
            previous = racks[host]
        top = _row(axes, [chunk for chunk in run.chunks if host in chunk.hosts[1:]], colour, top, _DISK_HEIGHT)
        ticks.append(top - _DISK_HEIGHT / 2 - _GAP / 2)
        labels.append(f"{server.name} disk   ")
        if host in own:
            axes.add_patch(
                Rectangle(
                    (-0.0135, ticks[-1] - 0.32),
                    0.009,
                    0.64,
                    transform=axes.get_yaxis_transform(),
                    facecolor=own[host],
                    clip_on=False,
                )
            )
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0, pad=5)
    axes.set_ylim(top, 0)
    axes.set_xlim(0, end * 1.01)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.axvline(run.comp_s(), color="black", linewidth=1, linestyle="--")
    axes.set_title(
        f"{run.policy}: IO {run.io_s():.1f} s from “go” ({run.response_s():.1f} s from submission), "
        f"all done after {run.comp_s():.1f} s",
        loc="left",
        fontsize=11,
    )


def _row(axes: Axes, chunks: Iterable[ChunkRun], colour: dict[str, Colour], top: float, height: float) -> float:
    """One row of bars; returns where the next begins."""
    lanes: list[float] = []
    placed: list[tuple[int, ChunkRun]] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.start_s, chunk.request, chunk.chunk)):
        lane = next((n for n, free_s in enumerate(lanes) if free_s <= chunk.start_s + 1e-6), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
        lanes[lane] = chunk.end_s
        placed.append((lane, chunk))
    lane_height = (height - _GAP) / max(_MIN_LANES, len(lanes))
    boxes: dict[str, list[Rectangle]] = defaultdict(list)
    for lane, chunk in placed:
        corner = (chunk.start_s, top + lane * lane_height)
        boxes[chunk.request].append(Rectangle(corner, chunk.end_s - chunk.start_s, lane_height))
    for request, rectangles in boxes.items():
        for rectangle in rectangles:
            rectangle.set(facecolor=colour[request], edgecolor="white", linewidth=0.5)
            axes.add_patch(rectangle)
    return top + height


def _load(axes: Axes, cluster: SimulatedCluster, run: SimulatedRun, link: int, bottom: float) -> None:
    """How full a link is, as a line over its row."""
    resource = cluster.link(link)
    times = np.array([moment.time_s for moment in run.trace] + [run.comp_s()])
    share = np.array([moment.rates[resource] / cluster.capacity[resource] for moment in run.trace])
    heights = bottom - _GAP - np.append(share, share[-1]) * (_LINK_HEIGHT - _GAP)
    axes.step(times, heights, where="post", color="black", linewidth=0.9)


def _links(cluster: SimulatedCluster, chunk: ChunkRun) -> set[int]:
    return {link for source, target in pairwise(chunk.hosts) for link in cluster.route(source, target)}
