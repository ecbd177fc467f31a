"""What can go wrong in a continuous fragment, in its user's terms.

Invariant: each message names the query, and the stream or the key it is about, and says what to do.
"""

from logstore.errors import CairnError


class FragmentRefused(CairnError):
    """A fragment that cannot run as it is described."""


class InputTrimmed(CairnError):
    """Input that is needed, to go on or to rebuild state, is gone."""


class WrongPartition(CairnError):
    """A key in a stream that Kafka's partitioner would not have put there."""


class ReplayDiverged(CairnError):
    """Replaying the logged input did something that the first execution had not done.

    The operator is not deterministic, or the log and the state do not belong together.
    """


class CommitLost(CairnError):
    """Another epoch stands where this runner's epoch should be; nothing more is written by it."""
