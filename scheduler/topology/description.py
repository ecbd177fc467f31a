"""Networks in files: TOML or JSON in, a checked Topology out, and back to text.

    [[switch]]              [[server]]
    name = "rack1"          name = "r1h{n}"
    parent = "core"         rack = "rack1"
    rate = "1 Gbit/s"       count = 8

Where a rate is given and no capacity, the capacity follows: `rate × timestep ÷ chunk`, rounded down, at least 1. A
timestep is the time that one chunk takes to its replicas (SGuard, section 5). They are written in a pipeline, at the
pace of the slowest disk or link of a server: if it is not given, it is chunk ÷ the slowest `disk_rate` or `link_rate`.
docs/topology.md has all keys.

Invariants:
* An error is a TopologyError that names the file, the entry and the value.
* Switches and servers are numbered in the file's order; a switch's link up comes before its link down, and links to
  parents come before `[[link]]`s.
* Reading what `topology_toml` or `topology_mapping` wrote gives the same switches, servers and links in the same
  order.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from logstore.base.fields import suggestion
from logstore.base.racks import is_node_list, is_topology_of_hadoop, read_node_list, read_topology_of_hadoop
from scheduler.errors import TopologyError
from scheduler.topology.keys import (
    DEFAULTS,
    LINK,
    MAX_CAPACITY,
    MAX_COUNT,
    SERVER,
    SWITCH,
    TABLES,
    TOP,
    DescribedEntry,
    table,
    tables,
)
from scheduler.topology.model import CHUNK_BYTES, DEFAULT_CAPACITY, Link, Server, Topology
from scheduler.topology.quantities import duration_text, rate_text, size_text
from scheduler.topology.racks_mapping import racks_mapping

MAX_FILE_BYTES: Final = 64 << 20
_PLACEHOLDER: Final = re.compile(r"\{(n|m|rack)(?::0([1-9]))?\}")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class NetworkDescription:
    """A description that was read: the topology, how long a timestep is, and which capacities came from rates.

    `timestep_s` is None where neither a timestep nor a server's rate is given: then all capacities were. `derived` has
    one text for each capacity of an entry that follows from a rate.
    """

    topology: Topology
    timestep_s: float | None = None
    derived: tuple[str, ...] = ()


def load_topology(path: Path | str) -> Topology:
    """The network that a TOML or JSON file describes. Raises TopologyError, OSError."""
    return load_network(path).topology


def load_network(path: Path | str) -> NetworkDescription:
    """The network of a file, with its timestep. A file that ends in `.json` is read as JSON, any other as TOML; what
    `hdfs dfsadmin -printTopology` and `kubectl get nodes -o json` print is known by what it says.

    Raises TopologyError, RacksError, OSError.
    """
    path = Path(path)
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(f"{path}: larger than {size_text(MAX_FILE_BYTES)}: no description of a network")
    try:
        text = content.decode()
        if is_topology_of_hadoop(text):
            values = racks_mapping(read_topology_of_hadoop(text, str(path)))
        elif path.suffix.lower() == ".json":
            values = json.loads(text, object_pairs_hook=_without_duplicates)
            if is_node_list(values):
                values = racks_mapping(read_node_list(text, str(path)))
        else:
            values = tomllib.loads(text)
    except json.JSONDecodeError as error:
        problem = f"no valid JSON: {error.msg} (at line {error.lineno}, column {error.colno})"
        raise TopologyError(f"{path}: {problem}") from None
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{path}: no valid TOML: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise TopologyError(f"{path}: cannot be read as text: {error}") from None
    except _DuplicateKeyError as error:
        raise TopologyError(f"{path}: key {error.args[0]!r} appears twice in one object") from None
    return parse_network(table(f"{path}: the file", values), str(path), name=path.stem)


def parse_topology(mapping: Mapping[str, object], where: str = "topology") -> Topology:
    """The network that plain values describe, as a TOML or JSON file holds them; `where` opens every error."""
    return parse_network(mapping, where).topology


def parse_network(
    mapping: Mapping[str, object], where: str = "topology", *, name: str = "network"
) -> NetworkDescription:
    """The network of plain values, with its timestep; `name` is the name of a network that gives none."""
    top = DescribedEntry(where, mapping, TOP, TABLES)
    defaults = DescribedEntry(
        f"{where}: [defaults]", table(f"{where}: defaults", mapping.get("defaults", {})), DEFAULTS
    )
    chunk_bytes = top.size("chunk") or CHUNK_BYTES
    server_tables = tables(f"{where}: server", mapping.get("server", []))
    servers = [
        DescribedEntry(_place(where, "server", number, one), one, SERVER) for number, one in enumerate(server_tables, 1)
    ]
    pace = _Pace(chunk_bytes, _timestep(top, chunk_bytes, [defaults, *servers]))
    switches, links = _read_switches(where, mapping, defaults, pace)
    links += _read_links(where, mapping, switches, pace)
    hosts = _read_servers(servers, defaults, list(switches), pace)
    try:
        topology = Topology(
            hosts, links, switches=list(switches), name=top.text("name") or name, chunk_bytes=chunk_bytes
        )
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
    return NetworkDescription(topology, pace.timestep_s, tuple(dict.fromkeys(pace.derived)))


# ---- reading


class _DuplicateKeyError(Exception):
    """A key that a JSON object has twice."""


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise _DuplicateKeyError(key)
        values[key] = value
    return values


def _place(where: str, kind: str, number: int, values: Mapping[str, object]) -> str:
    name = values.get("name")
    return f"{where}: {kind} {name!r}" if isinstance(name, str) and name else f"{where}: {kind} number {number}"


def _timestep(top: DescribedEntry, chunk_bytes: int, entries: Iterable[DescribedEntry]) -> float | None:
    """The length of a timestep in seconds; None if neither a timestep nor a rate is given."""
    given = top.duration("timestep")
    if given is not None:
        return given
    names = ("disk_rate", "link_rate")
    rates = [rate for entry in entries for name in names if (rate := entry.rate(name)) is not None]
    return chunk_bytes / min(rates) if rates else None


class _Pace:
    """Computes capacities from rates."""

    def __init__(self, chunk_bytes: int, timestep_s: float | None) -> None:
        self.chunk_bytes = chunk_bytes
        self.timestep_s = timestep_s
        self.derived: list[str] = []

    def capacity(self, entry: DescribedEntry, name: str, rate_name: str, bytes_s: float) -> int:
        """Chunks per timestep at a rate, rounded down, at least 1. Raises TopologyError without a timestep."""
        if self.timestep_s is None:
            raise TopologyError(
                f"{entry.where}: {name} is left out, and {rate_name} alone does not tell it: give {name}, or say how "
                "long a timestep is: timestep, or the servers' disk_rate"
            )
        # The small term keeps 2 × r × (chunk ÷ r) ÷ chunk at 2, whatever the rounding.
        capacity = max(1, int(bytes_s * self.timestep_s / self.chunk_bytes + 1e-9))
        if capacity > MAX_CAPACITY:
            raise TopologyError(f"{entry.where}: {rate_name} gives {name}={capacity}, above {MAX_CAPACITY}")
        self.derived.append(f"{entry.where.rpartition(': ')[2]}: {name}={capacity}")
        return capacity


def _read_switches(
    where: str, mapping: Mapping[str, object], defaults: DescribedEntry, pace: _Pace
) -> tuple[dict[str, str | None], list[Link]]:
    """Every switch with its parent, and the links between them."""
    parents: dict[str, str | None] = {}
    entries: dict[str, DescribedEntry] = {}
    for number, values in enumerate(tables(f"{where}: switch", mapping.get("switch", [])), 1):
        entry = DescribedEntry(_place(where, "switch", number, values), values, SWITCH)
        name, parent = entry.required("name"), entry.text("parent")
        for n in _numbers(entry):
            switch = _expand(entry, "name", name, n=n)
            if switch in parents:
                raise entry.fail("name", f"is taken: there is a switch {switch!r} already{_advice(entry, name)}")
            parents[switch], entries[switch] = parent, entry
    links: list[Link] = []
    for switch, parent in parents.items():
        entry = entries[switch]
        if parent is None:
            for name in ("capacity", "rate", "up", "down", "up_rate", "down_rate"):
                if name in entry.values:
                    raise entry.fail(name, "needs a parent: it speaks of the link to it")
            continue
        if parent not in parents:
            raise entry.fail("parent", f"is not a switch; {suggestion(parent, parents)}")
        for source, target, name in ((switch, parent, "up"), (parent, switch, "down")):
            capacity, bytes_s = _switch_link(entry, defaults, name, pace)
            links.append(Link(source, target, capacity, bytes_s=bytes_s))
    _check_ancestors(parents, entries)
    return parents, links


def _switch_link(entry: DescribedEntry, defaults: DescribedEntry, name: str, pace: _Pace) -> tuple[int, float | None]:
    """Capacity and rate of one direction between a switch and its parent."""
    rate_names = (f"{name}_rate", "rate")
    rates = [entry.rate(one) for one in rate_names] + [defaults.rate(f"{name}_rate")]
    bytes_s = next((rate for rate in rates if rate is not None), None)
    # What an entry says of itself comes before what is said of all: its own rate before a default capacity.
    own = next((count for one in (name, "capacity") if (count := entry.number(one)) is not None), None)
    if own is not None:
        return own, bytes_s
    if rates[0] is None and rates[1] is None and (count := defaults.number(name)) is not None:
        return count, bytes_s
    if bytes_s is None:
        raise TopologyError(
            f"{entry.where}: {name} is missing: give {name} or capacity (chunks per timestep), or {name}_rate or rate"
        )
    return pace.capacity(entry, name, f"{name}_rate", bytes_s), bytes_s


def _check_ancestors(parents: Mapping[str, str | None], entries: Mapping[str, DescribedEntry]) -> None:
    """Check that no switch is its own ancestor. Raises TopologyError."""
    safe: set[str] = set()
    for switch in parents:
        way = [switch]
        while (parent := parents[way[-1]]) is not None and parent not in safe:
            if parent in way:
                ring = " → ".join(map(repr, [*way[way.index(parent) :], parent]))
                raise entries[parent].fail("parent", f"makes it its own ancestor: {ring}")
            way.append(parent)
        safe.update(way)


def _read_links(where: str, mapping: Mapping[str, object], switches: Iterable[str], pace: _Pace) -> list[Link]:
    links: list[Link] = []
    for number, values in enumerate(tables(f"{where}: link", mapping.get("link", [])), 1):
        entry = DescribedEntry(f"{where}: link number {number}", values, LINK)
        source, target = entry.required("from"), entry.required("to")
        entry.where += f", {source!r} to {target!r}"
        for key, end in (("from", source), ("to", target)):
            if end not in switches:
                raise entry.fail(key, f"is not a switch; {suggestion(end, list(switches))}")
        bytes_s, capacity, cost = entry.rate("rate"), entry.number("capacity"), entry.number("cost")
        if capacity is None and bytes_s is None:
            raise TopologyError(f"{entry.where}: capacity is missing: give it (chunks per timestep), or rate")
        if capacity is None and bytes_s is not None:
            capacity = pace.capacity(entry, "capacity", "rate", bytes_s)
        ends = [(source, target), (target, source)] if entry.flag("both_ways") else [(source, target)]
        links += [Link(a, b, capacity or 0, 1 if cost is None else cost, bytes_s) for a, b in ends]
    return links


def _read_servers(
    entries: Sequence[DescribedEntry], defaults: DescribedEntry, switches: Sequence[str], pace: _Pace
) -> list[Server]:
    servers: list[Server] = []
    taken: dict[str, str] = {}
    for entry in entries:
        name, rack, address = entry.required("name"), entry.required("rack"), entry.text("address")
        model = _model_server(entry, defaults, pace)
        for m, switch in enumerate(_racks(entry, rack, switches), 1):
            for n in _numbers(entry):
                server = _expand(entry, "name", name, n=n, m=m, rack=switch)
                if server in taken:
                    raise entry.fail("name", f"is taken: {taken[server]} is {server!r} already{_advice(entry, name)}")
                taken[server] = entry.where.rpartition(": ")[2]
                where = None if address is None else _expand(entry, "address", address, n=n, m=m, rack=switch)
                servers.append(
                    Server(server, switch, model.send, model.receive, model.disk, where, model.link, model.disk_rate)
                )
    return servers


class _Model(NamedTuple):
    """The values that the servers of an entry share."""

    send: int
    receive: int
    disk: int | None
    link: float | None
    disk_rate: float | None


def _model_server(entry: DescribedEntry, defaults: DescribedEntry, pace: _Pace) -> _Model:
    own_link = entry.rate("link_rate")
    link = own_link if own_link is not None else defaults.rate("link_rate")
    disk_rate = entry.rate("disk_rate")
    disk_rate = disk_rate if disk_rate is not None else defaults.rate("disk_rate")
    counts: dict[str, int | None] = {}
    follows = set()
    for name in ("send", "receive"):
        count = entry.number(name)
        if count is None and own_link is None:
            count = defaults.number(name)
        if count is None and link is not None:
            count = pace.capacity(entry, name, "link_rate", link)
            follows.add(name)
        counts[name] = DEFAULT_CAPACITY if count is None else count
    disk = entry.number("disk")
    disk = disk if disk is not None else defaults.number("disk")
    if disk is None and disk_rate is not None and "receive" in follows:
        # A link's rate does not tell the disk's: take the number of writers that one disk serves well in the paper.
        disk = pace.capacity(entry, "disk", "disk_rate", DEFAULT_CAPACITY * disk_rate)
    return _Model(counts["send"] or 0, counts["receive"] or 0, disk, link, disk_rate)


def _racks(entry: DescribedEntry, rack: str, switches: Sequence[str]) -> list[str]:
    """The racks that an entry's servers hang on."""
    if not switches or rack in switches:
        return [rack]  # without [[switch]]es, racks are what the servers name
    fitting = [switch for switch in switches if fnmatchcase(switch, rack)] if "*" in rack else []
    if not fitting:
        raise entry.fail("rack", f"is not a switch; {suggestion(rack, switches)}")
    return fitting


