"""Users, access control lists and quotas of a cluster: entries of its metadata store, in memory on every host.

Invariants:
* One truth: every host follows the same entries. While the metadata store is away, a host goes on with what it knows,
  and nothing can be changed.
* A change is made in transactions of up to MAX_CHANGES - 1 entries, in the order that it has, each on the condition
  that nothing was changed since it was computed. If another host was faster, or an answer was lost, it is computed
  again from what is there then; it is done when nothing is left to do.
* Nothing is changed while `cairn adopt` makes the cluster: it puts the entries of the sidecar that it adopts in the
  place of all others. That is a condition of each transaction too.
* What cannot be read may be what forbids: while any entry is damaged, `is_damaged` is true, and those who decide refuse
  everybody but super users.
* HEAD is never deleted here. A store from which it goes was emptied, or is another one: users and lists went with it by
  nobody's decision, so that counts as damage too.
* At most MAX_ACCESS_BYTES lie in the store, whatever the numbers of users, lists and quotas allow.

An entry's key is `access/` and the SHA-256 of its own key, because names may be long and in any script.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from logstore.access.entries import EntryChanged, EntryChanges
from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataRefused, OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    MAX_CHANGES,
    Change,
    Committed,
    Condition,
    ConditionFailed,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.base.metadata.view import MetadataView
from logstore.cluster.interfaces import Spawn
from logstore.cluster.members.host_identity import EMPTY_STORE
from logstore.cluster.own_store import OwnStore
from logstore.cluster.while_there import while_there
from logstore.errors import AccessFull, AdoptionUnderWay, CairnError, CorruptFile
from logstore.events import METADATA_ENTRY_DAMAGED, METADATA_UNUSABLE
from logstore.log.ticket import Ticket

ACCESS: Final = "access/"
HEAD: Final = "access/head"
"""Written with every change: its revision orders the changes."""
VERSION: Final = 1
MAX_ACCESS_BYTES: Final = 64 << 20
"""Of keys and values: 10,000 users take 10 MB, 20,000 lists with names of 20 characters 5 MB."""
TRIES: Final = 16
"""Of one transaction, when other hosts change entries at the same time."""
LOST_ANSWERS: Final = 8
"""In a row: then the store counts as away, and whether the change was made is not known."""
BEHIND_S: Final = 1.0
"""How long a change that was too late waits for this host to see what was faster."""
RETRY_S: Final = 1.0
"""Between tries to follow a store that refuses this host or is damaged: an operator mends it."""


class StoredAccess:
    """Implements `AccessEntries`. `run` must run; `complete` waits until everything was read."""

    def __init__(
        self,
        metadata: MetadataStore,
        report: Report,
        spawn: Spawn,
        max_bytes: int = MAX_ACCESS_BYTES,
        cluster_id: str = "",
    ) -> None:
        """`cluster_id`: whose the store must be for a change; empty: whosever it is."""
        self._metadata, self._own = metadata, OwnStore(metadata, cluster_id)
        self._report = report
        self._spawn = spawn
        self._view = MetadataView(metadata, ACCESS, self._key_changed)
        self._followers: list[tuple[str, EntryChanged]] = []
        self._keys: dict[str, str] = {}
        """The entries' own keys, by keys of the metadata store."""
        self._sizes: dict[str, int] = {}
        self._damaged: dict[str, str] = {}
        self._turn = trio.Lock()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    @property
    def is_damaged(self) -> bool:
        """Whether an entry cannot be read."""
        return bool(self._damaged)

    @property
    def damaged(self) -> dict[str, str]:
        """What is wrong with the entries that cannot be read, by key of the metadata store."""
        return dict(self._damaged)

    async def run(self) -> None:
        """Follow the metadata store, also over times when it refuses this host; until cancelled."""
        while True:
            try:
                await self._view.run()
            except (MetadataRefused, MetadataDamaged) as error:
                self._report(METADATA_UNUSABLE, error=error)
            await trio.sleep(RETRY_S)

    async def complete(self) -> None:
        """Wait until everything was read once."""
        await self._view.reached(1)

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._view.changed()

    # ---- AccessEntries

    def follow(self, prefix: str, changed: EntryChanged) -> None:
        """See AccessEntries; an entry that cannot be read is reported, and `is_damaged` is true."""
        self._followers.append((prefix, changed))
        for key, entry in list(self._view.entries.items()):
            if self._keys.get(key, "").startswith(prefix):
                self._tell(key, entry, [changed])

    def change(self, compute: Callable[[], EntryChanges]) -> Ticket[None]:
        """See AccessEntries. The ticket fails with AccessFull, AdoptionUnderWay, and MetadataError."""
        ticket: Ticket[None] = Ticket()

        async def make() -> None:
            try:
                await while_there(self._metadata, partial(self._make_in_turn, compute))
            except CairnError as error:
                ticket.fail(error)
            else:
                ticket.succeed(None)

        self._spawn(make)
        return ticket

    # ---- changing

    async def _make_in_turn(self, compute: Callable[[], EntryChanges]) -> None:
        async with self._turn:
            await self._make(compute)

    async def _make(self, compute: Callable[[], EntryChanges]) -> None:
        tries = 0
        while changes := self._next_changes(compute()):
            conditions = (Condition(HEAD, self._head_revision()), Condition(schema.ADOPTION_KEY, ABSENT))
            outcome = await self._commit(Transaction(conditions, (self._head(), *changes)))
            if isinstance(outcome, Committed):
                tries = 0
                await self._view.reached(outcome.revision)
            elif outcome.found[1] is not None:
                raise AdoptionUnderWay(
                    f"`cairn adopt` has begun on the metadata store (entry {schema.ADOPTION_KEY!r}), and brings the "
                    "users, ACLs and quotas of the sidecar that it adopts: change them when it has completed; or, if "
                    f"it is given up, {EMPTY_STORE}"
                )
            else:
                tries += 1
                if tries >= TRIES:
                    raise OutcomeUnknown("users, ACLs and quotas keep changing: look at them, and try again")
                await self._caught_up(outcome)

    async def _commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """Make a transaction. If its answer is lost it is sent again, and at most one of the two is made."""
        for tries in range(1, LOST_ANSWERS + 1):
            try:
                return await self._own.commit(transaction)
            except OutcomeUnknown:
                if tries == LOST_ANSWERS:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _caught_up(self, conflict: ConditionFailed) -> None:
        head = conflict.found[0]
        with trio.move_on_after(BEHIND_S):
            await self._view.reached(conflict.revision if head is None else head.revision)

    def _head_revision(self) -> int:
        entry = self._view.entries.get(HEAD)
        return ABSENT if entry is None else entry.revision

    def _head(self) -> Put:
        entry = self._view.entries.get(HEAD)
        try:
            count = 0 if entry is None else int(json.loads(entry.value)["changes"])
        except (ValueError, KeyError, TypeError):
            count = 0
        return Put(HEAD, json.dumps({"v": VERSION, "changes": count + 1}, separators=(",", ":")).encode())

    def _next_changes(self, changes: EntryChanges) -> list[Change]:
        """What a change has yet to do, as much as one transaction takes. Raises AccessFull."""
        wanted: list[Change] = []
        size_bytes = self.size_bytes
        for own_key, value in changes.items():
            key = stored_key(own_key)
            known = self._view.entries.get(key)
            if value is None:
                if known is not None:
                    wanted.append(Delete(key))
            elif known is None or known.value != (encoded := encode_entry(own_key, value)):
                encoded = encode_entry(own_key, value)
                size_bytes += len(key) + len(encoded) - self._sizes.get(key, 0)
                wanted.append(Put(key, encoded))
        if size_bytes > max(self._max_bytes, self.size_bytes):
            raise AccessFull(
                f"users, ACLs and quotas of the cluster would have {size_bytes} bytes, and at most {self._max_bytes} "
                "are kept: remove some, or use shorter names"
            )
        return wanted[: MAX_CHANGES - 1]

    # ---- following

    def _key_changed(self, key: str, entry: Entry | None) -> None:
        self.size_bytes -= self._sizes.pop(key, 0)
        if entry is not None:
            self._sizes[key] = len(key) + len(entry.value)
            self.size_bytes += self._sizes[key]
        if key != HEAD:
            self._tell(key, entry, None)
        elif entry is not None:
            self._damaged.pop(key, None)
        else:
            self._damaged[key] = "it was deleted, with what it orders: restore the newest store"
            self._report(METADATA_ENTRY_DAMAGED, key=key, error=self._damaged[key])

    def _tell(self, key: str, entry: Entry | None, followers: list[EntryChanged] | None) -> None:
        """Tell these followers, or all that follow the entry, and note whether it can be read."""
        self._damaged.pop(key, None)
        try:
            if entry is None:
                own_key, value = self._keys.pop(key, None), None
            else:
                own_key, value = decode_entry(entry)
                self._keys[key] = own_key
            if own_key is not None:
                for prefix, changed in self._followers:
                    if own_key.startswith(prefix) and (followers is None or changed in followers):
                        changed(own_key, value)
        except CorruptFile as error:
            if entry is None:
                return  # it was never understood, so nobody has what is gone
            self._damaged[key] = str(error)
            self._report(METADATA_ENTRY_DAMAGED, key=key, error=error)


def stored_key(own_key: str) -> str:
    """The key of an entry in the metadata store."""
    return ACCESS + hashlib.sha256(own_key.encode(errors="surrogatepass")).hexdigest()


def encode_entry(own_key: str, value: bytes) -> bytes:
    """The value of an entry in the metadata store: JSON with its own key, and its value as text or in hexadecimal."""
    try:
        kept = {"text": value.decode()}
    except UnicodeDecodeError:
        kept = {"hex": value.hex()}
    document = {"v": VERSION, "key": own_key, **kept}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def decode_entry(entry: Entry) -> tuple[str, bytes]:
    """An entry's own key and value. Raises CorruptFile."""
    try:
        document: dict[str, Any] = json.loads(entry.value)
        version, own_key = document.pop("v"), document.pop("key")
        if version != VERSION:
            raise ValueError(f"version {version!r}, and this Cairn knows {VERSION}: use a newer one")
        if stored_key(own_key) != entry.key:
            raise ValueError("its key is another entry's")
        ((kind, value),) = document.items()
        return own_key, value.encode() if kind == "text" else bytes.fromhex(document["hex"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(
            f"the entry {entry.key!r} of the metadata store is not a user, ACL or quota: {error}; remove it, and "
            "create it again"
        ) from error
