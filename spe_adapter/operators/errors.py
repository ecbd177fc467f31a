"""Errors of operators; they join the others of the adapter under one root.

Invariant: a message names what a user can change: the operator, the column, the types allowed, the key.
"""

from logstore.errors import CairnError


class OperatorFailed(CairnError):
    """A user's operator raised, or gave what it did not declare. The message, one line, names operator, batch and
    epoch, the key where one alone provokes it, and the line in the user's code.

    The state committed last is intact: nothing that the failed call wrote was kept.
    """


class BadResults(CairnError):
    """An operator returned what does not fit its declared output."""


class ArithmeticOverflow(CairnError):
    """A sum of integers beyond 64 bits: an error, as in Spark with `spark.sql.ansi.enabled` (its default)."""


class OperatorChanged(CairnError):
    """The state in the log belongs to an operator that this one does not follow: another operator, or another key, or
    columns that were not declared as changed. The message says what differs.
    """
