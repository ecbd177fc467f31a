"""The `cairn` command. Each run imports the module of its subcommand, and of no other."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import cast

USAGE_ERROR = 2
COMMANDS = {
    "serve": ("logstore.sidecar", "run one sidecar: a durable queue that speaks the Kafka protocol"),
    "coordinate": ("scheduler.coordinator.command", "run one coordinator: who writes which chunk where and when"),
    "hdfs-policy": ("scheduler.hdfs.command", "build the placement policy that a NameNode needs to follow chains"),
    "topology": ("scheduler.topology_command", "check, draw or measure the network that writes are scheduled on"),
    "demo": ("spe_adapter.demo.command", "kill a sidecar and two Spark queries again and again; the result is exact"),
    "readers": ("logstore.client.readers_command", "look at the readers that keep records from being trimmed"),
    "checkpoint": ("spe_adapter.tools.checkpoint_command", "have a query's Spark checkpoint say what the log says"),
    "checkpoints": ("spe_adapter.tools.checkpoints_command", "look at operators' checkpoints, and check every byte"),
    "state": ("spe_adapter.tools.state_command", "look at the state of streaming queries, or set it back"),
}

EXTRAS = {
    "scheduler.": "scheduler",
    "spe_adapter.demo.": "spark,demo",
    "spe_adapter.tools.checkpoints_command": "spark,scheduler",
}
"""The extra that a subcommand's module needs, by prefix of its name; `spark` for all others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="cairn", description="Stable storage for stream processing.")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    _leave_test_tools_out()
    for name, (module, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name == chosen:
            room = _load(name, module)
            room.add_arguments(subparser)
            subparser.set_defaults(run=room.main)
    parsed = parser.parse_args(words)
    return int(parsed.run(parsed))


class _ShowVersion(argparse.Action):
    """Prints the installed version; imports importlib.metadata only then, because that takes a tenth of a start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        print(f"cairn {import_module('importlib.metadata').version('cairn')}")
        parser.exit()


def _load(command: str, module: str) -> ModuleType:
    """Import a subcommand's module; if one of its packages is not installed, exit and name the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        extra = next((extra for room, extra in EXTRAS.items() if module.startswith(room)), "spark")
        sys.exit(f"cairn {command} needs the package {error.name}: pip install 'cairn[{extra}]'")


def _leave_test_tools_out() -> None:
    """Keep kio from importing Hypothesis where it is installed: a third of a second and 20 MB that no command needs."""
    sys.modules.setdefault("hypothesis", cast(ModuleType, None))


if __name__ == "__main__":
    sys.exit(main())
