"""Types of values that come from outside: bodies and queries of HTTP, requests of agents, settings, tables of files.

Invariants: `check` returns a value of the described type or raises FieldError, whose sentence names the field, the
value and what is allowed; `schema` is JSON Schema (2020-12) for the same set of values. Nothing here knows what the
values are for.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from logstore.base.errors import FieldError
from logstore.base.near_names import near_name

REQUIRED = object()
"""The default of a field that has none."""
_SHOWN_CHARACTERS = 60
VISIBLE = r"[^\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]"
"""A character of a text, as JSON Schema writes it: no control characters, separators of lines, marks of direction or
others without a shape, which would hide in a log or a page what a name is."""
_VISIBLE = re.compile(VISIBLE.replace("]", r"\ud800-\udfff]") + "*")
"""Half a surrogate pair is no character of JSON; Python's JSON lets it pass."""
_HIDDEN = re.compile(VISIBLE.replace("[^", "[").replace("]", r"\ud800-\udfff]"))
MAX_INTEGER = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""
_TYPE_NAMES: Mapping[type, str] = {
    type(None): "null",
    bool: "a truth value",  # before int, of which it is a subclass
    int: "a whole number",
    float: "a number with a fraction",
    str: "a text",
    list: "a list",
    Mapping: "an object",
}
MAX_NUMBER_CHARACTERS = 32
MAX_LISTED = 12
"""Names that a message lists."""
_WHOLE = re.compile(r"(-?[0-9]+)(\.0+)?")
"""98.0 is a whole number, as in JSON."""
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Type(Protocol):
    """A set of JSON values."""

    def check(self, value: object, where: str) -> Any:
        """The value, normalised. Raises FieldError that names `where`, the value's path."""
        ...

    def schema(self) -> dict[str, Any]:
        """The same set as JSON Schema."""
        ...


def refuse(where: str, value: object, allowed: str) -> FieldError:
    """The error for a value that is not allowed."""
    return FieldError(where, f"{where}={shown(value)}: {allowed}")


def refuse_type(where: str, value: object, allowed: str) -> FieldError:
    """The error for a value of another type than is allowed."""
    return refuse(where, value, f"{allowed}, not {type_name(value)}")


def type_name(value: object) -> str:
    """The noun for a value's type, with its article."""
    for kind, noun in _TYPE_NAMES.items():
        if isinstance(value, kind):
            return noun
    return f"a {type(value).__name__}"


def shown(value: object) -> str:
    """A value for an error message, cut to a fixed length."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def plain(text: str) -> str:
    """A text with its invisible characters spelled out as escapes."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


@dataclass(frozen=True, slots=True)
class String:
    """A text without control and other invisible characters; with `choices`, one of these."""

    max: int = 200
    min: int = 1
    choices: tuple[str, ...] = ()

    def check(self, value: object, where: str) -> str:
        """See Type."""
        if not isinstance(value, str):
            raise refuse_type(where, value, "must be a text")
        if self.choices and value not in self.choices:
            raise refuse(where, value, f"must be one of {', '.join(self.choices)}{nearest(value, self.choices)}")
        if not self.choices and not self.min <= len(value) <= self.max:
            raise refuse(where, value, f"must have from {self.min} to {self.max} characters")
        if not _VISIBLE.fullmatch(value):
            raise refuse(where, value, "must not have control characters or invisible characters")
        return value

    def schema(self) -> dict[str, Any]:
        """See Type."""
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        return {"type": "string", "minLength": self.min, "maxLength": self.max, "pattern": f"^{VISIBLE}*$"}


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from `min` to `max`."""

    min: int = 0
    max: int = MAX_INTEGER

    def check(self, value: object, where: str) -> int:
        """See Type."""
        if isinstance(value, float) and value.is_integer():  # 98.0 is a whole number in JSON
            value = int(value)
        allowed = f"must be a whole number from {self.min} to {self.max}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise refuse_type(where, value, allowed)
        if not self.min <= value <= self.max:
            raise refuse(where, value, allowed)
        return value

    def schema(self) -> dict[str, Any]:
        """See Type."""
        return {"type": "integer", "minimum": self.min, "maximum": self.max}


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `min` to `max`."""

    min: float = 0.0
    max: float = 1e18

    def check(self, value: object, where: str) -> float:
        """See Type."""
        allowed = f"must be a number from {self.min:g} to {self.max:g}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refuse_type(where, value, allowed)
        if not self.min <= value <= self.max:
            raise refuse(where, value, allowed)
        return float(value)

    def schema(self) -> dict[str, Any]:
        """See Type."""
        return {"type": "number", "minimum": self.min, "maximum": self.max}


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    def check(self, value: object, where: str) -> bool:
        """See Type."""
        if not isinstance(value, bool):
            raise refuse_type(where, value, "must be true or false")
        return value

    def schema(self) -> dict[str, Any]:
        """See Type."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Optional:
    """A value or null."""

    of: Type

    def check(self, value: object, where: str) -> Any:
        """See Type."""
        return None if value is None else self.of.check(value, where)

    def schema(self) -> dict[str, Any]:
        """See Type."""
        return {"anyOf": [self.of.schema(), {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of `min` to `max` values."""

    of: Type
    max: int = 1_000_000
    min: int = 0

    def check(self, value: object, where: str) -> tuple[Any, ...]:
        """See Type."""
        if not isinstance(value, list):
            raise refuse_type(where, value, "must be a list")
        if len(value) > self.max:
            raise FieldError(where, f"{where}: {len(value)} entries; at most {self.max} are taken")
        if len(value) < self.min:
            raise refuse(where, value, f"must have at least {self.min} entries")
        return tuple(self.of.check(entry, f"{where}[{number}]") for number, entry in enumerate(value))

    def schema(self) -> dict[str, Any]:
        """See Type."""
        bounds = {"minItems": self.min, "maxItems": self.max} if self.min else {"maxItems": self.max}
        return {"type": "array", "items": self.of.schema(), **bounds}


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with any names and values of one type. Only in answers."""

    of: Type

    def check(self, value: object, where: str) -> dict[str, Any]:
        """See Type."""
        if not isinstance(value, dict):
            raise refuse_type(where, value, "must be an object")
        return {name: self.of.check(entry, f"{where}.{name}") for name, entry in value.items()}

    def schema(self) -> dict[str, Any]:
        """See Type."""
        return {"type": "object", "additionalProperties": self.of.schema()}


class Field(NamedTuple):
    """A named part of an object. Without a default it must be given."""

    type: Type
    says: str
    default: object = REQUIRED

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the field, with its description."""
        found = {**self.type.schema(), "description": self.says}
        if self.default is not REQUIRED:
            default = self.default
            found["default"] = list(default) if isinstance(default, tuple) else default
        return found


