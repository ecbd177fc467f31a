"""Clients of the coordinator: a blocking one on the standard library, and the same for trio in `trio_client`.

with CoordinatorClient("http://127.0.0.1:9880") as client:
    write = client.submit(writer="r1h1", chunks=8)
    for go in write.goes():
        ...  # write chunk go.chunk through go.hosts, in that order
        go.done()
"""

from scheduler.client.blocking import CoordinatorClient, CoordinatorRequest, Go
from scheduler.client.checkpoints import CompleteCheckpoint, CompleteFile
from scheduler.client.core import QueuePlace
from scheduler.client.errors import (
    BadRequest,
    Conflict,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    NotFound,
    NotUnderstood,
    RequestCancelled,
    RequestEnded,
    RequestFailed,
    Unauthorized,
)

__all__ = [
    "BadRequest",
    "CompleteCheckpoint",
    "CompleteFile",
    "Conflict",
    "CoordinatorClient",
    "CoordinatorError",
    "CoordinatorRefused",
    "CoordinatorRequest",
    "CoordinatorUnavailable",
    "Go",
    "NotFound",
    "NotUnderstood",
    "QueuePlace",
    "RequestCancelled",
    "RequestEnded",
    "RequestFailed",
    "Unauthorized",
]
