"""Errors of operators' checkpoints; they join the others under one root.

Invariant: none of these ends a query. A checkpoint that fails costs the time until the next one.
"""

from logstore.errors import CairnError


class CheckpointFailed(CairnError):
    """Root of the errors of this room: a checkpoint could not be written, found or read."""


class CheckpointDamaged(CheckpointFailed):
    """A file of a checkpoint is missing, torn or has other bytes; the message names the file and says why."""


class CheckpointVersionUnknown(CheckpointDamaged):
    """A checkpoint was written in a format that this release does not know; the message names both versions."""


class CheckpointVersionOld(CheckpointVersionUnknown):
    """A checkpoint was written in a format that this release does not read any more: nothing newer builds on it."""


class CheckpointTaken(CheckpointFailed):
    """Another writer has this sequence number of the unit; the next number may be free."""


class CheckpointUrlRefused(CheckpointFailed):
    """A URL, a setting or a token file of a sink or a coordinator cannot be used; the message names the value."""


class SinkFailed(CheckpointFailed):
    """A sink did not carry out a call; the message names the file and the cause."""


class SinkFull(SinkFailed):
    """A sink has no room for a checkpoint."""


class SinkAway(SinkFailed):
    """A sink does not answer; a later try may succeed."""


class SnapshotRefused(CheckpointFailed):
    """A freeze was cancelled, or the state of a unit cannot be frozen now; the next checkpoint tries again."""


class ServiceRefused(CheckpointFailed):
    """The I/O service cannot use its directory, or a datagram to the service is not understood."""
