"""What commands print: aligned tables for people, JSON for programs, errors in one line; and their exit status.

Invariants: results go to standard output, everything else to standard error. Exit status 0: done; 1: it failed, or
something is wrong with the data; 2: the command line is wrong, or what it names cannot be looked at; 130: Ctrl-C.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TextIO

from logstore.base.failures import sentence
from logstore.client.errors import Unavailable
from logstore.errors import CairnError

NOBODY: Final = "Start one with `cairn serve`, or name another with --servers HOST:PORT."
ASKS_FOR_MORE: Final = "For TLS or a login, give --command-config FILE."
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_KIBI: Final = 1024
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400

Cell = str | int | None


class UsageError(CairnError):
    """The command line names something that cannot be: exit status 2."""


def run(name: str, arguments: argparse.Namespace, work: Callable[[argparse.Namespace], int]) -> int:
    """Run a command and turn its errors into a line on standard error, which names it with its action if one was given,
    and an exit status.
    """
    action: str | None = getattr(arguments, "action", None)
    name = name if action is None else f"{name} {action}"
    try:
        status = work(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _complain(name, "interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, `head` for instance, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (CairnError, OSError) as error:
        return fail(name, error)
    return status


def fail(name: str, error: CairnError | OSError) -> int:
    """Print the line for an error of a command on standard error; returns the exit status."""
    more = _more_about(error) if isinstance(error, Unavailable) else ""
    _complain(name, f"{sentence(error)}{more}")
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def _more_about(error: Unavailable) -> str:
    """What to do if no sidecar runs, or the server closes connections; nothing if the server answers or is silent."""
    if isinstance(error.__cause__, CairnError | TimeoutError):
        return ""
    is_closed = isinstance(error.__cause__, ConnectionResetError | BrokenPipeError)
    return f". {ASKS_FOR_MORE}" if is_closed else f" {NOBODY}"


def _complain(name: str, message: str) -> None:
    print(f"cairn {name}: {message}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as JSON, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, nothing: str, file: TextIO | None = None
) -> None:
    """Print rows under titles, in columns; numbers to the right; `nothing` if there are no rows. To standard output
    unless a file is given.
    """
    if not rows:
        print(nothing, file=file)
        return
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(len(row[at]) for row in texts)) for at, title in enumerate(titles)]
    right = [all(isinstance(row[at], int | None) for row in rows) for at in range(len(titles))]
    for line in ([title.upper() for title in titles], *texts):
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=file)


def print_fields(fields: Sequence[tuple[str, Cell]]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name.ljust(width)}  {_text(value)}")


def _text(cell: Cell) -> str:
    text = "-" if cell is None else str(cell)
    # A name that a client chose must not move the cursor of a terminal.
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def counted(count: int, noun: str) -> str:
    """A number of things, with a noun whose plural ends in `s`: `1 stream`, `2 streams`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_bytes(count: int) -> str:
    """A number of bytes for people: `1.5 MiB`."""
    size = float(count)
    unit = "B"
    for larger in _UNITS:
        if size < _KIBI:
            break
        size, unit = size / _KIBI, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def show_size(count: int | None) -> str | None:
    """A number of bytes for people, or None if it is not known."""
    return None if count is None else show_bytes(count)


def show_age(age_ms: int) -> str:
    """A duration for people, in its largest two units: `3 h 5 min`."""
    seconds = age_ms // 1000
    for size, unit, smaller, part in ((_DAY_S, "d", _HOUR_S, "h"), (_HOUR_S, "h", _MINUTE_S, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // smaller} {part}"
    return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s" if seconds >= _MINUTE_S else f"{seconds} s"


def show_time(time_ms: int) -> str:
    """A wall time in ms since 1970 as people write it, in UTC; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def parse_time(text: str) -> int:
    """Ms since 1970 from a number of them, or from `2026-01-31`, `2026-01-31T12:00:00`, with `Z` or `+02:00`; UTC
    unless it says otherwise. Raises UsageError.
    """
    if text.isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time: write milliseconds since 1970, or 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
