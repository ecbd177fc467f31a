"""How commands reach the metadata store of a cluster themselves: the flags for it, and what opens it."""

import argparse
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from logstore.base.tls import TlsFiles
from logstore.cluster.settings import ETCD_SECURITY, ClusterSecurity

CLUSTER_ROOM: Final = "logstore.cluster.running"
"""Loaded only where a metadata store is opened."""
ETCD_FLAGS: Final[Mapping[str, str]] = {
    "etcd-user": "etcd user",
    "etcd-password-file": "file with that user's password",
    "etcd-ca": "PEM file with the CA of etcd's certificate",
    "etcd-certificate": "PEM file with a client certificate for etcd",
    "etcd-key": "PEM file with its key, if not in the same file",
}


def add_etcd_arguments(parser: argparse.ArgumentParser, when: str = "", *, is_action: bool = False) -> None:
    """The flags of a command that opens a metadata store; `when` begins their descriptions. `is_action`: the flags are
    also those of the command; only a flag that is given after the action changes its value.
    """
    default = argparse.SUPPRESS if is_action else ""
    for name, what in ETCD_FLAGS.items():
        metavar = "FILE" if "PEM" in what else None
        parser.add_argument(f"--{name}", default=default, metavar=metavar, help=f"{when}{what}")


def etcd_security(arguments: argparse.Namespace) -> ClusterSecurity:
    """How to log in to etcd, as these flags say. Raises ConfigError."""
    security = ClusterSecurity(TlsFiles(""), *(getattr(arguments, name) for name in ETCD_SECURITY))
    security.check_etcd()
    return security


def cluster_room() -> ModuleType:
    """What opens a metadata store."""
    return import_module(CLUSTER_ROOM)
