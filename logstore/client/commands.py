"""The flags of every subcommand that connects to a sidecar, and the client that these flags describe.

Invariants: secrets come from files, never from flags, because other users can read flags in the list of processes. A
command reads its --command-config file once. An unusable file raises CommandConfigUnusable, which names the file; so
does a file whose certificates or keys cannot be read. An unknown name in the file is a warning on standard error.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from logstore.client.blocking import Client, parse_addresses
from logstore.client.connections import secured
from logstore.client.kafka_properties import stranger_warnings
from logstore.client.network import HostNetwork
from logstore.client.properties import parse_properties
from logstore.client.security import ClientSecurity, parse_security
from logstore.client.told_network import ToldNetwork
from logstore.errors import InvalidConfig

DEFAULT_SERVERS: Final = "127.0.0.1:9092"
DEFAULT_LIMIT_S: Final = 10.0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
COMMAND_CONFIG_HELP: Final = "client properties file, as for Kafka's tools (security.protocol and so on)"


def add_server_arguments(parser: argparse.ArgumentParser, *, is_action: bool = False) -> None:
    """Add --servers and --command-config. `is_action`: behind an action too; only what is given there counts."""
    default = argparse.SUPPRESS if is_action else DEFAULT_SERVERS
    shown = "the same as before the action" if is_action else f"HOST:PORT (default: {DEFAULT_SERVERS})"
    parser.add_argument("--servers", default=default, help=f"the sidecar, {shown}")
    default_file = argparse.SUPPRESS if is_action else None
    parser.add_argument("--command-config", type=Path, metavar="FILE", default=default_file, help=COMMAND_CONFIG_HELP)


def add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    """Add an action of a command; its own help begins with the summary, too."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    return parser


class CommandConfigUnusable(InvalidConfig):
    """The file that --command-config names cannot be used: exit status 2, as for a wrong command line."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"--command-config {path}: {why}")


def status_of(error: BaseException) -> int:
    """The exit status of a command that ends with this error."""
    return EXIT_USAGE if isinstance(error, CommandConfigUnusable) else EXIT_FAILED


def properties_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties in the --command-config file; empty without the flag. The first call reads the file, warns of
    unknown names, and keeps the properties beside the arguments. Raises CommandConfigUnusable.
    """
    path: Path | None = arguments.command_config
    if path is None:
        return {}
    known: dict[str, str] | None = getattr(arguments, "command_properties", None)
    if known is None:
        known = arguments.command_properties = _read(path)
        for warning in stranger_warnings(known):
            sys.stderr.write(f"cairn: warning: --command-config {path}: {warning}\n")
    return known


def _read(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandConfigUnusable(path, error.strerror) from error
    except UnicodeDecodeError as error:
        raise CommandConfigUnusable(path, "it is not UTF-8") from error
    except InvalidConfig as error:
        raise CommandConfigUnusable(path, error) from error


def security_of(arguments: argparse.Namespace) -> ClientSecurity:
    """The security of --command-config, whose certificates and keys can be read; without the flag, none. Raises
    CommandConfigUnusable.
    """
    properties = properties_of(arguments)
    try:
        security = parse_security(properties)
        secured(HostNetwork(), security, "")
    except InvalidConfig as error:
        raise CommandConfigUnusable(arguments.command_config, error) from error
    return security


def followed_security_of(arguments: argparse.Namespace) -> ClientSecurity:
    """The same for a program that runs for long: each new connection logs in as the file says by then. A file that can
    be read only once, as a pipe, is not followed.
    """
    security, path = security_of(arguments), arguments.command_config
    if security.sasl is None or not path.is_file():
        return security
    return replace(security, sasl=replace(security.sasl, properties_file=str(path.absolute())))


def client_of(arguments: argparse.Namespace, *, limit_s: float = DEFAULT_LIMIT_S) -> Client:
    """A client of --servers. Raises InvalidConfig, CommandConfigUnusable."""
    addresses, security = parse_addresses(arguments.servers), security_of(arguments)
    return Client(addresses, ToldNetwork(limit_s), limit_s=limit_s, security=security)
