"""The root of all errors of Cairn, and the errors of this package.

Messages name the offending value and a remedy.
"""


class CairnError(Exception):
    """Root of all errors that Cairn raises on purpose."""


class AddressError(CairnError):
    """A text that is not a host and a port."""


class DirectoryInUse(CairnError):
    """Another process holds the lock of a data directory."""


class FieldError(CairnError):
    """A value that its type does not allow; `field` is the path of the field to change, "" for the whole value."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TlsError(CairnError):
    """A certificate, a key or a certificate authority that cannot be used; the message names the file."""
