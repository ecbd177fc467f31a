"""Keeps the certificates of a process that runs as new as their files.

Invariants: connections that are open keep the certificates that they were made with; files that cannot be used change
nothing, are loaded again at each look, and are reported once for each state that they are in. A certificate that ends
soon is reported once, and once more when it has ended.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

import trio

from logstore.base.certificate_events import CERTIFICATE_EXPIRES, CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.clock import Clock
from logstore.base.errors import TlsError
from logstore.base.events import Report

CHECK_S: Final = 10.0
"""How often the files are looked at."""
FAILING_S: Final = 0.2
"""Between two looks while connections fail, which are tried again and again."""
NOTICE_MS: Final = 14 * 24 * 3600 * 1000
"""So long before its end a certificate is reported: authorities with short-lived ones have replaced it by then."""


class LoadedTls(Protocol):
    """What was loaded from files, and can be loaded again: `logstore.base.tls.ServerTls`, or `ClientTls` beside it."""

    @property
    def side(self) -> str:
        """Whose certificates they are: `listeners`, `links`, `etcd`."""

    @property
    def expires_ms(self) -> int | None:
        """When the own certificate ends, in ms since the Unix epoch; None: nothing tells, or there is none."""

    def reload(self, *, force: bool = False) -> bool:
        """Load the files again if one has changed, or with `force`; whether they were. Blocks. Raises TlsError."""


Failure = Callable[[], Awaitable[None]]
"""Waits for the next failure of a connection that certificates are for."""


def followed(
    loaded: Iterable[tuple[LoadedTls | None, Failure]], nursery: trio.Nursery, clock: Clock, report: Report
) -> Sequence[LoadedTls]:
    """Those of these that there are; their files are followed from now on, in the nursery."""
    certificates = []
    for tls, failure in loaded:
        if tls is not None:
            certificates.append(tls)
            nursery.start_soon(follow_certificates, tls, clock, report, failure)
    return certificates


async def follow_certificates(
    tls: LoadedTls, clock: Clock, report: Report, failure: Failure = trio.sleep_forever
) -> None:
    """Load certificates that have changed, and report one that ends soon; never returns. The files are looked at behind
    a failure too, since who connects may be refused for what has been replaced.
    """
    noticed = None
    while True:
        noticed = note_expiry(tls.expires_ms, clock.wall_ms(), noticed, report, tls.side)
        with trio.move_on_after(CHECK_S):
            await trio.sleep(FAILING_S)
            await failure()
        await reload_certificates(tls, report, force=False)


_REFUSED: Final = {
    (True, False): "clients will refuse it from that time on",
    (True, True): "clients refuse it",
    (False, False): "new connections will be refused from that time on",
    (False, True): "new connections are refused",
}
Notice = tuple[int, bool]
"""What was reported of a certificate: its end, and whether that had passed."""


def note_expiry(
    expires_ms: int | None, now_ms: int, noticed: Notice | None, report: Report, side: str = "listeners"
) -> Notice | None:
    """Report a certificate that ends within NOTICE_MS, or has ended, unless `noticed` says that of it; returns what is
    noticed now.
    """
    if expires_ms is None or expires_ms - now_ms > NOTICE_MS:
        return None
    notice = (expires_ms, expires_ms <= now_ms)
    if notice != noticed:
        end = datetime.fromtimestamp(expires_ms / 1000, UTC).isoformat()
        effect = _REFUSED[side == "listeners", notice[1]]
        report(CERTIFICATE_EXPIRES, of=side, at=end, effect=effect)
    return notice


async def reload_certificates(tls: LoadedTls, report: Report, *, force: bool) -> None:
    """Load certificates if their files have changed, or with `force`; reports what came of it.

    A cancellation does not wait for the files: the file system that they are on may hang.
    """
    try:
        if await trio.to_thread.run_sync(partial(tls.reload, force=force), abandon_on_cancel=True):
            report(CERTIFICATES_LOADED, of=tls.side, effect="new connections use them")
    except TlsError as error:
        report(CERTIFICATES_UNUSABLE, of=tls.side, error=str(error), effect="the previously loaded files stay in use")
