"""What a program reports to its operator of certificates, and of files with secrets, that it loads again.

Invariant: no client causes them.
"""

from typing import Final

from logstore.base.events import Level, LogEvent

CERTIFICATES_LOADED: Final = LogEvent("certificates_loaded")
CERTIFICATES_UNUSABLE: Final = LogEvent("certificates_unusable", Level.WARNING)
CERTIFICATE_EXPIRES: Final = LogEvent("certificate_expires", Level.WARNING)
SECRET_LOADED: Final = LogEvent("secret_loaded")
SECRET_UNUSABLE: Final = LogEvent("secret_unusable", Level.WARNING)
