"""Opens the metadata store that a URL names.

| URL | store |
|---|---|
| `etcd://HOST:PORT[,HOST:PORT]`, `etcds://…` with TLS | etcd at these endpoints |
| `sqlite:PATH` | a file, for one host and for tests of several in one process |

Invariant: etcd's store is loaded only for a URL that names it, because it needs the extra `cluster`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

from logstore.base.events import Report
from logstore.base.metadata.interface import MetadataStore
from logstore.base.metadata.sqlite import open_sqlite
from logstore.errors import ConfigError

SCHEMES: Final = {"etcd": "http", "etcds": "https"}
ETCD_ATTEMPT_S: Final = 1.0
"""For one answer of one endpoint: a lease of three seconds outlasts an endpoint that is silent."""
FORMS: Final = "etcd://HOST:PORT[,HOST:PORT], etcds:// with TLS, or sqlite:PATH"


@asynccontextmanager
async def open_metadata(url: str, random: Random, report: Report, **settings: Any) -> AsyncIterator[MetadataStore]:
    """The store that a URL names. `settings` are further fields of `EtcdSettings`.

    Raises ConfigError for a URL that names none, and if the extra `cluster` is missing; what the stores raise.
    """
    scheme, separator, rest = url.partition(":")
    if scheme == "sqlite" and rest and not settings:
        async with open_sqlite(Path(rest), random) as file_store:
            yield file_store
        return
    hosts = rest.removeprefix("//")
    if scheme not in SCHEMES or not separator or rest == hosts or not hosts:
        raise ConfigError(f"cluster={url!r}: must be {FORMS}")
    try:
        room = import_module("logstore.base.metadata.etcd.store")
        kinds = import_module("logstore.base.metadata.etcd.settings")
    except ImportError as error:
        raise ConfigError(
            f"cluster={url!r} needs the extra `cluster` ({error}): pip install 'cairn[cluster]'"
        ) from error
    endpoints = tuple(f"{SCHEMES[scheme]}://{host}" for host in hosts.rstrip("/").split(","))
    values = {"attempt_s": ETCD_ATTEMPT_S, **settings, "endpoints": endpoints}
    async with room.open_etcd(kinds.EtcdSettings(**values), random, report) as etcd_store:
        yield etcd_store
