"""The errors of a metadata store. The class says whose fault it is, and what the caller does next.

| class | whose fault | was anything changed | what to do |
|---|---|---|---|
| `MetadataUnavailable` | the store's or the network's | no | the same call again, later |
| `MetadataFull` | the store's: it has no room | no | an operator makes room; then the same call again |
| `OutcomeUnknown` | the network's: an answer was lost | perhaps, perhaps later | read, see `OutcomeUnknown` |
| `LeaseEnded` | the caller's, or of a pause of its process | no | another lease, and its keys again |
| `Compacted` | the caller's: it was away for too long | no | read everything, then watch from there |
| `InvalidMetadataCall` | the caller's: a defect | no | mend the caller |
| `MetadataRefused` | the operator's: user, password, rights, certificate | no | mend the settings |
| `MetadataDamaged` | the operator's: the store lost or changed what it had stored | no | restore the store |

Invariant: messages name the offending value and a remedy.
"""

from logstore.base.errors import CairnError


class MetadataError(CairnError):
    """Root of the errors of a metadata store."""


class MetadataUnavailable(MetadataError):
    """The store did not answer in time, and nothing was changed."""


class MetadataFull(MetadataUnavailable):
    """The store has no room for changes; reads go on."""


class OutcomeUnknown(MetadataError):
    """The answer to a call that changes something was lost: it was made, or not, or will be made in a moment.

    A reader that finds nothing changed knows nothing: the lost call may still be under way. The caller sends the same
    transaction again, with the same conditions on keys that it changes: then at most one of the two is made, and a
    conflict shows what is there. `StoredRegistrations` of `logstore/replica` does so.
    """


class LeaseEnded(MetadataError):
    """The lease has expired or was revoked, and the keys bound to it are gone. `lease_id` names it."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(f"lease {lease_id:x} has ended: take a new lease and put its keys again")
        self.lease_id = lease_id


class Compacted(MetadataError):
    """The changes behind the wanted revision are no longer there. `revision` is the oldest to watch from."""

    def __init__(self, wanted: int, revision: int) -> None:
        super().__init__(
            f"changes after revision {wanted} are no longer available, only those after {revision}: "
            "read the keys again and watch from the revision of that reading"
        )
        self.revision = revision


class InvalidMetadataCall(MetadataError):
    """A key, a value, a limit or a revision that no store takes."""


class MetadataRefused(MetadataError):
    """The store refuses this user, password, certificate or right."""


class MetadataDamaged(MetadataError):
    """The store's content is not what was stored: damaged, of another program, or replaced by an older one."""
