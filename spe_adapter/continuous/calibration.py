"""The costs of checks on this platform, for the cost-benefit policy: measured with a query's sidecar and sample rows.

Invariants:
* The rows have the columns of the query's state, all null. Texts and lists in a real state make larger footprints.
* Staging is measured. The second write, which a commit makes into the log, is not.
* A measurement leaves nothing: its output is staged for an epoch that is never committed, and is aborted at the end.
* The cost to replay an input record is not measured here: the runner measures it and tells its policy.

Source: CEC paper, section III.A (cost and benefit, calibrated for a platform).
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.format.batch import iterate_batches
from logstore.format.epoch_api import AbortRequest, Part
from spe_adapter.cec.calibrate import calibrate
from spe_adapter.cec.policy import CostBenefit, Costs, Policy
from spe_adapter.continuous.fragment import Fragment, plan
from spe_adapter.continuous.runner import Options, prepare
from spe_adapter.epochs.client import TaskAttempt
from spe_adapter.epochs.segments import StagedSegment
from spe_adapter.host import Host, ThisHost
from spe_adapter.state.table import Table

WINDOWS: Final = 4096
"""Enough for the fixed cost of a batch not to matter."""
FIRST_RECORD_S: Final = 1e-6
"""The assumed cost of a record until the runner has measured it."""
_EPOCH: Final = 1


def cost_benefit(
    fragment: Fragment, partition: int, options: Options, mtbf_s: float, *, host: Host | None = None
) -> Callable[[], Policy]:
    """A function that makes a cost-benefit policy with the costs of this platform, for `Options.policy`.

    `mtbf_s` is the expected time between failures, in seconds. Raises InvalidConfig and the errors of `measured_costs`.
    """
    costs = measured_costs(fragment, partition, options, host=host)
    CostBenefit(costs, mtbf_s)
    return partial(CostBenefit, costs, mtbf_s)


def measured_costs(fragment: Fragment, partition: int, options: Options, *, host: Host | None = None) -> Costs:
    """Measure the costs of footprints of the fragment's windows, staged at the sidecar. Takes some tenths of a second.

    Raises FragmentRefused and the client's errors.
    """
    host = host or ThisHost()
    prepare(fragment, options, host)
    rows = sample(fragment, WINDOWS)
    query, incarnation = f"{fragment.name_in(partition)}.calibration", host.new_token()
    attempt = TaskAttempt(query, incarnation, _EPOCH, partition, "calibration")
    positions = count()
    with options.client(host) as client:

        def write(data: bytes) -> None:
            batches = sum(1 for _ in iterate_batches(data))
            part = Part(fragment.topic, partition, len(data), batches, batches)
            client.stage(attempt.request(next(positions), StagedSegment((part,), data)))

        try:
            return calibrate(rows, clock=host.network.monotonic_s, write=write, record_s=FIRST_RECORD_S)
        finally:
            client.abort(AbortRequest(query, incarnation, _EPOCH))


def sample(fragment: Fragment, windows: int) -> pa.RecordBatch:
    """Rows of `windows` windows with the columns of the state, all null, as in `control.Footprints.rows`."""
    checked = plan(fragment)
    table = Table.in_memory(fragment.operator.state_schema(checked.input_schema), windows)
    keys = pa.array([b"%016d" % number for number in range(windows)], pa.binary())
    found, _ = table.ensure(keys, np.zeros(windows, np.int64))
    return table.take(found)
