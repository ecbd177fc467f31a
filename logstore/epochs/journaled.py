"""At a start: the decisions that the journal has and the ledger of epochs has not.

Invariant: a decision counts only if it is above the query's last epoch in the ledger, and its incarnation is one of the
query that the ledger knows: the ledger remembers it, or its number is below those of the 64 that are remembered. So
what the ledger has had since, and a query that it has forgotten, is never put back. Of the decisions of one query the
last counts: the epoch before it was in all its streams when it was made.

Source: docs/format.md, "Decisions in the journal".
"""

from collections.abc import Mapping, Sequence

from logstore.epochs.ledger_entries import (
    COMMIT_RECORD,
    INCARNATIONS,
    LAST,
    CommitRecord,
    decode_commit_record,
    decode_incarnations,
    decode_last_epoch,
)
from logstore.log.ledger import Ledger, LedgerChanges


def decided_in_journal(ledger: Ledger, journaled: Sequence[LedgerChanges]) -> LedgerChanges:
    """What the ledger gets of the changes that the journal has for it, in their order.

    Raises CorruptFile, UnknownFormatVersion.
    """
    return newer_decisions(dict(ledger.items()), journaled)


def newer_decisions(entries: Mapping[str, bytes], journaled: Sequence[LedgerChanges]) -> LedgerChanges:
    """The same for a ledger's entries."""
    found: dict[str, bytes | None] = {}
    for changes in journaled:
        for key, value in changes.items():
            if key.startswith(COMMIT_RECORD) and value is not None:
                query = key.removeprefix(COMMIT_RECORD)
                if _counts(query, decode_commit_record(query, value), entries):
                    found.update(changes)
    return found


def _counts(query: str, record: CommitRecord, entries: Mapping[str, bytes]) -> bool:
    incarnations, last = entries.get(f"{INCARNATIONS}{query}"), entries.get(f"{LAST}{query}")
    if incarnations is None:
        return False
    known = decode_incarnations(query, incarnations)
    is_forgotten = record.incarnation_number <= known.count - len(known.tokens)
    if record.incarnation not in known.tokens and not is_forgotten:
        return False
    return last is None or decode_last_epoch(query, last).epoch < record.epoch
