"""The settings of a sidecar in one table, from which flags, the TOML file and docs/settings.md follow.

Invariants: a name is unique; a default is a value that the setting may have; where listeners are is no setting of the
table (`logstore.config`). Nothing here reads a file or a flag.
"""

from typing import NamedTuple

from logstore.base.events import LEVELS
from logstore.base.fields import Boolean, Integer, String, Type
from logstore.base.tls import CLIENT_CERTIFICATES, VERSIONS
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S, DEFAULT_MAX_RATE, DEFAULT_MIN_RATE
from logstore.log.chunks import MAX_APPEND_BYTES
from logstore.log.journal import DEFAULT_FILE_BYTES
from logstore.log.scrubbing import DEFAULT_MAX_RATE as SCRUB_RATE
from logstore.log.scrubbing import DEFAULT_PERIOD_DAYS
from logstore.log.space import DEFAULT_RESERVE
from logstore.log.store import DEFAULT_TAIL_BYTES

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
    Setting("log", "io-window", 8, 1, 64, "maximum disk jobs in flight, and threads that run them"),
    Setting(
        *("log", "journal-bytes", DEFAULT_FILE_BYTES, 0, 1 << 34),
        "size of each journal file (at most three exist); 0: no journal, every append goes directly to its chunk",
    ),
    Setting(
        *("log", "tail-bytes", DEFAULT_TAIL_BYTES, _MIB, 1 << 40),
        "memory for the newest batches of all streams; requests on their way get up to half of it, and batches that no "
        "chunk has yet take up to three quarters as much beside it, at most 12 MiB",
    ),
    Setting(
        "log",
        "retention-ms",
        7 * _DAY_MS,
        -1,
        _LARGEST,
        "minimum time that records are kept after their append; -1: no limit",
    ),
    Setting("log", "retention-bytes", -1, -1, _LARGEST, "size above which a stream is trimmed; -1: no limit"),
    Setting("log", "retention-check-interval-ms", 300_000, 10, 366 * _DAY_MS, "how often retention is applied"),
    Setting(
        "log",
        "disk-reserve-bytes",
        DEFAULT_RESERVE,
        DEFAULT_RESERVE,
        _LARGEST,
        "disk space that appends leave free; -1: 5 % of the disk, at most 1 GiB; 0: none",
    ),
    Setting("log", "scrub-period-days", DEFAULT_PERIOD_DAYS, 0, 3650, "days in which all chunks are checked; 0: never"),
    Setting("log", "scrub-max-bytes-per-s", SCRUB_RATE, 1 << 16, 1 << 40, "maximum rate of these checks"),
    Setting(
        "log", "reader-hold-bytes", 10 << 30, 0, _LARGEST, "maximum bytes of a stream that a registered reader holds"
    ),
    Setting(
        "log",
        "reader-hold-ms",
        7 * _DAY_MS,
        0,
        _LARGEST,
        "how long a registered reader holds records without acknowledging any",
    ),
    Setting("log", "segment-bytes", 64 * _MIB, 1024, 1 << 30, "size at which a chunk is sealed (Kafka: segment.bytes)"),
    Setting("log", "segment-ms", 7 * _DAY_MS, 1, _LARGEST, "age of its first append at which a chunk is sealed"),
    Setting("log", "message-timestamp-before-max-ms", _LARGEST, 0, _LARGEST, "maximum age of a new record's timestamp"),
    Setting(
        "log",
        "message-timestamp-after-max-ms",
        3_600_000,
        0,
        _LARGEST,
        "how far in the future a new record's timestamp may be",
    ),
    Setting(
        "log",
        "max-message-bytes",
        1_048_588,
        0,
        MAX_APPEND_BYTES,
        "largest batch that is accepted; must fit in max-frame-bytes",
    ),
    Setting(
        "log",
        "producer-expiry-ms",
        _DAY_MS,
        1000,
        _LARGEST,
        "idle time after which an idempotent producer is forgotten",
    ),
    Setting("kafka", "auto-create-topics", True, 0, 1, "create a topic on first use"),
    Setting("kafka", "default-partitions", 1, 1, 10_000, "partitions of a topic created without a number"),
    Setting("kafka", "max-frame-bytes", 16 * _MIB, 64 * 1024, 100 * _MIB, "largest request"),
    Setting("kafka", "max-connections", 10_000, 1, 1_000_000, "maximum connections; then the longest idle is closed"),
    Setting("kafka", "max-connections-per-address", 100, 1, 1_000_000, "maximum from one address, loopback exempt"),
    Setting(
        "kafka",
        "connection-in-flight-bytes",
        8 * _MIB,
        1024,
        1 << 40,
        "memory for unanswered requests of one connection",
    ),
    Setting(
        "kafka",
        "total-in-flight-bytes",
        32 * _MIB,
        1024,
        1 << 40,
        "memory for unanswered requests of all connections; the same again for requests being received",
    ),
    Setting(
        "kafka",
        "total-answer-bytes",
        32 * _MIB,
        _MIB,
        1 << 40,
        "memory for unsent answers to fetches and scans; the same again for all other answers",
    ),
    Setting("kafka", "handshake-s", 10, 1, 3600, "time for TLS, login and first request together"),
    Setting("kafka", "idle-s", 600, 1, 86_400, "idle time after which a connection is closed"),
    Setting(
        "access",
        "super-users",
        "",
        0,
        0,
        "principals that may do everything, separated by semicolons, such as User:admin;User:ops",
    ),
    Setting("security", "tls-certificate", "", 0, 0, "PEM file with the sidecar's certificate and its chain"),
    Setting("security", "tls-key", "", 0, 0, "PEM file with the private key; empty: the key is in tls-certificate"),
    Setting("security", "tls-key-password-file", "", 0, 0, "file with the key's password; empty: no password"),
    Setting("security", "tls-client-ca", "", 0, 0, "PEM file with the CAs of client certificates"),
    Setting(
        "security",
        "tls-client-auth",
        "none",
        0,
        0,
        "client certificates on TLS listeners: none, requested or required",
        tuple(CLIENT_CERTIFICATES),
    ),
    Setting("security", "tls-min-version", "1.2", 0, 0, "oldest accepted TLS version: 1.2 or 1.3", tuple(VERSIONS)),
    Setting(
        "security",
        "sasl-mechanisms",
        "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        0,
        0,
        "mechanisms that SASL listeners offer; PLAIN over TLS only",
    ),
    Setting("security", "login-failure-delay-ms", 100, 0, 10_000, "delay of the answer to a failed login"),
    Setting("groups", "min-session-timeout-ms", 6_000, 1, _LARGEST, "shortest session timeout of a member"),
    Setting("groups", "max-session-timeout-ms", 1_800_000, 1, _LARGEST, "longest session timeout of a member"),
    Setting("groups", "initial-rebalance-delay-ms", 100, 0, 60_000, "time a new group waits for more members"),
    Setting("groups", "max-group-members", 1_000, 1, 100_000, "maximum members of a group"),
    Setting("groups", "offsets-retention-ms", 7 * _DAY_MS, 1, _LARGEST, "when an unused group is forgotten"),
    Setting("cluster", "cluster", "", 0, 0, "the cluster's metadata store: etcd://HOST:PORT,…; empty: no cluster"),
    Setting("cluster", "host-name", "", 0, 0, "name of this host in the cluster; belongs to the data directory"),
    Setting("cluster", "node-id", -1, -1, (1 << 31) - 1, "number of this host, shown to Kafka clients"),
    Setting("cluster", "peer-listen", "", 0, 0, "HOST:PORT where this host listens for other hosts"),
    Setting("cluster", "peer-advertise", "", 0, 0, "HOST:PORT given to other hosts; empty: peer-listen"),
    Setting("cluster", "peer-certificate", "", 0, 0, "PEM file with this host's certificate, which names host-name"),
    Setting("cluster", "peer-key", "", 0, 0, "PEM file with its key; empty: in peer-certificate"),
    Setting("cluster", "peer-ca", "", 0, 0, "PEM file with the CAs of all hosts' certificates"),
    Setting("cluster", "etcd-user", "", 0, 0, "etcd user; empty: none"),
    Setting("cluster", "etcd-password-file", "", 0, 0, "file with that user's password"),
    Setting("cluster", "etcd-ca", "", 0, 0, "PEM file with the CA of etcd's certificate, for etcds://"),
    Setting("cluster", "etcd-certificate", "", 0, 0, "PEM file with this host's certificate for etcd; empty: none"),
    Setting("cluster", "etcd-key", "", 0, 0, "PEM file with its key; empty: in etcd-certificate"),
    Setting("cluster", "rack", "", 0, 0, "fault domains of this host, such as /zone1/rack3; empty: topology's"),
    Setting("cluster", "disk-rate", 0, 0, (1 << 53) - 1, "this host's disk rate in bytes per second; 0: topology's"),
    Setting("cluster", "topology", "", 0, 0, "topology file with the racks of hosts: docs/cluster.md"),
    Setting("cluster", "topology-script", "", 0, 0, "Hadoop rack script, called for this host"),
    Setting("cluster", "lease-s", 3, 2, 3600, "time after which a silent host counts as dead, if its machine is gone"),
    Setting("cluster", "copy-min-bytes-per-s", DEFAULT_MIN_RATE, 1 << 16, 1 << 40, "minimum rate of copies"),
    Setting("cluster", "copy-max-bytes-per-s", DEFAULT_MAX_RATE, 1 << 16, 1 << 40, "maximum rate of copies"),
    Setting("cluster", "copy-grace-s", DEFAULT_GRACE_S, 0, 86_400, "how long copying waits for a host that has gone"),
    Setting("cluster", "default-replication-factor", 3, 1, 5, "copies of topics created without a number"),
    Setting("tier", "tier-url", "", 0, 0, "webhdfs://NAMENODE:PORT/DIRECTORY for sealed chunks; empty: no tier"),
    Setting("tier", "tier-user", "cairn", 0, 0, "HDFS user that owns the tier's files"),
    Setting("tier", "tier-replicas", 3, 1, 16, "HDFS replication of the tier's files"),
    Setting("tier", "tier-uploads", 2, 1, 64, "maximum chunks being stored in the tier at a time"),
    Setting("tier", "tier-cache-bytes", 32 * _MIB, 8 * _MIB, 1 << 40, "memory that caches reads from the tier"),
    Setting("tier", "tier-coordinator", "", 0, 0, "URL of the tier's coordinator, or several separated by commas"),
    Setting("tier", "tier-coordinator-token-file", "", 0, 0, "file with that coordinator's token; empty: no token"),
    Setting("tier", "tier-coordinator-ca-file", "", 0, 0, "PEM file with its CAs; empty: the system's CAs"),
    Setting("tier", "tier-coordinator-certificate-file", "", 0, 0, "PEM file with client certificate and key"),
    Setting("tier", "tier-host", "", 0, 0, "name of this host in that coordinator's network"),
    Setting("tier", "tier-plans", "", 0, 0, "URL of the plan table in the NameNode that follows these plans"),
    Setting("tier", "tier-plan-token-file", "", 0, 0, "file with the token of that plan table"),
    Setting("epochs", "staging-bytes", 4 << 30, _MIB, 1 << 50, "maximum staged output that is not committed yet"),
    Setting(
        "epochs", "staged-age-ms", _DAY_MS, 1000, _LARGEST, "the age at which uncommitted staged output is dropped"
    ),
    Setting("state", "state-directory", STATE_DIRECTORY, 0, 0, "directory of queries' state; empty: not cleaned"),
    Setting("state", "state-idle-ms", 600_000, 1000, _LARGEST, "how long unused state is kept there"),
    Setting("coordinator", "coordinate", "", 0, 0, "topology file to plan writes in; empty: no coordinator"),
    Setting("coordinator", "coordinator", "127.0.0.1:9880", 0, 0, "[https://]HOST:PORT of the coordinator"),
    Setting(
        "coordinator", "coordinator-advertise", "", 0, 0, "HOST:PORT given to its clients; empty: where it listens"
    ),
    Setting("coordinator", "coordinator-token-file", "", 0, 0, "file with the token that its clients must send"),
    Setting("http", "http", "", 0, 0, "[https://]HOST:PORT of metrics, health and status page; empty: none"),
    Setting("process", "log-format", "logfmt", 0, 0, "format of log lines: logfmt or json", ("logfmt", "json")),
    Setting("process", "log-level", "info", 0, 0, "lowest level that is logged: info, warning or error", LEVELS),
)
