"""What certificates in files say.

Invariant: whether a certificate is valid is decided by OpenSSL alone; here it is only read.
"""

from pathlib import Path

from asn1crypto import pem
from asn1crypto.x509 import Certificate

from logstore.base.errors import TlsError


def expiry_ms(path: str) -> int | None:
    """When the first certificate in a PEM file ends, in ms since the Unix epoch; None if that cannot be read.

    Blocks.
    """
    try:
        for kind, _, content in pem.unarmor(Path(path).read_bytes(), multiple=True):
            if kind == "CERTIFICATE":
                end = Certificate.load(content)["tbs_certificate"]["validity"]["not_after"].native
                return int(end.timestamp() * 1000)
    except (OSError, ValueError):
        pass  # OpenSSL, which has loaded the file, decides about it
    return None


def certificate_names(certificate: bytes) -> frozenset[str]:
    """The DNS names among the subject alternative names of a certificate (DER), as written. Raises TlsError."""
    try:
        found = Certificate.load(certificate).subject_alt_name_value
        # The bytes of a name as they are: asn1crypto would translate those of international domains.
        return frozenset(name.chosen.contents.decode("ascii") for name in found or () if name.name == "dns_name")
    except ValueError as error:
        raise TlsError(f"the names in a certificate of {len(certificate)} bytes cannot be read: {error}") from error


def first_certificate(path: str) -> bytes:
    """The first certificate of a PEM file, as DER. Raises TlsError."""
    try:
        for kind, _, content in pem.unarmor(Path(path).read_bytes(), multiple=True):
            if kind == "CERTIFICATE":
                return bytes(content)
    except (OSError, ValueError) as error:
        raise TlsError(f"tls-certificate {path!r} cannot be read: {error}") from error
    raise TlsError(f"tls-certificate {path!r} has no certificate; give a PEM file that begins with it")
