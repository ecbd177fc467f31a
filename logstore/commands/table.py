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
    "coordinate": ("scheduler.coordinator.command", "run one coordinator: who writes which chunk where and when"),
    "demo": ("spe_adapter.demo.command", "kill a sidecar and two Spark queries again and again; the result is exact"),
    "status": ("logstore.commands.status", "a sidecar at a glance"),
    "hosts": ("logstore.commands.hosts", "the hosts of a cluster: who lives, owns and holds what, what is missing"),
    "topics": ("logstore.commands.topics", "list, describe, create, change or delete topics"),
    "offsets": ("logstore.commands.offsets", "where a topic's partitions begin and end, and the offset of a time"),
    "trim": ("logstore.commands.trim", "remove the oldest records of a topic"),
    "groups": ("logstore.commands.groups", "consumer groups: members and lag; reset or delete them"),
    "user": ("logstore.user_command", "say who may log in to a sidecar"),
    "acl": ("logstore.commands.acl", "say who may do what: list, add or remove access control list entries"),
    "readers": ("logstore.client.readers_command", "look at the readers that keep records from being trimmed"),
    "queries": ("logstore.commands.queries", "queries that write epochs: epoch, run, lag, staged bytes"),
    "verify": ("logstore.commands.verify", "check every byte of a data directory"),
    "adopt": ("logstore.commands.adopt", "make a sidecar that was alone the first host of a cluster, with its log"),
    "dump": ("logstore.commands.dump", "show what a file or a topic of a data directory holds, batch by batch"),
    "checkpoint": ("spe_adapter.tools.checkpoint_command", "have a query's Spark checkpoint say what the log says"),
    "checkpoints": ("spe_adapter.tools.checkpoints_command", "look at operators' checkpoints, and check every byte"),
    "state": ("spe_adapter.tools.state_command", "look at the state of streaming queries, or set it back"),
    "topology": ("scheduler.topology_command", "check, draw or measure the network that writes are scheduled on"),
    "hdfs-policy": ("scheduler.hdfs.command", "build the placement policy that a NameNode needs to follow chains"),
    "completion": ("logstore.commands.completion", "print a script that completes this command in a shell"),
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
