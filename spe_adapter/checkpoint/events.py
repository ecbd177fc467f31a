"""Events of checkpoints, for log lines."""

from typing import Final

from logstore.base.events import Level, LogEvent

CHECKPOINT_WRITTEN: Final = LogEvent("checkpoint_written")
CHECKPOINT_FAILED: Final = LogEvent("checkpoint_failed", Level.WARNING, folded_by="unit")
CHECKPOINT_UNPLANNED: Final = LogEvent("checkpoint_unplanned", Level.WARNING, folded_by="error")
"""The coordinator is away or refused: the chunks go where the sink puts them, at once."""
CHECKPOINT_UNREGISTERED: Final = LogEvent("checkpoint_unregistered", Level.WARNING, folded_by="unit")
CHECKPOINT_REMOVED: Final = LogEvent("checkpoint_removed")
CHECKPOINT_NOT_REMOVED: Final = LogEvent("checkpoint_not_removed", Level.WARNING, folded_by="checkpoint")
CHECKPOINT_REFUSED: Final = LogEvent("checkpoint_refused", Level.WARNING)
"""A recovery does not use a checkpoint; the line says which file and why."""
CHECKPOINT_LOADED: Final = LogEvent("checkpoint_loaded")
SERVICE_STARTED: Final = LogEvent("service_started")
SERVICE_ENDED: Final = LogEvent("service_ended")
DATAGRAM_REFUSED: Final = LogEvent("datagram_refused", Level.WARNING, folded_by="error", caused_by_clients=True)
UNIT_REFUSED: Final = LogEvent("unit_refused", Level.WARNING, folded_by="unit")
