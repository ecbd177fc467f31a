"""Clients of the coordinator: a blocking one on the standard library, and the same for trio in `trio_client`.

with CoordinatorClient("http://127.0.0.1:9880") as client:
    write = client.submit(writer="r1h1", chunks=8)
    for go in write.goes():
        ...  # write chunk go.chunk through go.hosts, in that order
        go.done()
"""

from scheduler.client.blocking import CoordinatorClient, Go, CoordinatorRequest
from scheduler.client.core import QueuePlace
from scheduler.client.errors import (
    BadRequest,
    Conflict,
    CoordinatorError,
    NotFound,
    NotUnderstood,
    CoordinatorRefused,
    RequestCancelled,
    RequestEnded,
    RequestFailed,
    Unauthorized,
    CoordinatorUnavailable,
)

__all__ = [
    "BadRequest",
    "Conflict",
    "CoordinatorClient",
    "CoordinatorError",
    "Go",
    "NotFound",
    "NotUnderstood",
    "QueuePlace",
    "CoordinatorRefused",
    "RequestCancelled",
    "RequestEnded",
    "RequestFailed",
    "Unauthorized",
    "CoordinatorUnavailable",
    "CoordinatorRequest",
]
