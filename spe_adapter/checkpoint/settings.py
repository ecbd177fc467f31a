"""Settings of checkpoints as texts, as options and datagrams give them, and the sink that they name.

Invariant: a secret is given as the name of its file; the file is read when the sink or the client is opened, and again
when it has changed.
"""

import re
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from logstore.base.events import Report, ignore
from logstore.base.secret_files import SecretFile, fits_a_header
from scheduler.client import CoordinatorClient, CoordinatorError
from scheduler.client.addresses import parse_addresses
from scheduler.client.tls import client_tls
from scheduler.hdfs.errors import PlanTableError
from scheduler.hdfs.plan_table import PlanTable
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import CheckpointUrlRefused
from spe_adapter.checkpoint.hdfs_sink import HdfsSink, HdfsSinkSettings
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.sinks import Sink

DEFAULT_REPLICAS: Final = 3
MAX_REPLICAS: Final = 64
MAX_TOKEN_BYTES: Final = 4096
COORDINATOR_PATIENCE_S: Final = 20.0
"""How long a coordinator may be away before a checkpoint is written without a plan."""
SINK_PATIENCE_S: Final = 30.0
ANY_HOST: Final = "*"
"""A value for `host`: each host uses its own name."""
_HDFS_PATH: Final = re.compile(r"(/[^/\\:]+)+")


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The place, the rate and the policy of the checkpoints of a unit.

    * `sink`: file:///DIRECTORY, or hdfs://HOST:PORT/DIRECTORY (or webhdfs://) with the port of WebHDFS.
    * `user`: the HDFS user.
    * `plans`, `plans_token_file`: the NameNode's plan table, and its token.
    * `coordinator`, `coordinator_token_file`: Peace's coordinator, as one address or several addresses separated by
      commas, and its token.
    * `coordinator_ca_file`: the authorities of the coordinator's certificate, in place of the system's authorities.
    * `coordinator_certificate_file`: certificate and key of the client, if the coordinator requires them.
    * `host`: this host's name in the topology; ANY_HOST: each host uses its own name.
    * `replicas`: the number of replicas of each chunk.
    * `max_bytes_per_s`: the maximum rate of writing; 0: no maximum.
    * `policy`: when checkpoints are written.
    """

    sink: str
    user: str = "cairn"
    plans: str = ""
    plans_token_file: str = ""
    coordinator: str = ""
    coordinator_token_file: str = ""
    coordinator_ca_file: str = ""
    coordinator_certificate_file: str = ""
    host: str = ""
    replicas: int = DEFAULT_REPLICAS
    max_bytes_per_s: int = 0
    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        parse_sink_url(self.sink)
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise CheckpointUrlRefused(f"replicas={self.replicas}: must be from 1 to {MAX_REPLICAS}")
        if self.coordinator and not self.host:
            raise CheckpointUrlRefused(f"coordinator={self.coordinator!r}: needs the name of this host in its topology")
        _check_addresses(self.plans, self.coordinator)
        if self.max_bytes_per_s < 0:
            raise CheckpointUrlRefused(f"max_bytes_per_s={self.max_bytes_per_s}: must be 0 (no bound) or more")

    def on_host(self, name: str) -> "CheckpointSettings":
        """The settings on the host that gives itself this name."""
        return replace(self, host=name) if self.host == ANY_HOST else self

    def described(self) -> dict[str, Any]:
        """The settings as JSON values, without settings that have their default."""
        values: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, PolicySettings):
                values[entry.name] = value.described()
            elif value != entry.default:
                values[entry.name] = value
        return values


def settings_of(values: dict[str, Any]) -> CheckpointSettings:
    """Settings from what `described` gave. Raises CheckpointUrlRefused for an unknown name or a bad value."""
    known = {entry.name for entry in fields(CheckpointSettings)}
    unknown = sorted(set(values) - known)
    if unknown or "sink" not in values:
        raise CheckpointUrlRefused(f"settings of checkpoints: {unknown or 'no sink'}; there are {sorted(known)}")
    policy = values.get("policy", {})
    texts = {entry.name for entry in fields(CheckpointSettings) if entry.type in (str, "str")}
    for name in sorted(set(values) - {"policy"}):
        kind = str if name in texts else int
        if type(values[name]) is not kind:
            raise CheckpointUrlRefused(f"settings of checkpoints: {name}={values[name]!r} is not a {kind.__name__}")
    try:
        return CheckpointSettings(**{**values, "policy": PolicySettings(**policy)})
    except TypeError as error:
        raise CheckpointUrlRefused(f"settings of checkpoints: {values}: {error}") from error


def _check_addresses(plans: str, coordinator: str) -> None:
    """Raise CheckpointUrlRefused for addresses that no client takes. Nothing is connected to."""
    try:
        if plans:
            PlanTable(plans, "").close()
        if coordinator:
            parse_addresses(coordinator)
    except PlanTableError as error:
        raise CheckpointUrlRefused(f"plans={plans!r}, the plan table: {error}") from error
    except CoordinatorError as error:
        raise CheckpointUrlRefused(f"coordinator={coordinator!r}: {error}") from error
    except ValueError as error:
        raise CheckpointUrlRefused(f"plans={plans!r} is not an address: {error}; write http://HOST:PORT") from error


def parse_sink_url(url: str) -> tuple[str, str]:
    """WebHDFS's address ("" for a directory) and the path of a sink. Raises CheckpointUrlRefused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise CheckpointUrlRefused(f"{url!r}: {error}") from error
    path = unquote(parts.path).rstrip("/")
    if "\0" in path or not path.isprintable():
        raise CheckpointUrlRefused(f"{url!r}: the path of a sink has a character that no name may have")
    if parts.query or parts.fragment:
        raise CheckpointUrlRefused(f"{url!r}: a sink's URL ends with its directory, without '?' and '#'")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.startswith("/"):
        return "", path
    if parts.scheme in ("hdfs", "webhdfs") and parts.hostname and port and _HDFS_PATH.fullmatch(path):
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"http://{host}:{port}", path
    raise CheckpointUrlRefused(
        f"{url!r} names no place for checkpoints: write file:///DIRECTORY, or hdfs://HOST:PORT/DIRECTORY with the port "
        "of the NameNode's WebHDFS (9870 unless set)"
    )


