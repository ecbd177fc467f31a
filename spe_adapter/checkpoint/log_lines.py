"""Events of checkpoints in the log of a process that does not have log lines of its own, such as Spark's.

Invariant: an event goes to Python's `logging`, at its level, as its name and its fields.
"""

import logging
from typing import Final

from logstore.base.events import Level, LogEvent

_LEVELS: Final = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}
_log = logging.getLogger(__name__)


def log_event(event: LogEvent, /, **fields: object) -> None:
    """Report an event of checkpoints in the log of this process."""
    said = " ".join(f"{name}={value}" for name, value in fields.items())
    _log.log(_LEVELS[event.level], "%s %s", event.name, said)
