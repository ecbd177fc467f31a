"""The inspector of the state that queries keep in a stream, for people; recovery does not use it.

Invariants:
* The inspector reads the log by the backward scan that recovery uses, and checkpoints where the log begins behind one;
  it changes nothing.
* A query is inspected as of the newest epoch in the stream, or as of a given epoch.

Source: CEC paper, section II.B (eventual checkpoint, extent).
"""

from dataclasses import dataclass

from logstore.client.blocking import Client, TopicPartition
from spe_adapter.cec.control import STATE_PREFIX, EndPositions, Mark
from spe_adapter.cec.reconstruct import EventualCheckpoint
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.whole_state import WholeState, whole_state


@dataclass(frozen=True, slots=True)
class InspectedState:
    """The state of one query in one stream. `whole` has its open windows, by the epoch of their newest footprint."""

    stream: TopicPartition
    query: str
    whole: WholeState

    @property
    def eventual(self) -> EventualCheckpoint:
        """What the log has of the state."""
        return self.whole.eventual

    @property
    def mark(self) -> Mark | None:
        """The mark of the epoch: counters and positions; None without state."""
        return self.eventual.mark

    @property
    def progress(self) -> EndPositions | None:
        """The positions in the epoch's END."""
        return self.eventual.progress

    @property
    def extent_records(self) -> int:
        """q: the records emitted since the oldest footprint of an open window, including those of that epoch."""
        mark, groups = self.mark, self.whole.groups
        return mark.emitted - groups[-1].mark.emitted + groups[-1].rows if mark is not None and groups else 0

    def windows(self, limit: int) -> list[dict[str, object]]:
        """Up to `limit` open windows, oldest footprints first."""
        found: list[dict[str, object]] = []
        for group in reversed(self.whole.groups):
            for batch in group.batches:
                room = limit - len(found)
                if room <= 0:
                    return found
                found += [{"epoch": group.mark.epoch, **_plain(row)} for row in batch.slice(0, room).to_pylist()]
        return found


def inspect_state(
    client: Client,
    stream: TopicPartition,
    query: str,
    as_of: int | None = None,
    checkpoints: CheckpointSettings | None = None,
) -> InspectedState:
    """The state of a query in a stream, as of an epoch (None: the newest). `checkpoints`: where those of the query are.

    Raises StateTrimmed, StateInconsistent, CorruptBatch and the client's errors.
    """
    return InspectedState(stream, query, whole_state(client, stream, query, as_of, checkpoints))


def _plain(row: dict[str, object]) -> dict[str, object]:
    """A footprint for people: UTF-8 bytes as text, state columns without their prefix."""
    return {name.removeprefix(STATE_PREFIX): _text(value) for name, value in row.items() if name != "kind"}


def _text(value: object) -> object:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
