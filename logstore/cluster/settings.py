"""What a host must know to take part in a cluster; checked once, at its start.

Invariant: settings are frozen and complete; a wrong one raises ConfigError, which names it and says what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.errors import AddressError
from logstore.base.metadata.errors import InvalidMetadataCall
from logstore.base.metadata.schema import MAX_DOMAINS, MAX_RACK_CHARACTERS, member_key
from logstore.base.racks import domains
from logstore.base.tls import TlsFiles
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S, CopyRates
from logstore.errors import ConfigError

DEFAULT_NAMESPACE: Final = "/cairn/"
ETCD_SECURITY: Final = ("etcd_user", "etcd_password_file", "etcd_ca", "etcd_certificate", "etcd_key")
"""The fields of `ClusterSecurity` that are settings of their own, in their order."""


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
    etcd_certificate: str = ""
    etcd_key: str = ""

    @property
    def is_set(self) -> bool:
        """Whether anything was given."""
        return any((*self.peer[:4], *(getattr(self, name) for name in ETCD_SECURITY)))

    def check_etcd(self) -> None:
        """Raises ConfigError unless the files for etcd are complete."""
        if self.etcd_key and not self.etcd_certificate:
            raise ConfigError(f"etcd-key={self.etcd_key} has no certificate: give --etcd-certificate, or leave it out")
        if self.etcd_certificate and not self.etcd_ca:
            raise ConfigError(
                f"etcd-certificate={self.etcd_certificate} needs the authority of etcd's own one: give --etcd-ca too"
            )


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
    default_replicas: int = 3


def cluster_of(values: Mapping[str, Any]) -> ClusterSettings | None:
    """The cluster that a sidecar with these settings takes part in; None: it is alone. Raises ConfigError."""
    tls = TlsFiles(values["peer_certificate"], values["peer_key"], client_ca=values["peer_ca"])
    security = ClusterSecurity(tls, *(values[name] for name in ETCD_SECURITY))
    place = PlaceSettings(*(values[name] for name in ("rack", "disk_rate", "topology", "topology_script")))
    url, host, listen, told = (values[name] for name in ("cluster", "host_name", "peer_listen", "peer_advertise"))
    settings = parse_cluster(security, url, host, values["node_id"], listen, told, place, values["lease_s"])
    rates = CopyRates(values["copy_min_bytes_per_s"], values["copy_max_bytes_per_s"])
    return with_copies(settings, rates, values["copy_grace_s"], values["default_replication_factor"])


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
    security.check_etcd()
    if not security.peer.certificate and not is_loopback(addresses[0].host):
        raise ConfigError(
            f"peer-listen={listen} can be reached from other machines: give --peer-certificate and --peer-ca, or "
            "listen on 127.0.0.1"
        )
    told = addresses[1] if advertise else None
    return ClusterSettings(parse_url(url), host, node_id, addresses[0], told, place, lease_s, security)


def with_copies(
    settings: ClusterSettings | None, rates: CopyRates, grace_s: float, default_replicas: int
) -> ClusterSettings | None:
    """The settings with these of copies, and copies of topics that ask for no number. Raises ConfigError."""
    if rates.min_bytes_per_s > rates.max_bytes_per_s:
        raise ConfigError(
            f"copy-min-bytes-per-s={rates.min_bytes_per_s} is above copy-max-bytes-per-s={rates.max_bytes_per_s}: "
            "copies cannot have more than they may"
        )
    if settings is None:
        return None
    return replace(settings, copy_rates=rates, copy_grace_s=grace_s, default_replicas=default_replicas)


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
