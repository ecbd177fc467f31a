"""The registry of checkpoints in the clients' protocol: what is registered, and the requests about checkpoints.

Invariants: sans-I/O. Every request may be sent again without harm.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from scheduler.client.core import ApiRequest
from scheduler.client.errors import NotUnderstood

PAGE = 500
"""Units or checkpoints that are asked for in one request."""


@dataclass(frozen=True, slots=True)
class CompleteFile:
    """A file of a complete checkpoint, its length in bytes and the CRC-32C of all its bytes.

    `hosts`: those that have a replica, as far as the writer knows.
    """

    name: str
    bytes: int
    crc32c: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """A checkpoint all of whose files are durable below the URL `sink`.

    `epoch` and `attempt`: the state is that after this attempt of this epoch. `state_bytes`: what a recovery loads.
    `bases`: the numbers of all other registered checkpoints of the unit whose files a recovery reads. `written_ms`:
    when the last file was complete, in milliseconds since 1970.
    """

    unit: str
    seq: int
    sink: str
    epoch: int
    state_bytes: int
    written_ms: int
    files: tuple[CompleteFile, ...]
    bases: tuple[int, ...] = ()
    attempt: str = ""

    def registration(self) -> ApiRequest:
        """The request that registers the checkpoint."""
        body = asdict(self)
        return checkpoint("PUT", body.pop("unit"), body.pop("seq"), body)

    @classmethod
    def load(cls, view: Mapping[str, Any]) -> "CompleteCheckpoint":
        """A checkpoint as the coordinator shows it. Raises NotUnderstood."""
        try:
            files = tuple(CompleteFile(**{**file, "hosts": tuple(file["hosts"])}) for file in view["files"])
            names = ("unit", "seq", "sink", "epoch", "state_bytes", "written_ms", "attempt")
            return cls(**{name: view[name] for name in names}, files=files, bases=tuple(view["bases"]))
        except (KeyError, TypeError) as error:
            raise NotUnderstood(f"the answer is not a checkpoint: {error!r}") from error


def checkpoint(method: str, unit_name: str, seq: int, body: Mapping[str, Any] | None = None) -> ApiRequest:
    """A request about one checkpoint of a unit."""
    return unit(method, unit_name, f"/checkpoints/{seq}", body)


def unit(method: str, unit_name: str, resource: str = "", body: Mapping[str, Any] | None = None) -> ApiRequest:
    """A request about a unit, or about a resource below it (`/newest`)."""
    return ApiRequest(method, f"/v1/units/{quote(unit_name, safe='')}{resource}", body)


def units_page(after: str | None) -> ApiRequest:
    """A page of the units that have a checkpoint, after a name."""
    return ApiRequest("GET", f"/v1/units?limit={PAGE}&after={quote(after or '', safe='')}")


def checkpoints_page(unit_name: str, before: int | None) -> ApiRequest:
    """A page of a unit's checkpoints, below a number."""
    return unit("GET", unit_name, f"/checkpoints?limit={PAGE}&before={before or 0}")
