"""Puts what a sidecar had into the metadata store of the cluster that adopts it.

Order: an entry that says who is at it (`adoption`); registrations of streams; users, ACLs, quotas, producer ids and the
retention clock; topics; and last, in one transaction, `cluster`, which makes it a cluster, without the first entry.

Invariants:
* Every transaction has the condition that there is no cluster yet: a host that has started on the store meanwhile has
  made another one, and then nothing more is written.
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
    Committed,
    Condition,
    Conflict,
    Delete,
    DeletePrefix,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.cluster.adoption_source import Source
from logstore.cluster.producer_ids import KEY as PRODUCER_IDS
from logstore.cluster.replicated_ledger import KEY_PREFIX as LEDGERS
from logstore.cluster.retention_clock import KEY as RETENTION_CLOCK
from logstore.cluster.retention_clock import encode_time
from logstore.cluster.stored_access import ACCESS, HEAD, MAX_ACCESS_BYTES, encode_entry, stored_key
from logstore.cluster.stored_access import VERSION as ACCESS_VERSION
from logstore.errors import AdoptionRefused
from logstore.replica.registrations import HEAD as REGISTRATION_HEAD
from logstore.replica.registrations import StreamRegistration, encode_registration
from logstore.replica.stored_registrations import chunks_prefix, head_key

ADOPTION: Final = "adoption"
"""The key of who is at it: as JSON, the id that the cluster will have."""
VERSION: Final = 1
PUTS: Final = 48
"""In a transaction."""
PUT_BYTES: Final = 512 << 10
TRIES: Final = 8
PREFIXES: Final = (schema.STREAMS, schema.CHUNKS, schema.TOPICS, ACCESS, LEDGERS)


class StoreState(Enum):
    """What a metadata store is to an adoption."""

    EMPTY = "nothing is there"
    BEGUN = "an earlier try of this adoption is there"
    DONE = "it is this cluster's"


async def state_of(store: MetadataStore, cluster_id: str) -> StoreState:
    """What the store is. Raises AdoptionRefused for anything else, MetadataError."""
    found = (await store.get(schema.CLUSTER_KEY)).entry
    if found is not None:
        known = schema.decode(schema.Cluster, found).cluster_id
        if known == cluster_id:
            return StoreState.DONE
        raise AdoptionRefused(
            f"the metadata store is that of cluster {known} already: give an empty one, or another namespace of the "
            "etcd (--cluster etcd://HOST:PORT/NAMESPACE)"
        )
    begun = (await store.get(ADOPTION)).entry
    if begun is not None and begun.value == _marker(cluster_id):
        return StoreState.BEGUN
    others = (await store.page("", limit=1)).entries
    if others:
        raise AdoptionRefused(
            f"the metadata store is not empty, it has the entry {others[0].key!r}: give an empty one, or another "
            "namespace of the etcd (--cluster etcd://HOST:PORT/NAMESPACE)"
        )
    return StoreState.EMPTY


async def publish(
    store: MetadataStore, source: Source, registrations: Mapping[str, StreamRegistration], cluster_id: str
) -> None:
    """Make the store that of the cluster. Raises AdoptionRefused, MetadataError."""
    entries = metadata_entries(source, registrations)
    if await state_of(store, cluster_id) is StoreState.DONE:
        return
    await _commit(store, (Put(ADOPTION, _marker(cluster_id)),))
    await _commit(store, tuple(DeletePrefix(prefix) for prefix in PREFIXES))
    for some in _portions(entries):
        await _commit(store, some)
    made = Put(schema.CLUSTER_KEY, schema.encode(schema.Cluster(cluster_id=cluster_id)))
    await _commit(store, (made, Delete(ADOPTION)), made=made)


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


def _marker(cluster_id: str) -> bytes:
    return json.dumps({"v": VERSION, "cluster_id": cluster_id}, separators=(",", ":")).encode()


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
    store: MetadataStore, changes: tuple[Put | Delete | DeletePrefix, ...], made: Put | None = None
) -> None:
    """Make changes as long as there is no cluster, again if an answer is lost. `made`: makes the cluster, and is done
    if it is there. Raises AdoptionRefused, MetadataError.
    """
    transaction = Transaction((Condition(schema.CLUSTER_KEY, ABSENT),), changes)
    for tries in range(1, TRIES + 1):
        try:
            outcome: Committed | Conflict = await store.commit(transaction)
        except OutcomeUnknown:
            if tries == TRIES:
                raise
            continue
        if isinstance(outcome, Conflict):
            found = outcome.found[0]
            if made is None or found is None or found.value != made.value:
                raise AdoptionRefused(
                    "a host has started on the metadata store meanwhile, and made another cluster there: stop all "
                    "hosts, remove everything in the namespace (`etcdctl del /cairn/ --prefix`), and run this again"
                )
        return
