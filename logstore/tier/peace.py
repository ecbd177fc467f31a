"""Turns from Peace: a chunk goes to HDFS when the coordinator says so, through the hosts that it chose.

Invariants:
* One chunk is one request with one chunk. It is reported done after it was read back, and failed with the DataNode that
  failed, if it is one of the chain; then it is planned around that host.
* One attempt at a time: an attempt that was revoked ends before the next begins. If it has stored the chunk all the
  same, nothing is stored again: the next attempt is reported done.
* A coordinator that takes no request for its client's patience stops nothing, whether it is silent or answers that it
  can store nothing: the chunk is then stored without a plan, also if the coordinator was lost after it had taken the
  request. Until the coordinator takes a request again, each further chunk asks once and does not wait.
* Nothing is stored without a plan because this host itself ends: what waits for its turn then fails.
* Of requests that a coordinator has taken, or may have taken, and for whose turns nobody waits, the first MAX_LEFT are
  cancelled when it takes a request again, but none whose chunk is still written: its tokens stay taken until the
  attempt has ended. It cancels others itself, when their writers have been silent for long.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

from logstore.errors import TierUnavailable
from logstore.tier.interface import HostFailed, Turn
from scheduler.client import CoordinatorClient, CoordinatorError, Go, core
from scheduler.client.blocking import CoordinatorRequest
from scheduler.client.errors import CoordinatorUnavailable

T = TypeVar("T")
MAX_LEFT: Final = 64
"""As many as there are chunks that are stored at a time."""


class PeaceTurns:
    """See `logstore.tier.interface.UploadTurns`. `host` is this host's name in the coordinator's network; requests are
    named by `random`.
    """

    def __init__(self, client: CoordinatorClient, host: str, replicas: int, random: Random) -> None:
        self._client = client
        self._host = host
        self._replicas = replicas
        self._random = random
        self._is_away = False
        """Whether the coordinator took no request for the client's patience, and has taken none since."""
        self._left: dict[str, None] = {}
        """Names of requests for whose turns nobody waits."""
        self._is_closed = False

    def run(self, store: Callable[[Turn], T]) -> T:
        """See UploadTurns."""
        name = f"tier-{self._random.getrandbits(96):024x}"
        submission = core.submission(self._random, name, self._host, 1, self._replicas, None, {})
        try:
            view = self._client.call(submission, patience_s=0 if self._is_away else None)
        except CoordinatorUnavailable:
            self._is_away = True
            self._leave(name)  # the answer alone may be lost
            return self._store_unplanned(store)
        except CoordinatorError as error:
            raise TierUnavailable(f"the coordinator refuses a request of host {self._host!r}: {error}") from error
        self._is_away = False
        request = CoordinatorRequest(self._client, view)
        self._cancel_left()
        latest: Future[T] | None = None
        try:
            for go in request.goes():
                if latest is not None and latest.exception() is None:  # the attempt before has ended, too late to count
                    self._report(request, go.done)
                    continue
                latest = self._begin(request, go, store)
        except CoordinatorUnavailable:
            self._is_away = True
            if latest is None:
                self._leave(name)
                return self._store_unplanned(store)
            latest.exception()  # it has ended: until then it needs its tokens, also if the coordinator is back
            self._leave(name)
        except CoordinatorError as error:
            if latest is None:
                raise TierUnavailable(f"no turn for a chunk of host {self._host!r}: {error}") from error
        if latest is None:
            raise TierUnavailable(f"request {request.name} of host {self._host!r} ended without a turn")
        return latest.result()

    def _store_unplanned(self, store: Callable[[Turn], T]) -> T:
        """The coordinator does not answer."""
        if self._is_closed:
            raise TierUnavailable(f"host {self._host!r} ends, and no chunk of it is stored")
        return store(Turn((), lambda: False))

    def _leave(self, name: str) -> None:
        """Note a request that the coordinator may have, and for which nobody waits."""
        if len(self._left) < MAX_LEFT:
            self._left[name] = None

    def _cancel_left(self) -> None:
        """The coordinator has taken a request: cancel those for which nobody waits."""
        for name in tuple(self._left):
            try:
                self._client.call(core.request("DELETE", name), patience_s=0)
            except CoordinatorUnavailable:
                return
            except CoordinatorError:
                pass  # it has ended, or the coordinator does not know it
            self._left.pop(name, None)  # another thread may have been quicker

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
            suspects = _named(error.address, go.hosts[1:], addresses)
            self._report(request, lambda: go.failed(suspects))
            raise
        except BaseException:
            if not go.revoked:
                with suppress(CoordinatorError):
                    request.cancel()  # another plan would not help
            raise
        self._report(request, go.done)
        return found

    def _report(self, request: CoordinatorRequest, report: Callable[[], bool]) -> None:
        """Report what has become of a chunk, whoever hears of it."""
        try:
            report()
        except CoordinatorUnavailable:
            self._is_away = True
            self._leave(request.name)
        except CoordinatorError:
            pass  # it has given the chunk up

    def close(self) -> None:
        """See UploadTurns."""
        self._is_closed = True
        self._client.close()


def _named(address: str, hosts: Sequence[str], addresses: Sequence[str]) -> list[str]:
    return [host for host, at in zip(hosts, addresses, strict=True) if at == address]
