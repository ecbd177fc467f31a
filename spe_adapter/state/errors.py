"""Errors of the state of operators; they join the others under one root."""

from logstore.errors import CairnError


class StateSchemaRefused(CairnError):
    """A state schema with a column that cannot be kept; the message names it and the types that can."""


class StateValueRefused(CairnError):
    """A value that a column of state cannot hold without loss, or none for a column; the message names the column, its
    type and the value.
    """


class StateTooLarge(CairnError):
    """A query's state on this host would outgrow its limit, or the memory there is; the last version stays usable.

    The message names the query, the bytes, the limit and what to do.
    """


class StateDamaged(CairnError):
    """State in memory contradicts itself. The process that finds it discards the state and loads it again."""


class StateSchemaChanged(CairnError):
    """State was written under a schema that is not the operator's any more; the message names the columns."""


class StateDirectoryRefused(CairnError):
    """The directory for shared state cannot be used: it belongs to another user, or is not a directory."""


class StateBusy(CairnError):
    """Other processes kept changing or holding a query's state for too long; trying again may help."""
