"""The chunks that must start now so that all waiting chunks end in the fewest timesteps.

To start the most chunks in each timestep does not give the fewest timesteps: a writer with many chunks is left over at
the end, alone, and the network idles. So let T be the fewest timesteps that all waiting chunks need by the aggregate
model of `scheduler.peace.repaired_kernels`, with T times its capacities. A writer that sends s chunks in a timestep and
has more than s (T − 1) waiting cannot end within T timesteps unless the excess starts now; the same holds for a rack
and the number of chunks that its hosts can begin. These chunks go first, all others in the order of the queue.

Invariants:
* Only writes with the default placement of two or three replicas can be urgent, and only while T is at most
  MAX_TIMESTEPS.
* Among the requests of a rack the earlier ones are urgent first; no more chunks of a writer than it can send at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.peace.plan import Counts, JointPlanning, Numbers, Request, Residual
from scheduler.topology import Topology

MAX_TIMESTEPS = 1 << 12
"""Above this many timesteps no chunk is treated as urgent."""


class Urgency:
    """Finds the urgent chunks in one network."""

    def __init__(self, topology: Topology, planner: JointPlanning) -> None:
        self._planner = planner
        self._racks = np.array(topology.rack_of, np.int64)
        self._switches = len(topology.switches)

    def urgent(self, requests: Sequence[Request], whole: Residual) -> list[int]:
        """The number of urgent chunks of each request; `requests` are in the order of service.

        `whole`: the network with nothing in flight.
        """
        nothing = [0] * len(requests)
        demand = self._planner.demand(requests)
        horizon = None if demand is None else self._horizon(demand, sum(each.chunks for each in requests), whole)
        if demand is None or horizon is None:
            return nothing
        begins = self._planner.begins(demand, whole)
        send = whole.send
        by_writer: dict[int, int] = {}
        by_rack = np.zeros(self._switches, np.int64)
        for request in requests:
            by_writer[request.writer] = by_writer.get(request.writer, 0) + request.chunks
            by_rack[self._racks[request.writer]] += request.chunks
        late = {writer: chunks - int(send[writer]) * (horizon - 1) for writer, chunks in by_writer.items()}
        must = nothing
        for place, request in enumerate(requests):
            must[place] = max(0, min(request.chunks, late[request.writer]))
            late[request.writer] -= must[place]
        return self._of_racks(requests, must, by_rack - begins * (horizon - 1), send)

    def _of_racks(self, requests: Sequence[Request], must: list[int], late: Numbers, send: Counts) -> list[int]:
        """Add the urgent chunks of each rack, those of earlier requests first."""
        room: dict[int, int] = {}
        for request, count in zip(requests, must, strict=True):
            late[self._racks[request.writer]] -= count
            room[request.writer] = room.get(request.writer, int(send[request.writer])) - count
        for place, request in enumerate(requests):
            rack = self._racks[request.writer]
            more = min(int(late[rack]), request.chunks - must[place], room[request.writer])
            if more > 0:
                must[place] += more
                late[rack] -= more
                room[request.writer] -= more
        return must

    def _horizon(self, demand: Any, chunks: int, whole: Residual) -> int | None:
        """The fewest timesteps by the model; None above MAX_TIMESTEPS."""
        low = high = 1
        while self._planner.max_chunks(demand, whole, high) < chunks:
            low, high = high + 1, high * 2
            if high > MAX_TIMESTEPS:
                return None
        while low < high:
            middle = (low + high) // 2
            if self._planner.max_chunks(demand, whole, middle) >= chunks:
                high = middle
            else:
                low = middle + 1
        return low
