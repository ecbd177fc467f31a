"""Requests about a query's epochs: connect, fence older runs, commit, abort.

Invariants:
* Whoever reads the log after `take_over` reads the query's last epoch: no other run can add one.
* Two drivers of one query cannot both go on; the older one gets FencedRun at its next request.
* Once `commit` has returned, the epoch is in all of its streams, whatever happens. An answer that does not come says
  nothing: the epoch may be committed or not.
* Aborting never undoes a commit: the sidecar sees to that.

Source: docs/decisions/0004 and 0007.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from logstore.client.blocking import Client, Pending
from logstore.client.network import Address, Network
from logstore.errors import CairnError
from logstore.format.epoch_api import (
    AbortRequest,
    DecideReply,
    DecideRequest,
    DescribeReply,
    DescribeRequest,
    Rewind,
    StageRequest,
    TaskOutput,
)
from spe_adapter.epochs.segments import StagedSegment
from spe_adapter.epochs.staging import Attempt

ABORT_LIMIT_S: Final = 5.0
"""Whoever aborts has failed already and must not be kept: what an abort leaves, the sidecar reclaims by itself."""

_FENCE_ATTEMPT: Final = "fence"


class SidecarOptions(Protocol):
    """How a sidecar is reached: the part that the options of source, sink and stateful queries share."""

    @property
    def servers(self) -> tuple[Address, ...]:
        """The sidecar's addresses."""

    @property
    def limit_s(self) -> float:
        """How long a request may take, all retries included."""

    @property
    def client_id(self) -> str:
        """The name that the sidecar knows the client by."""


def connect(options: SidecarOptions, network: Network, *, limit_s: float | None = None) -> Client:
    """A client, to be closed; `limit_s` instead of the options' own."""
    limit_s = options.limit_s if limit_s is None else limit_s
    return Client(options.servers, network, limit_s=limit_s, client_id=options.client_id)


def last_epoch(client: Client, query: str) -> DescribeReply:
    """The query's last committed epoch and its positions; `last_epoch` is None if there is none."""
    return client.describe(DescribeRequest(query))


def take_over(client: Client, query: str, run: str) -> int | None:
    """Make `run` the query's newest run; its last committed epoch, published everywhere, None if there is none.

    Raises FencedRun if there is a newer run already.
    """
    client.stage(StageRequest(query, run, 0, 0, _FENCE_ATTEMPT, 0, (), b""))
    epoch = last_epoch(client, query).last_epoch
    if epoch is not None:
        # The commit that has been made, once more: it is answered when its epoch is in all streams.
        commit(client, query, run, epoch, ())
    return epoch


def commit(
    client: Client,
    query: str,
    run: str,
    epoch: int,
    outputs: Sequence[TaskOutput],
    positions: str = "",
    *,
    rewind: Rewind = "error",
    forget: bool = False,
) -> DecideReply:
    """Commit an epoch with the output of exactly these attempts. `forget`: no later epoch will come (a batch job).

    Raises FencedRun, StaleEpoch and StagedMissing.
    """
    return client.decide(DecideRequest(query, run, epoch, rewind, tuple(outputs), positions, forget))


def start_commit(
    client: Client, attempt: Attempt, segments: Sequence[StagedSegment], positions: str
) -> Pending[DecideReply]:
    """Stage the only attempt of an epoch and commit it, in one go; committed when the answer is there."""
    decision = DecideRequest(
        attempt.query, attempt.run, attempt.epoch, "error", (attempt.output(len(segments)),), positions, False
    )
    return client.start_commit([attempt.request(at, segment) for at, segment in enumerate(segments)], decision)


def abort(options: SidecarOptions, network: Network, query: str, run: str, epoch: int) -> None:
    """Drop what is staged for an epoch, as far as that succeeds; the rest goes with the run."""
    limit_s = min(options.limit_s, ABORT_LIMIT_S)
    with suppress(CairnError), connect(options, network, limit_s=limit_s) as client:
        client.abort(AbortRequest(query, run, epoch))