@dataclass(frozen=True, slots=True)
class Object:
    """An object with known fields and no others; `name` is its name in an OpenAPI document."""

    name: str
    fields: Mapping[str, Field] = field(default_factory=dict)

    def check(self, value: object, where: str) -> dict[str, Any]:
        """See Type. Fields that are not given get their defaults."""
        if not isinstance(value, dict):
            raise refuse_type(where or "body", value, "must be an object")
        prefix = f"{where}." if where else ""
        for given in value:
            if given not in self.fields:
                raise FieldError(
                    f"{prefix}{given}"[:200],
                    f"{prefix}{shown(given)[1:-1]}: unknown field{nearest(given, self.fields)}; "
                    f"known are {', '.join(self.fields) or 'none'}",
                )
        checked: dict[str, Any] = {}
        for known, part in self.fields.items():
            if known in value:
                checked[known] = part.type.check(value[known], f"{prefix}{known}")
            elif part.default is REQUIRED:
                raise FieldError(f"{prefix}{known}", f"{prefix}{known}: is missing; {part.says}")
            else:
                checked[known] = part.default
        return checked

    def schema(self) -> dict[str, Any]:
        """A reference: the schema itself stands once in the OpenAPI document."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def definition(self) -> dict[str, Any]:
        """The schema itself."""
        return {
            "type": "object",
            "properties": {name: part.schema() for name, part in self.fields.items()},
            "required": [name for name, part in self.fields.items() if part.default is REQUIRED],
            "additionalProperties": False,
        }


def from_text(kind: Type, text: str, where: str) -> Any:
    """A value that comes as a text: from a path, a query or a command line. Raises FieldError."""
    if isinstance(kind, Integer):
        if len(text) > MAX_NUMBER_CHARACTERS or not (found := _WHOLE.fullmatch(text)):
            raise refuse(where, text, f"must be a whole number from {kind.min} to {kind.max}, in digits")
        return kind.check(int(found[1]), where)
    if isinstance(kind, Number):
        if len(text) > MAX_NUMBER_CHARACTERS or not _DECIMAL.fullmatch(text):
            raise refuse(where, text, "must be a number")
        return kind.check(float(text), where)
    if isinstance(kind, Boolean):
        if text not in ("true", "false"):
            raise refuse(where, text, "must be true or false")
        return text == "true"
    return kind.check(text, where)


def nearest(given: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """A hint, if the text is close to a known name."""
    near = near_name(given, list(known))
    return "" if near is None else f" (did you mean {near!r}?)"


def suggestion(given: str, known: Collection[str]) -> str:
    """The known name that was probably meant, or a few of the known names."""
    near = near_name(given, known)
    if near is not None:
        return f"did you mean {near!r}?"
    if not known:
        return "there is none"
    names = sorted(known)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"known: {', '.join(names[:MAX_LISTED])}{more}"


def records_in(kind: Type) -> list[Object]:
    """All records in a type, the type itself included."""
    found: list[Object] = []
    waiting: list[Any] = [kind]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Object):
            if inner not in found:
                found.append(inner)
                waiting += [part.type for part in inner.fields.values()]
        elif isinstance(inner, ListOf | MapOf | Optional):
            waiting.append(inner.of)
    return found
