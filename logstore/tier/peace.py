"""Turns from Peace: a chunk goes to HDFS when the coordinator says so, through the hosts that it chose.

Invariants:
* One chunk is one request with one chunk. It is reported done after it was read back, and failed with the DataNode that
  failed, if it is one of the chain; then it is planned around that host.
* One attempt at a time: an attempt that was revoked ends before the next begins.
* A coordinator that does not answer for its client's patience stops nothing: the chunk is then stored without a plan.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from logstore.errors import TierUnavailable
from logstore.tier.interface import HostFailed, Turn
from scheduler.client import CoordinatorClient, CoordinatorError, Go
from scheduler.client.blocking import CoordinatorRequest
from scheduler.client.errors import CoordinatorUnavailable

T = TypeVar("T")


class PeaceTurns:
    """See `logstore.tier.interface.UploadTurns`. `host` is this host's name in the coordinator's network."""

    def __init__(self, client: CoordinatorClient, host: str, replicas: int) -> None:
        self._client = client
        self._host = host
        self._replicas = replicas

    def run(self, store: Callable[[Turn], T]) -> T:
        """See UploadTurns."""
        try:
            request = self._client.submit(self._host, 1, self._replicas)
        except CoordinatorUnavailable:
            return store(Turn((), lambda: False))
        except CoordinatorError as error:
            raise TierUnavailable(f"the coordinator refuses a request of host {self._host!r}: {error}") from error
        latest: Future[T] | None = None
        try:
            for go in request.goes():
                if latest is not None:
                    latest.exception()  # the attempt before has ended
                latest = self._begin(request, go, store)
        except CoordinatorError as error:
            if latest is None:
                raise TierUnavailable(f"no turn for a chunk of host {self._host!r}: {error}") from error
        if latest is None:
            raise TierUnavailable(f"request {request.name} of host {self._host!r} ended without a turn")
        return latest.result()

    def _begin(self, request: CoordinatorRequest, go: Go, store: Callable[[Turn], T]) -> "Future[T]":
        """Begin an attempt on a thread of its own, which no exit of the process waits for."""
        outcome: Future[T] = Future()

        def attempt() -> None:
            try:
                outcome.set_result(self._attempt(request, go, store))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                outcome.set_exception(error)

        threading.Thread(target=attempt, name="tier-upload", daemon=True).start()
        return outcome

    def _attempt(self, request: CoordinatorRequest, go: Go, store: Callable[[Turn], T]) -> T:
        addresses = [address or name for name, address in zip(go.hosts, go.addresses, strict=True)][1:]
        try:
            found = store(Turn(addresses, lambda: go.revoked))
        except HostFailed as error:
            go.failed(_named(error.address, go.hosts[1:], addresses))
            raise
        except BaseException:
            if not go.revoked:
                with suppress(CoordinatorError):
                    request.cancel()  # another plan would not help
            raise
        with suppress(CoordinatorError):  # it is stored, whoever hears of it
            go.done()
        return found

    def close(self) -> None:
        """See UploadTurns."""
        self._client.close()


def _named(address: str, hosts: Sequence[str], addresses: Sequence[str]) -> list[str]:
    return [host for host, at in zip(hosts, addresses, strict=True) if at == address]
