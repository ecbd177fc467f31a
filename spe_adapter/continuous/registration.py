"""The registration of a runner's partition as a reader of its sources: retention keeps what a recovery would read.

Invariants:
* The position is the runner's needed offsets, which lie behind what it has read: the input of open windows stays.
* A position is acknowledged after a committed epoch, at most every ACKNOWLEDGE_MS, and when the runner ends.
* Records that are gone do not stop a runner that works: only a recovery would need them, and it says so.

Source: SGuard, section 2 (HAInput acknowledges what no recovery needs); docs/decisions/0022-registered-readers.md.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import EARLIEST, LATEST
from logstore.errors import OffsetOutOfRange, ReaderReleased, UnknownReader
from logstore.format.reader_api import LOG_START, ReaderOffset
from spe_adapter.continuous.loop import Event, Recovered

ACKNOWLEDGE_MS: Final = 5_000.0


class SourceRegistration:
    """Registers one runner's partition under `name`; `needed` gives its needed offsets by topic."""

    def __init__(
        self,
        client: Client,
        name: str,
        partition: int,
        needed: Callable[[], Mapping[str, int]],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._client = client
        self._name = name
        self._partition = partition
        self._needed = needed
        self._monotonic_ms = monotonic_ms
        self._acknowledged_ms = 0.0

    def note(self, event: Event) -> None:
        """Take a runner's event: register after its recovery, acknowledge after committed epochs. Raises
        TooManyReaders, and what the client raises.
        """
        if isinstance(event, Recovered):
            self._register()
        elif self._monotonic_ms() - self._acknowledged_ms >= ACKNOWLEDGE_MS:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledge the needed offsets. Raises TooManyReaders, and what the client raises."""
        try:
            self._client.acknowledge(self._name, self._entries(self._needed()))
        except (UnknownReader, ReaderReleased, OffsetOutOfRange):
            self._register()
        self._acknowledged_ms = self._monotonic_ms()

    def _register(self) -> None:
        needed = self._needed()
        with suppress(OffsetOutOfRange):
            self._client.register_reader(self._name, self._entries(needed))
            return
        streams = {topic: TopicPartition(topic, self._partition) for topic in needed}
        first = self._client.offsets(dict.fromkeys(streams.values(), EARLIEST))
        end = self._client.offsets(dict.fromkeys(streams.values(), LATEST))
        present = {
            # Retention may go on meanwhile: the sidecar knows best where the log starts.
            topic: LOG_START if offset < first[streams[topic]].offset else min(offset, end[streams[topic]].offset)
            for topic, offset in needed.items()
        }
        self._client.register_reader(self._name, self._entries(present))

    def _entries(self, offsets: Mapping[str, int]) -> list[ReaderOffset]:
        return [ReaderOffset(topic, self._partition, offset) for topic, offset in offsets.items()]
