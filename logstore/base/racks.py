"""Where hosts are, read from what operators have already: the output of `hdfs dfsadmin -printTopology`, of Hadoop's
rack script, and of `kubectl get nodes -o json`. Text in, hosts with the path of their fault domains out. No I/O.

Invariants:
* A path is `/zone/rack`, the widest domain first, of at most MAX_DOMAINS names without `/`; "" is none.
* A host may be found by each of its names and addresses; two paths for one name are an error.
* An error is a RacksError that opens with `where`, has line or node, and says what is expected there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from logstore.base.addresses import parse_address
from logstore.base.errors import AddressError, CairnError

MAX_DOMAINS: Final = 8
"""Of a host, within each other."""
MAX_PATH_CHARACTERS: Final = 255
DEFAULT_RACK: Final = "/default-rack"
"""Where Hadoop puts hosts that nobody has placed: they are in no known domain."""
ZONE_LABELS: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
RACK_LABELS: Final = ("topology.kubernetes.io/rack", "rack")
_RACK_LINE: Final = re.compile(r"Rack:\s*(\S+)\s*")
_NODE_LINE: Final = re.compile(r"\s+(\S+)(?:\s+\(([^\s()]+)\))?(?:\s+\S.*)?")
_NODE_LISTS: Final = ("List", "NodeList")


class RacksError(CairnError):
    """A text that does not say where hosts are; the message says where in it, and what is expected."""


class HostPlace(NamedTuple):
    """Where a host is (a path of domains, or a rack's name; "": not known), what its disk takes and the links into its
    domains carry, in bytes per second (0: not known).
    """

    rack: str = ""
    disk_rate: int = 0
    link_rates: tuple[int, ...] = ()


NOWHERE: Final = HostPlace()


class RackedHost(NamedTuple):
    """A host by its name, the path of its fault domains, and the other names that it is found by."""

    name: str
    path: str
    aliases: tuple[str, ...] = ()


class Racks(NamedTuple):
    """Hosts in the order in which they were read."""

    hosts: tuple[RackedHost, ...]

    def places(self) -> dict[str, HostPlace]:
        """Where hosts are, by all of their names."""
        return {name: HostPlace(host.path) for host in self.hosts for name in (host.name, *host.aliases)}


def domains(path: str) -> tuple[str, ...]:
    """The fault domains in a path, the widest first: `/zone1/rack3`, or a rack's name alone."""
    return tuple(part for part in path.split("/") if part)


def is_topology_of_hadoop(text: str) -> bool:
    """Whether a text is meant as the output of `hdfs dfsadmin -printTopology`."""
    return _RACK_LINE.fullmatch(next((line for line in text.splitlines() if line.strip()), "")) is not None


def is_node_list(values: object) -> bool:
    """Whether values of JSON are meant as the output of `kubectl get nodes -o json`."""
    return isinstance(values, Mapping) and "items" in values


def read_topology_of_hadoop(text: str, where: str) -> Racks:
    """What `hdfs dfsadmin -printTopology` says: racks, and DataNodes by address and name. Raises RacksError."""
    hosts: list[RackedHost] = []
    path: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        rack, node = _RACK_LINE.fullmatch(line), _NODE_LINE.fullmatch(line)
        if rack is not None:
            path = _path(rack[1], f"{where}: line {number}")
        elif node is not None and path is not None:
            hosts.append(_datanode(node[1], node[2], path, f"{where}: line {number}"))
        elif line.strip():
            raise RacksError(
                f"{where}: line {number}: {line[:80]!r} is neither `Rack: /PATH` nor, below one and indented, "
                "`ADDRESS:PORT (NAME)`, as `hdfs dfsadmin -printTopology` prints them"
            )
    return _checked(hosts, where)


def read_script_output(text: str, hosts: Sequence[str], where: str) -> Racks:
    """What Hadoop's rack script (`net.topology.script.file.name`) prints for these hosts: a path for each of them, in
    their order. Raises RacksError.
    """
    paths = text.split()
    if len(paths) != len(hosts):
        raise RacksError(
            f"{where}: printed {len(paths)} paths for {len(hosts)} hosts ({text[:80]!r}): it must print one for each "
            "argument"
        )
    found = [RackedHost(host, _path(path, f"{where}: host {host!r}")) for host, path in zip(hosts, paths, strict=True)]
    return _checked(found, where)


def read_node_list(text: str, where: str) -> Racks:
    """What `kubectl get nodes -o json` says: nodes with their labels of zone and rack, and their addresses.

    Raises RacksError.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RacksError(f"{where}: no valid JSON: {error}") from error
    if not isinstance(values, dict) or values.get("kind") not in _NODE_LISTS or not isinstance(values["items"], list):
        raise RacksError(f"{where}: not a list of nodes as `kubectl get nodes -o json` prints it")
    return _checked([_node(item, f"{where}: items[{at}]") for at, item in enumerate(values["items"])], where)


# ---- parts


def _datanode(address: str, name: str | None, path: str, where: str) -> RackedHost:
    try:
        host = parse_address(address).host
    except AddressError as error:
        raise RacksError(f"{where}: {address[:80]!r} is not an ADDRESS:PORT of a DataNode") from error
    return RackedHost(host, path) if name is None else RackedHost(name, path, (host,))


def _node(item: object, where: str) -> RackedHost:
    metadata = _object(_object(item, where).get("metadata"), f"{where}.metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise RacksError(f"{where}.metadata.name: {name!r} is not a name of a node")
    labels = _object(metadata.get("labels", {}), f"{where}.metadata.labels")
    parts = [_label(labels, names, f"{where} (node {name!r})") for names in (ZONE_LABELS, RACK_LABELS)]
    addresses = _object(_object(item, where).get("status", {}), f"{where}.status").get("addresses", [])
    if not isinstance(addresses, list):
        raise RacksError(f"{where}.status.addresses: must be a list")
    found = [_object(each, f"{where}.status.addresses").get("address") for each in addresses]
    aliases = tuple(dict.fromkeys(each for each in found if isinstance(each, str) and each != name))
    return RackedHost(name, "".join(f"/{part}" for part in parts if part), aliases)


def _label(labels: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    for name in names:
        value = labels.get(name, "")
        if not isinstance(value, str) or "/" in value:
            raise RacksError(f"{where}: label {name}={value!r} is not a name of a domain")
        if value:
            return value
    return ""


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RacksError(f"{where}: must be an object, not {value!r:.40}")
    return value


def _path(text: str, where: str) -> str:
    if text == DEFAULT_RACK:
        return ""
    names = text.split("/")[1:]
    if not text.startswith("/") or not all(names) or len(names) > MAX_DOMAINS or len(text) > MAX_PATH_CHARACTERS:
        raise RacksError(
            f"{where}: {text[:80]!r} is not a path of a rack: it must be /NAME or /NAME/NAME, of at most {MAX_DOMAINS} "
            f"names and {MAX_PATH_CHARACTERS} characters"
        )
    return text


def _checked(hosts: Sequence[RackedHost], where: str) -> Racks:
    if not hosts:
        raise RacksError(f"{where}: names no hosts")
    known: dict[str, str] = {}
    for host in hosts:
        for name in (host.name, *host.aliases):
            if known.setdefault(name, host.path) != host.path:
                raise RacksError(f"{where}: host {name!r} is in {known[name] or 'no rack'!r} and in {host.path!r}")
    return Racks(tuple(hosts))
