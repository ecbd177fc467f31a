"""The cluster's retention clock: the time in ms that hosts of the cluster have run, which all of them agree on.

Invariants:
* The clock never goes back. While no host runs it stands still, and a crash of all hosts forgets AGREE_S at most:
  records then stay longer.
* The clocks of two hosts are never further apart than AGREE_MS; who compares a time of another host allows for that.
* One host writes to the metadata store in AGREE_S, however many there are. While the store is away the clock goes on.
* The entry has a checksum: a time that was damaged would delete records before their time, or never.
"""

import json
from typing import Final

import trio
from crc32c import crc32c

from logstore.base.clock import Clock
from logstore.base.metadata.errors import MetadataDamaged, MetadataError
from logstore.base.metadata.interface import Condition, Put, Transaction
from logstore.cluster.own_store import EntryStore

KEY: Final = "retention-clock"
"""In the metadata store: the CRC-32C of what follows, as 8 hexadecimal digits, and the time as JSON."""
AGREE_S: Final = 10.0
AGREE_MS: Final = 10_000
MAX_DIGITS: Final = 13
"""Of the time: three hundred years."""
_VERSION: Final = 1


class ClusterClock:
    """See the module. `open` makes one; `run` must run."""

    def __init__(self, store: EntryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._then_ms = 0
        self._then_s = clock.monotonic_s()

    @classmethod
    async def open(cls, store: EntryStore, clock: Clock) -> "ClusterClock":
        """The clock as the cluster knows it. Raises MetadataError."""
        made = cls(store, clock)
        await made.agree()
        return made

    def now_ms(self) -> int:
        """The time now."""
        return self._then_ms + int((self._clock.monotonic_s() - self._then_s) * 1000)

    async def run(self) -> None:
        """Keep to the time of the other hosts, until cancelled."""
        while True:
            await trio.sleep(AGREE_S)
            try:
                await self.agree()
            except MetadataError:
                continue  # the store reports that it is away; the clock goes on

    async def agree(self) -> None:
        """Take a later time of another host, or store this one's if it is much later. Raises MetadataError."""
        found = (await self._store.get(KEY)).entry
        stored_ms, now_ms = 0 if found is None else decode_time(found.value), self.now_ms()
        if stored_ms > now_ms:
            self._then_ms, self._then_s = stored_ms, self._clock.monotonic_s()
        elif found is None or now_ms - stored_ms >= AGREE_MS:
            revision = 0 if found is None else found.revision
            await self._store.commit(Transaction((Condition(KEY, revision),), (Put(KEY, encode_time(now_ms)),)))


def encode_time(time_ms: int) -> bytes:
    """The entry of a time."""
    fields = json.dumps({"v": _VERSION, "ms": time_ms}, separators=(",", ":")).encode()
    return b"%08x" % crc32c(fields) + fields


def decode_time(value: bytes) -> int:
    """The time of an entry, in ms; one that an earlier version has written is a number without a checksum.

    Raises MetadataDamaged, also for a version of a newer Cairn.
    """
    if value.isdigit() and len(value) <= MAX_DIGITS:
        return int(value)
    if value[:8] != b"%08x" % crc32c(value[8:]):
        raise _damaged(value, "its checksum does not match")
    try:
        fields = json.loads(value[8:])
        version, time_ms = fields["v"], fields["ms"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(value, repr(error)) from error
    if version != _VERSION:
        raise MetadataDamaged(f"the entry {KEY!r} has version {version!r}, this Cairn knows 1; start a newer Cairn")
    if not isinstance(time_ms, int) or not 0 <= time_ms < 10**MAX_DIGITS:
        raise _damaged(value, "its time is not a number of ms")
    return time_ms


def _damaged(value: bytes, why: str) -> MetadataDamaged:
    return MetadataDamaged(f"the entry {KEY!r} is damaged ({why}): {value[:60]!r}; remove it (records stay longer)")
