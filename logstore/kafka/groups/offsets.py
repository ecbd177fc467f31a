"""Committed offsets, durable in a ledger.

One ledger key per group and partition, `offset/GROUP/TOPIC/PARTITION` (group percent-encoded), and one per group with
its protocol type, `group/GROUP`; values are small JSON objects. Invariants:
* A commit is acknowledged, and visible to OffsetFetch, only once the ledger has synced it; commits settle in order.
* An offset belongs to one topic id: an offset of a deleted topic is never used for a later topic of the same name.
* Bounded: metadata per partition by `metadata_max_bytes`; partitions are those of existing topics; groups are counted.

This module does not know members: `coordinator` decides which client may commit.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from logstore.errors import CorruptFile
from logstore.format.topic_partition import TopicPartition
from logstore.log.coroutines import start
from logstore.log.ticket import Ticket

_OFFSET = "offset/"
_GROUP = "group/"
_PLAIN: Final = re.compile(rb'\{"offset":(\d+),"time":(\d+),"topic":"([-0-9a-f]*)"\}')
"""Most values, read several times as fast as JSON: a start reads a million."""
NO_OFFSET = -1
NO_EPOCH = -1
LOAD_STEP: Final = 1_000
"""Entries that are read in one go: some milliseconds."""


class CommittedOffset(NamedTuple):
    """A group's position in a partition: `offset` is the next one to read; times in milliseconds since the Unix epoch.

    `expires_ms` is set if an old client asked for a retention time of its own (OffsetCommit 2 to 4).
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    topic_id: str
    expires_ms: int | None = None


class OffsetLedger(Protocol):
    """The methods that `OffsetStore` needs of a ledger (`logstore.log.ledger.Ledger`)."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket settles when synced."""


CommitListener = Callable[[str, Mapping[TopicPartition, CommittedOffset]], None]
"""Told of each commit of a group, once it is durable; must not raise."""


