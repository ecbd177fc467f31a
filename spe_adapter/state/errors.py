"""Errors of the state of operators; they join the others under one root."""

from logstore.errors import CairnError


class StateSchemaRefused(CairnError):
    """A state schema has a column of an unsupported type; the message names the column and the supported types."""


class StateValueRefused(CairnError):
    """A state column cannot hold a value exactly, or got no value; the message names the column, its type and the
    value.
    """


class StateTooLarge(CairnError):
    """A query's state on this host would exceed its limit or the free memory; the last version stays usable.

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
