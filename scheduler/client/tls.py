"""What a client of a coordinator trusts and shows, from the files that settings name.

Invariant: without files nothing is loaded, and the system's authorities are trusted.
"""

import ssl

from scheduler.client.errors import CoordinatorError


def client_tls(ca_file: str, certificate_file: str) -> ssl.SSLContext | None:
    """The context for a client's `ca_file`; None: the system's authorities, and no certificate. The names of files are
    "" where there is none. Raises CoordinatorError if a file cannot be used.
    """
    if not ca_file and not certificate_file:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if certificate_file:
            context.load_cert_chain(certificate_file)
    except OSError as error:  # ssl.SSLError is one
        names = ", ".join(repr(name) for name in (ca_file, certificate_file) if name)
        raise CoordinatorError(f"certificates of the coordinator, {names}: {error}; give PEM files") from error
    return context
