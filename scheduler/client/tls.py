"""What a client of a coordinator trusts and shows, from the files that settings name.

Invariants: without files nothing is loaded, and the system's authorities are trusted. Files that have changed are
loaded before the next connection; those that cannot be used then leave what was loaded before, and are reported.
"""

import ssl

from logstore.base.client_tls import context_that_looks
from logstore.base.events import Report, ignore
from scheduler.client.errors import CoordinatorError


def client_tls(ca_file: str, certificate_file: str, report: Report = ignore) -> ssl.SSLContext | None:
    """The context for a client's `ca_file`; None: the system's authorities, and no certificate. The names of files are
    "" where there is none. `report` is told, by any thread, when files have been loaded again, or could not be. Raises
    CoordinatorError if a file cannot be used now.
    """
    names = [name for name in (ca_file, certificate_file) if name]
    if not names:
        return None
    return context_that_looks(lambda: _loaded(ca_file, certificate_file), names, report, side="coordinator")


def _loaded(ca_file: str, certificate_file: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if certificate_file:
            # An empty password, instead of none, keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(certificate_file, None, b"")
    except OSError as error:  # ssl.SSLError is one
        names = ", ".join(repr(name) for name in (ca_file, certificate_file) if name)
        raise CoordinatorError(f"certificates of the coordinator, {names}: {error}; give PEM files") from error
    return context
