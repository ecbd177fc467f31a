"""Whether an Aggregate can take over the state of an Aggregate with other aggregates, and by which columns.

| aggregate | its state in open windows |
|---|---|
| as before | goes on |
| added | empty cells: it aggregates the rows that come from now on |
| renamed (declared) | goes on under its new name |
| gone (declared as dropped) | is given up |
| another function or column under the same name | refused |

Invariants: the kind of windows stays as it is, for windows are known by numbers that depend on it; what a window's
result says of rows before the change is the former aggregates' alone.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from spe_adapter.state.evolution import Evolution

_BRACKETS: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_QUOTES: Final = "'\""
_CELL_MARKS: Final = (".", "#")
"""What follows an aggregate's name in the name of a column of its state."""


def aggregates_problem(former: str, prefix: str, aggregates: Mapping[str, str], declared: Evolution) -> str | None:
    """Why the state of an Aggregate with the description `former` cannot be taken over; None if it can.

    `prefix` is the description of the Aggregate now up to its first aggregate, `aggregates` what each is, by name.
    """
    if not former.startswith(prefix) or not former.endswith(")"):
        return f"it was {former}, with other windows or of another kind than {prefix}…)"
    if declared.defaults:
        return f"defaults for {', '.join(declared.defaults)}: an aggregate that is added begins empty, and takes none"
    before = dict(_named(former[len(prefix) : -1]))
    for name, what in before.items():
        now = declared.renamed.get(name, name)
        now = name if now in before and now != name else now
        if now in aggregates:
            if aggregates[now] != what:
                return f"aggregate {now!r} was {what} and is {aggregates[now]} now: give the new aggregate another name"
        elif name not in declared.dropped:
            return f"aggregate {name!r} ({what}) is gone: declare it as dropped, or what it is renamed to"
    return None


def column_evolution(declared: Evolution, former: pa.Schema, now: pa.Schema) -> Evolution:
    """Changes that are declared by the names of aggregates, by those of the columns of their state."""
    renamed = {
        column: name + column.removeprefix(source)
        for source, name in declared.renamed.items()
        for column in former.names
        if _belongs(column, source) and name + column.removeprefix(source) in now.names
    }
    dropped = tuple(column for name in declared.dropped for column in former.names if _belongs(column, name))
    return Evolution(renamed=renamed, dropped=dropped, formerly=declared.formerly)


def _belongs(column: str, aggregate: str) -> bool:
    return column == aggregate or column.startswith(tuple(aggregate + mark for mark in _CELL_MARKS))


def _named(text: str) -> Iterator[tuple[str, str]]:
    """The parts of "name=function, name=function"."""
    for part in split_outside(text):
        name, _, what = part.partition("=")
        yield name, what


def split_outside(text: str, separator: str = ", ") -> list[str]:
    """Cut a text at each separator that is outside of brackets and quotes. A "<" or ">" without the other is a sign."""
    parts: list[str] = []
    begin, quote = 0, ""
    missing: list[str] = []
    for at, letter in enumerate(text):
        if at < begin:
            continue
        if quote:
            if letter == quote and text[at - 1] != "\\":
                quote = ""
        elif not missing and text.startswith(separator, at):
            parts.append(text[begin:at])
            begin = at + len(separator)
        elif letter in _QUOTES:
            quote = letter
        elif letter in _BRACKETS:
            missing.append(_BRACKETS[letter])
        elif letter in missing and (letter != ">" or missing[-1] == ">"):
            while missing.pop() != letter:
                pass
    return [*parts, text[begin:]] if text else []
