"""Puts what a sidecar had into the metadata store of the cluster that adopts it.

Order: before anything is copied, a notice that says who is at it (`adoption`), so that a second adoption is refused at
its beginning, and no host makes a cluster; when all is copied, the notice anew; registrations of streams; users, ACLs,
quotas, producer ids and the retention clock; topics; and last, in one transaction, `cluster`, which makes it a cluster,
without the notice.

Invariants:
* The first notice has the condition that nobody has added a user, an ACL or a quota; while it is there, nobody does
  (`logstore.cluster.streams.stored_access`).
* Every transaction has the conditions that there is no cluster yet, and that the notice has the revision that this try
  has given it: what another adoption writes, or a request of an earlier try that comes late, never mixes with it.
* What an earlier try has left is removed first. A store that holds anything else is refused, and not changed.
* A lost answer is asked for again; the last transaction is recognized by its value.
"""

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from logstore.base.metadata import schema
from logstore.base.metadata.errors import OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    Change,
    Committed,
    Condition,
    ConditionFailed,
    Delete,
    DeletePrefix,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.cluster.adoption.adoption_source import Source
from logstore.cluster.epochs.replicated_ledger import KEY_PREFIX as LEDGERS
from logstore.cluster.members.host_identity import EMPTY_STORE
from logstore.cluster.streams.producer_ids import KEY as PRODUCER_IDS
from logstore.cluster.streams.retention_clock import KEY as RETENTION_CLOCK
from logstore.cluster.streams.retention_clock import encode_time
from logstore.cluster.streams.stored_access import ACCESS, HEAD, MAX_ACCESS_BYTES, encode_entry, stored_key
from logstore.cluster.streams.stored_access import VERSION as ACCESS_VERSION
from logstore.errors import AdoptionRefused
from logstore.replica.registrations import HEAD as REGISTRATION_HEAD
from logstore.replica.registrations import StreamRegistration, encode_registration
from logstore.replica.stored_registrations import chunks_prefix, head_key

VERSION: Final = 1
"""Of the notice: JSON, with the id that the cluster will have."""
NO_CLUSTER: Final = Condition(schema.CLUSTER_KEY, ABSENT)
PUTS: Final = 48
"""In a transaction."""
PUT_BYTES: Final = 512 << 10
TRIES: Final = 8
PREFIXES: Final = (schema.STREAMS, schema.CHUNKS, schema.TOPICS, ACCESS, LEDGERS)


class StoreState(Enum):
    """What a metadata store is to an adoption."""

    EMPTY = "nothing is there"
    BEGUN = "an earlier attempt of this adoption exists"
    DONE = "it is this cluster's"


async def state_of(store: MetadataStore, cluster_id: str) -> StoreState:
    """What the store is. Raises AdoptionRefused for anything else, MetadataError."""
    found = (await store.get(schema.CLUSTER_KEY)).entry
    if found is not None:
        known = schema.decode(schema.StoredCluster, found).cluster_id
        if known == cluster_id:
            return StoreState.DONE
        raise AdoptionRefused(
            f"the metadata store is that of cluster {known} already: give an empty one, or another namespace of the "
            "etcd (--cluster etcd://HOST:PORT/NAMESPACE)"
        )
    begun = (await store.get(schema.ADOPTION_KEY)).entry
    if begun is not None:
        if begun.value != _notice_of(cluster_id):
            raise _taken(begun)
        return StoreState.BEGUN
    others = (await store.page("", limit=1)).entries
    if others:
        raise _not_empty(others[0].key)
    return StoreState.EMPTY


async def give_notice(store: MetadataStore, cluster_id: str) -> Condition:
    """Say in a store without a cluster who is at it. Returns the condition that nobody else is, as long as it holds.

    Raises AdoptionRefused, MetadataError.
    """
    mine = Put(schema.ADOPTION_KEY, _notice_of(cluster_id))
    before = await store.get(schema.ADOPTION_KEY)
    if before.entry is not None and before.entry.value != mine.value:
        raise _taken(before.entry)
    as_read = Condition(schema.ADOPTION_KEY, before.entry_revision)
    no_users = (Condition(HEAD, ABSENT),) if before.entry is None else ()
    outcome = await _commit(store, (NO_CLUSTER, as_read, *no_users), (mine,))
    if isinstance(outcome, Committed):
        return Condition(schema.ADOPTION_KEY, outcome.revision)
    cluster, found, *users = outcome.found
    if cluster is not None:
        raise _intruded(cluster)
    if found is None and any(users):
        raise _not_empty(HEAD)
    if found is None or found.value != mine.value:
        raise _taken(found)
    return Condition(schema.ADOPTION_KEY, found.revision)  # the answer was lost


