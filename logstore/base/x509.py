"""What certificates in files say.

Invariant: whether a certificate is valid is decided by OpenSSL alone; here it is only read.
"""

from pathlib import Path

from asn1crypto import pem
from asn1crypto.x509 import Certificate


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
