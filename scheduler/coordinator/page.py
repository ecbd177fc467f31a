"""One HTML page for people: the state, with a picture of the chunks on each host and link over time.

Invariants: one document that loads nothing and has no scripts; every text from outside is escaped; the size of the
picture is bounded, whatever the network's size.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple
from unicodedata import east_asian_width
from zlib import crc32

from scheduler.coordinator.registry import Span

SPAN_MS = 60_000
"""The time before now that the picture covers."""
MAX_ROWS = 60
MAX_TABLE_ROWS = 100
LABEL_PX, WIDTH_PX, ROW_PX, AXIS_PX = 150, 400, 16, 22
TICKS = 6
MAX_LABEL_CHARACTERS = 20
"""The length of a host's or link's name beside its row; the tooltip has the whole name."""
MAX_LEGEND = 12
"""The number of requests that the legend names; for the others the tooltips of their bars have the name."""
SATURATIONS = (55, 35, 75)
LIGHTNESSES = (48, 36, 60)
STYLE = """body{font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:980px;padding:0 12px;color:#1b1f24}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.6em}h1,p,td{overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:2px 12px 2px 0;
border-bottom:1px solid #e4e7eb}th{font-weight:600}td.n,th.n{text-align:right}td.n,th.n,td.s{white-space:nowrap}
svg{width:100%;height:auto;display:block}svg text{font:8px system-ui,sans-serif;fill:#1b1f24}
.bad{color:#b42318;font-weight:600}.bar{display:block;height:9px;background:#3b6ea8}
.room{display:block;width:120px;max-width:22vw;margin-top:6px;background:#e4e7eb}
.legend{list-style:none;margin:.5em 0;padding:0;font-size:12px}
.legend li{display:inline-block;max-width:100%;margin-right:14px;overflow-wrap:anywhere}
.legend i{display:inline-block;width:10px;height:10px;margin-right:5px}
@media(max-width:640px){body{font-size:12px;padding:0 8px}td,th{padding-right:6px}th.w,td.w{display:none}
svg text{font-size:12px}}"""


class Picture(NamedTuple):
    """The chunks in flight and the last ended chunks, and the present time."""

    spans: Sequence[Span]
    now_ms: int


class _Bar(NamedTuple):
    row: str
    start_ms: int
    end_ms: int
    says: str
    colour: str


def html(status: Mapping[str, Any], picture: Picture) -> str:
    """The page."""
    store = status["store"]
    failing = "" if store == "ok" else f'<p class="bad">Nothing can be stored: {escape(str(store))}</p>'
    counts = ", ".join(f"{number} {escape(state)}" for state, number in sorted(status["requests"].items())) or "none"
    lost = [host["host"] for host in status["hosts"] if host["lost"]]
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Cairn coordinator</title><style>{STYLE}</style></head><body>",
        f"<h1>Coordinator of {escape(str(status['topology'])) or 'a network'}</h1>{failing}",
        (
            f"<p>planner {escape(status['planner'])}, {escape(status['mode'])}; up {status['uptime_ms'] // 1000} s; "
            f"requests: {counts}; hosts lost: {escape(', '.join(lost)) or 'none'}</p>"
        ),
        f"<h2>The last {SPAN_MS // 1000} seconds, by host and link</h2>",
        svg(picture),
        _legend(picture),
        "<h2>Queue</h2>",
        _queue(status["queue"]),
        _checkpoints(status["checkpoints"]),
        "<h2>Capacities in use</h2>",
        _capacities(status["capacities"]),
        (
            '<p><a href="/v1/status">status</a> · <a href="/v1/topology">topology</a> · <a href="/metrics">metrics</a>'
            ' · <a href="/openapi.json">interface</a></p></body></html>'
        ),
    ]
    return "\n".join(lines) + "\n"


def svg(picture: Picture) -> str:
    """The picture: a row for each sending host and each link, a bar for each chunk."""
    start_ms = picture.now_ms - SPAN_MS
    bars = [bar for bar in _bars(picture) if bar.end_ms > start_ms]
    if not bars:
        return "<p>Nothing was under way.</p>"
    rows = sorted({bar.row for bar in bars}, key=lambda row: ("→" in row, row))
    shown = {row: number for number, row in enumerate(rows[:MAX_ROWS])}
    height = AXIS_PX + ROW_PX * len(shown)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABEL_PX + WIDTH_PX} {height}" role="img" '
            'aria-label="chunks under way by host and link over the last minute">'
        )
    ]
    for tick in range(TICKS + 1):
        x = LABEL_PX + WIDTH_PX * tick / TICKS
        seconds = round((tick - TICKS) * SPAN_MS / TICKS / 1000)
        lines.append(f'<line x1="{x:.0f}" y1="16" x2="{x:.0f}" y2="{height}" stroke="#d0d5dd"/>')
        anchor = "end" if tick == TICKS else "middle"
        lines.append(f'<text x="{x:.0f}" y="11" text-anchor="{anchor}">{seconds or "now"}{" s" * bool(seconds)}</text>')
    for row, number in shown.items():
        y = AXIS_PX + ROW_PX * number + 11
        lines.append(
            f'<text x="{LABEL_PX - 8}" y="{y}" text-anchor="end"{_fitted(_short(row))}>{escape(_short(row))}'
            f"<title>{escape(row)}</title></text>"
        )
    for row, number in shown.items():
        lanes = _lanes([bar for bar in bars if bar.row == row])
        height_px = (ROW_PX - 3) / max(1, len(lanes))
        for lane, members in enumerate(lanes):
            top_px = AXIS_PX + ROW_PX * number + 1 + lane * height_px
            lines += [_rectangle(bar, start_ms, top_px, height_px) for bar in members]
    lines.append("</svg>")
    if len(rows) > len(shown):
        lines.append(f"<p>{len(rows) - len(shown)} more hosts and links are not shown.</p>")
    return "\n".join(lines)


def _lanes(bars: Sequence[_Bar]) -> list[list[_Bar]]:
    """Distribute bars to as few lanes as possible, so that the bars of a lane do not overlap."""
    lanes: list[list[_Bar]] = []
    for bar in sorted(bars, key=lambda one: one.start_ms):
        free = next((lane for lane in lanes if lane[-1].end_ms <= bar.start_ms), None)
        if free is None:
            lanes.append([bar])
        else:
            free.append(bar)
    return lanes


def _rectangle(bar: _Bar, start_ms: int, top_px: float, height_px: float) -> str:
    left = LABEL_PX + WIDTH_PX * max(0, bar.start_ms - start_ms) / SPAN_MS
    right = LABEL_PX + WIDTH_PX * (bar.end_ms - start_ms) / SPAN_MS
    width_px, height_px = max(right - left, 1), max(height_px - 0.5, 0.5)
    return (
        f'<rect x="{left:.1f}" y="{top_px:.1f}" width="{width_px:.1f}" height="{height_px:.1f}" '
        f'fill="{bar.colour}"><title>{escape(bar.says)}</title></rect>'
    )


def _bars(picture: Picture) -> Iterator[_Bar]:
    for span in picture.spans:
        chunk = span.chunk
        end_ms = picture.now_ms if span.until_ms is None else span.until_ms
        says = f"{chunk.request}, chunk {chunk.chunk}: {' → '.join(chunk.hosts)}"
        colour = _colour(chunk.request)
        for source, target in pairwise(chunk.hosts):
            if source != target:
                yield _Bar(source, chunk.since_ms, end_ms, says, colour)
        for route in chunk.routes:
            for link in route:
                yield _Bar(" → ".join(link), chunk.since_ms, end_ms, says, colour)


def _colour(request: str) -> str:
    """The colour of a request: a function of its name, so that two requests rarely share it."""
    number = crc32(request.encode())
    saturation = SATURATIONS[number // 360 % len(SATURATIONS)]
    lightness = LIGHTNESSES[number // 360 // len(SATURATIONS) % len(LIGHTNESSES)]
    return f"hsl({number % 360},{saturation}%,{lightness}%)"


def _legend(picture: Picture) -> str:
    """The legend: the colours of the newest requests, and the meaning of a bar."""
    since_ms = picture.now_ms - SPAN_MS
    spans = [span for span in picture.spans if span.until_ms is None or span.until_ms > since_ms]
    if not spans:
        return ""
    names = list(dict.fromkeys(span.chunk.request for span in sorted(spans, key=lambda one: -one.chunk.since_ms)))
    entries = [f'<li><i style="background:{_colour(name)}"></i>{escape(name)}</li>' for name in names[:MAX_LEGEND]]
    more = f"<li>and {len(names) - MAX_LEGEND} more requests</li>" if len(names) > MAX_LEGEND else ""
    return (
        f'<ul class="legend">{"".join(entries)}{more}</ul><p>A colour for each request. A bar is a chunk, in the row '
        "of every host that sends it and of every link (→) that carries it, from its go until it is done. "
        "The pointer on a bar shows its chain.</p>"
    )


def _queue(queue: Sequence[Mapping[str, Any]]) -> str:
    """The table of requests that have not ended, in the order of the queue, with the time since their submission."""
    if not queue:
        return "<p>Empty.</p>"
    head = "<th>request</th><th>state</th><th>writer</th>"
    head += '<th class="n">done</th><th class="n w">under way</th><th class="n">waiting</th><th class="n">since</th>'
    lines = [f"<table><tr>{head}</tr>"]
    for row in queue[:MAX_TABLE_ROWS]:
        state = '<span class="bad">stranded</span>' if row["stranded"] else escape(str(row["state"]))
        lines.append(
            f'<tr><td>{escape(row["request"])}</td><td class="s">{state}</td><td>{escape(row["writer"] or "")}</td>'
            f'<td class="n">{row["done"]} of {row["chunks"]}</td><td class="n w">{row["in_flight"]}</td>'
            f'<td class="n">{row["waiting"]}</td><td class="n">{duration(row["for_ms"])}</td></tr>'
        )
    lines.append("</table>")
    if len(queue) > MAX_TABLE_ROWS:
        lines.append(f"<p>and {len(queue) - MAX_TABLE_ROWS} more</p>")
    if any(row["stranded"] for row in queue):
        lines.append("<p>Stranded: the hosts that are lost leave no path; the request waits for them.</p>")
    return "\n".join(lines)


def _checkpoints(counts: Mapping[str, int]) -> str:
    """The sentence about the registered checkpoints; empty while there are none."""
    if not counts["checkpoints"]:
        return ""
    return (
        f"<h2>Checkpoints</h2><p>{counts['checkpoints']} of {counts['units']} units, "
        f"{counts['file_bytes'] / 1e6:,.1f} MB in files. "
        '<a href="/v1/units">units</a></p>'
    )


def duration(duration_ms: int) -> str:
    """A duration in words for people."""
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _capacities(uses: Sequence[Mapping[str, Any]]) -> str:
    if not uses:
        return "<p>Nothing is in use.</p>"
    lines = ['<table><tr><th>what</th><th>of</th><th class="n">used</th><th></th></tr>']
    for use in sorted(uses, key=lambda one: one["used"] / max(1, one["total"]), reverse=True)[:MAX_TABLE_ROWS]:
        share = 100 * min(1, use["used"] / max(1, use["total"]))
        lines.append(
            f"<tr><td>{escape(use['resource'])}</td><td>{escape(use['name'])}</td>"
            f'<td class="n">{use["used"]} of {use["total"]}</td>'
            f'<td><span class="room"><span class="bar" style="width:{share:.0f}%"></span></span></td></tr>'
        )
    return "\n".join([*lines, "</table>"])


def _short(row: str) -> str:
    """The name of a row, shortened to the space beside it; for a link, both ends are shortened."""
    if len(row) <= MAX_LABEL_CHARACTERS:
        return row
    ends = row.split(" → ")
    most = (MAX_LABEL_CHARACTERS - 3 * (len(ends) - 1)) // len(ends)
    front, back = most // 2, most - most // 2 - 1
    return " → ".join(end if len(end) <= most else f"{end[:front]}…{end[-back:]}" for end in ends)


def _fitted(label: str) -> str:
    """The attribute that fits wide characters into the space beside the rows."""
    wide = any(east_asian_width(character) in "WF" for character in label) or label.upper() == label
    return f' textLength="{LABEL_PX - 12}" lengthAdjust="spacingAndGlyphs"' if wide and len(label) > 12 else ""
