"""Reads Java's properties files, which Kafka's tools take as `--command-config`. No I/O.

Invariant: for any text, `parse_properties` returns a mapping or raises InvalidConfig with the number of the line; no
message holds a value, because values may be secrets.

Source: the documentation of java.util.Properties.load.
"""

from collections.abc import Iterator
from typing import Final

from logstore.errors import InvalidConfig

_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE_DIGITS: Final = 4


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a file; of a name that comes twice, the last. Raises InvalidConfig."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _end_of_name(line)
        rest = line[end:].lstrip(_SPACE)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_SPACE)
        found[_unescaped(line[:end], number)] = _unescaped(rest, number)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; those that end with a backslash together with the next; no comments."""
    begun, start = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        piece = line.lstrip(_SPACE)
        if not begun:
            if not piece or piece[0] in "#!":
                continue
            start = number
        is_continued = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        begun += piece[:-1] if is_continued else piece
        if not is_continued:
            yield start, begun
            begun = ""
    if begun:
        yield start, begun


def _end_of_name(line: str) -> int:
    """Where the name ends: at the first separator without a backslash in front."""
    at = 0
    while at < len(line) and line[at] not in f"=:{_SPACE}":
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescaped(text: str, number: int) -> str:
    parts: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped, at = text[at : at + 1], at + 1
        if escaped == "u":
            digits, at = text[at : at + _UNICODE_DIGITS], at + _UNICODE_DIGITS
            try:
                parts.append(chr(int(digits.ljust(_UNICODE_DIGITS, "-"), 16)))
            except ValueError:
                raise InvalidConfig(f"line {number} of the properties has a \\u without four digits") from None
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return "".join(parts)
