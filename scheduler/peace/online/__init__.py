"""The online scheduler of Peace (SGuard, end of section 5, section 6.2): requests arrive at any time, chunks start when
it is their turn and their path is free. Sans-I/O.
"""

from scheduler.peace.online.records import (
    ChunkRecord,
    ChunkState,
    Go,
    HostStatus,
    InFlight,
    Mode,
    Outcome,
    Place,
    RequestRecord,
    RequestState,
    RequestStatus,
    Settings,
    Status,
    Stragglers,
    Submission,
    Use,
)
from scheduler.peace.online.scheduler import OnlineScheduler

__all__ = [
    "ChunkRecord",
    "ChunkState",
    "Go",
    "HostStatus",
    "InFlight",
    "Mode",
    "OnlineScheduler",
    "Outcome",
    "Place",
    "RequestRecord",
    "RequestState",
    "RequestStatus",
    "Settings",
    "Status",
    "Stragglers",
    "Submission",
    "Use",
]
