"""What a server with TLS reports of its certificates to the operator of its program.

Invariant: no client causes them.
"""

from typing import Final

from logstore.base.events import Level, LogEvent

CERTIFICATES_LOADED: Final = LogEvent("certificates_loaded")
CERTIFICATES_UNUSABLE: Final = LogEvent("certificates_unusable", Level.WARNING)
CERTIFICATE_EXPIRES: Final = LogEvent("certificate_expires", Level.WARNING)
