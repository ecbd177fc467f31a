"""The retention of topics with state: results go by age, and a registered reader keeps what a recovery would read.

A query is a registered reader of its own output: it acknowledges the first offset that a recovery needs, so that
retention by age or size removes older records only.

Invariants:
* The position in a stream is never behind the first record that a recovery of a committed epoch reads.
* Where a query says so, its records of state below the position leave the log before the results do. Whoever asks for
  an older state gets an error.
* Only the newest incarnation of a query moves its reader's positions, or keeps the reader alive.
* A position is acknowledged at most every ACKNOWLEDGE_S; what an acknowledgement costs does not grow with the log.
* Records that are gone do not stop a query that works: only a recovery would need them, and it says so (`how_lost`).

Source: SGuard, section 3 (HAInput acknowledges what no recovery needs); CEC paper, section II.B (the extent);
docs/decisions/0022-registered-readers.md, 0026-trimming-and-default-retention.md and 0031-cleaning.md.
"""

import logging
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import closing
from typing import Final, Literal, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.errors import OffsetOutOfRange, ReaderReleased, UnknownReader
from logstore.format.reader_api import LOG_START, ReaderOffset
from spe_adapter.epochs.scan import HEAD_BYTES, ends

ACKNOWLEDGE_S: Final = 5.0
StateHistory = Literal["all", "recovery"]
STATE_HISTORIES: Final[tuple[StateHistory, ...]] = ("all", "recovery")
"""Which records of state stay in the log: all, for as long as results, or those that a recovery needs. The default is
the first.
"""
RESULTS_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
"""Kafka's default, and the sidecar's."""
NEW_TOPIC: Final[Mapping[str, str]] = {"retention.ms": str(RESULTS_RETENTION_MS), "retention.bytes": "-1"}
"""The settings of a topic that a query creates."""
KEEP_ALL: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic that keeps all records; the option `retention` of a query trims it."""
MAX_KNOWN_EPOCHS: Final = 4096
LOG_START_TRIES: Final = 20
"""To hold a stream from its start, while retention removes its records."""

_UNLIMITED: Final = "-1"
_log = logging.getLogger(__name__)


def own_trimming(settings: Mapping[str, str]) -> str:
    """The settings of a topic's retention, for a message; "" if it keeps all records."""
    trims = {name: settings[name] for name in KEEP_ALL if settings.get(name, _UNLIMITED) != _UNLIMITED}
    return ", ".join(f"{name}={value}" for name, value in sorted(trims.items()))


class _EpochStart(NamedTuple):
    """The offset after the END of an epoch of the query: where its next epoch begins, or later."""

    epoch: int
    offset: int


class EpochOffsets:
    """Finds where an epoch of a query begins in a stream. Keeps what it has found, so that each call scans what is new.

    Bounded: beyond MAX_KNOWN_EPOCHS every second of the older half is forgotten, and an earlier offset is returned.
    """

    def __init__(self, stream: TopicPartition, query: str) -> None:
        self.stream = stream
        self._query = query
        self._known: list[_EpochStart] = []

    def before(self, client: Client, epoch: int) -> int | None:
        """An offset at or before the BEGIN of an epoch's group, and after the END of an older epoch of the query.

        None if the stream holds no older epoch of the query. Raises what the client raises.
        """
        newest = self._known[-1].epoch if self._known else None
        found: list[_EpochStart] = []
        with closing(ends(client, self.stream, first_bytes=HEAD_BYTES)) as scanned:
            for end, next_offset in scanned:
                if end.query != self._query:
                    continue
                if newest is not None and end.epoch <= newest:
                    break
                found.append(_EpochStart(end.epoch, next_offset))
                if newest is None and end.epoch < epoch:
                    break
        self._known += reversed(found)
        at = bisect_left(self._known, epoch, key=lambda start: start.epoch)
        # Older epochs are asked for no more: the oldest footprint of an incarnation does not become older.
        del self._known[: max(at - 1, 0)]
        while len(self._known) > MAX_KNOWN_EPOCHS:
            half = len(self._known) // 2
            self._known = self._known[:half:2] + self._known[half:]
        return self._known[0].offset if at else None


