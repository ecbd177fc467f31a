"""How operators' commands reach a sidecar: the flags for it, and the client that they make. The one place for both."""

import argparse
from collections.abc import Sequence
from typing import Final

from logstore.base.addresses import Address
from logstore.client.blocking import Client, parse_addresses
from logstore.client.commands import add_server_arguments, security_of
from logstore.client.security import ClientSecurity
from logstore.client.told_network import ToldNetwork
from logstore.commands.output import UsageError
from logstore.errors import InvalidConfig

DEFAULT_LIMIT_S: Final = 5.0
"""A sidecar restarts in about a second; a person waits no longer than this for an address that does not answer."""


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a command that asks a sidecar."""
    _add(parser, limit_s=DEFAULT_LIMIT_S, as_json=False)


def add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    """An action of a command, which takes the same flags; only what is given there counts."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    _add(parser, limit_s=argparse.SUPPRESS, as_json=argparse.SUPPRESS, is_action=True)
    return parser


def _add(
    parser: argparse.ArgumentParser, *, limit_s: float | str, as_json: bool | str, is_action: bool = False
) -> None:
    add_server_arguments(parser, is_action=is_action)
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        default=limit_s,
        help=f"time limit for each answer (default: {DEFAULT_LIMIT_S:g})",
    )
    parser.add_argument("--json", action="store_true", default=as_json, help="print JSON, for programs")


def positive_seconds(text: str) -> float:
    """A time in seconds above 0, as argparse's types do it: raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def connect(arguments: argparse.Namespace) -> Client:
    """A client of the sidecar that the flags name; it connects with its first request. Raises UsageError."""
    try:
        addresses = parse_addresses(arguments.servers)
    except InvalidConfig as error:
        raise UsageError(f"--servers: {error}") from error
    try:
        security = security_of(arguments)
    except InvalidConfig as error:
        raise UsageError(str(error)) from error
    return _client(addresses, arguments, security)


def connect_to(arguments: argparse.Namespace, address: str) -> Client:
    """A client of another host of the cluster that the flags name, with the same flags. Raises UsageError."""
    try:
        return _client(parse_addresses(address), arguments, security_of(arguments))
    except InvalidConfig as error:
        raise UsageError(str(error)) from error


def _client(addresses: Sequence[Address], arguments: argparse.Namespace, security: ClientSecurity) -> Client:
    return Client(
        addresses,
        ToldNetwork(arguments.timeout),
        limit_s=arguments.timeout,
        request_timeout_s=arguments.timeout,
        client_id="cairn-command",
        security=security,
        is_strict=True,
    )
