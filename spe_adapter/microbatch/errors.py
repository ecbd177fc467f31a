"""Errors of stateful queries; they join the others under one root.

Invariant: a message names the query, the batch or epoch, and the way out.
"""

from typing import ClassVar

from logstore.errors import Blame, CairnError


class BatchesMissing(CairnError):
    """Spark's checkpoint is ahead of the state in the log, or the log has no state where Spark's checkpoint has."""

    blame: ClassVar[Blame] = "client"


class TasksFailed(CairnError):
    """Tasks of an epoch failed for good; the message ends with what the last of them said. Nothing was committed."""

    blame: ClassVar[Blame] = "client"


class StateNotForgotten(CairnError):
    """A stopped query's state is still in the memory of some hosts; the message names them. It does no harm there."""

    blame: ClassVar[Blame] = "client"
    retriable: ClassVar[bool] = True


class OperatorChanged(CairnError):
    """The state in the log is of another operator, has other columns or another key."""

    blame: ClassVar[Blame] = "client"


class ResetRefused(CairnError):
    """A query cannot be reset to that batch; nothing was changed."""

    blame: ClassVar[Blame] = "client"