class HeldStreams:
    """The registration of a query as the reader `name` of the streams that its recovery would read.

    Positions are given by stream; LOG_START stands for the first record that is there. `cleaned_query`: the query whose
    records of state may leave the log below the positions; empty: none. All methods raise TooManyReaders,
    FencedIncarnation if a newer incarnation has registered, and what the client raises.
    """

    def __init__(self, name: str, cleaned_query: str = "") -> None:
        self.name = name
        self.incarnation_number = 0
        """Of the query's incarnation that registers; 0: none, and nobody is fenced."""
        self._cleaned_query = cleaned_query
        self._placed: dict[TopicPartition, int] = {}
        """The positions that the sidecar has confirmed."""

    def register(self, client: Client, needed: Mapping[TopicPartition, int]) -> None:
        """Hold these streams, and no others, from these positions on, or from what is there of them."""
        positions, tries = dict(needed), LOG_START_TRIES
        while True:
            try:
                placed = self._register(client, positions)
                break
            except OffsetOutOfRange as error:
                # Ends: a stream is refused once, for the end of a log does not go back; but for its start, which may
                # have moved on before it was held.
                moved = _within(positions, error)
                if moved == positions:
                    tries -= 1
                    if not tries:
                        raise
                elif positions == needed:
                    _log.warning(
                        "reader %r: %s; a recovery that needs the removed records will fail; the rest is held",
                        self.name,
                        error,
                    )
                positions = moved
        self._placed = {TopicPartition(entry.topic, entry.partition): entry.offset for entry in placed}

    def _register(self, client: Client, positions: Mapping[TopicPartition, int]) -> tuple[ReaderOffset, ...]:
        return client.register_reader(
            self.name,
            _entries(positions),
            state=self._cleaned_query,
            incarnation_number=self.incarnation_number,
        )

    def acknowledge(self, client: Client, needed: Mapping[TopicPartition, int]) -> None:
        """Say that a recovery needs nothing before these positions; registers again if the streams are others."""
        if needed.keys() != self._placed.keys():
            self.register(client, needed)
            return
        positions = {
            stream: self._placed[stream] if offset == LOG_START else offset for stream, offset in needed.items()
        }
        try:
            client.acknowledge(self.name, _entries(positions), incarnation_number=self.incarnation_number)
            self._placed = positions
        except (UnknownReader, ReaderReleased, OffsetOutOfRange):
            self.register(client, needed)

    def keep_alive(self, client: Client) -> None:
        """Acknowledge the former positions again: a query without input is not idle, it waits."""
        if self._placed:
            self.acknowledge(client, dict(self._placed))


def how_lost(client: Client, name: str, stream: TopicPartition) -> str:
    """A sentence on why the records that a recovery needs are gone, and which setting would have kept them."""
    try:
        reader = client.describe_reader(name)
    except UnknownReader:
        return (
            f"No reader {name!r} is registered: it was removed, it was idle for twice reader-hold-ms, or the query "
            "runs without a registration. Without one, the topic's retention removes records that open windows need"
        )
    places = [(entry.topic, entry.partition) for entry in reader.released]
    if (stream.topic, stream.partition) not in places:
        held = [entry.offset for entry in reader.streams if (entry.topic, entry.partition) == stream]
        return (
            f"Reader {name!r} {f'holds the stream from offset {held[0]} on' if held else 'does not hold the stream'}. "
            "The records before that were removed because checkpoints cover them (then name the checkpoints' place), "
            "because a client deleted records by offset, or because the reader was released for a time (then the "
            "sidecar's log has reader_released: see reader-hold-bytes and reader-hold-ms)"
        )
    return (
        f"Reader {name!r} was released from the stream: it held more than reader-hold-bytes beyond the retention, or "
        "acknowledged nothing for reader-hold-ms while the query was down. Raise these settings of the sidecar, whose "
        "log has reader_released, or the retention of the topic"
    )


def _within(positions: Mapping[TopicPartition, int], error: OffsetOutOfRange) -> dict[TopicPartition, int]:
    """Positions, of which the refused one is moved to what is there; the same ones if that was the log start. Raises
    the error if it refuses none of them.

    The error says what is there, and not the offsets that clients are told: records that are being trimmed are among
    these still.
    """
    for stream, offset in positions.items():
        if f"{stream.topic}-{stream.partition}" == error.stream and offset in (error.offset, LOG_START):
            return {**positions, stream: LOG_START if offset < error.start_offset else error.high_watermark}
    raise error


def _entries(positions: Mapping[TopicPartition, int]) -> list[ReaderOffset]:
    return [ReaderOffset(stream.topic, stream.partition, offset) for stream, offset in positions.items()]
