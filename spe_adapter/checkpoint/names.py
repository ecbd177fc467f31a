"""Names of checkpoints: ROOT/UNIT-SEQ/THREAD.

A unit is what is checkpointed and recovered alone: one partition of one query's state.

Invariants:
* A name of a unit consists of letters, digits, `_`, `-`, `=` and one `.`: it means the same in a directory, in HDFS and
  in a URL.
* Two units have two names; a query's name that is too long is replaced by its hash.

Source: SGuard, section 5 (name space), section 3 (HA units).
"""

import re
from hashlib import sha256
from typing import Final, NamedTuple

MANIFEST: Final = "MANIFEST"
"""The file that is written last; a checkpoint without it is not complete."""
CLAIM: Final = "CLAIM"
"""The file that is written first: who made it is the only writer of this sequence number."""
MAX_SEQ: Final = 10**10 - 1
MAX_PARTITION: Final = 10**6
MAX_THREADS: Final = 10_000
_MAX_QUERY_CHARACTERS: Final = 150
_SPECIAL: Final = re.compile(rb"[^A-Za-z0-9_-]")
_NAME: Final = re.compile(r"(?P<query>[A-Za-z0-9_=-]+)\.(?P<partition>\d{1,7})-(?P<seq>\d{10})")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")


class Unit(NamedTuple):
    """A partition of a query's state: the smallest part that is checkpointed and recovered alone."""

    query: str
    partition: int

    @property
    def name(self) -> str:
        """The name of the unit in paths."""
        escaped = _SPECIAL.sub(lambda found: b"=%02X" % found[0][0], self.query.encode()).decode()
        if len(escaped) > _MAX_QUERY_CHARACTERS:
            escaped = f"={sha256(self.query.encode()).hexdigest()}"
        return f"{escaped}.{self.partition}"


class CheckpointName(NamedTuple):
    """The directory of a checkpoint below the root of its sink: the unit's name and the sequence number."""

    unit: str
    seq: int

    def __str__(self) -> str:
        return f"{self.unit}-{self.seq:010d}"


def checkpoint_name(unit: Unit, seq: int) -> CheckpointName:
    """The name of a unit's checkpoint number `seq`. Raises ValueError for a number outside 1 to MAX_SEQ."""
    if not 1 <= seq <= MAX_SEQ:
        raise ValueError(f"seq={seq}: must be from 1 to {MAX_SEQ}")
    return CheckpointName(unit.name, seq)


def parse_name(text: str) -> CheckpointName | None:
    """The checkpoint whose directory has this name; None for a name of anything else."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    return CheckpointName(f"{found['query']}.{found['partition']}", int(found["seq"]))


def query_of(unit: str) -> str | None:
    """The query of a unit's name; None if the name holds only its hash."""
    escaped = unit.rpartition(".")[0]
    if re.fullmatch(r"=[0-9a-f]{64}", escaped):
        return None
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), escaped.encode()).decode(errors="replace")


def thread_name(thread: int) -> str:
    """The file of a checkpoint's chunk: 000, 001, …"""
    return f"{thread:03d}"
