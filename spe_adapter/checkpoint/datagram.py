"""What a task tells the I/O service at the end of an epoch: one small datagram, JSON.

Invariant: a datagram is at most MAX_DATAGRAM_BYTES; what is not understood is ServiceRefused and changes nothing.
"""

import json
from typing import Any, Final, NamedTuple

from spe_adapter.checkpoint.errors import ServiceRefused
from spe_adapter.checkpoint.names import MAX_PARTITION, Unit

VERSION: Final = 1
MAX_DATAGRAM_BYTES: Final = 16 * 1024
_MAX_COUNT: Final = 1 << 62


class EpochNote(NamedTuple):
    """An epoch of a unit has ended. `log_bytes`: control bytes that the epoch added to the log; `state_bytes`: size of
    the state; `loaded_bytes`, `loaded_s`: a recovery from the log that the task measured, 0 if there was none;
    `settings`: what `CheckpointSettings.described` gives.
    """

    unit: Unit
    epoch: int
    log_bytes: int
    state_bytes: int
    settings: dict[str, Any]
    loaded_bytes: int = 0
    loaded_s: float = 0.0


def encode_note(note: EpochNote) -> bytes:
    """The bytes of a datagram. Raises ServiceRefused if there are too many."""
    fields = note._asdict() | {"v": VERSION, "unit": list(note.unit)}
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > MAX_DATAGRAM_BYTES:
        raise ServiceRefused(f"a datagram of {len(data)} bytes: at most {MAX_DATAGRAM_BYTES}; names are too long")
    return data


def decode_note(data: bytes) -> EpochNote:
    """What a datagram says. Raises ServiceRefused."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.get("v") != VERSION:
            raise ServiceRefused(f"a datagram that begins with {data[:40]!r}: no version {VERSION}")
        query, partition = fields["unit"]
        note = EpochNote(
            Unit(str(query), _count(partition)),
            _count(fields["epoch"]),
            _count(fields["log_bytes"]),
            _count(fields["state_bytes"]),
            dict(fields["settings"]),
            _count(fields["loaded_bytes"]),
            float(fields["loaded_s"]),
        )
        note.unit.name.encode()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ServiceRefused(f"a datagram that begins with {data[:40]!r}: {type(error).__name__}: {error}") from error
    if note.unit.partition > MAX_PARTITION:
        raise ServiceRefused(f"partition {note.unit.partition}: at most {MAX_PARTITION}")
    return note


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{value!r} is not a count")
    return value
