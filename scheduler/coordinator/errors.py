"""The coordinator's own errors.

Invariants: `ApiError` is the caller's fault or says when to try again, and becomes an answer; `StartError` is what
prevents a start, as one clear line; `StoreError` is the disk's fault.
"""

from collections.abc import Mapping

from scheduler.errors import SchedulerError


class ApiError(SchedulerError):
    """An answer that is not what was asked for: an HTTP status, a message, and the field to change if there is one."""

    def __init__(
        self, status: int, message: str, field: str | None = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.headers = headers or {}


class StartError(SchedulerError):
    """The coordinator cannot start as it was told to; the message says what to change."""


class StoreError(SchedulerError):
    """A change could not be stored. No client was told of it."""


class StoreDamaged(StartError):
    """The stored state cannot be read back."""
