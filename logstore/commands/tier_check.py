"""Checks what the ledger of a data directory says of the tier, for `cairn verify --tier`: every object is read back.

Invariants: nothing is changed; a store that cannot be reached ends the check, and says nothing of the objects.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from logstore.base.packages import how_to_get
from logstore.commands.output import UsageError
from logstore.errors import ConfigError, ObjectMissing, TierRefused, TierUnavailable
from logstore.format.tiered_chunk import StoredObject, TieredChunk
from logstore.tier.interface import ObjectStore
from logstore.tier.settings import TierSettings, parse_url
from logstore.verify.directory import Plan
from logstore.verify.findings import Findings

ROOM: Final = "logstore.tier.running"
AT_ONCE: Final = 4


def check_tier(url: str, user: str, planned: Plan) -> Findings:
    """What is wrong in the tier at `url`. Raises UsageError if it cannot be looked at."""
    findings = Findings()
    chunks = [chunk for found in planned.state.tiered.values() for chunk in found]
    with _opened(url, user) as objects, ThreadPoolExecutor(AT_ONCE) as pool:
        for problems in pool.map(lambda chunk: _problems(objects, chunk), chunks):
            for key, message, lost in problems:
                findings.damage("tier-object-damaged", key, message, lost=lost)
    findings.counts.files += sum(len(chunk.objects()) for chunk in chunks)
    findings.counts.bytes += sum(chunk.all_bytes for chunk in chunks)
    return findings


@contextmanager
def _opened(url: str, user: str) -> Iterator[ObjectStore]:
    try:
        settings = TierSettings(parse_url(url), user)
        objects: ObjectStore = import_module(ROOM).open_objects(settings)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"--tier needs {how_to_get(error.name, 'hdfs')}") from error
    try:
        yield objects
    except (TierUnavailable, TierRefused) as error:
        raise UsageError(f"the tier cannot be read: {error}") from error
    finally:
        objects.close()


def _problems(objects: ObjectStore, chunk: TieredChunk) -> list[tuple[str, str, tuple[int, int]]]:
    found = []
    lost = (chunk.base_offset, chunk.next_offset - 1)
    for suffix, expected in chunk.objects().items():
        key = chunk.key(suffix)
        stored = _stored(objects, key)
        if stored is None:
            found.append((key, "the ledger names this object, but the tier does not have it", lost))
        elif stored != expected:
            message = (
                f"the tier has {stored.size_bytes} bytes with CRC {stored.crc:08x}, the ledger expects "
                f"{expected.size_bytes} with {expected.crc:08x}"
            )
            found.append((key, message, lost))
    return found


def _stored(objects: ObjectStore, key: str) -> StoredObject | None:
    try:
        return objects.checksum(key)
    except ObjectMissing:
        return None
