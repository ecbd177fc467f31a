"""Errors of the Spark adapter; they join those of the log store under one root."""

from logstore.errors import CairnError


class DataLost(CairnError):
    """Records that a query should have read are gone; with `failOnDataLoss=false` the query continues without them."""


class SchemaRefused(CairnError):
    """A data frame that cannot be written, or a schema that cannot be read; the message names the column."""


class NoTaskContext(CairnError):
    """The sink ran outside a Spark task, or in a task without the identity of its epoch."""


class StateTrimmed(CairnError):
    """The log was trimmed, and lacks the state of open windows of a query, or the requested epoch."""


class StateAway(CairnError):
    """The log begins after a checkpoint, and the place of the checkpoints cannot be read now. Nothing is known to be
    lost, and a later start may succeed. The message names the place and the cause.
    """


class StateCleaned(StateTrimmed):
    """Required records of a query's state were removed from the log, as `stateHistory` = recovery allows."""


class StateInconsistent(CairnError):
    """The control records of a query contradict each other. Nothing is loaded, because the state could be wrong."""


class QueryNotFound(CairnError):
    """A topic does not hold the state of the query, or holds the state of several queries; the message names them."""


class EpochNotFound(CairnError):
    """A query has no such epoch in a stream, or a reset has undone it; the message names the existing epochs."""


class CheckpointDiffers(CairnError):
    """Spark's checkpoint plans another input for a batch than the log holds, or the log cannot tell."""


class CheckpointRefused(CairnError):
    """A checkpoint cannot be rebuilt from the log; nothing was changed."""


class TopicTaken(CairnError):
    """A new query would write into a topic that holds the output or the state of another query."""
