"""A sidecar's settings: one table defines flags, the TOML file and the documentation; parsed once, at start.

Invariants: flags override the file; a setting that is unknown, of the wrong type or out of range raises a ConfigError
that names the setting and the allowed values; the result is frozen and complete.
"""

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from logstore.access.acls import ANY_PRINCIPAL
from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.errors import AddressError, FieldError
from logstore.base.events import LEVELS, Level
from logstore.base.fields import Boolean, Integer, String, Type, from_text
from logstore.base.near_names import instead_of
from logstore.base.tls import CLIENT_CERTIFICATES, VERSIONS, TlsFiles
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S, DEFAULT_MAX_RATE, DEFAULT_MIN_RATE
from logstore.cluster.settings import ClusterSettings, cluster_of
from logstore.errors import ConfigError
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.groups.service import OffsetSettings
from logstore.kafka.groups.settings import GroupSettings
from logstore.kafka.security.credentials import MECHANISMS
from logstore.kafka.security.login import PLAIN, LoginSettings
from logstore.kafka.security.protocols import SecurityProtocol
from logstore.kafka.server import Listener
from logstore.log.chunks import MAX_APPEND_BYTES
from logstore.log.journal import DEFAULT_FILE_BYTES, JournalLimits
from logstore.log.readers import HoldLimits
from logstore.log.space import DEFAULT_RESERVE
from logstore.log.store import DEFAULT_TAIL_BYTES, StoreSettings
from logstore.log.topics import TopicConfig
from logstore.tier.settings import TierSettings, parse_tier

DEFAULT_KAFKA = "127.0.0.1:9092"
STATE_DIRECTORY = "/dev/shm/cairn-{uid}"  # noqa: S108  its owner is checked before anything in it is touched
"""`{uid}` is replaced by the numeric id of the user that runs the sidecar."""
_DAY_MS = 24 * 3_600_000
_LARGEST = (1 << 63) - 1
MAX_TEXT_CHARACTERS = 4096
"""Longest value of a text setting: the longest path of Linux."""
_MIB = 1 << 20


class Setting(NamedTuple):
    """One setting: `--name` on the command line, `name` in `[table]` of the file."""

    table: str
    name: str
    default: int | bool | str
    minimum: int
    maximum: int
    help: str
    choices: tuple[str, ...] = ()
    """The allowed values of a text setting; empty: any text."""

    @property
    def field(self) -> str:
        """The setting's name in Python."""
        return self.name.replace("-", "_")

    @property
    def type(self) -> Type:
        """The type of its values."""
        if isinstance(self.default, bool):
            return Boolean()
        if isinstance(self.default, int):
            return Integer(self.minimum, self.maximum)
        return String(MAX_TEXT_CHARACTERS, 0, self.choices)


