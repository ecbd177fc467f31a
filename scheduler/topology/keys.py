"""The keys of a network's description: one table for the reader, its errors and the documentation.

Invariants: a key's name is unique in its section; `scheduler.topology.description` reads every key of every section; a
key's kind alone decides which values are valid, so that the same mistake gives the same message everywhere.
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
"""Chunks per timestep; planners keep what is left in 32 bits, and sums of it must fit too."""
MAX_COUNT: Final = 100_000
"""Servers that one entry may stand for."""
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
    Key("name", ValueKind.TEXT, "what the network is called (default: the file's name)"),
    Key("chunk", ValueKind.SIZE, "size of a chunk (default: 64 MiB)"),
    Key(
        "timestep",
        ValueKind.DURATION,
        "how long a timestep lasts (default: chunk ÷ the slowest `disk_rate` or `link_rate`)",
    ),
)
DEFAULTS: Final = (
    Key("send", ValueKind.CAPACITY, "`send` of servers that do not give it"),
    Key("receive", ValueKind.CAPACITY, "`receive` of servers that do not give it"),
    Key("disk", ValueKind.CAPACITY, "`disk` of servers that do not give it"),
    Key("link_rate", ValueKind.RATE, "`link_rate` of servers that do not give it"),
    Key("disk_rate", ValueKind.RATE, "`disk_rate` of servers that do not give it"),
    Key("up", ValueKind.CAPACITY, "`up` of switches that do not give it"),
    Key("down", ValueKind.CAPACITY, "`down` of switches that do not give it"),
    Key("up_rate", ValueKind.RATE, "`up_rate` of switches that do not give it"),
    Key("down_rate", ValueKind.RATE, "`down_rate` of switches that do not give it"),
)
SWITCH: Final = (
    Key("name", ValueKind.TEXT, "its name; a rack is a switch that servers hang on; with `count`, contains `{n}`"),
    Key("count", ValueKind.NUMBER, "how many switches, equal but for their number (default: 1)"),
    Key("first", ValueKind.NUMBER, "the number of the first of `count` (default: 1)"),
    Key("parent", ValueKind.TEXT, "the switch above it; left out for the topmost, and where `[[link]]` tells"),
    Key("capacity", ValueKind.CAPACITY, "chunks per timestep between it and its parent, each way"),
    Key("rate", ValueKind.RATE, "physical rate between it and its parent, each way"),
    Key("up", ValueKind.CAPACITY, "chunks per timestep to its parent (before `capacity`)"),
    Key("down", ValueKind.CAPACITY, "chunks per timestep from its parent (before `capacity`)"),
    Key("up_rate", ValueKind.RATE, "physical rate to its parent (before `rate`)"),
    Key("down_rate", ValueKind.RATE, "physical rate from its parent (before `rate`)"),
)
LINK: Final = (
    Key("from", ValueKind.TEXT, "the switch where it starts"),
    Key("to", ValueKind.TEXT, "the switch where it ends"),
    Key("capacity", ValueKind.CAPACITY, "chunks per timestep"),
    Key("rate", ValueKind.RATE, "physical rate"),
    Key("both_ways", ValueKind.FLAG, "`true`: a second link leads back, with the same values (default: `false`)"),
    Key("cost", ValueKind.CAPACITY, "what passing it costs; planners take the cheapest way (default: 1)"),
)
SERVER: Final = (
    Key(
        "name", ValueKind.TEXT, "its name; `{n}` is its number in its rack (`{n:03}`: padded), `{rack}` the rack's name"
    ),
    Key(
        "rack", ValueKind.TEXT, "the switch it hangs on; with `*` in it, every switch whose name fits has such servers"
    ),
    Key("count", ValueKind.NUMBER, "how many servers in a rack, equal but for their number (default: 1)"),
    Key("first", ValueKind.NUMBER, "the number of the first of `count` (default: 1)"),
    Key("send", ValueKind.CAPACITY, "chunks per timestep that it sends"),
    Key("receive", ValueKind.CAPACITY, "chunks per timestep that it receives"),
    Key("disk", ValueKind.CAPACITY, "chunks per timestep that its disk takes (default: what it receives)"),
    Key(
        "address",
        ValueKind.TEXT,
        "how others reach it: a host name or an IP address; `{m}` is the number of the rack among those that fit",
    ),
    Key("link_rate", ValueKind.RATE, "physical rate of its network link, each way"),
    Key("disk_rate", ValueKind.RATE, "what one writer gets of its disk while as many write as `disk` allows"),
)
SECTIONS: Final[Mapping[str, tuple[Key, ...]]] = {
    "top level": TOP,
    "[defaults]": DEFAULTS,
    "[[switch]]": SWITCH,
    "[[link]]": LINK,
    "[[server]]": SERVER,
}
TABLES: Final = ("defaults", "switch", "link", "server")
"""The sections' own keys at the top level."""


class DescribedEntry:
    """One table of a description: its values by name, read and checked one at a time.

    `where` names file and entry, and opens every message. Raises TopologyError.
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
        """The error for a value of this entry: where, key, value, what is wrong with it."""
        return TopologyError(f"{self.where}: {name}={self.values.get(name)!r} {problem}")

    def text(self, name: str) -> str | None:
        """A name: not empty, printable, without space around it, at most 255 characters; None if it is not given."""
        text: str | None = self._checked(name, String(MAX_NAME_CHARACTERS))
        if text is not None and (text != text.strip() or not text.isprintable()):
            raise self.fail(name, "must have printable characters and no space around them")
        return text

    def required(self, name: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if value is None:
            raise TopologyError(f"{self.where}: {name} is missing")
        return value

    def number(self, name: str, *, most: int = MAX_CAPACITY) -> int | None:
        """A whole number, from 0; None if it is not given."""
        number: int | None = self._checked(name, Integer(0, most))
        return number

    def flag(self, name: str) -> bool:
        """True or false; false if it is not given."""
        return bool(self._checked(name, Boolean()))

    def _checked(self, name: str, kind: Type) -> Any:
        """A value of a type; None if it is not given."""
        try:
            return Optional(kind).check(self.values.get(name), name)
        except FieldError as error:
            raise TopologyError(f"{self.where}: {error}") from None

    def size(self, name: str) -> int | None:
        """A size in bytes; None if it is not given."""
        return self._quantity(name, parse_size)

    def rate(self, name: str) -> float | None:
        """A rate in bytes per second; None if it is not given."""
        return self._quantity(name, parse_rate)

    def duration(self, name: str) -> float | None:
        """A duration in seconds; None if it is not given."""
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
