"""Errors of stateful queries; they join the others under one root.

Invariant: a message names the query, the batch or epoch, and a remedy.
"""

from logstore.errors import CairnError


class BatchesMissing(CairnError):
    """Spark's checkpoint is ahead of the state in the log, or the log has no state of the query."""


class TasksFailed(CairnError):
    """Tasks of an epoch failed repeatedly; the message ends with the error of the last task. Nothing was committed."""


class StateNotForgotten(CairnError):
    """The state of a stopped query is still in the memory of some hosts, which the message names. It is harmless."""


class ResetRefused(CairnError):
    """A query cannot be reset to that batch; nothing was changed."""


class ForkRefused(CairnError):
    """A query cannot be forked from that epoch, or into that topic or checkpoint; nothing was changed."""
