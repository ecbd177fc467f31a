"""The keys of a network's description: one table for the reader, its errors and the documentation.

Invariants: a key's name is unique in its section. `scheduler.topology.description` reads every key of every section.
The kind of a key decides which values are valid, so the same mistake gives the same message everywhere.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from logstore.base.errors import FieldError
from logstore.base.fields import Boolean, Integer, Optional, String, Type, suggestion, type_name
from scheduler.errors import TopologyError
from scheduler.topology.quantities import parse_duration, parse_rate, parse_size

T = TypeVar("T")

MAX_CAPACITY: Final = 1 << 20
"""Chunks per timestep. Planners store free capacities and their sums in 32 bits."""
MAX_COUNT: Final = 100_000
"""The maximum number of servers of an entry."""
MAX_NAME_CHARACTERS: Final = 255


class ValueKind(StrEnum):
    """The kind of a value."""

    TEXT = "text"
    CAPACITY = "capacity"
    NUMBER = "number"
    SIZE = "size"
    RATE = "rate"
    DURATION = "duration"
    FLAG = "flag"


class Key(NamedTuple):
    """A key: its name, the kind of its value, and its meaning as docs/topology.md shows it."""

    name: str
    kind: ValueKind
    help: str


TOP: Final = (
    Key("name", ValueKind.TEXT, "the name of the network (default: the name of the file)"),
    Key("chunk", ValueKind.SIZE, "size of a chunk (default: 64 MiB)"),
    Key(
        "timestep",
        ValueKind.DURATION,
        "the duration of a timestep (default: chunk ÷ the slowest `disk_rate` or `link_rate`)",
    ),
)
DEFAULTS: Final = (
    Key("send", ValueKind.CAPACITY, "the default of `send` of servers"),
    Key("receive", ValueKind.CAPACITY, "the default of `receive` of servers"),
    Key("disk", ValueKind.CAPACITY, "the default of `disk` of servers"),
    Key("link_rate", ValueKind.RATE, "the default of `link_rate` of servers"),
    Key("disk_rate", ValueKind.RATE, "the default of `disk_rate` of servers"),
    Key("up", ValueKind.CAPACITY, "the default of `up` of switches"),
    Key("down", ValueKind.CAPACITY, "the default of `down` of switches"),
    Key("up_rate", ValueKind.RATE, "the default of `up_rate` of switches"),
    Key("down_rate", ValueKind.RATE, "the default of `down_rate` of switches"),
)
SWITCH: Final = (
    Key(
        "name",
        ValueKind.TEXT,
        "the name of the switch; a rack is a switch to which servers are connected; with `count`, contains `{n}`",
    ),
    Key("count", ValueKind.NUMBER, "the number of switches that differ only in their number (default: 1)"),
    Key("first", ValueKind.NUMBER, "the first number, with `count` (default: 1)"),
    Key(
        "parent",
        ValueKind.TEXT,
        "the next higher switch; omitted for the topmost switch, and for a switch with `[[link]]` entries",
    ),
    Key("capacity", ValueKind.CAPACITY, "chunks per timestep between the switch and its parent, in each direction"),
    Key("rate", ValueKind.RATE, "physical rate between the switch and its parent, in each direction"),
    Key("up", ValueKind.CAPACITY, "chunks per timestep to the parent (takes precedence over `capacity`)"),
    Key("down", ValueKind.CAPACITY, "chunks per timestep from the parent (takes precedence over `capacity`)"),
    Key("up_rate", ValueKind.RATE, "physical rate to the parent (takes precedence over `rate`)"),
    Key("down_rate", ValueKind.RATE, "physical rate from the parent (takes precedence over `rate`)"),
)
LINK: Final = (
    Key("from", ValueKind.TEXT, "the switch at which the link starts"),
    Key("to", ValueKind.TEXT, "the switch at which the link ends"),
    Key("capacity", ValueKind.CAPACITY, "chunks per timestep"),
    Key("rate", ValueKind.RATE, "physical rate"),
    Key(
        "both_ways",
        ValueKind.FLAG,
        "`true`: also a link in the opposite direction, with the same values (default: `false`)",
    ),
    Key("cost", ValueKind.CAPACITY, "the cost of the link; planners take the path with the lowest cost (default: 1)"),
)
SERVER: Final = (
    Key(
        "name",
        ValueKind.TEXT,
        "the name; `{n}` is the server's number in its rack (`{n:03}`: padded), `{rack}` the rack's name",
    ),
    Key("rack", ValueKind.TEXT, "the switch of the server; a name with `*` stands for every switch whose name matches"),
    Key("count", ValueKind.NUMBER, "the number of servers in a rack that differ only in their number (default: 1)"),
    Key("first", ValueKind.NUMBER, "the first number, with `count` (default: 1)"),
    Key("send", ValueKind.CAPACITY, "chunks per timestep that the server sends"),
    Key("receive", ValueKind.CAPACITY, "chunks per timestep that the server receives"),
    Key("disk", ValueKind.CAPACITY, "chunks per timestep that its disk writes (default: the value of `receive`)"),
    Key(
        "address",
        ValueKind.TEXT,
        "a host name or an IP address for other hosts; `{m}` is the number of the rack among the matching racks",
    ),
    Key("link_rate", ValueKind.RATE, "physical rate of the server's network link, in each direction"),
    Key("disk_rate", ValueKind.RATE, "the rate of each writer on the disk while the number of writers is `disk`"),
)
SECTIONS: Final[Mapping[str, tuple[Key, ...]]] = {
    "top level": TOP,
    "[defaults]": DEFAULTS,
    "[[switch]]": SWITCH,
    "[[link]]": LINK,
    "[[server]]": SERVER,
}
TABLES: Final = ("defaults", "switch", "link", "server")
"""The keys of the sections at the top level."""


class DescribedEntry:
    """A table of a description: its values by name, which are read and checked one at a time.

    `where` names the file and the entry, and is the beginning of every message. Raises TopologyError.
    """

    def __init__(self, where: str, values: Mapping[str, object], keys: Collection[Key], also: Collection[str] = ()):
        self.where = where
        self.values = values
        kinds = {key.name: key.kind for key in keys}
        for name in values:
            if name not in kinds and name not in also:
                raise TopologyError(f"{where}: unknown key {name!r}; {suggestion(str(name), [*kinds, *also])}")
        self._kinds = kinds

    def fail(self, name: str, problem: str) -> TopologyError:
        """The error for a value of this entry: place, key, value and problem."""
        return TopologyError(f"{self.where}: {name}={self.values.get(name)!r} {problem}")

    def text(self, name: str) -> str | None:
        """A name: 1 to 255 printable characters, without leading or trailing spaces; None if the key is missing."""
        text: str | None = self._checked(name, String(MAX_NAME_CHARACTERS))
        if text is not None and (text != text.strip() or not text.isprintable()):
            raise self.fail(name, "must have printable characters and no space around them")
        return text

    def required(self, name: str) -> str:
        """A required text."""
        value = self.text(name)
        if value is None:
            raise TopologyError(f"{self.where}: {name} is missing")
        return value

    def number(self, name: str, *, most: int = MAX_CAPACITY) -> int | None:
        """A whole number of 0 or more; None if the key is missing."""
        number: int | None = self._checked(name, Integer(0, most))
        return number

    def flag(self, name: str) -> bool:
        """True or false; false if the key is missing."""
        return bool(self._checked(name, Boolean()))

    def _checked(self, name: str, kind: Type) -> Any:
        """A value of a type; None if the key is missing."""
        try:
            return Optional(kind).check(self.values.get(name), name)
        except FieldError as error:
            raise TopologyError(f"{self.where}: {error}") from None

    def size(self, name: str) -> int | None:
        """A size in bytes; None if the key is missing."""
        return self._quantity(name, parse_size)

    def rate(self, name: str) -> float | None:
        """A rate in bytes per second; None if the key is missing."""
        return self._quantity(name, parse_rate)

    def duration(self, name: str) -> float | None:
        """A duration in seconds; None if the key is missing."""
        return self._quantity(name, parse_duration)

    def _quantity(self, name: str, parse: Callable[[object], T]) -> T | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise self.fail(name, str(error)) from None


def table(where: str, value: object) -> Mapping[str, object]:
    """A value that must be a table. Raises TopologyError."""
    if not isinstance(value, Mapping):
        raise TopologyError(f"{where} must be a table of keys and values, not {type_name(value)}")
    return value


def tables(where: str, value: object) -> list[Mapping[str, object]]:
    """A value that must be a list of tables. Raises TopologyError."""
    if not isinstance(value, list):
        raise TopologyError(f"{where} must be a list of tables ([[…]] in TOML), not {type_name(value)}")
    return [table(f"{where} number {number}", one) for number, one in enumerate(value, 1)]
