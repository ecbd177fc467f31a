"""Errors of operators; they join the others of the adapter under one root.

Invariant: a message names what a user can change: the operator, the column, the types allowed, the key.
"""

from logstore.errors import CairnError


class OperatorFailed(CairnError):
    """An operator raised an error, or returned columns that it did not declare. The message, one line, names operator,
    batch and epoch, the line in the user's code, and the key if a single key causes the error.

    The last committed state is intact: the writes of the failed call were discarded.
    """


class BadResults(CairnError):
    """An operator returned what does not fit its declared output."""


class ArithmeticOverflow(CairnError):
    """A sum of integers beyond 64 bits: an error, as in Spark with `spark.sql.ansi.enabled` (its default)."""


class OperatorChanged(CairnError):
    """The state in the log belongs to another operator that this operator does not follow, has another key, or has
    columns whose changes were not declared. The message names the difference.
    """
