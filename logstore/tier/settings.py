"""The settings of the tier, and where its objects lie.

Invariant: settings are complete and valid; nothing here needs what only the tier needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from logstore.errors import ConfigError
from logstore.tier.range_cache import DEFAULT_CACHE_BYTES

SCHEME: Final = "webhdfs"
DEFAULT_UPLOADS: Final = 2


@dataclass(frozen=True, slots=True)
class HdfsPlace:
    """Where objects lie: the NameNode's address for WebHDFS, and a directory."""

    url: str
    root: str


@dataclass(frozen=True, slots=True)
class PlanAccess:
    """Who plans the chunks: the coordinator's address (or several, with commas) and this host's name in its network,
    the NameNode's plan table, and the files with the tokens of both (empty: none).
    """

    coordinator: str
    coordinator_token_file: str
    host: str
    plans: str
    plan_token_file: str
    coordinator_ca_file: str = ""
    """Authorities of the coordinator's certificate; empty: the system's."""
    coordinator_certificate_file: str = ""
    """Certificate and key that the coordinator is shown; empty: none."""


@dataclass(frozen=True, slots=True)
class TierSettings:
    """See the settings in [tier]. `planned`: None if HDFS places chunks itself."""

    place: HdfsPlace
    user: str = "cairn"
    replicas: int = 3
    uploads: int = DEFAULT_UPLOADS
    cache_bytes: int = DEFAULT_CACHE_BYTES
    planned: PlanAccess | None = None


def parse_url(text: str) -> HdfsPlace:
    """The place of `webhdfs://NAMENODE:PORT/DIRECTORY`. Raises ConfigError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    root = "/" + parts.path.strip("/")
    if parts.scheme != SCHEME or not parts.hostname or port is None or root == "/" or parts.query:
        raise ConfigError(f"tier-url={text!r}: must be {SCHEME}://NAMENODE:PORT/DIRECTORY, with a directory of its own")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return HdfsPlace(f"http://{host}:{port}", root)


def parse_tier(values: Mapping[str, Any]) -> TierSettings | None:
    """The tier of the settings by their names in Python; None: there is none. Raises ConfigError."""
    planned = _planned(
        PlanAccess(
            values["tier_coordinator"],
            values["tier_coordinator_token_file"],
            values["tier_host"],
            values["tier_plans"],
            values["tier_plan_token_file"],
            values["tier_coordinator_ca_file"],
            values["tier_coordinator_certificate_file"],
        )
    )
    if not values["tier_url"]:
        return None
    return TierSettings(
        parse_url(values["tier_url"]),
        values["tier_user"],
        values["tier_replicas"],
        values["tier_uploads"],
        values["tier_cache_bytes"],
        planned,
    )


def _planned(access: PlanAccess) -> PlanAccess | None:
    """Who plans the chunks; None: nobody. Raises ConfigError if a part is missing."""
    given = [bool(access.coordinator), bool(access.host), bool(access.plans), bool(access.plan_token_file)]
    if any(given) and not all(given):
        raise ConfigError(
            "Peace plans the tier with all of tier-coordinator, tier-host, tier-plans and tier-plan-token-file: "
            "give all of them, or none"
        )
    return access if all(given) else None
