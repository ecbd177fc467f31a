"""What a client of the coordinator raises: by whose fault it is, and whether to try again."""

from scheduler.errors import SchedulerError


class CoordinatorError(SchedulerError):
    """Root of all errors of the clients."""


class CoordinatorUnavailable(CoordinatorError):
    """The coordinator could not be reached, or could not do it, for as long as the client's patience lasted.

    What was asked may have been done or not; asking for the same again is safe.
    """


class NotUnderstood(CoordinatorError):
    """The answer is not what a coordinator says: is the address right?"""


class CoordinatorRefused(CoordinatorError):
    """The coordinator refuses: the caller has to change something. `field` is what, where it could be named."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


class BadRequest(CoordinatorRefused):
    """A value that cannot be (400 and others)."""


class Unauthorized(CoordinatorRefused):
    """The token is missing or wrong (401)."""


class NotFound(CoordinatorRefused):
    """No such request, chunk or host (404)."""


class Conflict(CoordinatorRefused):
    """It cannot be done as things stand (409)."""


class RequestEnded(CoordinatorError):
    """The request is over without being finished."""


class RequestCancelled(RequestEnded):
    """Somebody cancelled it, or its writer was lost."""


class RequestFailed(RequestEnded):
    """The coordinator gave it up after too many attempts, or since there is no path any more."""


def refusal(status: int, message: str, field: str | None) -> CoordinatorRefused:
    """The error for a status of 4xx."""
    kinds: dict[int, type[CoordinatorRefused]] = {401: Unauthorized, 404: NotFound, 409: Conflict}
    return kinds.get(status, BadRequest)(status, message, field)
