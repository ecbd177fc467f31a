"""What a host must know to take part in a cluster; checked once, at its start.

Invariant: settings are frozen and complete; a wrong one raises ConfigError, which names it and says what is allowed.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.errors import AddressError
from logstore.base.metadata.errors import InvalidMetadataCall
from logstore.base.metadata.schema import MAX_DOMAINS, MAX_RACK_CHARACTERS, member_key
from logstore.base.racks import domains
from logstore.base.tls import TlsFiles
from logstore.cluster.copy_pace import DEFAULT_GRACE_S, CopyRates
from logstore.errors import ConfigError

DEFAULT_NAMESPACE: Final = "/cairn/"


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """An etcd: its endpoints, and what stands in front of every key."""

    endpoints: tuple[str, ...]
    namespace: str


@dataclass(frozen=True, slots=True)
class SqliteUrl:
    """One SQLite file, for one host: in tests."""

    path: Path


@dataclass(frozen=True, slots=True)
class ClusterSecurity:
    """Certificates of links, and how to log in to etcd; texts are empty where nothing was given."""

    peer: TlsFiles
    etcd_user: str = ""
    etcd_password_file: str = ""
    etcd_ca: str = ""

    @property
    def is_set(self) -> bool:
        """Whether anything was given."""
        return any((*self.peer[:4], self.etcd_user, self.etcd_password_file, self.etcd_ca))


class PlaceSettings(NamedTuple):
    """What the settings say of a host's place; empty where they say nothing."""

    rack: str = ""
    disk_rate: int = 0
    topology: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the metadata store is, and who this host is."""

    metadata: EtcdUrl | SqliteUrl
    host: str
    node_id: int
    listen: Address
    advertise: Address | None
    """Where other hosts reach this one; None: where it listens."""
    place: PlaceSettings
    lease_s: int
    security: ClusterSecurity
    copy_rates: CopyRates = field(default_factory=CopyRates)
    copy_grace_s: float = DEFAULT_GRACE_S


def parse_cluster(
    security: ClusterSecurity,
    url: str,
    host: str,
    node_id: int,
    listen: str,
    advertise: str,
    place: PlaceSettings,
    lease_s: int,
) -> ClusterSettings | None:
    """The settings of a host; None without a URL: it is alone. Raises ConfigError."""
    if not url:
        if host or listen or advertise or node_id >= 0 or security.is_set:
            raise ConfigError(
                "host-name, node-id, and settings of peers and of etcd are a cluster's: give --cluster URL"
            )
        return None
    if not host or not listen or node_id < 0:
        raise ConfigError(
            "--cluster needs a name, a number and an address of this host: give --host-name NAME, --node-id NUMBER and "
            "--peer-listen HOST:PORT"
        )
    try:
        member_key(host)
        addresses = [parse_address(text) for text in (listen, advertise) if text]
    except (AddressError, InvalidMetadataCall) as error:
        raise ConfigError(str(error)) from error
    if len(domains(place.rack)) > MAX_DOMAINS or len(place.rack) > MAX_RACK_CHARACTERS:
        raise ConfigError(
            f"rack={place.rack[:80]!r} has {len(place.rack)} characters, at most {MAX_RACK_CHARACTERS}, and "
            f"{len(domains(place.rack))} domains, at most {MAX_DOMAINS}"
        )
    if bool(security.peer.certificate) != bool(security.peer.client_ca):
        raise ConfigError("links by TLS need --peer-certificate and --peer-ca: give both, or neither")
    if not security.peer.certificate and not is_loopback(addresses[0].host):
        raise ConfigError(
            f"peer-listen={listen} can be reached from other machines: give --peer-certificate and --peer-ca, or "
            "listen on 127.0.0.1"
        )
    told = addresses[1] if advertise else None
    return ClusterSettings(parse_url(url), host, node_id, addresses[0], told, place, lease_s, security)


def with_copies(
    settings: ClusterSettings | None, min_bytes_per_s: int, max_bytes_per_s: int, grace_s: float
) -> ClusterSettings | None:
    """The settings with these of copies. Raises ConfigError."""
    if min_bytes_per_s > max_bytes_per_s:
        raise ConfigError(
            f"copy-min-bytes-per-s={min_bytes_per_s} is above copy-max-bytes-per-s={max_bytes_per_s}: "
            "copies cannot have more than they may"
        )
    if settings is None:
        return None
    return replace(settings, copy_rates=CopyRates(min_bytes_per_s, max_bytes_per_s), copy_grace_s=grace_s)


def parse_url(url: str) -> EtcdUrl | SqliteUrl:
    """The metadata store in a URL: etcd://HOST:PORT[,HOST:PORT][/NAMESPACE/], etcds://… by TLS, or sqlite:PATH.

    Raises ConfigError.
    """
    scheme, mark, place = url.partition("://")
    if mark and scheme in ("etcd", "etcds"):
        hosts, slash, namespace = place.partition("/")
        http = "http" if scheme == "etcd" else "https"
        endpoints = tuple(f"{http}://{host.strip()}" for host in hosts.split(",") if host.strip())
        if endpoints:
            return EtcdUrl(endpoints, f"/{namespace.rstrip('/')}/" if slash and namespace else DEFAULT_NAMESPACE)
    elif url.startswith("sqlite:") and url != "sqlite:":
        return SqliteUrl(Path(url.removeprefix("sqlite:")))
    raise ConfigError(
        f"cluster={url!r}: must be etcd://HOST:PORT[,HOST:PORT][/NAMESPACE], etcds://… for TLS, or sqlite:PATH"
    )