SETTINGS: tuple[Setting, ...] = (
    Setting("log", "io-window", 8, 1, 64, "disk jobs in flight at a time, and threads that run them"),
    Setting(
        *("log", "journal-bytes", DEFAULT_FILE_BYTES, 0, 1 << 34),
        "size of a file of the shared journal, of which there are up to three; 0: every append goes to its own chunk",
    ),
    Setting("log", "tail-bytes", DEFAULT_TAIL_BYTES, _MIB, 1 << 40, "memory for the newest batches of all streams"),
    Setting(
        "log",
        "retention-ms",
        7 * _DAY_MS,
        -1,
        _LARGEST,
        "how long records stay at least, from their append; -1: no limit",
    ),
    Setting("log", "retention-bytes", -1, -1, _LARGEST, "size of a stream beyond which it is trimmed; -1: no limit"),
    Setting("log", "retention-check-interval-ms", 300_000, 10, 366 * _DAY_MS, "how often retention is applied"),
    Setting(
        "log",
        "disk-reserve-bytes",
        DEFAULT_RESERVE,
        DEFAULT_RESERVE,
        _LARGEST,
        "bytes of the disk that appends leave free; -1: 5 % of it, at most 1 GiB; 0: none",
    ),
    Setting(
        "log", "reader-hold-bytes", 10 << 30, 0, _LARGEST, "bytes of a stream that a registered reader keeps at most"
    ),
    Setting(
        "log",
        "reader-hold-ms",
        7 * _DAY_MS,
        0,
        _LARGEST,
        "how long a registered reader keeps records without an acknowledgement",
    ),
    Setting("log", "segment-bytes", 64 * _MIB, 1024, 1 << 30, "size at which a chunk is sealed"),
    Setting(
        "log", "segment-ms", 7 * _DAY_MS, 1, _LARGEST, "age of a chunk's first append at which the chunk is sealed"
    ),
    Setting("log", "message-timestamp-before-max-ms", _LARGEST, 0, _LARGEST, "how old a new record may be"),
    Setting("log", "message-timestamp-after-max-ms", 3_600_000, 0, _LARGEST, "how far in the future a record may be"),
    Setting(
        "log",
        "max-message-bytes",
        1_048_588,
        0,
        MAX_APPEND_BYTES,
        "largest batch that is accepted; max-frame-bytes must hold it",
    ),
    Setting("log", "producer-expiry-ms", _DAY_MS, 1000, _LARGEST, "when an idle idempotent producer is forgotten"),
    Setting("kafka", "auto-create-topics", True, 0, 1, "create a topic when it is first used"),
    Setting("kafka", "default-partitions", 1, 1, 10_000, "partitions of a topic that does not ask for a number"),
    Setting("kafka", "max-frame-bytes", 16 * _MIB, 64 * 1024, 100 * _MIB, "largest request"),
    Setting("kafka", "max-connections", 10_000, 1, 1_000_000, "clients at a time; then the longest idle gives way"),
    Setting("kafka", "max-connections-per-address", 100, 1, 1_000_000, "of these from one address but loopback"),
    Setting("kafka", "connection-in-flight-bytes", 8 * _MIB, 1024, 1 << 40, "unanswered requests of one connection"),
    Setting(
        "kafka",
        "total-in-flight-bytes",
        32 * _MIB,
        1024,
        1 << 40,
        "unanswered requests of all connections; as much again on the way in",
    ),
    Setting(
        "kafka",
        "total-answer-bytes",
        32 * _MIB,
        _MIB,
        1 << 40,
        "unsent answers of fetches and scans; as much again of all others",
    ),
    Setting("kafka", "handshake-s", 10, 1, 3600, "how long a new connection may be silent"),
    Setting("kafka", "idle-s", 600, 1, 86_400, "how long any connection may be silent"),
    Setting(
        "access",
        "super-users",
        "",
        0,
        0,
        "principals that may do everything, separated by semicolons, such as User:admin;User:ops",
    ),
    Setting("security", "tls-certificate", "", 0, 0, "PEM file with the sidecar's certificate and its chain"),
    Setting("security", "tls-key", "", 0, 0, "PEM file with its key; empty: it is in tls-certificate"),
    Setting("security", "tls-key-password-file", "", 0, 0, "file with the password of that key; empty: it has none"),
    Setting("security", "tls-client-ca", "", 0, 0, "PEM file with the authorities of clients' certificates"),
    Setting(
        "security",
        "tls-client-auth",
        "none",
        0,
        0,
        "whether TLS clients show a certificate: none, requested, required",
        tuple(CLIENT_CERTIFICATES),
    ),
    Setting("security", "tls-min-version", "1.2", 0, 0, "oldest version of TLS: 1.2 or 1.3", tuple(VERSIONS)),
    Setting(
        "security",
        "sasl-mechanisms",
        "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        0,
        0,
        "how clients log in to SASL listeners; PLAIN over TLS only",
    ),
    Setting("security", "login-failure-delay-ms", 100, 0, 10_000, "how long a wrong login waits for its answer"),
    Setting("groups", "min-session-timeout-ms", 6_000, 1, _LARGEST, "shortest session a group member may ask for"),
    Setting("groups", "max-session-timeout-ms", 1_800_000, 1, _LARGEST, "longest session a group member may ask for"),
    Setting("groups", "initial-rebalance-delay-ms", 100, 0, 60_000, "wait for more members of a new group"),
    Setting("groups", "max-group-members", 1_000, 1, 100_000, "members of one group"),
    Setting("groups", "offsets-retention-ms", 7 * _DAY_MS, 1, _LARGEST, "when an unused group is forgotten"),
    Setting("cluster", "cluster", "", 0, 0, "metadata store of the cluster: etcd://HOST:PORT,…; empty: a host alone"),
    Setting("cluster", "host-name", "", 0, 0, "name of this host in the cluster; stays with its data directory"),
    Setting("cluster", "node-id", -1, -1, (1 << 31) - 1, "number of this host, as Kafka's clients see it"),
    Setting("cluster", "peer-listen", "", 0, 0, "HOST:PORT where the other hosts of the cluster connect"),
    Setting("cluster", "peer-advertise", "", 0, 0, "HOST:PORT that other hosts are told; empty: peer-listen"),
    Setting("cluster", "peer-certificate", "", 0, 0, "PEM file with this host's certificate, which has its host-name"),
    Setting("cluster", "peer-key", "", 0, 0, "PEM file with its key; empty: it is in peer-certificate"),
    Setting("cluster", "peer-ca", "", 0, 0, "PEM file with the authorities of all hosts' certificates"),
    Setting("cluster", "etcd-user", "", 0, 0, "user of etcd; empty: none"),
    Setting("cluster", "etcd-password-file", "", 0, 0, "file with that user's password"),
    Setting("cluster", "etcd-ca", "", 0, 0, "PEM file with the authority of etcd's certificate, for etcds://"),
    Setting("cluster", "etcd-certificate", "", 0, 0, "PEM file with this host's certificate for etcd; empty: none"),
    Setting("cluster", "etcd-key", "", 0, 0, "its key; empty: in the same file"),
    Setting("cluster", "rack", "", 0, 0, "fault domains of this host, such as /zone1/rack3; empty: topology's"),
    Setting("cluster", "disk-rate", 0, 0, (1 << 53) - 1, "bytes per second that its disk takes; 0: topology's"),
    Setting("cluster", "topology", "", 0, 0, "file that says where hosts are: docs/cluster.md"),
    Setting("cluster", "topology-script", "", 0, 0, "Hadoop's rack script, which is asked for this host"),
    Setting("cluster", "lease-s", 3, 2, 3600, "how long a silent host counts as alive, if its machine is gone"),
    Setting("cluster", "copy-min-bytes-per-s", DEFAULT_MIN_RATE, 1 << 16, 1 << 40, "rate of copies at the least"),
    Setting("cluster", "copy-max-bytes-per-s", DEFAULT_MAX_RATE, 1 << 16, 1 << 40, "rate of copies at the most"),
    Setting("cluster", "copy-grace-s", DEFAULT_GRACE_S, 0, 86_400, "how long chunks wait for a host that has gone"),
    Setting("cluster", "default-replication-factor", 3, 1, 5, "copies of topics that ask for no number of their own"),
    Setting("tier", "tier-url", "", 0, 0, "webhdfs://NAMENODE:PORT/DIRECTORY for sealed chunks; empty: no tier"),
    Setting("tier", "tier-user", "cairn", 0, 0, "user of HDFS who owns the tier's files"),
    Setting("tier", "tier-replicas", 3, 1, 16, "replicas of the tier's files in HDFS"),
    Setting("tier", "tier-uploads", 2, 1, 64, "chunks that are stored in the tier at a time"),
    Setting("tier", "tier-cache-bytes", 32 * _MIB, 8 * _MIB, 1 << 40, "memory for what was read from the tier"),
    Setting("tier", "tier-coordinator", "", 0, 0, "URL of the tier's coordinator, or several, with commas"),
    Setting("tier", "tier-coordinator-token-file", "", 0, 0, "file with that coordinator's token; empty: it has none"),
    Setting("tier", "tier-coordinator-ca-file", "", 0, 0, "authorities of its certificate, PEM; empty: the system's"),
    Setting("tier", "tier-coordinator-certificate-file", "", 0, 0, "PEM file with certificate and key to show it"),
    Setting("tier", "tier-host", "", 0, 0, "name of this host in that coordinator's network"),
    Setting("tier", "tier-plans", "", 0, 0, "URL of the plan table in the NameNode that follows these plans"),
    Setting("tier", "tier-plan-token-file", "", 0, 0, "file with the token of that plan table"),
    Setting("epochs", "staging-bytes", 4 << 30, _MIB, 1 << 50, "staged output that is not committed yet"),
    Setting(
        "epochs", "staged-age-ms", _DAY_MS, 1000, _LARGEST, "the age at which uncommitted staged output is dropped"
    ),
    Setting("state", "state-directory", STATE_DIRECTORY, 0, 0, "where streaming queries keep state; empty: not tidied"),
    Setting("state", "state-idle-ms", 600_000, 1000, _LARGEST, "how long unused state stays there"),
    Setting("coordinator", "coordinate", "", 0, 0, "file with the network to plan writes in; empty: no coordinator"),
    Setting("coordinator", "coordinator", "127.0.0.1:9880", 0, 0, "[https://]HOST:PORT of the coordinator"),
    Setting(
        "coordinator", "coordinator-advertise", "", 0, 0, "HOST:PORT where clients reach it; empty: where it listens"
    ),
    Setting("coordinator", "coordinator-token-file", "", 0, 0, "file with a text that its clients must know"),
    Setting("http", "http", "", 0, 0, "[https://]HOST:PORT of metrics, health and the status page; empty: none"),
    Setting("process", "log-format", "logfmt", 0, 0, "logfmt or json", ("logfmt", "json")),
    Setting(
        "process", "log-level", "info", 0, 0, "least level of lines that are written: info, warning, error", LEVELS
    ),
)
_LISTEN_KEYS = ("kafka.listeners", "kafka.advertise", "data-dir", "insecure")


