"""The table of all fuzz targets."""

from collections.abc import Mapping

from tests.fuzz import disk_targets, http_targets, kafka_targets, peer_targets
from tests.fuzz.interface import Target

_SOURCES = (
    *(kafka_targets.requests, kafka_targets.replies, kafka_targets.batches, kafka_targets.logins),
    *(disk_targets.files, disk_targets.entries),
    *(peer_targets.links, peer_targets.metadata, http_targets.connections),
)


def table() -> Mapping[str, Target]:
    """All targets by name. Raises ValueError if two have one name."""
    found = [target for source in _SOURCES for target in source()]
    named = {target.name: target for target in found}
    if len(named) != len(found):
        raise ValueError(f"{len(found)} targets have {len(named)} names")
    return named