class OffsetStore:
    """All groups' offsets: an index in memory of the durable entries in the ledger. `load` comes first."""

    def __init__(self, ledger: OffsetLedger, committed: CommitListener = lambda *_: None) -> None:
        self._ledger = ledger
        self._committed = committed
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._protocol_types: dict[str, str] = {}
        self._unsynced: dict[str, list[Mapping[str, bytes | None]]] = {}
        """By group: the changes that are being written."""

    def load(self) -> Iterator[None]:
        """Read what the ledger has; pauses after each LOAD_STEP entries. Raises CorruptFile."""
        entries = chain(self._ledger.items(_GROUP), self._ledger.items(_OFFSET))
        for number, (key, value) in enumerate(entries, start=1):
            if key.startswith(_GROUP):
                self._protocol_types[unquote(key.removeprefix(_GROUP))] = str(_load(key, value).get("type", ""))
            else:
                group_id, partition = _parse_key(key)
                self._offsets.setdefault(group_id, {})[partition] = _committed(key, value)
            if not number % LOAD_STEP:
                yield

    def groups(self) -> Iterator[tuple[str, str | None]]:
        """Groups that have offsets, with their protocol type (None: no commit gave one)."""
        for group_id in tuple(self._offsets):
            yield group_id, self._protocol_types.get(group_id)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """A group's offsets; the caller must not change them."""
        return self._offsets.get(group_id, {})

    def is_used(self, group_id: str) -> bool:
        """Whether a group has offsets, or changes that are not synced yet."""
        return bool(self._offsets.get(group_id)) or group_id in self._unsynced

    def commit(
        self, group_id: str, protocol_type: str | None, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Ticket[None]:
        """Commit offsets. The ticket fails with StorageFailed if the disk refuses; then no reader sees any of them."""
        return start(self._commit(group_id, protocol_type, offsets))

    async def _commit(
        self, group_id: str, protocol_type: str | None, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        changes: dict[str, bytes | None] = {
            _key(group_id, partition): _dump(committed) for partition, committed in offsets.items()
        }
        key = _GROUP + quote(group_id, safe="")
        is_kept = self._protocol_types.get(group_id) == protocol_type and not self._is_doomed(group_id, key)
        if protocol_type is not None and not is_kept:
            changes[key] = _json({"type": protocol_type})
        await self._put(group_id, changes)
        if protocol_type is not None:
            self._protocol_types[group_id] = protocol_type
        self._offsets.setdefault(group_id, {}).update(offsets)
        self._committed(group_id, offsets)

    def _is_doomed(self, group_id: str, key: str) -> bool:
        """Whether a deletion that is being written takes an entry away."""
        return any(changes.get(key, b"") is None for changes in self._unsynced.get(group_id, ()))

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> Ticket[None]:
        """Delete a group's offsets of some partitions; the group's own entry is deleted with its last offset."""
        return start(self._delete(group_id, partitions))

    async def _delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        doomed = [partition for partition in partitions if partition in self.of_group(group_id)]
        if not doomed:
            return
        changes: dict[str, bytes | None] = {_key(group_id, partition): None for partition in doomed}
        if len(doomed) == len(self.of_group(group_id)) and group_id not in self._unsynced:
            changes[_GROUP + quote(group_id, safe="")] = None
        await self._put(group_id, changes)
        offsets = self._offsets.get(group_id, {})
        for partition in doomed:
            offsets.pop(partition, None)
        if not offsets:
            self._forget(group_id)

    def delete_group(self, group_id: str) -> Ticket[None]:
        """Delete a group's offsets, also those that are being written, and its own entry."""
        return start(self._delete_group(group_id))

    async def _delete_group(self, group_id: str) -> None:
        changes: dict[str, bytes | None] = {_key(group_id, where): None for where in self.of_group(group_id)}
        for unsynced in self._unsynced.get(group_id, ()):
            changes.update(dict.fromkeys(unsynced))
        changes[_GROUP + quote(group_id, safe="")] = None
        await self._put(group_id, changes)
        self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        self._offsets.pop(group_id, None)
        self._protocol_types.pop(group_id, None)

    async def _put(self, group_id: str, changes: Mapping[str, bytes | None]) -> None:
        """Write to the ledger; the caller updates the index only afterwards, so that readers see durable offsets."""
        unsynced = self._unsynced.setdefault(group_id, [])
        unsynced.append(changes)
        written = self._ledger.put(changes)
        await written.settled()
        unsynced.remove(changes)
        if not unsynced:
            self._unsynced.pop(group_id, None)
        written.result()


def _key(group_id: str, partition: TopicPartition) -> str:
    return f"{_OFFSET}{quote(group_id, safe='')}/{quote(partition.topic, safe='')}/{partition.partition}"


def _parse_key(key: str) -> tuple[str, TopicPartition]:
    parts = key.split("/")
    if len(parts) != 4 or not parts[3].isdecimal():
        raise CorruptFile(f"the ledger of groups has the key {key!r}, which names no partition")
    # Names come once for each partition and group: kept once.
    return _unquoted(parts[1]), TopicPartition(_unquoted(parts[2]), int(parts[3]))


@functools.lru_cache(maxsize=1024)
def _unquoted(name: str) -> str:
    return sys.intern(unquote(name))


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _dump(committed: CommittedOffset) -> bytes:
    value: dict[str, object] = {
        "offset": committed.offset,
        "time": committed.committed_ms,
        "topic": committed.topic_id,
    }
    if committed.leader_epoch != NO_EPOCH:
        value["epoch"] = committed.leader_epoch
    if committed.metadata:
        value["metadata"] = committed.metadata
    if committed.expires_ms is not None:
        value["expires"] = committed.expires_ms
    return _json(value)


def _load(key: str, value: bytes) -> dict[str, object]:
    try:
        loaded = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"the ledger of groups: the value of {key!r} is not JSON") from error
    if not isinstance(loaded, dict):
        raise CorruptFile(f"the ledger of groups: the value of {key!r} is not an object")
    return loaded


def _committed(key: str, value: bytes) -> CommittedOffset:
    plain = _PLAIN.fullmatch(value)
    if plain is not None:
        return CommittedOffset(int(plain[1]), NO_EPOCH, "", int(plain[2]), sys.intern(plain[3].decode()))
    loaded = _load(key, value)
    offset, time_ms = loaded.get("offset"), loaded.get("time")
    epoch, expires_ms = loaded.get("epoch", NO_EPOCH), loaded.get("expires")
    if not (isinstance(offset, int) and isinstance(time_ms, int) and isinstance(epoch, int)):
        raise CorruptFile(f"the ledger of groups: the value of {key!r} lacks a number")
    return CommittedOffset(
        offset=offset,
        leader_epoch=epoch,
        metadata=str(loaded.get("metadata", "")),
        committed_ms=time_ms,
        topic_id=sys.intern(str(loaded.get("topic", ""))),
        expires_ms=expires_ms if isinstance(expires_ms, int) else None,
    )