class HttpListener(NamedTuple):
    """An address that is served by HTTP, or by HTTPS with the certificates of the sidecar."""

    address: Address
    is_encrypted: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """The coordinator inside a sidecar. `topology` is the file with its network; empty: no coordinator."""

    topology: str
    listen: HttpListener
    token_file: str
    """Empty: its clients need no token."""
    insecure: bool
    advertise: str
    """Where other hosts' clients reach it, HOST:PORT; empty: where it listens."""


@dataclass(frozen=True, slots=True)
class SidecarConfig:
    """All settings of a sidecar."""

    data_dir: Path
    listeners: tuple[Listener, ...]
    store: StoreSettings
    broker: BrokerSettings
    groups: GroupSettings
    offsets: OffsetSettings
    staging_bytes: int
    staged_age_ms: int
    state_directory: str
    state_idle_ms: int
    log_as_json: bool
    log_level: Level
    coordinator: CoordinatorConfig
    super_users: frozenset[str]
    tls: TlsFiles
    login: LoginSettings
    cluster: ClusterSettings | None
    """None: this host is alone."""
    tier: TierSettings | None
    """None: sealed chunks stay here."""
    http: HttpListener | None
    """Where metrics, health and the status page are served; None: nowhere."""

    @property
    def needs_tls(self) -> bool:
        """Whether any listener is encrypted."""
        return _encrypted(self.listeners, self.http, self.coordinator) is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `cairn serve`."""
    parser.add_argument("--data-dir", type=Path, help="directory that holds everything; made if it is missing")
    parser.add_argument(
        "--kafka",
        action="append",
        metavar="[PROTOCOL://]HOST:PORT",
        help=f"listen here, by PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (repeatable; default {DEFAULT_KAFKA})",
    )
    parser.add_argument(
        "--advertise",
        action="append",
        metavar="HOST:PORT",
        help="what the n-th listener's clients are told to connect to",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of these settings")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow other addresses than loopback, without TLS and authentication",
    )
    for table in dict.fromkeys(setting.table for setting in SETTINGS):
        group = parser.add_argument_group(f"settings in [{table}]")
        for setting in SETTINGS:
            if setting.table == table:
                group.add_argument(f"--{setting.name}", metavar="VALUE", help=_help(setting))


def parse(arguments: argparse.Namespace) -> SidecarConfig:
    """Parse the settings from flags and file. Raises ConfigError."""
    content = _read_file(arguments.config)
    values = {setting.field: _value(setting, arguments, content) for setting in SETTINGS}
    data_dir = arguments.data_dir or content.get("data-dir")
    if data_dir is None:
        raise ConfigError("no data directory: give --data-dir DIR, or data-dir in the --config file")
    if not isinstance(data_dir, Path | str):
        raise ConfigError(f"data-dir={data_dir!r}: must be a path, in quotes")
    kafka = content.get("kafka", {})
    insecure = content.get("insecure", False)
    if not isinstance(insecure, bool):
        raise ConfigError(f"insecure={insecure!r}: must be true or false")
    is_insecure = insecure or bool(arguments.insecure)
    listeners = parse_listeners(
        arguments.kafka or _texts("kafka.listeners", kafka.get("listeners")) or [DEFAULT_KAFKA],
        arguments.advertise or _texts("kafka.advertise", kafka.get("advertise")) or [],
        insecure=is_insecure,
        requires_certificate=values["tls_client_auth"] == "required",
    )
    listen = parse_http("coordinator", str(values["coordinator"]))
    token_file = str(values["coordinator_token_file"])
    advertise = str(values["coordinator_advertise"])
    coordinator = CoordinatorConfig(str(values["coordinate"]), listen, token_file, is_insecure, advertise)
    return _build(Path(str(data_dir)), listeners, values, coordinator)


def _build(
    data_dir: Path,
    listeners: tuple[Listener, ...],
    values: Mapping[str, Any],
    coordinator: CoordinatorConfig,
) -> SidecarConfig:
    http = _monitoring(values, insecure=coordinator.insecure)
    topic_defaults = TopicConfig(
        retention_ms=values["retention_ms"],
        retention_bytes=values["retention_bytes"],
        segment_bytes=values["segment_bytes"],
        segment_ms=values["segment_ms"],
        max_message_bytes=values["max_message_bytes"],
        timestamp_before_max_ms=values["message_timestamp_before_max_ms"],
        timestamp_after_max_ms=values["message_timestamp_after_max_ms"],
    )
    return SidecarConfig(
        data_dir,
        listeners,
        StoreSettings(
            io_window=values["io_window"],
            tail_bytes=values["tail_bytes"],
            journal=JournalLimits(file_bytes=values["journal_bytes"]),
            producer_expiry_ms=values["producer_expiry_ms"],
            retention_check_interval_ms=values["retention_check_interval_ms"],
            disk_reserve_bytes=values["disk_reserve_bytes"],
            hold_limits=HoldLimits(values["reader_hold_bytes"], values["reader_hold_ms"]),
            topic_defaults=topic_defaults,
            node_id=max(0, values["node_id"]),
            has_tier=bool(values["tier_url"]),
        ),
        BrokerSettings(
            max_frame_bytes=values["max_frame_bytes"],
            max_connections=values["max_connections"],
            max_connections_per_address=values["max_connections_per_address"],
            connection_in_flight_bytes=values["connection_in_flight_bytes"],
            total_in_flight_bytes=values["total_in_flight_bytes"],
            total_answer_bytes=values["total_answer_bytes"],
            handshake_s=float(values["handshake_s"]),
            idle_s=float(values["idle_s"]),
            auto_create_topics=bool(values["auto_create_topics"]),
            default_partitions=values["default_partitions"],
            topic_defaults=topic_defaults,
        ),
        GroupSettings(
            min_session_timeout_ms=values["min_session_timeout_ms"],
            max_session_timeout_ms=values["max_session_timeout_ms"],
            initial_rebalance_delay_ms=values["initial_rebalance_delay_ms"],
            max_members=values["max_group_members"],
        ),
        OffsetSettings(retention_ms=values["offsets_retention_ms"]),
        staging_bytes=values["staging_bytes"],
        staged_age_ms=values["staged_age_ms"],
        state_directory=values["state_directory"].replace("{uid}", str(os.getuid())),
        state_idle_ms=values["state_idle_ms"],
        log_as_json=values["log_format"] == "json",
        log_level=Level[values["log_level"].upper()],
        coordinator=coordinator,
        super_users=parse_super_users(values["super_users"]),
        tls=_tls(_encrypted(listeners, http, coordinator), values),
        login=_login(values),
        cluster=cluster_of(values),
        tier=parse_tier(values),
        http=http,
    )


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in a list with semicolons between them, as in Kafka's super.users. Raises ConfigError."""
    principals = [part.strip() for part in text.split(";") if part.strip()]
    for principal in principals:
        if not principal.startswith("User:") or principal in ("User:", ANY_PRINCIPAL):
            raise ConfigError(
                f"super-users={text!r}: {principal!r} must be User:NAME with the name of one user, such as User:admin"
            )
    return frozenset(principals)


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    tables = {setting.table for setting in SETTINGS}
    known = {f"{setting.table}.{setting.name}" for setting in SETTINGS} | set(_LISTEN_KEYS)
    for key, value in content.items():
        if key in tables and isinstance(value, dict):
            strangers = [f"{key}.{name}" for name in value if f"{key}.{name}" not in known]
        else:
            strangers = [] if key in known else [key]
        if strangers:
            raise ConfigError(f"--config {path}: unknown setting {strangers[0]!r}; {instead_of(strangers[0], known)}")
    return content


