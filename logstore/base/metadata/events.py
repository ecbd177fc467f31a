"""Events of a metadata store that a sidecar reports to its operator.

Invariant: `logstore.events` lists them with all others; they lie here since this room is below it.
"""

from typing import Final

from logstore.base.events import Level, LogEvent

METADATA_AWAY: Final = LogEvent("metadata_away", Level.WARNING, folded_by="etcd")
METADATA_BACK: Final = LogEvent("metadata_back", folded_by="etcd")
