"""Requests that are served only as long as this host has what they ask.

Invariant: whoever entered before `end_all` is cancelled by it; whoever enters afterwards is not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Askers:
    """The requests under way at a home of epochs or of readers."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, None] = {}

    @contextmanager
    def entered(self) -> Iterator[trio.CancelScope]:
        """For a request: the scope is cancelled when what it asks is here no more."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                yield scope
            finally:
                self._scopes.pop(scope, None)

    def end_all(self) -> None:
        """What they ask is here no more."""
        for scope in self._scopes:
            scope.cancel()
