"""Every event that a coordinator reports to its operator.

Invariants: names are unique, and an event of a sidecar's by the same name has the same level. Events about connections
are folded by client, crashed requests by operation.
"""

from collections.abc import Mapping
from typing import Final

from logstore.base.certificate_events import CERTIFICATE_EXPIRES as CERTIFICATE_EXPIRES
from logstore.base.certificate_events import CERTIFICATES_LOADED as CERTIFICATES_LOADED
from logstore.base.certificate_events import CERTIFICATES_UNUSABLE as CERTIFICATES_UNUSABLE
from logstore.base.certificate_events import SECRET_LOADED as SECRET_LOADED
from logstore.base.certificate_events import SECRET_UNUSABLE as SECRET_UNUSABLE
from logstore.base.events import Level, LogEvent, by_name
from logstore.base.http.events import CANNOT_ACCEPT as CANNOT_ACCEPT
from logstore.base.http.events import CONNECTION_CRASHED as CONNECTION_CRASHED
from logstore.base.http.events import CONNECTION_REFUSED as CONNECTION_REFUSED

# ---- the process

STARTING: Final = LogEvent("starting")
WARMING: Final = LogEvent("warming")
STOPPING: Final = LogEvent("stopping")
STOPPED: Final = LogEvent("stopped")
STORE_FAILS: Final = LogEvent("store_fails", Level.WARNING)
STORE_WORKS_AGAIN: Final = LogEvent("store_works_again")
PLAN_REBUILT: Final = LogEvent("plan_rebuilt", Level.WARNING)
PLAN_NOT_REBUILT: Final = LogEvent("plan_not_rebuilt", Level.ERROR)

# ---- the network

TOPOLOGY_LOADED: Final = LogEvent("topology_loaded")
TOPOLOGY_UNUSABLE: Final = LogEvent("topology_unusable", Level.WARNING)

# ---- coordinators of a cluster

COORDINATOR_LEADS: Final = LogEvent("coordinator_leads")
COORDINATOR_LEADS_NO_MORE: Final = LogEvent("coordinator_leads_no_more")
COORDINATOR_FOLLOWS: Final = LogEvent("coordinator_follows")
COORDINATOR_DATABASE_TAKEN: Final = LogEvent("coordinator_database_taken")
COORDINATOR_DATABASE_LEFT: Final = LogEvent("coordinator_database_left", Level.WARNING)
COORDINATOR_AWAITS_STATE: Final = LogEvent("coordinator_awaits_state", Level.WARNING)
COORDINATOR_NETWORK_DIFFERS: Final = LogEvent("coordinator_network_differs", Level.WARNING)
COORDINATOR_NETWORK_AGREES: Final = LogEvent("coordinator_network_agrees")
COORDINATOR_CANNOT_LEAD: Final = LogEvent("coordinator_cannot_lead", Level.WARNING)

# ---- clients

REQUEST_CRASHED: Final = LogEvent("request_crashed", Level.ERROR, folded_by="operation")

# ---- hosts

HOST_REGISTERED: Final = LogEvent("host_registered")
HOST_LOST: Final = LogEvent("host_lost", Level.WARNING)

# ---- checkpoints

CHECKPOINT_REGISTERED: Final = LogEvent("checkpoint_registered")
CHECKPOINT_REMOVED: Final = LogEvent("checkpoint_removed")
UNIT_FORGOTTEN: Final = LogEvent("unit_forgotten")

# ---- requests

SUBMITTED: Final = LogEvent("submitted")
WRITER_SILENT: Final = LogEvent("writer_silent", Level.WARNING)
CHUNK_OVERDUE: Final = LogEvent("chunk_overdue", Level.WARNING)
REQUEST_STRANDED: Final = LogEvent("request_stranded", Level.WARNING)
REQUEST_HAS_A_PATH_AGAIN: Final = LogEvent("request_has_a_path_again")
TOLD_TO_WRITERS: Final[Mapping[str, LogEvent]] = by_name(
    LogEvent(name) for name in ("go", "revoked", "finished", "cancelled", "failed")
)
"""The events that a writer is told, by their names in the interface."""
