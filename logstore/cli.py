"""The `cairn` command. Each run imports the module of its subcommand, and of no other."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from logstore.base.lean_imports import import_lean, leave_test_tools_out
from logstore.commands.table import COMMANDS as COMMANDS
from logstore.commands.table import GROUPS, grouped_help, load

USAGE_ERROR = 2
NAMING = frozenset((*GROUPS["a running sidecar"], *GROUPS["a data directory"]))
"""Subcommands whose arguments are names and values of which none may be empty: an empty name selects other things than
who wrote it meant.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="cairn",
        usage="cairn [-h] [--version] COMMAND ...",
        description="Durable storage for stream processing.",
        epilog=f"{grouped_help()}\n`cairn COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", prog="cairn", metavar="COMMAND", help=argparse.SUPPRESS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    leave_test_tools_out()
    if chosen == "serve":
        import_lean()
    used = parser
    for name, (_, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, description=summary)
        if name == chosen:
            room = load(name)
            room.add_arguments(subparser)
            subparser.set_defaults(run=room.main)
            used = subparser
    empty = _empty_argument(words) if chosen in NAMING else None
    if empty is not None:
        used.exit(USAGE_ERROR, f"{used.prog}: {empty} is empty: give a value, or omit it; is a shell variable unset?\n")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        used.exit(USAGE_ERROR, f"{used.prog}: unknown: {' '.join(unknown)}; `{used.prog} --help` lists the options\n")
    if parsed.command is None:
        parser.error("a COMMAND is missing; `cairn --help` lists the commands, `cairn COMMAND --help` describes one")
    return int(parsed.run(parsed))


def _empty_argument(words: Sequence[str]) -> str | None:
    """What to call the first empty value of a command line; None: no value is empty."""
    for before, word in zip(("", *words), words, strict=False):
        if not word.strip():
            return before if before.startswith("--") and "=" not in before else "an argument"
        if word.startswith("--") and word.count("=") == 1 and word.endswith("="):
            return word[:-1]
    return None


class _ShowVersion(argparse.Action):
    """Prints the installed version; imports importlib.metadata only then, because that takes a tenth of a start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        print(f"cairn {import_module('importlib.metadata').version('cairn')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