async def publish(
    store: MetadataStore, source: Source, registrations: Mapping[str, StreamRegistration], cluster_id: str
) -> None:
    """Make the store that of the cluster. Raises AdoptionRefused, MetadataError."""
    entries = metadata_entries(source, registrations)
    if await state_of(store, cluster_id) is StoreState.DONE:
        return
    conditions = (NO_CLUSTER, await give_notice(store, cluster_id))
    leftovers: tuple[Change, ...] = tuple(DeletePrefix(prefix) for prefix in PREFIXES)
    for changes in (leftovers, *_portions(entries)):
        outcome = await _commit(store, conditions, changes)
        if isinstance(outcome, ConditionFailed):
            cluster, notice = outcome.found
            raise _intruded(cluster) if cluster is not None else _taken(notice)
    made = Put(schema.CLUSTER_KEY, schema.encode(schema.StoredCluster(cluster_id=cluster_id)))
    outcome = await _commit(store, conditions, (made, Delete(schema.ADOPTION_KEY)))
    if isinstance(outcome, ConditionFailed):
        cluster, notice = outcome.found
        if cluster is None:
            raise _taken(notice)
        if cluster.value != made.value:
            raise _intruded(cluster)


def metadata_entries(source: Source, registrations: Mapping[str, StreamRegistration]) -> dict[str, bytes]:
    """All entries, in the order in which they are put. Raises AdoptionRefused."""
    entries: dict[str, bytes] = {}
    for stream, registration in registrations.items():
        parts = encode_registration(registration)
        entries[head_key(stream)] = parts.pop(REGISTRATION_HEAD)
        entries |= {chunks_prefix(stream) + name: value for name, value in parts.items()}
    access = {stored_key(key): encode_entry(key, value) for key, value in source.access.items()}
    access_bytes = sum(len(key) + len(value) for key, value in access.items())
    if access_bytes > MAX_ACCESS_BYTES:
        raise AdoptionRefused(
            f"users, ACLs and quotas take {access_bytes} bytes, and a cluster keeps {MAX_ACCESS_BYTES}: remove some"
        )
    if access:
        entries |= access
        entries[HEAD] = json.dumps({"v": ACCESS_VERSION, "changes": 1}, separators=(",", ":")).encode()
    entries[PRODUCER_IDS] = b"%d" % source.producer_ids
    entries[RETENTION_CLOCK] = encode_time(source.retention_ms)
    return entries | {schema.topic_key(name): schema.encode(topic) for name, topic in source.topics.items()}


def _notice_of(cluster_id: str) -> bytes:
    return json.dumps({"v": VERSION, "cluster_id": cluster_id}, separators=(",", ":")).encode()


def _not_empty(key: str) -> AdoptionRefused:
    return AdoptionRefused(
        f"the metadata store is not empty, it has the entry {key!r}: give an empty one, or another namespace of the "
        "etcd (--cluster etcd://HOST:PORT/NAMESPACE)"
    )


def _taken(found: Entry | None) -> AdoptionRefused:
    """The notice is another adoption's, or is gone."""
    said = f"it says {found.value[:200]!r}" if found is not None else "which has removed its entry since"
    return AdoptionRefused(
        f"another adoption has begun on the metadata store (entry {schema.ADOPTION_KEY!r}: {said}): give another "
        "namespace of the etcd (--cluster etcd://HOST:PORT/NAMESPACE); or complete that one, by its command; or, if it "
        f"is given up, {EMPTY_STORE}, and run this again"
    )


def _intruded(cluster: Entry) -> AdoptionRefused:
    return AdoptionRefused(
        f"the metadata store has become that of cluster {schema.decode(schema.StoredCluster, cluster).cluster_id} "
        "meanwhile, by a host that has started on it or by another adoption: give another namespace of the etcd "
        f"(--cluster etcd://HOST:PORT/NAMESPACE); or, if that cluster is given up, stop its hosts, {EMPTY_STORE}, and "
        "run this again"
    )


def _portions(entries: Mapping[str, bytes]) -> Iterator[tuple[Put, ...]]:
    some: list[Put] = []
    size_bytes = 0
    for key, value in entries.items():
        if len(some) >= PUTS or size_bytes >= PUT_BYTES:
            yield tuple(some)
            some, size_bytes = [], 0
        some.append(Put(key, value))
        size_bytes += len(key) + len(value)
    yield tuple(some)


async def _commit(
    store: MetadataStore, conditions: tuple[Condition, ...], changes: tuple[Change, ...]
) -> Committed | ConditionFailed:
    """Make a transaction, again if an answer is lost; a conflict may then be with itself. Raises MetadataError."""
    transaction = Transaction(conditions, changes)
    for _ in range(TRIES - 1):
        try:
            return await store.commit(transaction)
        except OutcomeUnknown:
            continue
    return await store.commit(transaction)
