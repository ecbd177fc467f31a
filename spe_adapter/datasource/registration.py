"""The source's registration as a reader: retention keeps what the query has not committed.

Invariants: the position is that of Spark's committed offsets, so a restarted query finds all that its next batch reads;
the first call of a life sets the position anew, also back to that of a restored checkpoint; records that are gone are
handled as the option `failOnDataLoss` says.

Source: docs/decisions/0022-registered-readers.md.
"""

from collections.abc import Callable

from logstore.client.blocking import Client
from logstore.errors import OffsetOutOfRange, ReaderReleased, UnknownReader
from logstore.format.reader_api import ReaderOffset
from spe_adapter.datasource.catalogue import Catalogue
from spe_adapter.datasource.offsets import Offsets


class Registration:
    """One query's registration under the name of the option `reader`.

    `lost` gets a sentence if records are gone; it raises unless the query accepts that.
    """

    def __init__(self, client: Client, catalogue: Catalogue, name: str, lost: Callable[[str], None]) -> None:
        self._client = client
        self._catalogue = catalogue
        self._name = name
        self._lost = lost
        self._is_registered = False

    def begin(self, position: Offsets) -> None:
        """Register at the position where the query stands, once in a life. Raises DataLost, TooManyReaders."""
        if not self._is_registered:
            self._register(position)

    def acknowledge(self, position: Offsets) -> None:
        """Say that the query needs nothing before this position. Raises DataLost, TooManyReaders."""
        try:
            self._client.acknowledge(self._name, _entries(position))
        except UnknownReader:  # an operator removed it: the query still reads
            self._register(position)
        except ReaderReleased as error:
            self._lost(str(error))
            self._register(position)

    def _register(self, position: Offsets) -> None:
        try:
            self._client.register_reader(self._name, _entries(position))
        except OffsetOutOfRange as error:
            self._lost(f"reader {self._name!r}: {error}")
            first = self._catalogue.earliest(set(position))
            present = {stream: max(offset, first[stream]) for stream, offset in position.items()}
            self._client.register_reader(self._name, _entries(present))
        self._is_registered = True


def _entries(position: Offsets) -> list[ReaderOffset]:
    return [ReaderOffset(stream.topic, stream.partition, offset) for stream, offset in sorted(position.items())]
