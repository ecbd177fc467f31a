"""Taking a query over: no older run can commit any more, and what the last one decided is in all its streams.

Invariants:
* Whoever reads the log behind `take_over` reads the query's last epoch: nobody else can add one.
* Two drivers of one query cannot both go on; the older one gets FencedRun at its next request.

Source: docs/decisions/0004 and 0007.
"""

from collections.abc import Sequence
from typing import Final

from logstore.client.blocking import Client
from logstore.format.private import DecideRequest, DescribeRequest, StageRequest, TaskOutput

_FENCE_ATTEMPT: Final = "fence"


def take_over(client: Client, query: str, run: str) -> int | None:
    """Make `run` the query's newest run; its last committed epoch, published everywhere, None if there is none.

    Raises FencedRun if there is a newer run already.
    """
    client.stage(StageRequest(query, run, 0, 0, _FENCE_ATTEMPT, 0, (), b""))
    last_epoch = client.describe(DescribeRequest(query)).last_epoch
    if last_epoch is not None:
        # Once more the decision that has been made: it is answered when its epoch is in all streams.
        decide(client, query, run, last_epoch, (), "")
    return last_epoch


def decide(client: Client, query: str, run: str, epoch: int, tasks: Sequence[TaskOutput], positions: str) -> None:
    """Commit an epoch; once this returns it is there, whatever happens. Raises FencedRun, StaleEpoch, StagedMissing."""
    client.decide(DecideRequest(query, run, epoch, "error", tuple(tasks), positions, forget=False))
