"""The source's registration as a reader: retention keeps what the query has not committed.

Invariants: the position is that of Spark's committed offsets, so a restarted query finds all that its next batch reads;
the first call of a life sets the position anew, also back to that of a restored checkpoint; a stream that is new to the
query is held once the query plans to read it; records and topics that are gone are handled as the option
`failOnDataLoss` says.

Source: docs/decisions/0022-registered-readers.md.
"""

from collections.abc import Callable
from typing import Final

from logstore.client.blocking import Client
from logstore.errors import OffsetOutOfRange, ReaderReleased, UnknownReader, UnknownTopicOrPartition
from logstore.format.reader_api import LOG_START, ReaderOffset
from spe_adapter.datasource.catalogue import Catalogue
from spe_adapter.datasource.offsets import Offsets, TopicPartition, names

ATTEMPTS: Final = 5
"""Registrations at what is there: each may find that more has gone meanwhile."""


class Registration:
    """One query's registration under the name of the option `reader`.

    `lost` gets a sentence if records are gone; it raises unless the query accepts that.
    """

    def __init__(self, client: Client, catalogue: Catalogue, name: str, lost: Callable[[str], None]) -> None:
        self._client = client
        self._catalogue = catalogue
        self._name = name
        self._lost = lost
        self._registered: set[TopicPartition] | None = None

    def begin(self, position: Offsets) -> None:
        """Register at the position where the query stands, once in a life. Raises DataLost, TooManyReaders."""
        if self._registered is None:
            self._register(position)

    def add(self, found: Offsets, position: Offsets) -> None:
        """Hold streams that a query which stands at `position` has found since it began, each once.

        Raises DataLost, TooManyReaders.
        """
        known = self._registered or set()
        new = {stream: offset for stream, offset in found.items() if stream not in known}
        if new:
            self._acknowledge(new, {**position, **new})

    def acknowledge(self, position: Offsets) -> None:
        """Say that the query needs nothing before this position. Raises DataLost, TooManyReaders."""
        self._acknowledge(position, position)

    def _acknowledge(self, offsets: Offsets, position: Offsets) -> None:
        try:
            self._client.acknowledge(self._name, _entries(offsets))
            self._registered = (self._registered or set()) | set(offsets)
        except UnknownReader:  # an operator removed it: the query still reads
            self._register(position)
        except (ReaderReleased, OffsetOutOfRange, UnknownTopicOrPartition) as error:
            self._register_what_is_there(offsets, str(error), keep=True)

    def _register(self, position: Offsets) -> None:
        try:
            self._client.register_reader(self._name, _entries(position))
            self._registered = set(position)
        except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
            self._register_what_is_there(position, str(error), keep=False)

    def _register_what_is_there(self, position: Offsets, why: str, *, keep: bool) -> None:
        """Register again without what is gone, if the query accepts that."""
        for attempt in range(ATTEMPTS):
            latest = self._catalogue.latest(set(position))
            gone = set(position) - set(latest)
            if gone:
                self._lost(f"{names(gone)} existed and does not any more; what was not read of it is gone")
            else:
                self._lost(f"reader {self._name!r}: {why}")
            first = self._catalogue.earliest(set(latest))
            present = {
                # Retention may go on meanwhile: the sidecar knows best where the log starts.
                stream: LOG_START if position[stream] < first[stream] else min(position[stream], end)
                for stream, end in latest.items()
            }
            try:
                self._client.register_reader(self._name, _entries(present), keep=keep)
            except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                why = str(error)
            else:
                self._registered = set(position) | ((self._registered or set()) if keep else set())
                return


def _entries(position: Offsets) -> list[ReaderOffset]:
    return [ReaderOffset(stream.topic, stream.partition, offset) for stream, offset in sorted(position.items())]
