"""Errors of the continuous runner.

Invariant: each message names the query, the stream or the key in question, and a remedy.
"""

from logstore.errors import CairnError


class FragmentRefused(CairnError):
    """A fragment cannot run as described, or not on the topics and the state that exist."""


class InputTrimmed(CairnError):
    """Input that the query needs, to continue or to rebuild its state, has been trimmed."""


class WrongPartition(CairnError):
    """A key is in a partition where the fragment's partitioner does not put it."""


class ReplayDiverged(CairnError):
    """The replay of committed epochs had another effect than their first execution.

    The operator is not deterministic, or the log and the state do not belong together.
    """


class CommitLost(CairnError):
    """The log has another epoch in place of this runner's. The runner ends without writing more."""
