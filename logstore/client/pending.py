"""A request of the blocking client that is under way while its caller does other work.

Invariant: a client has one such request at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from logstore.client.errors import SidecarRefused

if TYPE_CHECKING:
    from logstore.client.blocking import Client

T = TypeVar("T")


class Pending(Generic[T]):
    """A request under way: the caller sends it, does other work, and reads the answer later.

    The caller must not use the client for another request in between. `send` sends the request and returns its
    correlation id; `receive` reads the answer.
    """

    def __init__(self, client: Client, send: Callable[[], int], receive: Callable[[int], T]) -> None:
        self._client = client
        self._send = send
        self._receive = receive
        self._correlation_id: int | None = None
        try:
            self._correlation_id = send()
        except SidecarRefused:
            pass  # the stream has no leader now; `receive` looks again
        except OSError:
            client.close()  # a part of the request may have been sent; `receive` sends it again on a new connection

    def receive(self, deadline_s: float | None = None) -> T:
        """Read the answer; sends the request again if the connection breaks. Raises Unavailable at the deadline
        (default: the client's time limit from now).
        """

        def ask() -> T:
            correlation_id, self._correlation_id = self._correlation_id, None
            return self._receive(self._send() if correlation_id is None else correlation_id)

        return self._client.retry_until(ask, self._client.deadline_s() if deadline_s is None else deadline_s)