def open_sink(settings: CheckpointSettings, report: Report = ignore, patience_s: float = SINK_PATIENCE_S) -> Sink:
    """The sink of the settings; a call waits for at most `patience_s` while HDFS is away. Raises CheckpointUrlRefused;
    nothing is connected to yet.
    """
    address, path = parse_sink_url(settings.sink)
    if not address:
        return DirectorySink(Path(path))
    plans = None
    if settings.plans:
        token = _followed(settings.plans_token_file, report, "checkpointPlansToken")
        plans = PlanTable(settings.plans, "" if token is None else token)
    return HdfsSink(HdfsSinkSettings(address, path, settings.user, patience_s), plans, report)


def open_sink_to_read(
    settings: CheckpointSettings, report: Report = ignore, patience_s: float = SINK_PATIENCE_S
) -> Sink:
    """The sink of the settings for a reader, who needs no plans and so no token. See `open_sink`."""
    return open_sink(replace(settings, plans="", plans_token_file=""), report, patience_s)


def open_coordinator(settings: CheckpointSettings, report: Report = ignore) -> CoordinatorClient | None:
    """A client of the settings' coordinator, None without one. `report`: see `client_tls`. Raises
    CheckpointUrlRefused, CoordinatorError.
    """
    if not settings.coordinator:
        return None
    return CoordinatorClient(
        settings.coordinator,
        token=_followed(settings.coordinator_token_file, report, "checkpointCoordinatorToken"),
        ca_file=client_tls(settings.coordinator_ca_file, settings.coordinator_certificate_file, report),
        patience_s=COORDINATOR_PATIENCE_S,
    )


def _followed(file: str, report: Report, setting: str) -> SecretFile | None:
    """A token as new as its file, None for no file. Raises CheckpointUrlRefused if it cannot be read now."""
    return SecretFile(partial(_token, file), file, report, setting=setting) if file else None


def read_token(file: str) -> str | None:
    """The token in a file, None for no file. Raises CheckpointUrlRefused if it cannot be read."""
    return _token(file) if file else None


def _token(file: str) -> str:
    try:
        with open(file, encoding="ascii") as source:
            token = source.read(MAX_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointUrlRefused(f"token file {file!r}: {error}") from error
    if not fits_a_header(token):
        raise CheckpointUrlRefused(f"token file {file!r}: a token is one line of visible ASCII characters")
    return token
