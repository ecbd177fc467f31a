"""Which subcommands `cairn` has, and which module each of them is.

Invariant: a module is loaded only when its subcommand is called, or when a shell's completion is made from all of them.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from logstore.base.packages import how_to_get

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("logstore.sidecar", "run one sidecar: a durable queue that speaks the Kafka protocol"),
    "coordinate": ("scheduler.coordinator.command", "run a coordinator: plans where and when each chunk is written"),
    "demo": ("spe_adapter.demo.command", "kill a sidecar and two Spark queries repeatedly, and check the result"),
    "status": ("logstore.commands.status", "show a summary of a sidecar"),
    "hosts": ("logstore.commands.hosts", "list the hosts of a cluster with streams and chunks; drain or remove a host"),
    "topics": ("logstore.commands.topics", "list, describe, create, change or delete topics"),
    "offsets": ("logstore.commands.offsets", "show the first and last offsets of a topic, and the offset at a time"),
    "trim": ("logstore.commands.trim", "remove the oldest records of a topic"),
    "groups": ("logstore.commands.groups", "list consumer groups with members and lag; reset or delete groups"),
    "user": ("logstore.user_command", "add, remove and list the users that may log in"),
    "acl": ("logstore.commands.acl", "list, add or remove access control lists (ACLs)"),
    "readers": ("logstore.commands.readers", "list, add or remove readers, which keep records from being trimmed"),
    "queries": ("logstore.commands.queries", "list queries that write epochs: epoch, run, lag, staged bytes"),
    "verify": ("logstore.commands.verify", "check every byte of a data directory"),
    "adopt": ("logstore.commands.adopt", "turn a single sidecar into the first host of a cluster, with its log"),
    "dump": ("logstore.commands.dump", "print the batches of a file or a topic in a data directory"),
    "checkpoint": ("spe_adapter.tools.checkpoint_command", "rebuild a query's Spark checkpoint from the log"),
    "checkpoints": ("spe_adapter.tools.checkpoints_command", "list, show, verify or remove operators' checkpoints"),
    "state": ("spe_adapter.tools.state_command", "show the state of streaming queries; reset or fork it"),
    "topology": ("scheduler.topology_command", "check, draw or measure the network that writes are planned on"),
    "hdfs-policy": ("scheduler.hdfs.command", "build the block placement policy with which a NameNode follows chains"),
    "completion": ("logstore.commands.completion", "print a shell completion script"),
}

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "programs": ("serve", "coordinate", "demo"),
    "a running sidecar": (
        "status",
        "hosts",
        "topics",
        "offsets",
        "trim",
        "groups",
        "readers",
        "queries",
        "user",
        "acl",
    ),
    "a data directory": ("verify", "dump", "adopt"),
    "queries on Spark": ("checkpoint", "checkpoints", "state"),
    "networks and HDFS": ("topology", "hdfs-policy"),
    "this command": ("completion",),
}
"""How `cairn --help` shows the subcommands; each is in one group."""

EXTRAS: Final = {
    "scheduler.": "scheduler",
    "spe_adapter.demo.": "spark,demo",
    "spe_adapter.tools.checkpoints_command": "spark,scheduler",
}
"""The extra that a subcommand's module needs, by prefix of its name; `spark` for all others."""


def load(command: str) -> ModuleType:
    """Import a subcommand's module; if one of its packages is not installed, exit and name the extra to install."""
    module, _ = COMMANDS[command]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        extra = next((extra for room, extra in EXTRAS.items() if module.startswith(room)), "spark")
        sys.exit(f"cairn {command} needs {how_to_get(error.name, extra)}")


def grouped_help() -> str:
    """The subcommands with their summaries, in groups."""
    width = max(map(len, COMMANDS))
    lines = []
    for title, names in GROUPS.items():
        lines += [f"{title}:", *(f"  {name.ljust(width)}  {COMMANDS[name][1]}" for name in names), ""]
    return "\n".join(lines)
