"""Keeps the certificates of a server that runs as new as their files.

Invariants: connections that are open keep the certificates that they were made with; files that cannot be used change
nothing, and are reported once for each state that they are in.
"""

from functools import partial
from typing import Final

import trio

from logstore.base.certificate_events import CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.errors import TlsError
from logstore.base.events import Report
from logstore.base.tls import ServerTls

CHECK_S: Final = 10.0
"""How often the files are looked at."""


async def follow_certificates(tls: ServerTls, report: Report) -> None:
    """Load certificates that have changed; never returns."""
    while True:
        await trio.sleep(CHECK_S)
        await reload_certificates(tls, report, force=False)


async def reload_certificates(tls: ServerTls, report: Report, *, force: bool) -> None:
    """Load certificates if their files have changed, or with `force`; reports what came of it.

    A cancellation does not wait for the files: the file system that they are on may hang.
    """
    try:
        if await trio.to_thread.run_sync(partial(tls.reload, force=force), abandon_on_cancel=True):
            report(CERTIFICATES_LOADED, effect="new connections get them")
    except TlsError as error:
        report(CERTIFICATES_UNUSABLE, error=str(error), effect="those loaded before stay in use")
