"""Errors of the Spark adapter; they join those of the log store under one root."""

from logstore.errors import CairnError


class DataLost(CairnError):
    """Records that a query should have read are gone; `failOnDataLoss=false` goes on without them."""


class SchemaRefused(CairnError):
    """A data frame that cannot be written, or a schema that cannot be read; the message names the column."""


class NoTaskContext(CairnError):
    """The sink ran outside a Spark task, or in one that lacks what identifies its epoch."""


class StateTrimmed(CairnError):
    """The part of a log that holds some of a query's open windows, or the epoch asked for, was trimmed away."""


class StateAway(CairnError):
    """The log begins behind a checkpoint, and the place of the checkpoints cannot be read now: nothing is known to be
    lost. The message names the place and the cause; a later start may succeed.
    """


class StateCleaned(StateTrimmed):
    """Records of a query's state that are needed were removed from the log, as `stateHistory` = recovery allows."""


class StateInconsistent(CairnError):
    """A query's control records contradict each other: nothing is loaded rather than a wrong state."""


class QueryNotFound(CairnError):
    """A topic does not hold the state of the query, or holds that of several; the message names them."""


class EpochNotFound(CairnError):
    """A query has no such epoch in a stream, or a reset has undone it; the message names those that stand."""


class CheckpointDiffers(CairnError):
    """Spark's checkpoint plans other input than the log holds for a batch, or where it cannot be told."""


class CheckpointRefused(CairnError):
    """A checkpoint cannot be rebuilt from the log; nothing was changed."""


class TopicTaken(CairnError):
    """A new query would write into a topic that holds another query's output, or state."""