def _numbers(entry: DescribedEntry) -> range:
    """The numbers of the servers or switches that an entry stands for."""
    count, first = entry.number("count", most=MAX_COUNT), entry.number("first", most=MAX_COUNT)
    if count == 0:
        raise entry.fail("count", "must be 1 or more")
    start = 1 if first is None else first
    return range(start, start + (1 if count is None else count))


def _expand(entry: DescribedEntry, key: str, pattern: str, **values: int | str) -> str:
    """A name from its pattern. Raises TopologyError for an unknown placeholder."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise entry.fail(key, f"has {{{match[1]}}}; a switch's name can have {{n}} only")
        return str(values[match[1]]).rjust(int(match[2] or 0), "0")

    expanded = _PLACEHOLDER.sub(value, pattern)
    if "{" in _PLACEHOLDER.sub("", pattern):
        raise entry.fail(key, "has a brace that opens none of {n}, {n:03}, {m} and {rack}")
    return expanded


def _advice(entry: DescribedEntry, pattern: str) -> str:
    if "count" in entry.values and "{n" not in pattern:
        return "; with count, the name needs {n}"
    if "*" in str(entry.values.get("rack", "")) and "{rack" not in pattern:
        return "; with * in rack, the name needs {rack}"
    return ""


# ---- writing


def topology_mapping(topology: Topology, timestep_s: float | None = None) -> dict[str, object]:
    """A network as plain values, ready for JSON, that `parse_topology` reads. Capacities are all spelled out."""
    mapping: dict[str, object] = {"name": topology.name, "chunk": size_text(topology.chunk_bytes)}
    if timestep_s is not None:
        mapping["timestep"] = duration_text(timestep_s)
    rows = [_server_values(server) for server in topology.servers]
    defaults = _common(rows)
    if defaults:
        mapping["defaults"] = defaults
    parents = _parent_links(topology)
    switches = []
    for switch in topology.switches:
        values: dict[str, object] = {"name": switch}
        if switch in parents:
            up, down = parents[switch]
            values |= {"parent": up.target, "up": up.capacity, "down": down.capacity}
            rates = {"up_rate": up.bytes_s, "down_rate": down.bytes_s}
            values |= {key: rate_text(bytes_s) for key, bytes_s in rates.items() if bytes_s is not None}
        switches.append(values)
    mapping["switch"] = switches
    links = [_link_values(link) for link in topology.links[2 * len(parents) :]]
    if links:
        mapping["link"] = links
    own = [{key: value for key, value in row.items() if key not in defaults or defaults[key] != value} for row in rows]
    mapping["server"] = own
    return mapping


def topology_toml(topology: Topology, timestep_s: float | None = None, *, comment: str = "") -> str:
    """A network as TOML text that `load_topology` reads; `comment` comes first, each line behind a #."""
    mapping = topology_mapping(topology, timestep_s)
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    for key, value in mapping.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *(f"{_key(name)} = {_value(one)}" for name, one in value.items())]
        elif isinstance(value, list):
            for one in value:
                lines += ["", f"[[{key}]]", *(f"{_key(name)} = {_value(field)}" for name, field in one.items())]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _server_values(server: Server) -> dict[str, object]:
    values: dict[str, object] = {"name": server.name, "rack": server.rack}
    if server.address is not None:
        values["address"] = server.address
    values |= {"send": server.send, "receive": server.receive}
    if server.disk is not None:
        values["disk"] = server.disk
    if server.link_bytes_s is not None:
        values["link_rate"] = rate_text(server.link_bytes_s)
    if server.disk_bytes_s is not None:
        values["disk_rate"] = rate_text(server.disk_bytes_s)
    return values


