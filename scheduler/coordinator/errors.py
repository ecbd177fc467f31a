"""The coordinator's own errors.

Invariants: `ApiError` becomes an HTTP answer: the caller must change the request, or try later; `StartError` prevents a
start, and its message is one line; `StoreError` comes from the disk.
"""

from collections.abc import Mapping

from scheduler.errors import SchedulerError


class ApiError(SchedulerError):
    """An error answer: an HTTP status, a message, and the field to change if there is one."""

    def __init__(
        self, status: int, message: str, field: str | None = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.headers = headers or {}


class StartError(SchedulerError):
    """The coordinator cannot start with these settings; the message says what to change."""


class PlanNotMoved(SchedulerError):
    """The present plan cannot go on with another network. It goes on with the one that it had."""


class StoreError(SchedulerError):
    """A change could not be stored. No client was notified of it."""


class StoreDamaged(StartError):
    """The stored state cannot be read back."""
