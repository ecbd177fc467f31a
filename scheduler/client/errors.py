"""The errors of the coordinator's clients; the class says whether the caller must change something or try later."""

from typing import Final

from scheduler.errors import SchedulerError

MAX_SHOWN: Final = 200
"""Characters of a text from outside."""


class CoordinatorError(SchedulerError):
    """Root of all errors of the clients."""


class CoordinatorUnavailable(CoordinatorError):
    """For as long as the client's patience lasted, the coordinator did not answer or could not store anything.

    The request may have been carried out or not; it is safe to send it again. `retry_after_s`: what the answer says of
    when; 0: nothing.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LedElsewhere(CoordinatorUnavailable):
    """Who answered does not lead; `location` is what the answer says of who does, "" if nothing."""

    def __init__(self, location: str) -> None:
        super().__init__(f"says that {location[:MAX_SHOWN]!r} leads" if location else "names no leader")
        self.location = location


class NotUnderstood(CoordinatorError):
    """The answer is not a coordinator's: the address may be wrong."""


class CoordinatorRefused(CoordinatorError):
    """The coordinator refuses the request: the caller has to change `field`, where the coordinator names a field."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


class BadRequest(CoordinatorRefused):
    """A value is invalid (400 and others)."""


class Unauthorized(CoordinatorRefused):
    """The token is missing or wrong (401)."""


class NotFound(CoordinatorRefused):
    """There is no such request, chunk or host (404)."""


class Conflict(CoordinatorRefused):
    """The request contradicts the present state of the coordinator (409)."""


class RequestEnded(CoordinatorError):
    """The request ended without being finished."""


class RequestCancelled(RequestEnded):
    """The request was cancelled, or its writer was lost."""


class RequestFailed(RequestEnded):
    """The coordinator gave the request up: too many attempts, or no path is left."""


def refusal(status: int, message: str, field: str | None) -> CoordinatorRefused:
    """The error for a status of 4xx."""
    kinds: dict[int, type[CoordinatorRefused]] = {401: Unauthorized, 404: NotFound, 409: Conflict}
    return kinds.get(status, BadRequest)(status, message, field)
