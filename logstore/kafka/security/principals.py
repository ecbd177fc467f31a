"""The principals of clients that log in, as Kafka names them: `User:NAME`."""

from typing import Final

PREFIX: Final = "User:"


def principal_of_user(name: str) -> str:
    """The principal of a user that has logged in."""
    return PREFIX + name
