"""What every subcommand that talks to a sidecar shares: its flags, and the client that they ask for.

Invariant: secrets come from files, never from flags, because flags stand in the list of processes.
"""

import argparse
from pathlib import Path
from typing import Final

from logstore.client.blocking import Client, parse_addresses
from logstore.client.properties import parse_properties
from logstore.client.security import ClientSecurity, parse_security
from logstore.errors import InvalidConfig

DEFAULT_SERVERS: Final = "127.0.0.1:9092"
DEFAULT_LIMIT_S: Final = 10.0
COMMAND_CONFIG_HELP: Final = "properties file with security.protocol and so on, as Kafka's tools take it"


def add_server_arguments(parser: argparse.ArgumentParser, *, is_action: bool = False) -> None:
    """Add --servers and --command-config. `is_action`: behind an action too; only what is given there counts."""
    default = argparse.SUPPRESS if is_action else DEFAULT_SERVERS
    shown = "as in front of the action" if is_action else f"HOST:PORT (default: {DEFAULT_SERVERS})"
    parser.add_argument("--servers", default=default, help=f"the sidecar, {shown}")
    default_file = argparse.SUPPRESS if is_action else None
    parser.add_argument("--command-config", type=Path, metavar="FILE", default=default_file, help=COMMAND_CONFIG_HELP)


def properties_of(arguments: argparse.Namespace) -> dict[str, str]:
    """What --command-config says; without the flag, nothing. Raises InvalidConfig."""
    path: Path | None = arguments.command_config
    if path is None:
        return {}
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"--command-config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"--command-config {path}: it is not UTF-8") from error
    except InvalidConfig as error:
        raise InvalidConfig(f"--command-config {path}: {error}") from error


def security_of(arguments: argparse.Namespace) -> ClientSecurity:
    """The security of --command-config; without the flag, none. Raises InvalidConfig."""
    properties = properties_of(arguments)
    try:
        return parse_security(properties)
    except InvalidConfig as error:
        raise InvalidConfig(f"--command-config {arguments.command_config}: {error}") from error


def client_of(arguments: argparse.Namespace, *, limit_s: float = DEFAULT_LIMIT_S) -> Client:
    """A client of --servers. Raises InvalidConfig."""
    return Client(parse_addresses(arguments.servers), limit_s=limit_s, security=security_of(arguments))
