"""Errors of stateful queries; they join the others under one root.

Invariant: a message names the query, the batch or epoch, and the way out.
"""

from logstore.errors import CairnError


class BatchesMissing(CairnError):
    """Spark's checkpoint is ahead of the state in the log, or the log has no state where Spark's checkpoint has."""


class TasksFailed(CairnError):
    """Tasks of an epoch failed for good; the message ends with what the last of them said. Nothing was committed."""


class StateNotForgotten(CairnError):
    """A stopped query's state is still in the memory of some hosts; the message names them. It does no harm there."""


class OperatorChanged(CairnError):
    """The state in the log is of another operator, has other columns or another key."""


class ResetRefused(CairnError):
    """A query cannot be reset to that batch; nothing was changed."""
