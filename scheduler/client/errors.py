"""What a client of the coordinator raises: by whose fault it is, and whether to try again."""

from scheduler.errors import SchedulerError


class CoordinatorError(SchedulerError):
    """Root of all errors of the clients."""


class Unavailable(CoordinatorError):
    """The coordinator could not be reached, or could not do it, for as long as the client's patience lasted.

    What was asked may have been done or not; asking for the same again is safe.
    """


class NotUnderstood(CoordinatorError):
    """The answer is not what a coordinator says: is the address right?"""


class Refused(CoordinatorError):
    """The coordinator refuses: the caller has to change something. `field` is what, where it could be named."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


class BadRequest(Refused):
    """A value that cannot be (400 and others)."""


class Unauthorized(Refused):
    """The token is missing or wrong (401)."""


class NotFound(Refused):
    """No such request, chunk or host (404)."""


class Conflict(Refused):
    """It cannot be done as things stand (409)."""


class RequestEnded(CoordinatorError):
    """The request is over without being finished."""


class RequestCancelled(RequestEnded):
    """Somebody cancelled it, or its writer was lost."""


class RequestFailed(RequestEnded):
    """The coordinator gave it up after too many attempts, or since there is no path any more."""


def refusal(status: int, message: str, field: str | None) -> Refused:
    """The error for a status of 4xx."""
    kinds: dict[int, type[Refused]] = {401: Unauthorized, 404: NotFound, 409: Conflict}
    return kinds.get(status, BadRequest)(status, message, field)