def _value(setting: Setting, arguments: argparse.Namespace, content: Mapping[str, Any]) -> int | bool | str:
    flag = getattr(arguments, setting.field, None)
    if flag is not None:
        return _checked(setting, f"--{setting.name}", flag)
    table = content.get(setting.table, {})
    if setting.name in table:
        return _checked(setting, f"{setting.table}.{setting.name}", table[setting.name])
    return setting.default


def _checked(setting: Setting, where: str, value: object) -> int | bool | str:
    """The value of a setting; a text may stand for a number or a truth value, as on the command line."""
    is_free_text = isinstance(setting.default, str) and not setting.choices
    found: int | bool | str
    try:
        if isinstance(value, str):
            text = value.strip()
            found = from_text(setting.type, text if is_free_text else text.lower(), where)
        else:
            found = setting.type.check(value, where)
    except FieldError as error:
        raise ConfigError(str(error)) from error
    return found


def _texts(where: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ConfigError(f'{where}={value!r}: must be "HOST:PORT" or a list of them')


def parse_listeners(
    listen: Sequence[str], advertise: Sequence[str], *, insecure: bool, requires_certificate: bool = False
) -> tuple[Listener, ...]:
    """Parse listeners, each `HOST:PORT` or `PROTOCOL://HOST:PORT`. `requires_certificate`: TLS clients must show one.

    Raises ConfigError; without `insecure` also for an address other than loopback that is not encrypted, or whose
    clients need not say who they are.
    """
    if len(advertise) > len(listen):
        raise ConfigError(f"{len(advertise)} advertised addresses for {len(listen)} listeners; at most one for each")
    listeners: list[Listener] = []
    for number, text in enumerate(listen):
        protocol, place = _protocol(text)
        address = _address(place)
        is_safe = protocol.is_encrypted and (protocol.needs_login or requires_certificate)
        if not insecure and not is_safe and not is_loopback(address.host):
            raise ConfigError(
                f"{text} can be reached from other machines, without TLS and authentication: say SASL_SSL://{address}, "
                f"or SSL://{address} with --tls-client-auth required; or listen on 127.0.0.1; or say --insecure if the "
                "network is yours alone"
            )
        host, port = _address(advertise[number]) if number < len(advertise) else (None, None)
        listeners.append(Listener(address.host, address.port, host, port, protocol))
    return tuple(listeners)


def _protocol(text: str) -> tuple[SecurityProtocol, str]:
    """A listener's protocol, and its address."""
    name, mark, place = text.rpartition("://")
    if not mark:
        return SecurityProtocol.PLAINTEXT, text
    try:
        return SecurityProtocol(name.strip().upper()), place
    except ValueError:
        known = ", ".join(protocol.value for protocol in SecurityProtocol)
        raise ConfigError(f"{text}: there is no protocol {name!r}; use one of {known}") from None


def _encrypted(listeners: Sequence[Listener], http: HttpListener | None, coordinator: CoordinatorConfig) -> str | None:
    """The protocol of a listener that is encrypted; None if none is."""
    found = [listener.protocol.value for listener in listeners if listener.protocol.is_encrypted]
    if http is not None and http.is_encrypted:
        found.append("--http https://")
    if coordinator.topology and coordinator.listen.is_encrypted:
        found.append("--coordinator https://")
    return found[0] if found else None


def _tls(encrypted: str | None, values: Mapping[str, Any]) -> TlsFiles:
    """The files of TLS. Raises ConfigError if a listener needs more than there are."""
    if encrypted is not None and not values["tls_certificate"]:
        raise ConfigError(f"a listener of {encrypted} needs a certificate: give --tls-certificate FILE")
    if encrypted is not None and values["tls_client_auth"] != "none" and not values["tls_client_ca"]:
        raise ConfigError(f"tls-client-auth={values['tls_client_auth']} needs authorities: give --tls-client-ca FILE")
    return TlsFiles(
        values["tls_certificate"],
        values["tls_key"],
        values["tls_key_password_file"],
        values["tls_client_ca"],
        values["tls_client_auth"],
        values["tls_min_version"],
    )


def _login(values: Mapping[str, Any]) -> LoginSettings:
    """How clients log in. Raises ConfigError."""
    known = (*MECHANISMS, PLAIN)
    names = tuple(dict.fromkeys(name.strip().upper() for name in values["sasl_mechanisms"].split(",") if name.strip()))
    strangers = [name for name in names if name not in known]
    if strangers or not names:
        raise ConfigError(f"sasl-mechanisms={values['sasl_mechanisms']!r}: allowed are {', '.join(known)}")
    return LoginSettings(names, values["login_failure_delay_ms"] / 1000)


def parse_http(name: str, text: str) -> HttpListener:
    """Parse `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. `name` is the setting's. Raises ConfigError."""
    scheme, mark, place = text.rpartition("://")
    if mark and scheme.strip().lower() not in ("http", "https"):
        raise ConfigError(f"--{name} {text}: there is no protocol {scheme!r}; use http or https")
    return HttpListener(_address(place), scheme.strip().lower() == "https")


def _monitoring(values: Mapping[str, Any], *, insecure: bool) -> HttpListener | None:
    """Where metrics and the status page are served; None for an empty text. Raises ConfigError, also for an address
    other than loopback whose clients need no certificate, unless `insecure` is set: what is served there names topics,
    groups and queries.
    """
    if not values["http"]:
        return None
    found = parse_http("http", values["http"])
    is_safe = found.is_encrypted and values["tls_client_auth"] == "required"
    if not insecure and not is_safe and not is_loopback(found.address.host):
        raise ConfigError(
            f"--http {values['http']} can be reached from other machines, without TLS and authentication: say "
            f"https://{found.address} with --tls-client-auth required; or listen on 127.0.0.1; or say --insecure if "
            "the network is yours alone"
        )
    return found


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except AddressError as error:
        raise ConfigError(str(error)) from error


def _help(setting: Setting) -> str:
    """The help of a setting's flag; argparse takes a percent sign as the start of a placeholder."""
    return f"{setting.help} (default {_shown(setting.default)})".replace("%", "%%")


def _shown(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
