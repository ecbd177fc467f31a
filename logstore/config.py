"""A sidecar's settings, from flags and the TOML file, as the table of `logstore.settings_table` says; parsed once, at
start.

Invariants: flags override the file; a setting that is unknown, of the wrong type or out of range raises a ConfigError
that names the setting and the allowed values; the result is frozen and complete.
"""

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logstore.access.acls import ANY_PRINCIPAL
from logstore.base.errors import FieldError
from logstore.base.events import Level
from logstore.base.fields import from_text
from logstore.base.near_names import instead_of
from logstore.base.tls import TlsFiles
from logstore.cluster.settings import ClusterSettings, cluster_of
from logstore.errors import ConfigError
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.groups.service import OffsetSettings
from logstore.kafka.groups.settings import GroupSettings
from logstore.kafka.security.credentials import MECHANISMS
from logstore.kafka.security.login import PLAIN, LoginSettings
from logstore.kafka.server import Listener
from logstore.listeners import HttpListener, parse_http, parse_listeners, parse_monitoring
from logstore.log.journal import JournalLimits
from logstore.log.readers import HoldLimits
from logstore.log.scrubbing import DAY_S, ScrubSettings
from logstore.log.store import StoreSettings
from logstore.log.topics import TopicConfig
from logstore.settings_table import SETTINGS, Setting
from logstore.tier.settings import TierSettings, parse_tier

DEFAULT_KAFKA = "127.0.0.1:9092"
_LISTEN_KEYS = ("kafka.listeners", "kafka.advertise", "data-dir", "insecure")


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
    scrub: ScrubSettings
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
    parser.add_argument("--data-dir", type=Path, help="directory of all the sidecar's data; created if missing")
    parser.add_argument(
        "--kafka",
        action="append",
        metavar="[PROTOCOL://]HOST:PORT",
        help=f"listener; PROTOCOL is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (repeatable; default {DEFAULT_KAFKA})",
    )
    parser.add_argument(
        "--advertise",
        action="append",
        metavar="HOST:PORT",
        help="address given to clients of the n-th listener (repeatable)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings; flags override it")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow addresses other than loopback without TLS and authentication",
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
    http = parse_monitoring(values, insecure=coordinator.insecure)
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
            journal=_journal_limits(values["journal_bytes"], values["tail_bytes"]),
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
        scrub=ScrubSettings(values["scrub_period_days"] * DAY_S, values["scrub_max_bytes_per_s"]),
        tier=parse_tier(values),
        http=http,
    )


def _journal_limits(file_bytes: int, tail_bytes: int) -> JournalLimits:
    """Batches that are not in their chunks yet stay in memory, in the tail or beside it: a smaller tail has less."""
    limits = JournalLimits(file_bytes=file_bytes)
    return replace(limits, max_unwritten_bytes=min(limits.max_unwritten_bytes, 3 * tail_bytes // 4))


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


def _help(setting: Setting) -> str:
    """The help of a setting's flag; argparse takes a percent sign as the start of a placeholder."""
    shown = _shown(setting.default)
    return (f"{setting.help} (default {shown})" if shown else setting.help).replace("%", "%%")


def _shown(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
