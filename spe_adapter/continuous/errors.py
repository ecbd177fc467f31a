"""Errors of the continuous runner.

Invariant: each message names the query, the stream or the key in question, and a remedy.
"""

from logstore.errors import CairnError


class FragmentRefused(CairnError):
    """A fragment cannot run as described, or cannot run on the existing topics and state."""


class InputTrimmed(CairnError):
    """Input that the query needs, to continue or to rebuild its state, was trimmed."""


class WrongPartition(CairnError):
    """A key is in a partition to which the fragment's partitioner does not assign the key."""


class ReplayDiverged(CairnError):
    """The replay of committed epochs had another effect than their first execution.

    The operator is not deterministic, or the log and the state do not belong together.
    """


class CommitLost(CairnError):
    """Another epoch was committed under this epoch's number; the runner stops without writing more."""
