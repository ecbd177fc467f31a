"""The `cairn` command. Each run imports the module of its subcommand, and of no other."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from logstore.base.lean_imports import import_lean, leave_test_tools_out
from logstore.commands.table import COMMANDS as COMMANDS
from logstore.commands.table import grouped_help, load

USAGE_ERROR = 2


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
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        used.exit(USAGE_ERROR, f"{used.prog}: unknown: {' '.join(unknown)}; `{used.prog} --help` lists the options\n")
    if parsed.command is None:
        parser.error("a COMMAND is missing; `cairn --help` lists the commands, `cairn COMMAND --help` describes one")
    return int(parsed.run(parsed))


class _ShowVersion(argparse.Action):
    """Prints the installed version; imports importlib.metadata only then, because that takes a tenth of a start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        print(f"cairn {import_module('importlib.metadata').version('cairn')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
