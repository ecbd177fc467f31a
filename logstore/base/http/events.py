"""What an HTTP server reports to the operator of its program.

Invariant: events about connections are folded by client.
"""

from typing import Final

from logstore.base.events import Level, LogEvent

CANNOT_ACCEPT: Final = LogEvent("cannot_accept", Level.WARNING)
CONNECTION_CRASHED: Final = LogEvent("connection_crashed", Level.ERROR, folded_by="client", caused_by_clients=True)
CONNECTION_REFUSED: Final = LogEvent("connection_refused", Level.WARNING, folded_by="client", caused_by_clients=True)
