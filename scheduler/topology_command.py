"""`cairn topology`: the actions of `scheduler.topology.command` and `scheduler.calibration.command` under one command.

Invariant: an error that the scheduler or the operating system raises is one line on standard error and exit status 1.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from logstore.base.errors import CairnError
from scheduler.calibration.command import add_agent_arguments, add_calibrate_arguments, run_agent, run_calibration
from scheduler.topology.command import add_check_arguments, add_draw_arguments, run_check, run_draw

EXIT_FAILED: Final = 1
ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "check": run_check,
    "draw": run_draw,
    "agent": run_agent,
    "calibrate": run_calibration,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `cairn topology`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, add, summary in (
        ("check", add_check_arguments, "read a topology file, and print the racks, links and rates that it describes"),
        ("draw", add_draw_arguments, "draw the topology: SVG, PNG or PDF"),
        ("agent", add_agent_arguments, "run the calibration agent of this host"),
        ("calibrate", add_calibrate_arguments, "measure the links and disks of a running cluster"),
    ):
        add(actions.add_parser(name, help=summary, description=summary))


def main(arguments: argparse.Namespace) -> int:
    """Run the action; returns the exit status."""
    try:
        return ACTIONS[arguments.action](arguments)
    except (CairnError, OSError) as error:
        print(f"cairn topology {arguments.action}: {error}", file=sys.stderr)
        return EXIT_FAILED
