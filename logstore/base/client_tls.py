"""The TLS side of a client whose process runs for long: a context that is as new as the files it is made from.

Invariants:
* Who connects keeps one context, whatever happens to the files. Each new connection is made by what was loaded last;
  connections that are open keep what they were made with.
* What was loaded is replaced, never added to: an authority that is taken out of its file is not trusted any longer.
* Files that cannot be used change nothing, are loaded again at each look, and are reported once for each state that
  they are in.
"""

import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Final

from logstore.base.certificate_events import CERTIFICATES_LOADED, CERTIFICATES_UNUSABLE
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.followed_files import FollowedFiles
from logstore.base.tls import CERTIFICATES_ROOM

KEPT: Final = "the previously loaded files stay in use"
"""What becomes of a connection whose files cannot be used."""


class ChangingContext(ssl.SSLContext):
    """A context whose connections are made by the one that `current` gives at that moment."""

    def __new__(cls, current: Callable[[], ssl.SSLContext]) -> "ChangingContext":  # noqa: ARG004
        """A context that trusts nobody itself."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, current: Callable[[], ssl.SSLContext]) -> None:
        self._current = current
        self._protocols: list[str] = []

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Which protocols each connection offers, by whichever context it is made."""
        self._protocols = list(alpn_protocols)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See ssl.SSLContext."""
        return self._now().wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def wrap_socket(self, *arguments: object, **options: object) -> ssl.SSLSocket:
        """See ssl.SSLContext."""
        return self._now().wrap_socket(*arguments, **options)  # type: ignore[arg-type]

    def _now(self) -> ssl.SSLContext:
        current = self._current()
        if self._protocols:
            current.set_alpn_protocols(self._protocols)
        return current


class ClientTls:
    """What `load` makes of `files`, loaded again when they change; `certificate` is the client's own, "" if there is
    none. Whoever has `context` need not know that. `side` names the connections in log lines.

    Raises what `load` raises, a CairnError. Reads files, so it blocks.
    """

    def __init__(
        self, load: Callable[[], ssl.SSLContext], files: Sequence[str], *, side: str, certificate: str = ""
    ) -> None:
        self.side = side
        self._load = load
        self._certificate = certificate
        self._lock = Lock()
        self._followed = FollowedFiles(files)
        self._loaded = load()
        self.context: ssl.SSLContext = ChangingContext(lambda: self._loaded)
        self.expires_ms = self._expiry_ms()
        """When the client's own certificate ends, in ms since the Unix epoch; None if there is none that tells."""

    def reload(self, *, force: bool = False) -> bool:
        """See ServerTls."""
        with self._lock:  # else the slower of two threads could put the older files back
            states = self._followed.states()
            if self._followed.is_loaded(states) and not force:
                return False
            try:
                self._loaded = self._load()
            except CairnError:
                if not self._followed.refuse(states) and not force:
                    return False
                raise
            self._followed.load(states)
            self.expires_ms = self._expiry_ms()
            return True

    def _expiry_ms(self) -> int | None:
        if not self._certificate:
            return None
        expiry_ms: int | None = import_module(CERTIFICATES_ROOM).expiry_ms(self._certificate)
        return expiry_ms


def context_that_looks(
    load: Callable[[], ssl.SSLContext], files: Sequence[str], report: Report, *, side: str
) -> ssl.SSLContext:
    """A context for threads, which looks at its files before each connection and so needs nobody to follow them.

    Raises what `load` raises, a CairnError, while it is made; later such an error is reported.
    """
    tls = ClientTls(load, files, side=side)
    return ChangingContext(partial(_looked, tls, tls.context, report))


def _looked(tls: ClientTls, context: ssl.SSLContext, report: Report) -> ssl.SSLContext:
    try:
        if tls.reload():
            report(CERTIFICATES_LOADED, of=tls.side, effect="new connections use them")
    except CairnError as error:
        report(CERTIFICATES_UNUSABLE, of=tls.side, error=str(error), effect=KEPT)
    return context
