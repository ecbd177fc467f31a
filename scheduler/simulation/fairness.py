"""Max-min fair rates of flows over shared resources, by progressive filling.

All flows' rates rise together; when a resource is full, the flows over it stop rising, and so does a flow at its own
cap. The result is the only allocation in which no flow can rise unless a flow that is no faster falls.

Invariants:
* A flow that passes a resource twice (a host's link up, as writer and as forwarder of the same chain) counts twice.
* No resource carries more than its capacity, except for rounding (a relative 1e-9).
"""

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TOLERANCE = 1e-9


@njit(cache=True)
def max_min(
    flows: Integers, uses: Integers, costs: Floats, caps: Floats, capacity: Floats, rates: Floats, left: Floats
) -> None:
    """Set `rates[f]` for every f in `flows`, and `left[r]`, the remaining capacity of every resource.

    `uses[f]`: the resources of flow f, filled with -1. `costs[f, i]`: the capacity of `uses[f, i]` per unit of rate
    (may be 0). `caps[f]`: the highest rate of f, may be infinite. A flow must have a finite cap or a cost somewhere.
    """
    resources = capacity.shape[0]
    width = uses.shape[1]
    load = np.zeros(resources)
    rising = flows.copy()
    count = flows.shape[0]
    left[:] = capacity
    for flow in flows:
        for place in range(width):
            if uses[flow, place] < 0:
                break
            load[uses[flow, place]] += costs[flow, place]
    level = 0.0
    while count:
        step = np.inf
        for resource in range(resources):
            if load[resource] > 0.0 and left[resource] < step * load[resource]:
                step = max(0.0, left[resource] / load[resource])
        for place in range(count):
            step = min(step, caps[rising[place]] - level)
        level += step
        for resource in range(resources):
            left[resource] -= step * load[resource]
        kept = 0
        for number in range(count):
            flow = rising[number]
            stops = caps[flow] <= level * (1.0 + TOLERANCE)
            for place in range(width):
                resource = uses[flow, place]
                if stops or resource < 0:
                    break
                if costs[flow, place] > 0.0 and left[resource] <= TOLERANCE * capacity[resource]:
                    stops = True
            if not stops:
                rising[kept] = flow
                kept += 1
                continue
            rates[flow] = level
            for place in range(width):
                resource = uses[flow, place]
                if resource < 0:
                    break
                load[resource] -= costs[flow, place]
                if load[resource] < TOLERANCE * costs[flow, place]:
                    load[resource] = 0.0
        if kept == count:  # only rounding errors can lead here: end instead of looping for ever
            for number in range(count):
                rates[rising[number]] = level
            return
        count = kept