def _common(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What most servers have, as defaults. Only what every server has, for a default cannot be taken back.

    Nor may a server have a rate of its own beside a default capacity: its own rate would come first.
    """
    common: dict[str, object] = {}
    for key in ("send", "receive", "disk", "link_rate", "disk_rate"):
        values = [row.get(key) for row in rows]
        if None not in values:
            common[key] = Counter(values).most_common(1)[0][0]
    if any(row.get("link_rate") != common.get("link_rate") for row in rows):
        for key in ("send", "receive"):
            common.pop(key, None)
    return common


def _parent_links(topology: Topology) -> dict[str, tuple[Link, Link]]:
    """The links up and down of switches with a parent: the pairs at the front of all links, in the switches' order."""
    parents: dict[str, tuple[Link, Link]] = {}
    last = -1
    for up, down in zip(topology.links[::2], topology.links[1::2], strict=False):
        place = topology.switch_index[up.source]
        paired = (up.source, up.target, up.cost) == (down.target, down.source, down.cost) and up.cost == 1
        if not paired or place <= last or _is_below(up.target, up.source, parents):
            break
        parents[up.source], last = (up, down), place
    return parents


def _is_below(switch: str, ancestor: str, parents: Mapping[str, tuple[Link, Link]]) -> bool:
    while switch != ancestor and switch in parents:
        switch = parents[switch][0].target
    return switch == ancestor


def _link_values(link: Link) -> dict[str, object]:
    values: dict[str, object] = {"from": link.source, "to": link.target, "capacity": link.capacity}
    if link.bytes_s is not None:
        values["rate"] = rate_text(link.bytes_s)
    if link.cost != 1:
        values["cost"] = link.cost
    return values


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: object) -> str:
    """A TOML value: texts and whole numbers are all there is. JSON's text is TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
